"""The oracle: told the true pass rates, it bounds what any tracker can reach.

Shapes: `N` prompts in the pool, `B` observed rows.
"""

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from fade_jax import outcomes, utility
from fade_jax.trackers.ema import plug_in_info
from fade_jax.types import Elapsed, GroupSize, Info, Observation, Tracker


class State(NamedTuple):
    """The truth.

    Attributes:
        pass_rate: [N] true rates, in 0..1.
    """

    pass_rate: Float[Array, " N"]


def init(pass_rate: Float[Array, " N"]) -> State:
    """Returns the truth as first told (a copy, so that a step may donate it)."""
    return State(jnp.array(pass_rate))


def refresh(state: State, pass_rate: Float[Array, " N"]) -> State:
    """Tells the oracle where the truth has moved; a simulator calls this after every step."""
    return state._replace(pass_rate=pass_rate)


def predict(state: State, elapsed: Elapsed) -> State:
    """Returns the state as it is: only `refresh` moves the truth."""
    del elapsed
    return state


def update(state: State, observation: Observation) -> tuple[State, Info]:
    """Returns the state as it is; counts teach the oracle nothing, they are only scored.

    Args:
        state: the truth.
        observation: [B] rows.

    Returns:
        The same state, and the score of the counts at the truth (`ema.plug_in_info`): the best
        expected log evidence there is, and a nis of mean 1.
    """
    rows = outcomes.merge_duplicates(observation, state.pass_rate.shape[0])
    return state, plug_in_info(state.pass_rate, rows)


def informative(state: State, group_size: GroupSize) -> Float[Array, " N"]:
    """Returns `1 - p^G - (1 - p)^G`, exact because p is the truth."""
    return utility.informative_rate(state.pass_rate, group_size)


def draw(key: Key[Array, ""], state: State) -> Float[Array, " N"]:
    """Returns the truth: a certain belief has only one draw; `key` is unused."""
    del key
    return state.pass_rate


def build(pass_rates: Float[Array, " N"]) -> Tracker:
    """Builds the oracle.

    Args:
        pass_rates: [N] true rates before the first step, in 0..1. Later ones enter by `refresh`.

    Returns:
        A Tracker.

    >>> tracker = build(jnp.array([0.5, 1.0]))
    >>> tracker.informative(tracker.init(), 8).tolist()
    [0.9921875, 0.0]
    """
    return Tracker(
        init=partial(init, pass_rates),
        predict=predict,
        update=update,
        pass_rate=lambda state: state.pass_rate,
        informative=informative,
        draw=draw,
    )
