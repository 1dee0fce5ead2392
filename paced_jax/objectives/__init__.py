"""Losses as functions of flat arrays: trajectory balance, clipped policy gradients, your own."""

from paced_jax.objectives.named import OBJECTIVES, LossOptions, Objective
from paced_jax.objectives.policy_gradient import (
    PolicyGradient,
    dapo,
    dr_grpo,
    grpo,
    policy_gradient,
    rloo,
)
from paced_jax.objectives.row_loss import LossRows, RowLoss, row_loss
from paced_jax.objectives.trajectory_balance import (
    TrajectoryBalance,
    flowrl,
    gflowrl,
    paced,
    trajectory_balance,
    vargrad,
)

__all__ = [
    "OBJECTIVES",
    "LossOptions",
    "LossRows",
    "Objective",
    "PolicyGradient",
    "RowLoss",
    "TrajectoryBalance",
    "dapo",
    "dr_grpo",
    "flowrl",
    "gflowrl",
    "grpo",
    "paced",
    "policy_gradient",
    "rloo",
    "row_loss",
    "trajectory_balance",
    "vargrad",
]
