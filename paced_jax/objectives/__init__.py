"""Losses as functions of flat arrays: trajectory balance and clipped policy gradients."""

from paced_jax.objectives.policy_gradient import (
    PolicyGradient,
    dapo,
    dr_grpo,
    grpo,
    policy_gradient,
    rloo,
)
from paced_jax.objectives.trajectory_balance import (
    TrajectoryBalance,
    flowrl,
    gflowrl,
    paced,
    trajectory_balance,
    vargrad,
)

__all__ = [
    "PolicyGradient",
    "TrajectoryBalance",
    "dapo",
    "dr_grpo",
    "flowrl",
    "gflowrl",
    "grpo",
    "paced",
    "policy_gradient",
    "rloo",
    "trajectory_balance",
    "vargrad",
]
