"""Which prompts get the rollouts of one iteration, given what a tracker believes."""

from fade_jax.selectors import equal_groups, sizes, thompson, top_m, uniform, weighted

__all__ = ["equal_groups", "sizes", "thompson", "top_m", "uniform", "weighted"]
