"""Clipped policy gradients: one surrogate, whose switches give GRPO, DAPO, Dr.GRPO and RLOO.

    L = -E[ min(rho_t A, clip(rho_t, 1 - clip_low, 1 + clip_high) A) ]
        + kl_coefficient E[ e^k - k - 1 ],

with rho_t = pi_theta / pi_old of one token, A the advantage of its response within the rollout
group, k = log(pi_ref / pi_theta) and E the mean that `aggregation` names. Overlong penalties
belong to the reward, see `overlong`.

Shapes: `R` rows (responses), `T` response tokens, `M` groups, one prompt each.
"""

import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float, Int

from fade_jax import outcomes
from paced_jax.objectives.reductions import (
    centre_by_group,
    clamped_exp,
    live_rows,
    log_prob_gap,
    over_actions,
    weighted_mean,
)
from paced_jax.types import Leaf, check_switches

LOG_RATIO_BOUND = 20.0
"""Log-ratios of one token are clamped to +-20 before `exp`; rows beyond have no gradient."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class PolicyGradient:
    """Switches of the clipped surrogate. Strings are static, numbers are leaves.

    Attributes:
        clip_low: the ratio is clipped below 1 - clip_low.
        clip_high: the ratio is clipped above 1 + clip_high.
        kl_coefficient: weight of the KL estimate, where kl is "k3".
        token_budget: tokens a response is divided by under "constant".
        advantage: "group_normalised" (r - mean) / (std + 1e-6), "group_centred" r - mean, or
            "leave_one_out" r minus the mean of the others, which is n / (n - 1) (r - mean).
        aggregation: "sequence_mean" averages over tokens, then over responses; "token_mean" over
            all tokens of the batch; "constant" sums over tokens, divides by token_budget and
            averages over responses.
        kl: "none", or "k3", the estimate e^k - k - 1 of KL(pi_theta || pi_ref), >= 0.
    """

    clip_low: Leaf = 0.2
    clip_high: Leaf = 0.2
    kl_coefficient: Leaf = 0.0
    token_budget: Leaf = 1.0
    advantage: Literal["group_normalised", "group_centred", "leave_one_out"] = field(
        default="group_normalised", metadata={"static": True}
    )
    aggregation: Literal["sequence_mean", "token_mean", "constant"] = field(
        default="sequence_mean", metadata={"static": True}
    )
    kl: Literal["none", "k3"] = field(default="none", metadata={"static": True})

    def __post_init__(self):
        check_switches(self)


def grpo(kl_coefficient: float | None = None) -> PolicyGradient:
    """GRPO (arXiv 2402.03300): normalised advantages, mean over tokens, then over responses.

    Args:
        kl_coefficient: the published loss has .04; None leaves the KL out and needs no reference.
    """
    if kl_coefficient is None:
        return PolicyGradient()
    return PolicyGradient(kl="k3", kl_coefficient=kl_coefficient)


def dapo() -> PolicyGradient:
    """DAPO (arXiv 2503.14476): GRPO with the upper clip at .28 and a mean over all tokens, no KL.

    Its dynamic sampling is `admit.drop_degenerate`.
    """
    return PolicyGradient(clip_high=0.28, aggregation="token_mean")


def dr_grpo(token_budget: Leaf) -> PolicyGradient:
    """Dr.GRPO (arXiv 2503.20783): no standard deviation, no division by the response's length.

    Args:
        token_budget: the constant that takes the length's place, usually the longest response T.
    """
    return PolicyGradient(
        advantage="group_centred", aggregation="constant", token_budget=token_budget
    )


def rloo() -> PolicyGradient:
    """RLOO (arXiv 2402.14740): REINFORCE with the mean of the other responses as baseline.

    Responses are summed over their tokens and ratios are not clipped. It is meant on-policy: the
    ratio of a token, not of the response, weighs stale rows.
    """
    return PolicyGradient(
        advantage="leave_one_out", aggregation="constant", clip_low=1.0, clip_high=math.inf
    )


class Metrics(NamedTuple):
    """What the loss says about its batch; fractions are of the actions of live rows.

    Attributes:
        reward: mean raw reward.
        kl: mean k3 estimate of KL(pi_theta || pi_ref) per token; 0 where kl is "none".
        clipped_low: fraction with a ratio below 1 - clip_low.
        clipped_high: fraction with a ratio above 1 + clip_high.
        ratio_clamped: fraction whose log-ratio was beyond `LOG_RATIO_BOUND`.
        informative: fraction of the groups with live rows whose rewards differ.
        log_prob_gap: largest |log pi_theta - log pi_old| of an action, nats.
        live: True where the batch has something to learn from: a group whose rewards differ or,
            with a KL term, any row. Where it is False `learn` must not step: a zero gradient still
            moves an optimiser's momentum and weight decay.
    """

    reward: Float[Array, ""]
    kl: Float[Array, ""]
    clipped_low: Float[Array, ""]
    clipped_high: Float[Array, ""]
    ratio_clamped: Float[Array, ""]
    informative: Float[Array, ""]
    log_prob_gap: Float[Array, ""]
    live: Bool[Array, ""]


def policy_gradient(
    objective: PolicyGradient,
    log_probs: Float[Array, "R T"],
    old_log_probs: Float[Array, "R T"],
    rewards: Float[Array, " R"],
    *,
    action_mask: Bool[Array, "R T"],
    group: Int[Array, " R"],
    num_groups: int,
    reference_log_probs: Float[Array, "R T"] | None = None,
    weight: Float[Array, " R"] | None = None,
) -> tuple[Float[Array, ""], Metrics]:
    """The clipped surrogate loss; its gradient is exactly 0 where no group's rewards differ.

    Args:
        objective: the switches.
        log_probs: [R, T] log pi_theta of the actions, nats; differentiated.
        old_log_probs: [R, T] of the policy that sampled; without gradient.
        rewards: [R].
        action_mask: [R, T], end of sequence included.
        group: [R] int32, in 0..M-1.
        num_groups: M, static.
        reference_log_probs: [R, T], needed where kl is "k3".
        weight: [R], 0 or 1; rows of weight 0 count for nothing, in their group's mean too.

    Returns:
        The loss, and its `Metrics`.

    Raises:
        ValueError: kl is "k3" and there are no reference log-probabilities.
    """
    if objective.kl == "k3" and reference_log_probs is None:
        raise ValueError('reference_log_probs: kl="k3" needs them, got None')
    weight = live_rows(action_mask, weight)
    live = weight > 0
    mask, rewards = action_mask & live[:, None], jnp.where(live, rewards, 0.0)

    advantage = stop_gradient(_advantage(objective, rewards, weight, group, num_groups))[:, None]
    log_ratio = jnp.where(mask, log_probs - stop_gradient(old_log_probs), 0.0)
    low, high = 1 - objective.clip_low, 1 + objective.clip_high
    ratio, clamped = clamped_exp(log_ratio, -LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    per_token = -jnp.minimum(ratio * advantage, jnp.clip(ratio, low, high) * advantage)
    k3 = jnp.zeros_like(log_ratio)
    if reference_log_probs is not None and objective.kl == "k3":
        k = jnp.where(mask, reference_log_probs - log_probs, 0.0)
        k3 = clamped_exp(k, -LOG_RATIO_BOUND, LOG_RATIO_BOUND)[0] - k - 1
        per_token = per_token + objective.kl_coefficient * k3

    if objective.aggregation == "token_mean":
        loss = _token_mean(per_token, mask, weight)
    else:
        constant = objective.aggregation == "constant"
        response = over_actions(per_token, mask, mean=not constant)
        loss = weighted_mean(response, weight) / (objective.token_budget if constant else 1.0)

    flat = outcomes.degenerate(rewards, group, num_groups, counted=live)
    present = jax.ops.segment_sum(weight, group, num_groups) > 0
    metrics = Metrics(
        reward=weighted_mean(rewards, weight),
        kl=_token_mean(k3, mask, weight),
        clipped_low=_token_mean(ratio < low, mask, weight),
        clipped_high=_token_mean(ratio > high, mask, weight),
        ratio_clamped=_token_mean(clamped, mask, weight),
        informative=(present & ~flat).sum() / jnp.maximum(present.sum(), 1),
        log_prob_gap=log_prob_gap(log_probs, old_log_probs, mask),
        live=live.any() if objective.kl == "k3" else (present & ~flat).any(),
    )
    return loss, stop_gradient(metrics)


def _advantage(
    objective: PolicyGradient,
    rewards: Float[Array, " R"],
    weight: Float[Array, " R"],
    group: Int[Array, " R"],
    num_groups: int,
) -> Float[Array, " R"]:
    """Advantages within the group, in which a degenerate group has exact zeros."""
    scale = objective.advantage == "group_normalised"
    advantage = centre_by_group(rewards, weight, group, num_groups, scale=scale)
    if objective.advantage == "leave_one_out":
        # No standard deviation here: the others of the only success have none.
        size = jax.ops.segment_sum(weight, group, num_groups)[group]
        advantage = advantage * size / jnp.maximum(size - 1, 1)
    return advantage


def _token_mean(
    per_token: Float[Array, "R T"] | Bool[Array, "R T"],
    mask: Bool[Array, "R T"],
    weight: Float[Array, " R"],
) -> Float[Array, ""]:
    """Mean over all actions of live rows, each row's tokens weighed alike; 0 without any."""
    return weighted_mean(
        jnp.asarray(per_token, weight.dtype).reshape(-1), (mask * weight[:, None]).reshape(-1)
    )
