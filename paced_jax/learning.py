"""Learning from one training batch, in one step or several, under either family of losses.

Shapes: `B` rows of a training batch, `T` response tokens, `G` groups, `N` prompts in the pool.
"""

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key

from fade_jax.driver import LearnReport
from paced_jax import off_policy
from paced_jax.minibatches import deal
from paced_jax.objectives import Objective, TrajectoryBalance
from paced_jax.objectives.policy_gradient import LOG_RATIO_BOUND
from paced_jax.objectives.reductions import (
    live_rows,
    log_prob_gap,
    over_actions,
    weighted_mean,
)
from paced_jax.policy.decoder import GraphDef
from paced_jax.steps import one_step, several_steps
from paced_jax.types import Learner, TrainBatch

__all__ = ["LearnMetrics", "LearnOptions", "Learner", "divergence", "learn"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnOptions:
    """How a batch becomes a step.

    Attributes:
        objective: the loss.
        correction: what log pi_old is for replayed rows, see `off_policy`.
        clip_norm: the one given to the optimiser, to report what was clipped.
        measure_kl: run the policy once more after the step, for the KL it took.
        kl_reference: nats; if given, a batch ages trackers by its KL / kl_reference instead of 1 a
            step.
        minibatches: optimiser steps of a batch, each on its share of the groups.
        accumulate: parts a step's gradient is summed over, so that memory is that of one.
    """

    objective: Objective
    correction: off_policy.Correction = "current_anchor"
    clip_norm: float = 1.0
    measure_kl: bool = True
    kl_reference: float | None = None
    minibatches: int = 1
    accumulate: int = 1

    def __post_init__(self) -> None:
        """Refuses a KL that is needed but not measured, and parts that are none."""
        for name in ("minibatches", "accumulate"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.kl_reference is not None and not (self.measure_kl and self.kl_reference > 0):
            raise ValueError(
                f"kl_reference must be positive and needs measure_kl, got {self.kl_reference}"
            )


class LearnMetrics(NamedTuple):
    """What learning from a batch did.

    "Fresh" rows are those of this policy version, the others are replayed. "Before" is the policy
    before the first step. With several steps, means over rows or actions take each one as the step
    of its mini-batch did.

    Attributes:
        loss: of the objective, mean over rows (over actions where the objective's is).
        value: mean V over rows, on the scale of the reward.
        reward: mean reward of the batch, replayed rows included.
        beta_kl: beta KL(before || after all steps), per response, over fresh rows, estimated as in
            `divergence`: what V overstates the pass rate by. beta is 1 under policy gradients.
            NaN where `measure_kl` is off.
        entropy: of the policy before, mean over fresh actions, nats.
        log_prob_gap: largest |sampler - trainer| log-probability of a fresh action, both of the
            policy before, nats.
        residual: root mean square of the balance residual over rows; 0 under policy gradients.
        importance_clamped: share of rows whose importance weight was clamped; under policy
            gradients the share of actions whose log-ratio was.
        gap_clamped: share of rows whose residual was clamped; 0 under policy gradients.
        ratio_clipped: share of actions outside the clip range; 0 under trajectory balance, and with
            one step a batch.
        policy_norm: gradient norm before clipping, mean over mini-batches.
        partition_norm: the same of V.
        policy_clipped: share of the mini-batches whose gradient was clipped.
        partition_clipped: the same of V.
        replayed: replayed rows in the batch.
        replay_age: their mean age in optimiser steps, before the first; 0 without any.
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
    policy_clipped: Float[Array, ""]
    partition_clipped: Float[Array, ""]
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
    group_size: int | None = None,
) -> tuple[Learner, LearnReport]:
    """Takes one optimiser step a mini-batch, unless it has nothing to learn from.

    The anchor "old" is always the policy before the first step; with one step that is the
    stop-gradient of the same forward pass. If anything is not finite, nothing moves.

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
        group_size: of the other groups, static; read where the batch is divided.

    Returns:
        (Learner, LearnReport of `LearnMetrics`); time passes by the steps taken, or by their KL.
    """
    del key
    objective, version, num_rows = options.objective, learner.version, batch.weight.shape[0]
    problem: dict[str, Any] = {"setup": setup, "graphdef": graphdef, "objective": objective}
    problem |= {"correction": options.correction, "version": version}
    update = optimizer, options.clip_norm, problem
    parts = options.minibatches * options.accumulate
    if parts == 1:
        steps = one_step(batch, num_groups, *update)
    else:
        dealt = deal(num_rows, num_replayed, group_size, parts)
        steps = several_steps(batch, dealt, options.minibatches, *update)
    learner, (stats, figures, info, taken, bad_prompt) = steps.take(learner)

    fresh = num_rows - num_replayed
    mask = (batch.action_mask & (batch.weight > 0)[:, None])[:fresh]
    kl = jnp.full((), jnp.nan)
    if options.measure_kl:
        moved = steps.force(learner.params.policy).log_probs - stats.log_probs
        kl = weighted_mean(over_actions(divergence(moved[:fresh]), mask), live_rows(mask, None))
    elapsed = taken if options.kl_reference is None else kl / options.kl_reference
    age = jnp.where(batch.weight > 0, version - batch.policy_version, 0)[fresh:]
    replayed = (batch.weight[fresh:] > 0).sum()
    report = LearnMetrics(
        loss=figures.loss,
        value=figures.value,
        reward=figures.reward,
        beta_kl=objective.beta * kl if isinstance(objective, TrajectoryBalance) else kl,
        entropy=jnp.where(mask, stats.entropy[:fresh], 0.0).sum() / jnp.maximum(mask.sum(), 1),
        log_prob_gap=log_prob_gap(stats.log_probs[:fresh], batch.log_probs[:fresh], mask),
        residual=jnp.sqrt(figures.square),
        importance_clamped=figures.importance_clamped,
        gap_clamped=figures.gap_clamped,
        ratio_clipped=figures.ratio_clipped,
        policy_norm=info.policy_norm,
        partition_norm=info.partition_norm,
        policy_clipped=info.policy_clipped,
        partition_clipped=info.partition_clipped,
        replayed=replayed.astype(jnp.float32),
        replay_age=age.sum() / jnp.maximum(replayed, 1).astype(jnp.float32),
    )
    return learner, LearnReport(taken > 0, elapsed.astype(jnp.float32), bad_prompt, report)


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
