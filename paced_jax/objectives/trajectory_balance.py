"""Trajectory balance: one core, whose switches give PACED-RL, FlowRL, VarGrad (TBA) and GFlowRL.

A policy pi_theta balances against an anchor when, for every response y to a prompt x,

    log Z(x) + log pi_theta(y|x) - log pi_anchor(y|x) - r(x, y) / beta = 0,

which holds at pi_theta = pi_anchor e^(r / beta) / Z. The loss is the mean square of that residual,
by default times beta^2, with V = beta log Z, a value on the scale of the reward:

    (V(x) - r + beta (log pi_theta - log pi_anchor))^2.

Shapes: `R` rows (responses), `T` response tokens, `M` groups, one prompt each.
"""

import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float, Int

from paced_jax.objectives.reductions import (
    centre_by_group,
    clamped_exp,
    group_mean,
    live_rows,
    log_prob_gap,
    over_actions,
    weighted_mean,
)
from paced_jax.types import Leaf, PartitionUpdate, check_switches


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class TrajectoryBalance:
    """Switches of the trajectory-balance core. Strings and bools are static, numbers are leaves.

    Attributes:
        beta: strength of the KL penalty, > 0; the reward enters as r / beta.
        importance_low: least importance weight, >= 0.
        importance_high: largest importance weight.
        gap_low: beyond -gap_low (nats, per token if length-normalised) a residual pulls no harder
            than at it: its square goes on as a straight line, as Huber's does.
        gap_high: the same beyond gap_high.
        anchor: which log-probabilities the caller passes as anchor: those of the policy that
            sampled ("old") or of a fixed reference ("ref").
        partition: V is "learned" (the `value` passed), its optimum in the batch without gradient
            ("group_mean"), or a constant ("fixed", the `value` passed without gradient).
        reward: "raw", or "group_normalised" by the mean and standard deviation of the group.
        importance: weight of a row without gradient, pi_theta / pi_behaviour of the response
            ("sequence_sum"), its geometric mean over tokens ("sequence_mean"), or "none".
        length_normalised: mean log-ratio over tokens instead of the sum.
        scaled: the square above; False for the plain one, 1 / beta^2 times as large.
    """

    beta: Leaf = 0.05
    importance_low: Leaf = 0.0
    importance_high: Leaf = math.inf
    gap_low: Leaf = math.inf
    gap_high: Leaf = math.inf
    anchor: Literal["old", "ref"] = field(default="old", metadata={"static": True})
    partition: Literal["learned", "group_mean", "fixed"] = field(
        default="learned", metadata={"static": True}
    )
    reward: Literal["raw", "group_normalised"] = field(default="raw", metadata={"static": True})
    importance: Literal["none", "sequence_mean", "sequence_sum"] = field(
        default="none", metadata={"static": True}
    )
    length_normalised: bool = field(default=False, metadata={"static": True})
    scaled: bool = field(default=True, metadata={"static": True})

    def __post_init__(self):
        check_switches(self)
        if isinstance(self.beta, float) and not self.beta > 0:
            raise ValueError(f"beta: must be > 0, got {self.beta}")


def paced(beta: Leaf = 0.05) -> TrajectoryBalance:
    """PACED-RL (arXiv 2602.12642): behaviour policy as anchor, raw rewards, learned partition."""
    return TrajectoryBalance(beta=beta)


def flowrl(beta: Leaf = 1 / 15) -> TrajectoryBalance:
    """FlowRL (arXiv 2509.15207): fixed reference, group-normalised rewards, log-ratios per token.

    FlowRL's own beta multiplies the reward: its 15 is our 1 / 15. The importance weight is the
    ratio of whole responses, capped at 10, as in its recipe for verl (the paper clips it as PPO
    does). Its published loss is the plain one, `dataclasses.replace(flowrl(), scaled=False)`.
    """
    return TrajectoryBalance(
        beta=beta,
        anchor="ref",
        reward="group_normalised",
        length_normalised=True,
        importance="sequence_sum",
        importance_high=10.0,
    )


def vargrad(beta: Leaf = 0.014) -> TrajectoryBalance:
    """VarGrad as in TBA (arXiv 2503.18929): log Z is its optimum in the group, reference as anchor.

    The default beta is TBA's on GSM8K. Published as the plain loss.
    """
    return TrajectoryBalance(beta=beta, anchor="ref", partition="group_mean")


def gflowrl(beta: Leaf = 1 / 8) -> TrajectoryBalance:
    """GFlowRL (arXiv 2607.13394): FlowRL with the group's log Z, capped weights and residuals.

    Its beta multiplies the reward, best at 8: our 1 / 8. Two things are ours: the caps, which no
    source states beyond gap_low < gap_high (here DAPO's .2 and .28, and a weight of at most 1.2),
    and log Z taken under pi_theta instead of pi_old, the same with one step a batch.
    """
    return TrajectoryBalance(
        beta=beta,
        anchor="ref",
        partition="group_mean",
        reward="group_normalised",
        length_normalised=True,
        importance="sequence_sum",
        importance_high=1.2,
        gap_low=0.2,
        gap_high=0.28,
    )


class Metrics(NamedTuple):
    """What the loss says about its batch; means are over live rows.

    Attributes:
        value: mean V, on the scale of the reward.
        reward: mean raw reward.
        beta_kl: beta times the KL between policy and anchor, in the direction that can be sampled:
            KL(anchor || policy) for "old", KL(policy || anchor) for "ref"; per token if
            length-normalised. The optimal V of raw rewards is mean reward + beta_kl for "old". It
            is 0 while the anchor is the policy itself; after a step it says how far the step went.
        residual: [M] root mean square of the beta^2-scaled residual of each group;
            0 only at balance. A prompt whose residual is large has no trustworthy V yet.
        rows: [M] total weight of each group; where it is 0 its residual is not measured (0).
        importance_clamped: fraction of rows whose importance weight was clamped.
        gap_clamped: fraction of rows whose residual was beyond gap_low or gap_high.
        log_prob_gap: largest |log pi_theta - log pi_behaviour| of an action, nats.
        live: True where the batch has a row to learn from.
    """

    value: Float[Array, ""]
    reward: Float[Array, ""]
    beta_kl: Float[Array, ""]
    residual: Float[Array, " M"]
    rows: Float[Array, " M"]
    importance_clamped: Float[Array, ""]
    gap_clamped: Float[Array, ""]
    log_prob_gap: Float[Array, ""]
    live: Bool[Array, ""]


def trajectory_balance(
    objective: TrajectoryBalance,
    log_probs: Float[Array, "R T"],
    anchor_log_probs: Float[Array, "R T"],
    value: Float[Array, " R"],
    rewards: Float[Array, " R"],
    *,
    behaviour_log_probs: Float[Array, "R T"],
    action_mask: Bool[Array, "R T"],
    group: Int[Array, " R"],
    num_groups: int,
    weight: Float[Array, " R"] | None = None,
    partition: PartitionUpdate | None = None,
) -> tuple[Float[Array, ""], Metrics]:
    """The trajectory-balance loss, a weighted mean over rows of the squared residual.

    Rows of weight 0 or without an action count for nothing; without any row the loss and all its
    gradients are 0. A NaN in a live row makes the loss NaN.

    Args:
        objective: the switches.
        log_probs: [R, T] log pi_theta of the actions, nats; differentiated.
        anchor_log_probs: [R, T], as `objective.anchor` says; without gradient. With one step a
            batch, "old" is `log_probs` itself.
        value: [R] V of each row's prompt; differentiated where partition is "learned".
        rewards: [R].
        behaviour_log_probs: [R, T] as stored when the row was sampled.
        action_mask: [R, T], end of sequence included.
        group: [R] int32, in 0..M-1.
        num_groups: M, static.
        weight: [R] >= 0; 1 by default.
        partition: how rows teach V; by default as the residual says.

    Returns:
        The loss, and its `Metrics`.
    """
    weight = live_rows(action_mask, weight)
    live, beta = weight > 0, objective.beta
    mask = action_mask & live[:, None]
    value, rewards = jnp.where(live, value, 0.0), jnp.where(live, rewards, 0.0)

    # beta log(pi_theta / pi_anchor) and r, one number a response
    log_ratio = log_probs - stop_gradient(anchor_log_probs)
    drift = beta * over_actions(log_ratio, mask, mean=objective.length_normalised)
    reward = rewards
    if objective.reward == "group_normalised":
        reward = centre_by_group(rewards, weight, group, num_groups, scale=True)

    # V = beta log Z; a replayed row may keep its residual from the head
    v = value
    if objective.partition == "group_mean":
        v = stop_gradient(group_mean(reward - drift, weight, group, num_groups))[group]
    elif objective.partition == "fixed":
        v = stop_gradient(value)
    elif partition is not None:
        v = stop_gradient(value) + partition.residual_weight * (value - stop_gradient(value))

    residual = v - reward + drift
    low, high = stop_gradient((-beta * objective.gap_low, beta * objective.gap_high))
    importance, clamped = _importance(objective, log_probs, behaviour_log_probs, mask)
    pull = stop_gradient(jnp.clip(residual, low, high))  # residual, unless the setting bounds it
    square = importance * pull * (2 * residual - pull)
    if objective.partition == "learned" and partition is not None:
        square = square + partition.target_weight * (value - partition.target) ** 2
    loss = weighted_mean(square, weight)

    kl = -drift if objective.anchor == "old" else drift
    return loss if objective.scaled else loss / beta**2, stop_gradient(
        Metrics(
            value=weighted_mean(v, weight),
            reward=weighted_mean(rewards, weight),
            beta_kl=weighted_mean(kl, weight),
            residual=jnp.sqrt(group_mean(residual**2, weight, group, num_groups)),
            rows=jax.ops.segment_sum(weight, group, num_groups),
            importance_clamped=weighted_mean(clamped, weight),
            gap_clamped=weighted_mean((residual < low) | (residual > high), weight),
            log_prob_gap=log_prob_gap(log_probs, behaviour_log_probs, mask),
            live=live.any(),
        )
    )


def _importance(
    objective: TrajectoryBalance,
    log_probs: Float[Array, "R T"],
    behaviour_log_probs: Float[Array, "R T"],
    mask: Bool[Array, "R T"],
) -> tuple[Float[Array, " R"] | float, Bool[Array, " R"]]:
    """Importance weight of each response, without gradient, and where it was clamped."""
    if objective.importance == "none":
        return 1.0, jnp.zeros(mask.shape[0], bool)
    per_token = objective.importance == "sequence_mean"
    log_ratio = over_actions(log_probs - behaviour_log_probs, mask, mean=per_token)
    low, high = jnp.log(objective.importance_low), jnp.log(objective.importance_high)
    return stop_gradient(clamped_exp(log_ratio, low, high))
