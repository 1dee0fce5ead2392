"""Small filters: their loadings, batches, one compiled update; every moment rule by name."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from fade_jax import ability_difficulty as fade
from fade_jax import moments
from fade_jax.types import Observation

RULES = {
    "pg": moments.pg(),
    "pg_laplace": moments.pg_laplace(),
    "laplace": moments.laplace(),
    "ekf": moments.ekf(),
    "adf": moments.adf(),
    "ep": moments.ep(),
}


def make_loadings(num_prompts, num_skills, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(num_prompts, num_skills)) / np.sqrt(max(num_skills, 1))


def observe(ids, successes, trials, dtype=jnp.float32):
    return Observation(
        jnp.asarray(ids, jnp.int32), jnp.asarray(successes, dtype), jnp.asarray(trials, dtype)
    )


def update(model, observation, state=None):
    """One compiled update, from the prior if no state is given."""
    start = fade.init(model) if state is None else state
    return jax.jit(partial(fade.update, model))(start, observation)


def as_dtype(hyper, dtype):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), hyper)


def given_omega(omega, rule_shift):
    """A moment rule whose sites are handed in: the update is then linear-Gaussian and exact."""

    def site(prior, current, successes, trials):
        live = trials > 0
        return moments.Site(jnp.where(live, omega, 0.0), jnp.where(live, rule_shift, 0.0))

    return moments.MomentRule(site)
