"""Prompts on both sides of the policy's ability (CDAS, arXiv 2505.17652).

With d a prompt's difficulty and R the ability, half of the prompts are the nearest with d <= R, the
other half the nearest with d > R. Under CDAS's own tracker `p = sigmoid(R - d)`, so the side is
whether `E[p] >= 1/2` and the nearest have E[p] nearest 1/2: the rule needs a pass rate only, and
runs on any tracker.

Shapes: `N` prompts in the pool.
"""

from collections.abc import Callable
from functools import partial
from typing import Unpack

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from fade_jax.selectors import equal_groups, sizes
from fade_jax.selectors.memoryless import init, observe
from fade_jax.types import SelectInfo, Selection, Selector, State, Tracker

Gap = Callable[[State], Float[Array, " N"]]
"""`(tracker_state) -> [N]`, ability minus difficulty."""


def two_sided(
    gaps: Float[Array, " N"], half: int, key: Key[Array, ""]
) -> tuple[Float[Array, " N"], Int[Array, ""]]:
    """Scores the `half` nearest on each side above all others, and these by nearness.

    Args:
        gaps: [N] d - R; 0 belongs to the side below.
        half: prompts of each side, static, in 0..N.
        key: consumed; decides ties.

    Returns:
        [N] scores, > 0 for those nearest of their side and <= 0 for the others; and how many of
        the 2 half places no prompt could take, as its side has too few.
    """
    distance = jnp.abs(gaps)
    scores = -distance
    missing = jnp.asarray(0, jnp.int32)
    if half == 0:
        return scores, missing
    noise = jax.random.uniform(key, (2, *gaps.shape), jnp.float32)
    for side, ties in zip((gaps <= 0, gaps > 0), noise, strict=True):
        ranks = jnp.where(side, -distance, -jnp.inf)
        nearest = equal_groups.largest_at_random(ranks, half, ties)
        on_side = side[nearest]
        favoured = jnp.where(on_side, 1 / (1 + distance[nearest]), scores[nearest])
        scores = scores.at[nearest].set(favoured)
        missing = missing + half - on_side.sum(dtype=jnp.int32)
    return scores, missing


def select(
    plan: sizes.Plan,
    tracker: Tracker,
    gap: Gap | None,
    state: State,
    tracker_state: State,
    key: Key[Array, ""],
) -> tuple[State, Selection, SelectInfo]:
    """Chooses the nearest on both sides.

    Args:
        plan: sizes.
        tracker: whose `1/2 - pass_rate` is the default gap.
        gap: `(tracker_state) -> [N]`, d - R in any unit.
        state: empty.
        tracker_state: the belief.
        key: consumed; decides ties and exploration.

    Returns:
        The state, the Selection and its SelectInfo. The shortfall is what a side could not fill:
        it goes to the nearest of the other.
    """
    side_key, choice_key = jax.random.split(key)
    informative = tracker.informative(tracker_state, plan.group_size)
    gaps = 0.5 - tracker.pass_rate(tracker_state) if gap is None else gap(tracker_state)
    half = (plan.groups - plan.explored) // 2
    scores, missing = two_sided(gaps, half, side_key)
    selection, info = equal_groups.fill(
        plan, equal_groups.best(plan, scores, choice_key), informative
    )
    shortfall = missing * plan.group_size
    info = info._replace(planned_rollouts=plan.budget - shortfall, shortfall=shortfall)
    return state, selection, info


def build(
    tracker: Tracker,
    *,
    num_prompts: int,
    budget: int,
    group_size: int,
    gap: Gap | None = None,
    exploration: float = 0.05,
    **options: Unpack[sizes.Options],
) -> Selector:
    """Builds the two-sided rule.

    Args:
        tracker: that will hold the belief.
        num_prompts: N.
        budget: rollouts of an iteration.
        group_size: rollouts of a group.
        gap: `(tracker_state) -> [N]`, difficulty minus ability; 1/2 - E[p] by default.
        exploration: share of the groups drawn at random, in 0..1. Of the others, an odd one goes
            to the nearest left.
        **options: max_groups, sources, source_floor, low_signal; see `sizes.plan`.

    Returns:
        A Selector.

    Raises:
        ValueError: sizes that do not fit, see `sizes.plan`.

    Example:
        >>> from fade_jax.trackers import oracle
        >>> tracker = oracle.build(jnp.array([0.9, 0.6, 0.55, 0.51, 0.3, 0.1]))
        >>> sized = {"num_prompts": 6, "budget": 8, "group_size": 2, "exploration": 0.0}
        >>> selector = build(tracker, **sized)
        >>> _, chosen, _ = selector.select((), tracker.init(), jax.random.key(0))
        >>> sorted(chosen.prompt_ids.tolist())
        [2, 3, 4, 5]
    """
    plan = sizes.plan(num_prompts, budget, group_size, exploration=exploration, **options)
    rule = partial(select, plan, tracker, gap)
    return Selector(init, rule, observe, plan.budget, plan.max_groups, plan.group_size)
