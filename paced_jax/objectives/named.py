"""The losses that a run can name, and what a run has to know of a loss."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from paced_jax.objectives.policy_gradient import PolicyGradient, dapo, dr_grpo, grpo, rloo
from paced_jax.objectives.row_loss import RowLoss
from paced_jax.objectives.trajectory_balance import (
    TrajectoryBalance,
    flowrl,
    gflowrl,
    paced,
    vargrad,
)
from paced_jax.types import Leaf

Objective: TypeAlias = TrajectoryBalance | PolicyGradient | RowLoss
"""A setting of one of the two cores, or a loss of your own."""


class LossOptions(NamedTuple):
    """What of a run's configuration reaches its loss.

    Attributes:
        beta: as configured; None for the named setting's own.
        max_tokens: T, longest response.
    """

    beta: float | None
    max_tokens: int


def _balance(setting: Callable[..., TrajectoryBalance]) -> Callable[[LossOptions], Objective]:
    def make(options: LossOptions) -> Objective:
        return setting() if options.beta is None else setting(options.beta)

    return make


def _dr_grpo(options: LossOptions) -> Objective:
    token_budget: Leaf = float(options.max_tokens)
    return dr_grpo(token_budget)


OBJECTIVES: dict[str, Callable[[LossOptions], Objective]] = {
    "paced": _balance(paced),
    "flowrl": _balance(flowrl),
    "vargrad": _balance(vargrad),
    "gflowrl": _balance(gflowrl),
    "grpo": lambda options: grpo(),
    "dapo": lambda options: dapo(),
    "dr_grpo": _dr_grpo,
    "rloo": lambda options: rloo(),
}
"""By the name that `TrainConfig.objective` and `--objective` take; a line here adds one."""


def reads_reference(objective: Objective) -> bool:
    """Whether the loss needs a fixed reference policy."""
    if isinstance(objective, PolicyGradient):
        return objective.kl != "none"
    if isinstance(objective, RowLoss):
        return objective.reads_reference
    return objective.anchor == "ref"


def by_actions(objective: Objective) -> bool:
    """Whether the loss is a mean over actions, not over rows."""
    return isinstance(objective, PolicyGradient) and objective.aggregation == "token_mean"


def trains_value(objective: Objective) -> bool:
    """Whether V moves under this loss."""
    if isinstance(objective, RowLoss):
        return objective.teaches_pass_rate
    return isinstance(objective, TrajectoryBalance) and objective.partition == "learned"


def teaches_pass_rate(objective: Objective) -> bool:
    """Whether V becomes the pass rate: raw rewards, and the policy that sampled as anchor."""
    if isinstance(objective, TrajectoryBalance):
        own = objective.anchor == "old" and objective.reward == "raw"
        return own and trains_value(objective)
    return trains_value(objective)
