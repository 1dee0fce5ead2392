"""Skipping prompts that have just had nothing to teach, with a probability (GRESO, 2506.02177).

A visit has zero variance where all rollouts agree. With c the number of most recent visits in a row
without variance, a prompt is skipped with probability

    1 - max(p^c, floor),    p = p_easy after an all-right group, p_hard after an all-wrong one

and both p move by a fixed step towards the share of zero-variance groups one is ready to pay for:
down where more than `easy_target` (`hard_target`) of the groups were all right (all wrong), else
up. The prompts that survive are a random subset; too few of them, and skipped ones fill the budget.

`rule="tracker"` keeps the controller but asks a tracker: skipped with probability

    1 - max(sigmoid(logit U + logit p), floor),    U = P(informative), p as E[p] >= 1/2 or not

which is U itself where p = 1/2, so the controller shifts the tracker's own answer.

Shapes: `N` prompts in the pool, `B` observed rows.
"""

from functools import partial
from typing import Literal, NamedTuple, Unpack, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from fade_jax import outcomes
from fade_jax.selectors import equal_groups, sizes
from fade_jax.types import Observation, SelectInfo, Selection, Selector, Tracker
from fade_jax.types import State as TrackerState

Rule = Literal["streak", "tracker"]
"""What is skipped: prompts whose last visits had no variance, or those the tracker calls so."""


class State(NamedTuple):
    """What the rule remembers.

    Attributes:
        streak: [N] int32, most recent visits in a row without variance; positive where the last of
            them was all right (easy), negative where it was all wrong (hard).
        easy: p_easy, in least..most.
        hard: p_hard, in least..most.
    """

    streak: Int[Array, " N"]
    easy: Float[Array, ""]
    hard: Float[Array, ""]


class Control(NamedTuple):
    """Settings of the two probabilities, each with its default as published.

    Attributes:
        start: both p before the first visit.
        step: how far a p moves after every batch.
        least: p is never below.
        most: p is never above.
        easy_target: share of all-right groups aimed at.
        hard_target: share of all-wrong groups aimed at.
    """

    start: sizes.ScalarLike = 0.5
    step: sizes.ScalarLike = 0.01
    least: sizes.ScalarLike = 0.05
    most: sizes.ScalarLike = 0.95
    easy_target: sizes.ScalarLike = 1 / 12
    hard_target: sizes.ScalarLike = 1 / 6


def init(plan: sizes.Plan, control: Control) -> State:
    """Returns no visits, and both probabilities at their start."""
    easy = jnp.full((), control.start, float)
    return State(jnp.zeros(plan.num_prompts, jnp.int32), easy, easy + 0)


def keep_probability(state: State, floor: sizes.ScalarLike) -> Float[Array, " N"]:
    """Returns `max(p^c, floor)`; 1 for a prompt whose last visit taught something."""
    chance = jnp.where(state.streak > 0, state.easy, state.hard)
    return jnp.maximum(chance ** jnp.abs(state.streak).astype(chance.dtype), floor)


def keep_by_belief(
    state: State,
    pass_rate: Float[Array, " N"],
    informative: Float[Array, " N"],
    floor: sizes.ScalarLike,
) -> Float[Array, " N"]:
    """Returns `max(sigmoid(logit U + logit p), floor)`, as odds: U may be 0 or 1.

    Args:
        state: of which the two probabilities are used.
        pass_rate: [N] E[p], decides between easy and hard.
        informative: [N] U.
        floor: the least probability.
    """
    chance = jnp.where(pass_rate >= 0.5, state.easy, state.hard)
    pro, contra = informative * chance, (1 - informative) * (1 - chance)
    return jnp.maximum(pro / (pro + contra), floor)


def select(
    plan: sizes.Plan,
    tracker: Tracker,
    rule: Rule,
    floor: sizes.ScalarLike,
    state: State,
    tracker_state: TrackerState,
    key: Key[Array, ""],
) -> tuple[State, Selection, SelectInfo]:
    """Skips at random; of the prompts that survive, a random subset is chosen.

    Args:
        plan: sizes.
        tracker: asked what to expect of the choice, and by "tracker" also whom to skip.
        rule: "streak" or "tracker".
        floor: the least probability of not being skipped.
        state: visits and probabilities.
        tracker_state: the belief.
        key: consumed.

    Returns:
        The state, the Selection, survivors first, and its SelectInfo. The shortfall is what skipped
        prompts got, the least likely to be skipped first.
    """
    skip_key, choice_key = jax.random.split(key)
    informative = tracker.informative(tracker_state, plan.group_size)
    if rule == "streak":
        keep = keep_probability(state, floor)
    else:
        keep = keep_by_belief(state, tracker.pass_rate(tracker_state), informative, floor)
    kept = jax.random.uniform(skip_key, keep.shape, keep.dtype) < keep
    ranks = jnp.where(kept, 2.0, keep)
    prompt_ids = equal_groups.best_first(plan, equal_groups.best(plan, ranks, choice_key), ranks)
    selection, info = equal_groups.fill(plan, prompt_ids, informative)
    planned = kept[prompt_ids].sum(dtype=jnp.int32) * plan.group_size
    info = info._replace(planned_rollouts=planned, shortfall=plan.budget - planned)
    return state, selection, info


def observe(control: Control, state: State, observation: Observation) -> State:
    """Counts visits without variance, and moves both probabilities by one step.

    Args:
        control: settings.
        state: before.
        observation: [B] rows; all groups of one prompt count as one visit, fewer than two rollouts
            with a verdict as none. Graded rewards have variance unless all are 0 or all are 1.

    Returns:
        The state after. A batch without visits changes nothing.
    """
    rows = outcomes.merge_duplicates(observation, state.streak.shape[0])
    ids, successes, trials = rows
    visited = trials > 1
    easy, hard = visited & (successes >= trials), visited & (successes <= 0)
    before = state.streak.at[ids].get(mode="clip")
    longer = jnp.abs(before) + 1
    streak = jnp.where(easy, longer, jnp.where(hard, -longer, 0))
    streak = jnp.where(visited, streak, before)
    visits = visited.sum(dtype=state.easy.dtype)

    def move(chance, degenerate, target):
        too_many = degenerate.sum(dtype=chance.dtype) >= target * visits
        moved = chance + jnp.where(too_many, -control.step, control.step)
        return jnp.where(visits > 0, jnp.clip(moved, control.least, control.most), chance)

    return State(
        state.streak.at[ids].set(streak, mode="drop"),
        move(state.easy, easy, control.easy_target),
        move(state.hard, hard, control.hard_target),
    )


def build(
    tracker: Tracker,
    *,
    num_prompts: int,
    budget: int,
    group_size: int,
    rule: Rule = "streak",
    floor: sizes.ScalarLike = 0.01,
    control: Control = Control(),  # noqa: B008 - numbers only
    exploration: float = 0.05,
    **options: Unpack[sizes.Options],
) -> Selector:
    """Builds probabilistic skipping.

    Args:
        tracker: that will hold the belief; "streak" asks it only what to expect.
        num_prompts: N.
        budget: rollouts of an iteration.
        group_size: rollouts of a group.
        rule: "streak" is GRESO, "tracker" its adapter for any tracker.
        floor: the least probability of not being skipped, > 0.
        control: of the two probabilities.
        exploration: share of the groups drawn at random, in 0..1.
        **options: max_groups, sources, source_floor, low_signal; see `sizes.plan`.

    Returns:
        A Selector.

    Raises:
        ValueError: an unknown rule, a floor or a setting outside 0..1, sizes that do not fit
            (`sizes.plan`).
    """
    if rule not in get_args(Rule):
        raise ValueError(f"rule must be one of {get_args(Rule)}, got {rule!r}")
    sizes.check_positive("floor", floor)
    for field, value in {"floor": floor, **control._asdict()}.items():
        sizes.check_share(field, value)
    plan = sizes.plan(num_prompts, budget, group_size, exploration=exploration, **options)
    return Selector(
        partial(init, plan, control),
        partial(select, plan, tracker, rule, floor),
        partial(observe, control),
        plan.budget,
        plan.max_groups,
        plan.group_size,
    )
