"""Schedulers by name: a tracker, a selector and the settings they were published with.

Call them inside the function being compiled, or outside it. Hyperparameters may be traced, sizes
are static. `**options` are max_groups, sources, source_floor and low_signal, see `selectors.sizes`.
"""

from fade_jax.presets.choosing import dps, kgps, mapp, mopps, paced, uniform
from fade_jax.presets.controlled import adarft, cdas, greso
from fade_jax.presets.factored import fade, fade_k0, fade_pg
from fade_jax.presets.screening import dapo, lilo

__all__ = [
    "adarft",
    "cdas",
    "dapo",
    "dps",
    "fade",
    "fade_k0",
    "fade_pg",
    "greso",
    "kgps",
    "lilo",
    "mapp",
    "mopps",
    "paced",
    "uniform",
]
