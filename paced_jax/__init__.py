"""PACED-RL: a trajectory-balance trainer with verifiable rewards, under any scheduler.

`training` puts a run together; `pieces`, `learning`, `admit` and `replay` are what the driver of
`fade_jax` calls; `objectives` and `partition` are functions of arrays that need none of them.
"""

from paced_jax import (
    admit,
    evaluation,
    learning,
    metrics,
    objectives,
    off_policy,
    optimizers,
    paced_tracker,
    partition,
    pieces,
    policy,
    replay,
    run_metrics,
    schedulers,
    scores,
    tasks,
    training,
)
from paced_jax.training import TrainConfig, prepare

__all__ = [
    "TrainConfig",
    "admit",
    "evaluation",
    "learning",
    "metrics",
    "objectives",
    "off_policy",
    "optimizers",
    "paced_tracker",
    "partition",
    "pieces",
    "policy",
    "prepare",
    "replay",
    "run_metrics",
    "schedulers",
    "scores",
    "tasks",
    "training",
]
