"""A loss of your own: one number a response, which is averaged over the live ones.

Shapes: `R` rows (responses), `T` response tokens, `M` groups, one prompt each.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float, Int

from fade_jax import outcomes
from paced_jax.objectives.reductions import live_rows, weighted_mean


class LossRows(NamedTuple):
    """What a loss may read; dead rows and masked tokens hold zeros.

    Attributes:
        log_probs: [R, T] log pi_theta of the actions, nats; differentiated.
        old_log_probs: [R, T] of the policy before the step, without gradient.
        reference_log_probs: [R, T] of the policy the run started from, without gradient; None
            unless the loss reads them.
        value: [R], V of the row's prompt, on the scale of the reward; differentiated.
        rewards: [R].
        action_mask: [R, T], end of sequence included.
        group: [R] int32, in 0..M-1.
        num_groups: M, static.
        weight: [R], 1 for a live row, 0 for the others.
    """

    log_probs: Float[Array, "R T"]
    old_log_probs: Float[Array, "R T"]
    reference_log_probs: Float[Array, "R T"] | None
    value: Float[Array, " R"]
    rewards: Float[Array, " R"]
    action_mask: Bool[Array, "R T"]
    group: Int[Array, " R"]
    num_groups: int
    weight: Float[Array, " R"]


@dataclass(frozen=True, kw_only=True)
class RowLoss:
    """A loss of your own, and what the trainer has to know of it.

    Attributes:
        loss: `(LossRows) -> [R]`; the batch's loss is its mean over live rows.
        reads_reference: it needs the log-probabilities of the policy the run started from.
        by_group: it compares the responses to one prompt. Then a batch whose groups are all
            degenerate makes no step, and replay, which keeps single responses, is refused.
        teaches_pass_rate: its gradient moves V towards the pass rate, so that the scheduler `paced`
            may read it.
    """

    loss: Callable[[LossRows], Float[Array, " R"]]
    reads_reference: bool = False
    by_group: bool = True
    teaches_pass_rate: bool = False


class Metrics(NamedTuple):
    """What the loss says about its batch.

    Attributes:
        reward: mean raw reward of the live rows.
        live: True where the batch has something to learn from: any live row, or with `by_group` a
            group whose rewards differ.
    """

    reward: Float[Array, ""]
    live: Bool[Array, ""]


def row_loss(
    objective: RowLoss,
    log_probs: Float[Array, "R T"],
    old_log_probs: Float[Array, "R T"],
    value: Float[Array, " R"],
    rewards: Float[Array, " R"],
    *,
    action_mask: Bool[Array, "R T"],
    group: Int[Array, " R"],
    num_groups: int,
    reference_log_probs: Float[Array, "R T"] | None = None,
    weight: Float[Array, " R"] | None = None,
) -> tuple[Float[Array, ""], Metrics]:
    """Mean of your loss over live rows, `sum_i w_i loss_i / sum_i w_i`.

    Args:
        objective: the loss.
        log_probs: [R, T] log pi_theta of the actions, nats; differentiated.
        old_log_probs: [R, T] of the policy before the step.
        value: [R], V of the row's prompt; differentiated.
        rewards: [R].
        action_mask: [R, T].
        group: [R] int32, in 0..M-1.
        num_groups: M, static.
        reference_log_probs: [R, T], where the loss reads them.
        weight: [R], 0 or 1; 1 by default.

    Returns:
        The loss, and its `Metrics`.

    Raises:
        ValueError: what the loss returns is not one number a row.

    Example:
        >>> squared = RowLoss(loss=lambda rows: (rows.value - rows.rewards) ** 2, by_group=False)
        >>> zeros, rewards = jnp.zeros((2, 1)), jnp.array([1.0, 0.0])
        >>> mask, group = jnp.ones((2, 1), bool), jnp.zeros(2, jnp.int32)
        >>> given = dict(action_mask=mask, group=group, num_groups=1)
        >>> loss, _ = row_loss(squared, zeros, zeros, jnp.array([0.5, 0.5]), rewards, **given)
        >>> float(loss)
        0.25
    """
    weight = live_rows(action_mask, weight)
    live = weight > 0
    mask, rewards = action_mask & live[:, None], jnp.where(live, rewards, 0.0)
    reference = reference_log_probs
    rows = LossRows(
        log_probs=jnp.where(mask, log_probs, 0.0),
        old_log_probs=jnp.where(mask, stop_gradient(old_log_probs), 0.0),
        reference_log_probs=None if reference is None else jnp.where(mask, reference, 0.0),
        value=jnp.where(live, value, 0.0),
        rewards=rewards,
        action_mask=mask,
        group=group,
        num_groups=num_groups,
        weight=weight,
    )
    losses = objective.loss(rows)
    if jnp.shape(losses) != rewards.shape:
        raise ValueError(
            f"loss: must return one number a row, {rewards.shape}, got {jnp.shape(losses)}"
        )
    if objective.by_group:
        flat = outcomes.degenerate(rewards, group, num_groups, counted=live)
        teaches = ~flat.all()
    else:
        teaches = live.any()
    metrics = Metrics(weighted_mean(rewards, weight), teaches)
    return weighted_mean(losses, weight), stop_gradient(metrics)
