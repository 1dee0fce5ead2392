"""One step of learning from a training batch, under either family of losses.

Shapes: `B` rows of a training batch, `T` response tokens, `G` groups, `N` prompts in the pool.
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Key

from fade_jax.driver import LearnReport
from paced_jax import off_policy, partition
from paced_jax.objectives import (
    PolicyGradient,
    TrajectoryBalance,
    policy_gradient,
    trajectory_balance,
)
from paced_jax.objectives.policy_gradient import LOG_RATIO_BOUND
from paced_jax.objectives.reductions import (
    first_nonfinite,
    live_rows,
    log_prob_gap,
    over_actions,
    weighted_mean,
)
from paced_jax.optimizers import step
from paced_jax.policy.decoder import GraphDef
from paced_jax.policy.forward import ActionStats, sequence_log_probs
from paced_jax.types import Parameters, TrainBatch, prompts_of_groups


class Learner(NamedTuple):
    """Everything that learning moves.

    Attributes:
        params: of the policy and of V.
        optimizer_state: optax's.
        version: int32, optimiser steps taken: what rollouts are stamped with.
    """

    params: Parameters
    optimizer_state: Any
    version: Int[Array, ""]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnOptions:
    """How a batch becomes a step.

    Attributes:
        objective: the loss.
        correction: what log pi_old is for replayed rows, see `off_policy`.
        clip_norm: the one given to the optimiser, to report what was clipped.
        measure_kl: run the policy once more after the step, for the KL it took.
        kl_reference: nats; if given, a step ages trackers by its KL / kl_reference instead of 1.
    """

    objective: TrajectoryBalance | PolicyGradient
    correction: off_policy.Correction = "current_anchor"
    clip_norm: float = 1.0
    measure_kl: bool = True
    kl_reference: float | None = None

    def __post_init__(self) -> None:
        """Refuses a KL that is needed but not measured."""
        if self.kl_reference is not None and not (self.measure_kl and self.kl_reference > 0):
            raise ValueError(
                f"kl_reference must be positive and needs measure_kl, got {self.kl_reference}"
            )


class LearnMetrics(NamedTuple):
    """What a step did; "fresh" rows are those of this policy version, the others are replayed.

    Attributes:
        loss: of the objective.
        value: mean V, on the scale of the reward.
        reward: mean reward of the batch, replayed rows included.
        beta_kl: beta KL(before || after the step), per response, over fresh rows, estimated as in
            `divergence`: what V overstates the pass rate by. beta is 1 under policy gradients.
        entropy: mean over fresh actions, nats.
        log_prob_gap: largest |sampler - trainer| log-probability of a fresh action, nats.
        residual: root mean square of the balance residual; 0 under policy gradients.
        importance_clamped: share of rows whose importance weight was clamped; under policy
            gradients the share of actions whose log-ratio was.
        gap_clamped: share of rows whose residual was clamped; 0 under policy gradients.
        ratio_clipped: share of actions outside the clip range; 0 under trajectory balance.
        policy_norm: gradient norm before clipping.
        partition_norm: the same of V.
        policy_clipped: whether it was clipped.
        partition_clipped: the same of V.
        replayed: replayed rows in the batch.
        replay_age: their mean age in optimiser steps; 0 without any.
    """

    loss: Float[Array, ""]
    value: Float[Array, ""]
    reward: Float[Array, ""]
    beta_kl: Float[Array, ""]
    entropy: Float[Array, ""]
    log_prob_gap: Float[Array, ""]
    residual: Float[Array, ""]
    importance_clamped: Float[Array, ""]
    gap_clamped: Float[Array, ""]
    ratio_clipped: Float[Array, ""]
    policy_norm: Float[Array, ""]
    partition_norm: Float[Array, ""]
    policy_clipped: Bool[Array, ""]
    partition_clipped: Bool[Array, ""]
    replayed: Float[Array, ""]
    replay_age: Float[Array, ""]


def learn(
    setup: Any,
    learner: Learner,
    batch: TrainBatch,
    key: Key[Array, ""],
    *,
    graphdef: GraphDef,
    options: LearnOptions,
    optimizer: optax.GradientTransformation,
    num_groups: int,
    num_replayed: int,
) -> tuple[Learner, LearnReport]:
    """Takes one optimiser step, unless the batch has nothing to learn from or is not finite.

    With one step a batch the anchor "old" is the stop-gradient of the same forward pass.

    Args:
        setup: `pieces.Setup`: prompts, embeddings, reference parameters.
        learner: before.
        batch: B rows.
        key: unused; part of the driver's signature.
        graphdef: static half of the policy.
        options: objective and corrections.
        optimizer: from `optimizers.make_optimizer`.
        num_groups: G, static.
        num_replayed: the last rows, static.

    Returns:
        (Learner, LearnReport of `LearnMetrics`).
    """
    del key
    objective, version = options.objective, learner.version
    prompts = prompts_of_groups(batch, num_groups)
    embeddings = setup.embeddings[prompts]

    def teacher_force(policy) -> ActionStats:
        return sequence_log_probs(
            graphdef,
            policy,
            setup.prompt_tokens[prompts],
            setup.prompt_mask[prompts],
            batch.group,
            batch.tokens,
            batch.action_mask,
        )

    def loss_of(params: Parameters):
        stats = teacher_force(params.policy)
        value = partition.value(params.partition, embeddings)[batch.group]
        recomputed = jax.lax.stop_gradient(stats.log_probs)
        old, stale = off_policy.old_log_probs(batch, recomputed, version, options.correction)
        reference = _reference(setup, teacher_force) if reads_reference(objective) else None
        if isinstance(objective, PolicyGradient):
            loss, metrics = policy_gradient(
                objective,
                stats.log_probs,
                old,
                batch.rewards,
                action_mask=batch.action_mask,
                group=batch.group,
                num_groups=num_groups,
                reference_log_probs=reference,
                weight=batch.weight,
            )
        else:
            loss, metrics = trajectory_balance(
                objective,
                stats.log_probs,
                old if reference is None else reference,
                value,
                batch.rewards,
                behaviour_log_probs=batch.log_probs,
                action_mask=batch.action_mask,
                group=batch.group,
                num_groups=num_groups,
                weight=batch.weight,
                partition=batch.partition,
            )
        return loss, (metrics, stats, value, stale)

    (loss, (metrics, stats, value, stale)), gradients = jax.value_and_grad(loss_of, has_aux=True)(
        learner.params
    )
    bad_prompt = _bad_prompt(batch, stats.log_probs, value, stale, loss, gradients)
    stepped = (bad_prompt < 0) & metrics.live
    params, optimizer_state, info = step(
        optimizer,
        learner.params,
        learner.optimizer_state,
        gradients,
        clip_norm=options.clip_norm,
    )
    after = Learner(params, optimizer_state, version + 1)
    # A choice of numbers, not of branches: it is made where they are written, without a copy.
    learner = jax.tree.map(partial(jnp.where, stepped), after, learner)

    fresh = batch.action_mask.shape[0] - num_replayed
    mask = (batch.action_mask & (batch.weight > 0)[:, None])[:fresh]
    kl = jnp.zeros(())
    if options.measure_kl:
        moved = teacher_force(learner.params.policy).log_probs - stats.log_probs
        kl = weighted_mean(over_actions(divergence(moved[:fresh]), mask), live_rows(mask, None))
    elapsed = jnp.ones(()) if options.kl_reference is None else kl / options.kl_reference
    age = jnp.where(batch.weight > 0, version - batch.policy_version, 0)[fresh:]
    replayed = (batch.weight[fresh:] > 0).sum()
    balance = isinstance(objective, TrajectoryBalance)
    report = LearnMetrics(
        loss=loss,
        value=weighted_mean(value, batch.weight),
        reward=metrics.reward,
        beta_kl=objective.beta * kl if isinstance(objective, TrajectoryBalance) else kl,
        entropy=jnp.where(mask, stats.entropy[:fresh], 0.0).sum() / jnp.maximum(mask.sum(), 1),
        log_prob_gap=log_prob_gap(stats.log_probs[:fresh], batch.log_probs[:fresh], mask),
        residual=_root_mean_square(metrics) if balance else jnp.zeros(()),
        importance_clamped=metrics.importance_clamped if balance else metrics.ratio_clamped,
        gap_clamped=metrics.gap_clamped if balance else jnp.zeros(()),
        ratio_clipped=jnp.zeros(()) if balance else metrics.clipped_low + metrics.clipped_high,
        policy_norm=info.policy_norm,
        partition_norm=info.partition_norm,
        policy_clipped=info.policy_clipped,
        partition_clipped=info.partition_clipped,
        replayed=replayed.astype(jnp.float32),
        replay_age=age.sum() / jnp.maximum(replayed, 1).astype(jnp.float32),
    )
    return learner, LearnReport(stepped, elapsed.astype(jnp.float32), bad_prompt, report)


def divergence(log_ratio: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Estimates KL(before || after) at tokens drawn before, `e^k - k - 1`, k = log(after / before).

    Never negative, and blind to first order in k. The plain estimate -k is not, and on the very
    rows that a step was fitted to it mostly reads that fit: twice to ten times the KL found on
    fresh rollouts, or less than 0.

    Args:
        log_ratio: k in nats; clamped to +-20.
    """
    k = jnp.clip(log_ratio, -LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return jnp.expm1(k) - k


def reads_reference(objective: TrajectoryBalance | PolicyGradient) -> bool:
    """Whether the loss needs a fixed reference policy."""
    if isinstance(objective, PolicyGradient):
        return objective.kl != "none"
    return objective.anchor == "ref"


def _reference(setup, teacher_force) -> Float[Array, "B T"]:
    """Reference log-probabilities, without gradient."""
    if not jax.tree.leaves(setup.reference):
        raise ValueError("reference: the objective needs a reference policy, got none")
    return jax.lax.stop_gradient(teacher_force(setup.reference).log_probs)


def _root_mean_square(metrics) -> Float[Array, ""]:
    return jnp.sqrt(weighted_mean(metrics.residual**2, metrics.rows))


def _bad_prompt(batch: TrainBatch, log_probs, value, stale, loss, gradients) -> Int[Array, ""]:
    """The prompt of the first live row that is not finite or illegally stale, -1 if all is well."""
    live = batch.weight > 0
    # A sum is finite where both of its terms are.
    bad = first_nonfinite(
        batch.rewards + value, batch.log_probs + log_probs, batch.action_mask, batch.weight
    )
    row = jnp.where(bad >= 0, bad, jnp.where(stale >= 0, stale, jnp.argmax(live)))
    finite = jnp.isfinite(loss) & jnp.isfinite(optax.tree.norm(gradients))
    wrong = (bad >= 0) | (stale >= 0) | (live.any() & ~finite)
    return jnp.where(wrong, batch.prompt_ids[row], -1).astype(jnp.int32)
