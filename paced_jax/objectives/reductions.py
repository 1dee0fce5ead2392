"""Sums over actions, rows and groups that ignore padding and keep NaN of live rows loud.

Shapes: `R` rows (responses), `T` response tokens, `M` groups.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from fade_jax import outcomes


def live_rows(
    action_mask: Bool[Array, "R T"], weight: Float[Array, " R"] | None
) -> Float[Array, " R"]:
    """Returns the weights [R], 0 for rows without an action; 1 by default for the others."""
    acts = action_mask.any(axis=1)
    return acts.astype(jnp.result_type(float)) if weight is None else jnp.where(acts, weight, 0.0)


def over_actions(
    per_token: Float[Array, "R T"], action_mask: Bool[Array, "R T"], *, mean: bool = False
) -> Float[Array, " R"]:
    """Sums, or averages, a per-token quantity over the actions of each row, in float32 or more.

    Args:
        per_token: [R, T]; masked tokens may hold anything, NaN included.
        action_mask: [R, T].
        mean: divide by the number of actions.

    Returns:
        [R]; 0 for a row without actions.
    """
    wide = per_token.astype(jnp.promote_types(per_token.dtype, jnp.float32))
    total = jnp.where(action_mask, wide, 0.0).sum(axis=1)
    return total / jnp.maximum(action_mask.sum(axis=1), 1) if mean else total


def weighted_mean(
    x: Float[Array, " R"] | Bool[Array, " R"], weight: Float[Array, " R"]
) -> Float[Array, ""]:
    """Returns `sum(weight x) / sum(weight)` over the rows with weight; 0 when there are none."""
    total = weight.sum()
    return jnp.where(weight > 0, weight * x, 0.0).sum() / jnp.where(total > 0, total, 1.0)


def group_mean(
    x: Float[Array, " R"], weight: Float[Array, " R"], group: Int[Array, " R"], num_groups: int
) -> Float[Array, " M"]:
    """Returns the weighted mean of each group, [M]; 0 for a group without weight."""
    total = jax.ops.segment_sum(weight, group, num_groups)
    summed = jax.ops.segment_sum(jnp.where(weight > 0, weight * x, 0.0), group, num_groups)
    return summed / jnp.where(total > 0, total, 1.0)


def centre_by_group(
    rewards: Float[Array, " R"],
    weight: Float[Array, " R"],
    group: Int[Array, " R"],
    num_groups: int,
    *,
    scale: bool,
) -> Float[Array, " R"]:
    """Rewards minus their group's mean; with `scale`, over its standard deviation + 1e-6.

    The standard deviation has n - 1 in its denominator, as in verl's GRPO. A degenerate group,
    whose rewards do not differ, gives exact zeros however its mean was rounded; a NaN reward gives
    NaN.

    Args:
        rewards: [R].
        weight: [R], 0 or 1: rows that count.
        group: [R] int32, in 0..M-1.
        num_groups: M, static.
        scale: divide by the standard deviation.

    Returns:
        [R]; rows without weight hold numbers without meaning.
    """
    counted = weight > 0
    mean = group_mean(rewards, weight, group, num_groups)
    flat = outcomes.degenerate(rewards, group, num_groups, counted=counted)
    centred = jnp.where(flat[group], 0.0 * mean[group], rewards - mean[group])  # 0 * NaN is NaN
    if not scale:
        return centred
    size = jax.ops.segment_sum(weight, group, num_groups)
    variance = group_mean(centred**2, weight, group, num_groups) * size / jnp.maximum(size - 1, 1)
    return centred / (jnp.sqrt(variance)[group] + 1e-6)


def clamped_exp(
    log_ratio: Float[Array, "*shape"],
    low: float | Float[Array, ""],
    high: float | Float[Array, ""],
) -> tuple[Float[Array, "*shape"], Bool[Array, "*shape"]]:
    """Returns exp of the log-ratio clamped to low..high, and where it was clamped.

    Clamping comes before the exponential and before any product: exp(89) is inf in float32, and
    inf * 0 is NaN. A NaN passes through.
    """
    return jnp.exp(jnp.clip(log_ratio, low, high)), (log_ratio < low) | (log_ratio > high)


def log_prob_gap(
    log_probs: Float[Array, "R T"],
    other: Float[Array, "R T"],
    action_mask: Bool[Array, "R T"],
) -> Float[Array, ""]:
    """Returns the largest |difference| of two log-probabilities over all actions, nats."""
    gap = jnp.where(action_mask, jnp.abs(log_probs - other), 0.0)
    return gap.max().astype(jnp.promote_types(gap.dtype, jnp.float32))


def first_nonfinite(
    rewards: Float[Array, " R"],
    log_probs: Float[Array, "R T"],
    action_mask: Bool[Array, "R T"],
    weight: Float[Array, " R"] | None = None,
) -> Int[Array, ""]:
    """Finds the first live row whose reward or log-probabilities are NaN or infinite.

    `learning.learn` reports that row's prompt, and the driver raises between chunks; a loop of your
    own carries this flag and calls `raise_nonfinite`.

    Args:
        rewards: [R].
        log_probs: [R, T]; masked tokens are not looked at.
        action_mask: [R, T].
        weight: [R]; rows of weight 0 are not looked at.

    Returns:
        int32, the row in 0..R-1; -1 when all is finite.
    """
    live = live_rows(action_mask, weight) > 0
    finite_tokens = (jnp.isfinite(log_probs) | ~action_mask).all(axis=1)
    bad = live & ~(jnp.isfinite(rewards) & finite_tokens)
    return jnp.where(bad.any(), jnp.argmax(bad), -1).astype(jnp.int32)


def raise_nonfinite(
    row: int,
    prompt_ids: Shaped[np.ndarray, " R"],
    rewards: Shaped[np.ndarray, " R"],
    log_probs: Shaped[np.ndarray, "R T"],
    action_mask: Shaped[np.ndarray, "R T"],
) -> None:
    """Raises for the row that `first_nonfinite` flagged; does nothing for -1. Runs on the host.

    Args:
        row: the flag.
        prompt_ids: [R].
        rewards: [R].
        log_probs: [R, T].
        action_mask: [R, T].

    Raises:
        ValueError: naming the field, the prompt id, the token and the value.
    """
    if row < 0:
        return
    if not np.isfinite(rewards[row]):
        raise ValueError(f"rewards: prompt {prompt_ids[row]} (row {row}) has {rewards[row]}")
    token = int(np.argmax(~np.isfinite(log_probs[row]) & action_mask[row]))
    raise ValueError(
        f"log_probs: prompt {prompt_ids[row]} (row {row}) has {log_probs[row, token]} at token"
        f" {token}"
    )
