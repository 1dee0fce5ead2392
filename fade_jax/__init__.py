"""Which prompts to train on, in RL with verifiable rewards: trackers of pass rates in JAX.

A *tracker* holds a belief about every prompt's pass rate; `ability_difficulty` is FADE, `trackers`
its rivals. A *selector* decides which prompts get rollouts; `presets` names whole schedulers.
Everything is pure functions over NamedTuples of arrays.
"""

from fade_jax import (
    ability_difficulty,
    calibration,
    driver,
    dynamics,
    histories,
    hyperparameters,
    linear_gaussian,
    loadings,
    moments,
    outcomes,
    pool,
    pool_loadings,
    presets,
    recording,
    replay,
    selectors,
    sharded_pool,
    shrinkage,
    simulation,
    smoother,
    trackers,
    tuning,
    utility,
    warm_start,
)
from fade_jax.door import check_observation, observation_from_groups, pad_observation
from fade_jax.pool_loadings import lay_out
from fade_jax.types import (
    Estimate,
    Info,
    Observation,
    Scheduler,
    SelectInfo,
    Selection,
    Selector,
    Tracker,
)

__all__ = [
    "Estimate",
    "Info",
    "Observation",
    "Scheduler",
    "SelectInfo",
    "Selection",
    "Selector",
    "Tracker",
    "ability_difficulty",
    "calibration",
    "check_observation",
    "driver",
    "dynamics",
    "histories",
    "hyperparameters",
    "lay_out",
    "linear_gaussian",
    "loadings",
    "moments",
    "observation_from_groups",
    "outcomes",
    "pad_observation",
    "pool",
    "pool_loadings",
    "presets",
    "recording",
    "replay",
    "selectors",
    "sharded_pool",
    "shrinkage",
    "simulation",
    "smoother",
    "trackers",
    "tuning",
    "utility",
    "warm_start",
]
