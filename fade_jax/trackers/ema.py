"""Exponential moving average of each prompt's pass rate: the simplest memory there is.

`p <- (1 - rate) p + rate s / k` for a group of k rollouts with s successes. An EMA carries no
uncertainty: a prompt seen once and a prompt seen a thousand times look alike.

Shapes: `N` prompts in the pool, `B` observed rows.
"""

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from fade_jax import outcomes, utility
from fade_jax.types import Elapsed, GroupSize, Info, Observation, Tracker

PROBABILITY_FLOOR = 2.0**-20
"""Rates are scored clipped to [2^-20, 1 - 2^-20] (about 1e-6; both ends exact in float32)."""


class State(NamedTuple):
    """The averages.

    Attributes:
        pass_rate: [N], in 0..1.
    """

    pass_rate: Float[Array, " N"]


def init(num_prompts: int, start: float | Float[Array, ""]) -> State:
    """Returns the same average `start` for every prompt."""
    return State(jnp.full(num_prompts, start, float))


def predict(state: State, elapsed: Elapsed) -> State:
    """Returns the state as it is: an average does not age between visits."""
    del elapsed
    return state


def plug_in_info(pass_rate: Float[Array, " N"], rows: Observation) -> Info:
    """Scores counts under bare point estimates, which claim to know every rate exactly.

    `log_evidence = sum_i log Binomial(s_i | k_i, p_i)`, p_i clipped by `PROBABILITY_FLOOR`.

    Args:
        pass_rate: [N] estimates held before the counts, in 0..1.
        rows: [B] merged rows (`outcomes.merge_duplicates`).

    Returns:
        Info; its nis divides by the binomial variance alone.
    """
    p = pass_rate.at[rows.prompt_ids].get(mode="clip")
    p = jnp.clip(p, PROBABILITY_FLOOR, 1 - PROBABILITY_FLOOR)
    failures = rows.trials - rows.successes
    log_pmf = outcomes.log_binomial_coefficient(rows.successes, rows.trials)
    log_pmf = log_pmf + rows.successes * jnp.log(p) + failures * jnp.log1p(-p)
    nis = outcomes.normalised_innovation(p, jnp.zeros_like(p), rows.successes, rows.trials)
    return Info(jnp.where(rows.trials > 0, log_pmf, 0.0).sum(), nis)


def update(
    state: State, observation: Observation, rate: float | Float[Array, ""]
) -> tuple[State, Info]:
    """Moves the average of each observed prompt: `p <- (1 - rate) p + rate s / k`.

    Args:
        state: averages held before.
        observation: [B] rows; all groups of one prompt count as one visit.
        rate: gain, in 0..1.

    Returns:
        The new state, and Info of the old one.
    """
    rows = outcomes.merge_duplicates(observation, state.pass_rate.shape[0])
    old = state.pass_rate.at[rows.prompt_ids].get(mode="clip")
    new = old + rate * (rows.successes / jnp.maximum(rows.trials, 1.0) - old)
    pass_rate = state.pass_rate.at[rows.prompt_ids].set(new, mode="drop")
    return State(pass_rate), plug_in_info(state.pass_rate, rows)


def informative(state: State, group_size: GroupSize) -> Float[Array, " N"]:
    """Returns the plug-in `1 - p^G - (1 - p)^G`, over-confident where p is hardly known."""
    return utility.informative_rate(state.pass_rate, group_size)


def draw(key: Key[Array, ""], state: State) -> Float[Array, " N"]:
    """Returns the averages themselves: an EMA has no posterior to draw from; `key` is unused."""
    del key
    return state.pass_rate


def build(
    num_prompts: int,
    *,
    rate: float | Float[Array, ""] = 0.1,
    start: float | Float[Array, ""] = 0.5,
) -> Tracker:
    """Builds the EMA tracker.

    The published scheduler with an EMA (arXiv 2605.11403) is second-hand quoted with "alpha = .9",
    without saying whether that is gain or retention. The default takes it as retention, a gain of
    0.1; run 0.3 beside it.

    Args:
        num_prompts: N.
        rate: gain of one visit, in 0..1.
        start: pass rate of a prompt never seen, in 0..1.

    Returns:
        A Tracker.

    >>> tracker = build(2, rate=0.3)
    >>> group = Observation(jnp.array([1]), jnp.array([8.0]), jnp.array([8.0]))
    >>> state, info = tracker.update(tracker.init(), group)
    >>> tracker.pass_rate(state).round(2)
    Array([0.5 , 0.65], dtype=float32)
    """
    return Tracker(
        init=partial(init, num_prompts, start),
        predict=predict,
        update=lambda state, observation: update(state, observation, rate),
        pass_rate=lambda state: state.pass_rate,
        informative=informative,
        draw=draw,
    )
