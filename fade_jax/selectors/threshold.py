"""Just enough prompts: the smallest set that is expected to fill a training batch.

With `U_i` = P(informative group) and S a set of prompts, the number of informative groups has mean
`sum_S U_i` and, given the beliefs, variance `sum_S U_i (1 - U_i)`. The rule takes the smallest
prefix S, by U or at random among U >= tau, with

    sum_S U_i - z sqrt(sum_S U_i (1 - U_i)) >= wanted

so a calibrated tracker fills the batch, and one that promises too much leaves it short. The set is
planned once, before anything is generated: nothing loops for lack of signal.

Shapes: `N` prompts in the pool, `C = budget / group_size` chosen.
"""

from functools import partial
from typing import Unpack

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from fade_jax.selectors import equal_groups, sizes
from fade_jax.selectors.memoryless import init, observe
from fade_jax.types import SelectInfo, Selection, Selector, State, Tracker


def groups_needed(
    informative: Float[Array, " C"], wanted: sizes.ScalarLike, z: sizes.ScalarLike
) -> Int[Array, ""]:
    """Length of the shortest prefix expected to hold `wanted` informative groups.

    Args:
        informative: [C] U, in the order in which the prompts would be generated.
        wanted: informative groups, >= 0.
        z: standard deviations of safety.

    Returns:
        int32 in 0..C; C also where no prefix is enough.

    Example:
        >>> int(groups_needed(jnp.full(10, 0.5), 4.0, 0.0))
        8
    """
    known = jnp.where(jnp.isnan(informative), 0.0, informative)
    mean, variance = jnp.cumsum(known), jnp.cumsum(known * (1 - known))
    # The slack is for rounding: eight times .5 is four.
    enough = mean - z * jnp.sqrt(jnp.maximum(variance, 0)) >= wanted * (1 - 1e-5)
    first = jnp.where(enough.any(), jnp.argmax(enough) + 1, known.shape[0])
    return jnp.where(wanted > 0, first, 0).astype(jnp.int32)


def select(
    plan: sizes.Plan,
    tracker: Tracker,
    wanted: sizes.ScalarLike,
    z: sizes.ScalarLike,
    tau: sizes.ScalarLike | None,
    state: State,
    tracker_state: State,
    key: Key[Array, ""],
) -> tuple[State, Selection, SelectInfo]:
    """Plans the set, and spends what is left of the budget on the next best.

    Args:
        plan: sizes.
        tracker: whose `informative` is trusted.
        wanted: informative groups of a training batch.
        z: standard deviations of safety.
        tau: prompts with U >= tau are taken in random order, before the others by U.
        state: empty.
        tracker_state: the belief.
        key: consumed.

    Returns:
        The state, the Selection, in which the planned groups come first, and its SelectInfo.
    """
    order_key, choice_key = jax.random.split(key)
    informative = tracker.informative(tracker_state, plan.group_size)
    ranks = informative
    if tau is not None:
        shuffled = 2 + jax.random.uniform(order_key, ranks.shape, ranks.dtype)
        ranks = jnp.where(informative >= tau, shuffled, informative)
    prompt_ids = equal_groups.best(plan, ranks, choice_key)
    prompt_ids = equal_groups.best_first(plan, prompt_ids, ranks)
    selection, info = equal_groups.fill(plan, prompt_ids, informative)
    planned = groups_needed(informative[prompt_ids], wanted, z) * plan.group_size
    shortfall = plan.budget - planned
    return state, selection, info._replace(planned_rollouts=planned, shortfall=shortfall)


def build(
    tracker: Tracker,
    *,
    num_prompts: int,
    budget: int,
    group_size: int,
    wanted: int | sizes.ScalarLike,
    z: sizes.ScalarLike = 0.0,
    tau: sizes.ScalarLike | None = None,
    candidates: int | None = None,
    exploration: float = 0.05,
    **options: Unpack[sizes.Options],
) -> Selector:
    """Builds the threshold rule.

    `planned_rollouts` of its SelectInfo is what the rule asks for, at most the budget;
    `expected_informative` below `wanted` says that the whole budget is not enough.

    Args:
        tracker: that will hold the belief; its calibration decides how well batches are filled.
        num_prompts: N.
        budget: rollouts of an iteration, the most the rule may plan.
        group_size: rollouts of a group.
        wanted: informative groups of a training batch, > 0.
        z: standard deviations of safety; 0 fills the batch on average.
        tau: a threshold in 0..1: prompts with U >= tau are all good enough and taken in random
            order. None takes the best first. For a known pass rate and groups of 8, p in .2...8 is
            U >= .832 and .3...7 is U >= .942.
        candidates: choose among so many random prompts; all by default.
        exploration: share of the groups drawn at random, in 0..1.
        **options: max_groups, sources, source_floor, low_signal; see `sizes.plan`.

    Returns:
        A Selector.

    Raises:
        ValueError: wanted not positive, z negative, tau outside 0..1, sizes that do not fit
            (`sizes.plan`).

    Example:
        >>> from fade_jax.trackers import oracle
        >>> tracker = oracle.build(jnp.full(10, 0.5))
        >>> selector = build(tracker, num_prompts=10, budget=20, group_size=2, wanted=4)
        >>> _, _, info = selector.select(selector.init(), tracker.init(), jax.random.key(0))
        >>> int(info.planned_rollouts), int(info.shortfall)  # 8 pairs at P(informative) = .5
        (16, 4)
    """
    sizes.check_positive("wanted", wanted)
    sizes.check_not_negative("z", z)
    if tau is not None:
        sizes.check_share("tau", tau)
    plan = sizes.plan(
        num_prompts,
        budget,
        group_size,
        candidates=candidates,
        exploration=exploration,
        **options,
    )
    filled = float(wanted) if isinstance(wanted, int) else wanted
    rule = partial(select, plan, tracker, filled, z, tau)
    return Selector(init, rule, observe, plan.budget, plan.max_groups, plan.group_size)
