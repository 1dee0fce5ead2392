"""The prompts that score highest: by default, those most likely to give an informative group.

With `candidates`, the best of a random subset, as LILO (arXiv 2502.12272) chooses; there the score
costs rollouts, here it is the tracker's belief.

Shapes: `N` prompts in the pool.
"""

from collections.abc import Callable
from functools import partial
from typing import Unpack

from jaxtyping import Array, Float, Key

from fade_jax.selectors import equal_groups, sizes
from fade_jax.selectors.memoryless import init, observe
from fade_jax.types import SelectInfo, Selection, Selector, State, Tracker

Score = Callable[[State], Float[Array, " N"]]
"""`(tracker_state) -> [N]`, higher is better."""


def select(
    plan: sizes.Plan,
    tracker: Tracker,
    score: Score | None,
    state: State,
    tracker_state: State,
    key: Key[Array, ""],
) -> tuple[State, Selection, SelectInfo]:
    """Chooses the best by score.

    Args:
        plan: sizes.
        tracker: whose `informative` is the default score.
        score: `(tracker_state) -> [N]`, higher is better.
        state: empty.
        tracker_state: the belief.
        key: consumed; decides ties, candidates and exploration.

    Returns:
        The state, the Selection and its SelectInfo.
    """
    informative = tracker.informative(tracker_state, plan.group_size)
    scores = informative if score is None else score(tracker_state)
    return state, *equal_groups.fill(plan, equal_groups.best(plan, scores, key), informative)


def build(
    tracker: Tracker,
    *,
    num_prompts: int,
    budget: int,
    group_size: int,
    score: Score | None = None,
    candidates: int | None = None,
    exploration: float = 0.05,
    **options: Unpack[sizes.Options],
) -> Selector:
    """Builds the top-m rule.

    Args:
        tracker: that will hold the belief.
        num_prompts: N.
        budget: rollouts of an iteration.
        group_size: rollouts of a group.
        score: `(tracker_state) -> [N]`, higher is better; P(informative group) by default.
        candidates: choose among so many random prompts; all by default.
        exploration: share of the groups drawn at random, in 0..1.
        **options: max_groups, sources, source_floor, low_signal; see `sizes.plan`.

    Returns:
        A Selector.

    Raises:
        ValueError: sizes that do not fit, see `sizes.plan`.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from fade_jax.trackers import oracle
        >>> tracker = oracle.build(jnp.array([0.0, 0.4, 1.0, 0.9, 0.02]))
        >>> selector = build(tracker, num_prompts=5, budget=16, group_size=8, exploration=0.0)
        >>> _, chosen, _ = selector.select(selector.init(), tracker.init(), jax.random.key(0))
        >>> print(*chosen)
        [1 3] [8 8]
    """
    plan = sizes.plan(
        num_prompts,
        budget,
        group_size,
        candidates=candidates,
        exploration=exploration,
        **options,
    )
    rule = partial(select, plan, tracker, score)
    return Selector(init, rule, observe, plan.budget, plan.max_groups, plan.group_size)
