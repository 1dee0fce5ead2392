"""Every tracker and every selector. A newcomer joins all batteries by one line here."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fade_jax import ability_difficulty, hyperparameters, moments
from fade_jax.selectors import (
    allocation,
    cdas,
    curriculum,
    skip,
    thompson,
    threshold,
    top_m,
    uniform,
    weighted,
)
from fade_jax.trackers import cdas as cdas_tracker
from fade_jax.trackers import discounted_beta, ema, logit_kalman, markov, oracle
from fade_jax.types import Tracker


def told(num_prompts):
    return oracle.build(jax.nn.sigmoid(2 - 4 * jnp.arange(num_prompts) / (num_prompts - 1)))


def fade(num_prompts):
    loadings = np.random.default_rng(0).normal(size=(num_prompts, 2))
    return ability_difficulty.build(
        jnp.asarray(loadings, float), hyperparameters.default(2), rule=moments.pg(2)
    )


TRACKERS: dict[str, Callable[[int], Tracker]] = {
    "ema": ema.build,
    "discounted beta": discounted_beta.build,
    "markov": markov.build,
    "cdas": cdas_tracker.build,
    "kalman": partial(logit_kalman.build, rule=moments.ekf()),
    "oracle": told,
    "fade": fade,
}
SELECTORS: dict[str, Callable[..., Any]] = {
    "uniform": uniform.build,
    "epochs": partial(uniform.build, epochs=True),
    "top_m": top_m.build,
    "thompson": thompson.build,
    "weighted": weighted.build,
    "threshold": partial(threshold.build, wanted=1.5, z=0.5, tau=0.6),
    "skip": skip.build,
    "skip by tracker": partial(skip.build, rule="tracker"),
    "curriculum": curriculum.build,
    "cdas": cdas.build,
    "allocation": allocation.build,
}
