"""A policy with known abilities, for closed loops in which the truth can be looked up."""

from fade_jax.simulation import closed_loop, world

__all__ = ["closed_loop", "world"]
