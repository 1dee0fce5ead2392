"""One rule for the first iterations, another from then on.

Both observe every outcome, so the second starts with all that the first has seen.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from fade_jax.types import Observation, SelectInfo, Selection, Selector
from fade_jax.types import State as TrackerState


class State(NamedTuple):
    """Both rules' states.

    Attributes:
        first: of the first rule.
        then: of the second.
        iteration: int32, choices made so far.
    """

    first: TrackerState
    then: TrackerState
    iteration: Int[Array, ""]


def init(first: Selector, then: Selector) -> State:
    """Returns both initial states."""
    return State(first.init(), then.init(), jnp.asarray(0, jnp.int32))


def select(
    first: Selector,
    then: Selector,
    iterations: int,
    state: State,
    tracker_state: TrackerState,
    key: Key[Array, ""],
) -> tuple[State, Selection, SelectInfo]:
    """Chooses by the rule whose turn it is; the other's state stays.

    Args:
        first: rule of the first iterations.
        then: rule afterwards.
        iterations: of the first.
        state: both.
        tracker_state: the belief.
        key: consumed, by one of them.

    Returns:
        The state, the Selection and its SelectInfo.
    """

    def by_first():
        chosen, *rest = first.select(state.first, tracker_state, key)
        return state._replace(first=chosen), *rest

    def by_then():
        chosen, *rest = then.select(state.then, tracker_state, key)
        return state._replace(then=chosen), *rest

    early = state.iteration < iterations
    state, selection, info = jax.lax.cond(early, by_first, by_then)
    return state._replace(iteration=state.iteration + 1), selection, info


def observe(first: Selector, then: Selector, state: State, observation: Observation) -> State:
    """Tells both rules what the choice came to."""
    return state._replace(
        first=first.observe(state.first, observation), then=then.observe(state.then, observation)
    )


def build(first: Selector, then: Selector, *, iterations: int) -> Selector:
    """Builds a rule with a warm-up, for example one epoch of `uniform`.

    Args:
        first: rule of the first iterations.
        then: rule afterwards.
        iterations: of the first, static, >= 0.

    Returns:
        A Selector.

    Raises:
        ValueError: the rules differ in budget, max_groups or group_size, or iterations is negative.
    """
    for field in ("budget", "max_groups", "group_size"):
        one, other = getattr(first, field), getattr(then, field)
        if one != other:
            raise ValueError(f"{field} must be the same for both selectors, got {one} and {other}")
    if iterations < 0:
        raise ValueError(f"iterations must be >= 0, got {iterations}")
    return Selector(
        partial(init, first, then),
        partial(select, first, then, iterations),
        partial(observe, first, then),
        first.budget,
        first.max_groups,
        first.group_size,
    )
