"""The gradient of a training batch, in one go or summed over micro-batches of whole groups.

Shapes: `B` rows of a training batch, `T` response tokens, `G` groups, `n` micro-batches.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from paced_jax import off_policy, partition
from paced_jax.objectives import (
    Objective,
    PolicyGradient,
    RowLoss,
    policy_gradient,
    row_loss,
    trajectory_balance,
)
from paced_jax.objectives.named import by_actions, reads_reference
from paced_jax.objectives.reductions import first_nonfinite, live_rows, weighted_mean
from paced_jax.policy.decoder import GraphDef, Params
from paced_jax.policy.forward import ActionStats, sequence_log_probs
from paced_jax.types import Parameters, TrainBatch, prompts_of_groups


class Figures(NamedTuple):
    """Means over the rows of a batch; `learning.LearnMetrics` says what they are.

    Attributes:
        loss: of the objective.
        value: mean V.
        reward: mean reward.
        square: mean squared balance residual; 0 under policy gradients.
        importance_clamped: share of rows, under policy gradients of actions.
        gap_clamped: share of rows.
        ratio_clipped: share of actions.
        rows: total weight of the rows.
        actions: total weight of their actions.
    """

    loss: Float[Array, "*n"]
    value: Float[Array, "*n"]
    reward: Float[Array, "*n"]
    square: Float[Array, "*n"]
    importance_clamped: Float[Array, "*n"]
    gap_clamped: Float[Array, "*n"]
    ratio_clipped: Float[Array, "*n"]
    rows: Float[Array, "*n"]
    actions: Float[Array, "*n"]


class Pull(NamedTuple):
    """Where a batch pulls the parameters.

    Attributes:
        gradients: of the loss.
        figures: of the batch.
        stats: [B, T], or [n, B/n, T] of micro-batches: of the policy that was pulled.
        live: whether there is something to learn from.
        bad_prompt: int32, the prompt of the first live row that is not finite or illegally stale,
            -1 if all is well.
    """

    gradients: Parameters
    figures: Figures
    stats: ActionStats
    live: Bool[Array, ""]
    bad_prompt: Int[Array, ""]


def teacher_force(
    setup: Any, graphdef: GraphDef, policy: Params, batch: TrainBatch, num_groups: int
) -> ActionStats:
    """What a policy thinks of the responses of a batch, each prompt run once."""
    prompts = prompts_of_groups(batch, num_groups)
    return sequence_log_probs(
        graphdef,
        policy,
        setup.prompt_tokens[prompts],
        setup.prompt_mask[prompts],
        batch.group,
        batch.tokens,
        batch.action_mask,
    )


class _Of(NamedTuple):
    """What the loss of a batch says beside its gradient."""

    figures: Figures
    stats: ActionStats
    live: Bool[Array, ""]
    row_prompt: Int[Array, ""]


def batch_loss(
    params: Parameters,
    batch: TrainBatch,
    old: Float[Array, "B T"] | None,
    *,
    setup: Any,
    graphdef: GraphDef,
    objective: Objective,
    correction: off_policy.Correction,
    version: Int[Array, ""],
    num_groups: int,
) -> tuple[Float[Array, ""], _Of]:
    """The loss of a batch.

    Args:
        params: differentiated.
        batch: B rows.
        old: [B, T], log-probabilities under the policy before the first step; None for the
            stop-gradient of this forward pass, where this is the first step.
        setup: `pieces.Setup`.
        graphdef: static half of the policy.
        objective: the loss.
        correction: what log pi_old is for rows older than `version`.
        version: of the policy before the first step.
        num_groups: G, static.
    """
    stats = teacher_force(setup, graphdef, params.policy, batch, num_groups)
    embeddings = setup.embeddings[prompts_of_groups(batch, num_groups)]
    value = partition.value(params.partition, embeddings)[batch.group]
    recomputed = jax.lax.stop_gradient(stats.log_probs) if old is None else old
    old, stale = off_policy.old_log_probs(batch, recomputed, version, correction)
    reference = None
    if reads_reference(objective):
        if not jax.tree.leaves(setup.reference):
            raise ValueError("reference: the objective needs a reference policy, got none")
        forced = teacher_force(setup, graphdef, setup.reference, batch, num_groups)
        reference = jax.lax.stop_gradient(forced.log_probs)
    weight = live_rows(batch.action_mask, batch.weight)
    sums = weight.sum(), (batch.action_mask * weight[:, None]).sum()
    none = jnp.zeros(())
    groups: dict[str, Any] = {
        "action_mask": batch.action_mask,
        "group": batch.group,
        "num_groups": num_groups,
        "weight": batch.weight,
    }
    if isinstance(objective, PolicyGradient):
        loss, metrics = policy_gradient(
            objective,
            stats.log_probs,
            old,
            batch.rewards,
            reference_log_probs=reference,
            **groups,
        )
        clipped = metrics.clipped_low + metrics.clipped_high
        of_loss = (none, metrics.ratio_clamped, none, clipped)
    elif isinstance(objective, RowLoss):
        loss, metrics = row_loss(
            objective,
            stats.log_probs,
            old,
            value,
            batch.rewards,
            reference_log_probs=reference,
            **groups,
        )
        of_loss = (none, none, none, none)
    else:
        loss, metrics = trajectory_balance(
            objective,
            stats.log_probs,
            old if reference is None else reference,
            value,
            batch.rewards,
            behaviour_log_probs=batch.log_probs,
            **groups,
            partition=batch.partition,
        )
        square = weighted_mean(metrics.residual**2, metrics.rows)
        of_loss = (square, metrics.importance_clamped, metrics.gap_clamped, none)
    figures = Figures(loss, weighted_mean(value, batch.weight), metrics.reward, *of_loss, *sums)
    bad = _bad_row(batch, stats.log_probs, value, stale)
    return loss, _Of(jax.lax.stop_gradient(figures), stats, metrics.live, bad)


def gradient(
    params: Parameters, batch: TrainBatch, old: Float[Array, "B T"] | None, **problem: Any
) -> Pull:
    """The gradient in one go; arguments as `batch_loss` takes them."""
    (_, of), gradients = jax.value_and_grad(batch_loss, has_aux=True)(params, batch, old, **problem)
    return _pull(gradients, of.figures, of, batch)


def accumulated(
    params: Parameters,
    batch: TrainBatch,
    old: Float[Array, "n b T"] | None,
    *,
    objective: Objective,
    **problem: Any,
) -> Pull:
    """The same gradient, summed over micro-batches: memory is that of one of them.

    A loss is a sum over rows, or over actions, divided by their number in the whole batch; so the
    mean over a micro-batch counts with its share of them. Group statistics need nothing: groups
    are whole.

    Args:
        params: differentiated.
        batch: micro-batches, [n, b] rows of whole groups.
        old: [n, b, T], as in `batch_loss`.
        objective: the loss.
        **problem: the rest of what `batch_loss` takes; num_groups is that of a micro-batch.
    """
    weight = jax.vmap(live_rows)(batch.action_mask, batch.weight)
    rows, actions = weight.sum(axis=1), (batch.action_mask * weight[:, :, None]).sum(axis=(1, 2))
    size = actions if by_actions(objective) else rows
    one = jax.value_and_grad(
        partial(_scaled_loss, objective=objective, **problem), argnums=1, has_aux=True
    )

    def add(total, micro):
        (_, of), gradients = one(micro[0], params, *micro[1:])
        return jax.tree.map(lambda a, b: a + b.astype(a.dtype), total, gradients), of

    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.promote_types(x.dtype, "f4")), params)
    total, of = jax.lax.scan(add, zeros, (_shares(size), batch, old))
    gradients = jax.tree.map(lambda x, like: x.astype(like.dtype), total, params)
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)
    first = jnp.argmax(of.row_prompt >= 0)
    of = of._replace(live=of.live.any(), row_prompt=of.row_prompt[first])
    return _pull(gradients, pool(of.figures, objective), of, flat)


def _scaled_loss(share, params, batch, old, **problem):
    loss, of = batch_loss(params, batch, old, **problem)
    return share * loss, of


def pool(figures: Figures, objective: Objective) -> Figures:
    """Figures of the whole from those of its parts, [n]."""
    of_rows, of_actions = _shares(figures.rows), _shares(figures.actions)
    tokens = isinstance(objective, PolicyGradient)
    by_token = {"ratio_clipped": True, "importance_clamped": tokens, "loss": by_actions(objective)}
    means = {
        name: ((of_actions if by_token.get(name, False) else of_rows) * x).sum()
        for name, x in figures._asdict().items()
    }
    return Figures(**means)._replace(rows=figures.rows.sum(), actions=figures.actions.sum())


def _shares(size: Float[Array, " n"]) -> Float[Array, " n"]:
    total = size.sum()
    return size / jnp.where(total > 0, total, 1.0)


def _pull(gradients: Parameters, figures: Figures, of: _Of, batch: TrainBatch) -> Pull:
    """Blames a row that is not sound, or the first live row where only the sums are not finite."""
    live = batch.weight > 0
    finite = jnp.isfinite(figures.loss) & jnp.isfinite(optax.tree.norm(gradients))
    whole = jnp.where(live.any() & ~finite, batch.prompt_ids[jnp.argmax(live)], -1)
    bad = jnp.where(of.row_prompt >= 0, of.row_prompt, whole).astype(jnp.int32)
    return Pull(gradients, figures, of.stats, of.live, bad)


def _bad_row(batch: TrainBatch, log_probs, value, stale) -> Int[Array, ""]:
    """The prompt of the first live row that is not finite, or else illegally stale; -1 if none."""
    # A sum is finite where both of its terms are.
    bad = first_nonfinite(
        batch.rewards + value, batch.log_probs + log_probs, batch.action_mask, batch.weight
    )
    row = jnp.where(bad >= 0, bad, stale)
    return jnp.where(row >= 0, batch.prompt_ids[row], -1).astype(jnp.int32)
