"""Which prompts get the rollouts of one iteration, given what a tracker believes."""

from fade_jax.selectors import (
    allocation,
    cdas,
    curriculum,
    equal_groups,
    one_of,
    sizes,
    skip,
    thompson,
    threshold,
    top_m,
    uniform,
    warm_up,
    weighted,
)

__all__ = [
    "allocation",
    "cdas",
    "curriculum",
    "equal_groups",
    "one_of",
    "sizes",
    "skip",
    "thompson",
    "threshold",
    "top_m",
    "uniform",
    "warm_up",
    "weighted",
]
