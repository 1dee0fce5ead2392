"""Several rules in one compiled program, told by number whose turn it is.

Compiling is what takes the time where a tracker is tried under many rules: here its code is
compiled once for all of them. Every rule has its own place in the state and observes all outcomes.
"""

from collections.abc import Sequence
from functools import partial

import jax
from jaxtyping import Array, Int, Key

from fade_jax.types import Observation, SelectInfo, Selection, Selector, State

States = tuple[State, ...]
"""The states of all selectors, used or not."""


def init(selectors: Sequence[Selector]) -> States:
    """Returns the initial states of all."""
    return tuple(selector.init() for selector in selectors)


def select(
    selectors: Sequence[Selector],
    choice: int | Int[Array, ""],
    state: States,
    tracker_state: State,
    key: Key[Array, ""],
) -> tuple[States, Selection, SelectInfo]:
    """Chooses by the rule whose turn it is; the others' states stay.

    Args:
        selectors: the rules.
        choice: which of them.
        state: of all.
        tracker_state: the belief.
        key: consumed, by that rule.

    Returns:
        The states, the Selection and its SelectInfo.
    """

    def by(i: int) -> tuple[States, Selection, SelectInfo]:
        new, selection, info = selectors[i].select(state[i], tracker_state, key)
        return (*state[:i], new, *state[i + 1 :]), selection, info

    return jax.lax.switch(choice, [partial(by, i) for i in range(len(selectors))])


def observe(selectors: Sequence[Selector], state: States, observation: Observation) -> States:
    """Tells all rules what the choice came to."""
    each = zip(selectors, state, strict=True)
    return tuple(selector.observe(own, observation) for selector, own in each)


def build(selectors: Sequence[Selector], choice: int | Int[Array, ""]) -> Selector:
    """Builds the rule of that number.

    Args:
        selectors: of one budget and one max_groups.
        choice: int32 in 0..len(selectors)-1, may be traced; numbers beyond are clipped.

    Returns:
        A Selector; its group_size is the rules' own where they agree.

    Raises:
        ValueError: no selectors, or of several budgets or max_groups.
    """
    if not selectors:
        raise ValueError("selectors must be at least one, got none")
    for field in ("budget", "max_groups"):
        values = {getattr(selector, field) for selector in selectors}
        if len(values) > 1:
            raise ValueError(f"{field} must be the same for all selectors, got {sorted(values)}")
    group_sizes = {selector.group_size for selector in selectors}
    return Selector(
        partial(init, selectors),
        partial(select, selectors, choice),
        partial(observe, selectors),
        selectors[0].budget,
        selectors[0].max_groups,
        group_sizes.pop() if len(group_sizes) == 1 else None,
    )
