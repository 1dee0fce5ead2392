"""Outcomes of rollout groups inside compiled code: counting, merging and scoring.

Outside data comes in through `fade_jax.door`. Shapes: `R` rollouts, `M` rollout groups, `B`
observed rows, `N` prompts in the pool.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jaxtyping import Array, Bool, Float, Int, Num

from fade_jax.types import Observation


class GroupOutcomes(NamedTuple):
    """What a batch of rollout groups came to.

    Attributes:
        successes: [M] sum of the verdicts, in 0..trials.
        trials: [M] rollouts with a verdict.
        missing: [M] rollouts without one (grader crash, timeout).
        degenerate: [M] True where the rollouts with a verdict all agree, or there are none.
    """

    successes: Float[Array, " M"]
    trials: Float[Array, " M"]
    missing: Float[Array, " M"]
    degenerate: Bool[Array, " M"]


def group_outcomes(
    verdicts: Num[Array, " R"], group: Int[Array, " R"], num_groups: int
) -> GroupOutcomes:
    """Counts successes, trials and missing verdicts of every group by segment sums.

    Args:
        verdicts: [R] int8: 1 right, 0 wrong, -1 none (neither a success nor a trial); or graded
            float rewards in 0..1, negative meaning none.
        group: [R] int32, the group of each rollout; rows outside 0..M-1 are dropped.
        num_groups: M, static.

    Returns:
        GroupOutcomes of [M]; a group without rows has no trials and is degenerate. A NaN verdict
        makes its group's successes NaN, which `first_invalid` flags.
    """
    scores = _as_float(verdicts)
    counted = ~(scores < 0)
    group = jnp.where(group < 0, num_groups, group)
    columns = jnp.stack([jnp.where(counted, scores, 0), _as_float(counted), _as_float(~counted)], 1)
    successes, trials, missing = jax.ops.segment_sum(columns, group, num_groups).T
    flags = degenerate(scores, group, num_groups, counted=counted)
    return GroupOutcomes(successes, trials, missing, flags)


def degenerate(
    rewards: Num[Array, " R"],
    group: Int[Array, " R"],
    num_groups: int,
    *,
    tolerance: float = 0.0,
    counted: Bool[Array, " R"] | None = None,
) -> Bool[Array, " M"]:
    """Flags the groups whose rewards do not differ: `max - min <= tolerance`.

    By spread, not by the mean ([.5]*8 has nothing to teach, [0, 1]*4 has) nor by the standard
    deviation (float noise makes that of [.95]*7 positive).

    Args:
        rewards: [R], graded or binary.
        group: [R] int32; rows outside 0..M-1 are dropped.
        num_groups: M, static.
        tolerance: the largest spread, in units of reward, that still counts as none.
        counted: [R] rows with a verdict; all of them by default.

    Returns:
        [M]; True also for a group without counted rows, and for one that holds a NaN.
    """
    rewards = _as_float(rewards)
    counted = jnp.ones(rewards.shape, bool) if counted is None else counted
    group = jnp.where(group < 0, num_groups, group)
    highest = jax.ops.segment_max(jnp.where(counted, rewards, -jnp.inf), group, num_groups)
    lowest = jax.ops.segment_min(jnp.where(counted, rewards, jnp.inf), group, num_groups)
    return ~(highest - lowest > tolerance)


def _as_float(values: Array) -> Array:
    floating = jnp.issubdtype(values.dtype, jnp.floating)
    return values if floating else values.astype(jnp.result_type(float))


def first_invalid(observation: Observation, num_prompts: int) -> Int[Array, ""]:
    """Finds the first row that `check_observation` would refuse, inside compiled code.

    A compiled loop carries this flag and its driver raises between chunks.

    Args:
        observation: [B] rows.
        num_prompts: N.

    Returns:
        The row's index in 0..B-1, int32; -1 when all rows are sound. A row and not a prompt id,
        because the id itself may be what is wrong: read `prompt_ids[row]` where the flag is set.
    """
    prompt_ids, successes, trials = observation
    if prompt_ids.shape[0] == 0:
        return jnp.int32(-1)
    known = (trials == 0) | ((prompt_ids >= 0) & (prompt_ids < num_prompts))
    # Comparisons with NaN are False; successes are finite between finite bounds.
    sound = known & (successes >= 0) & (successes <= trials) & jnp.isfinite(trials)
    return jnp.where(sound.all(), -1, jnp.argmin(sound)).astype(jnp.int32)


def merge_duplicates(observation: Observation, num_prompts: int) -> Observation:
    """Sums the rows of a repeated prompt; every id then appears once.

    Two rows of one prompt share its intercept, so an update must see them as one row. The shape
    stays [B]: freed rows, and rows without trials, get the id `num_prompts` (out of range, dropped
    by `.at[ids].set(..., mode="drop")`) and zero counts.

    Args:
        observation: [B] rows; ids of rows without trials may be anything.
        num_prompts: N.

    Returns:
        Observation of [B] rows with ascending, unique ids below N, then inert rows of id N.
    """
    prompt_ids, successes, trials = observation
    rows = max(prompt_ids.shape[0], 1)
    live = (trials > 0) & (prompt_ids >= 0) & (prompt_ids < num_prompts)
    ids = jnp.where(live, prompt_ids, num_prompts)
    if (num_prompts + 1) * rows <= 2**31:
        # Id and row as one number: XLA sorts one array several times faster than a pair.
        key = jnp.sort(ids * rows + jnp.arange(ids.shape[0], dtype=ids.dtype))
        ids, order = key // rows, key % rows
    else:
        order = jnp.argsort(ids)
        ids = ids[order]
    live = ids < num_prompts
    row = jnp.cumsum(jnp.concatenate([jnp.zeros_like(live[:1]), ids[1:] != ids[:-1]]))

    def total(counts: Float[Array, " B"]) -> Float[Array, " B"]:
        return jnp.zeros_like(counts).at[row].add(jnp.where(live, counts[order], 0.0))

    merged = jnp.full_like(ids, num_prompts).at[row].set(ids)
    return Observation(merged, total(successes), total(trials))


def log_binomial_coefficient(
    successes: Float[Array, "*B"], trials: Float[Array, "*B"]
) -> Float[Array, "*B"]:
    """Natural log of C(trials, successes), also for graded successes; 0 without trials."""
    return gammaln(trials + 1) - gammaln(successes + 1) - gammaln(trials - successes + 1)


def normalised_innovation(
    pass_rate: Float[Array, " B"],
    variance: Float[Array, " B"],
    successes: Float[Array, " B"],
    trials: Float[Array, " B"],
) -> Float[Array, ""]:
    """Normalised innovation squared of the counts, averaged over the rows with trials.

    `mean_i (y_i - n_i p_i)^2 / S_i` with `S_i = n_i p_i (1 - p_i) + n_i (n_i - 1) var_i`, the
    predictive variance of a binomial count whose rate has mean p_i and variance var_i.

    Args:
        pass_rate: [B] predicted E[p], in 0..1.
        variance: [B] predicted Var[p], >= 0.
        successes: [B], in 0..trials.
        trials: [B] >= 0.

    Returns:
        A scalar, about 1 for a calibrated prediction; 0 where no row has trials.
    """
    spread = trials * pass_rate * (1 - pass_rate) + trials * (trials - 1) * variance
    error = successes - trials * pass_rate
    live = trials > 0
    # The floor keeps a certain prediction (p = 0 or 1) finite; one surprise then counts 1e6 fold.
    squared = jnp.where(live, error**2 / jnp.maximum(spread, 1e-6), 0.0)
    return squared.sum() / jnp.maximum(live.sum(), 1).astype(squared.dtype)
