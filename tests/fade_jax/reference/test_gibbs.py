"""Gibbs draws made by the filter's own update, against quadrature: the test without approximation.

Agreement within 4 Monte Carlo standard errors: false alarms at 6e-5 for each number compared, so
below 2e-3 for the whole file; seeds are fixed.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fade_jax import ability_difficulty, hyperparameters
from fade_jax.reference import gibbs, grid
from fade_jax.reference.monte_carlo import summarise
from fade_jax.types import Estimate, Observation

pytestmark = pytest.mark.usefixtures("x64")


def agree(draws, want_mean, want_sd, largest_error):
    found = summarise(draws)
    assert found.mean_error.max() < largest_error  # else agreement would mean little
    np.testing.assert_array_less(np.abs(found.mean - want_mean), 4 * found.mean_error)
    np.testing.assert_array_less(np.abs(found.sd - want_sd), 4 * found.sd_error)


def test_one_prompt_against_quadrature_on_the_line_and_on_the_plane():
    """An unknown ability minus an unknown intercept: one N(0, 1) logit, two latents."""
    ability_var, intercept_var = 0.3, 0.7
    hyper = hyperparameters.default(
        0, ability_cov=ability_var * jnp.eye(1), intercept_var=intercept_var
    )
    model = ability_difficulty.assemble(jnp.zeros((2, 0)), hyper)

    @jax.jit
    def run(key, successes):
        seen = Observation(jnp.array([1]), successes[None], jnp.array([8.0]))
        prior = ability_difficulty.init(model)
        return gibbs.sample(key, model, prior, seen, num_chains=150, num_warmup=20, num_samples=200)

    for successes in (3.0, 0.0):
        draws = run(jax.random.key(5), jnp.asarray(successes))
        assert draws.prompt_ids.tolist() == [1]
        latents = np.concatenate([draws.ability, draws.intercept], -1)
        line = grid.binomial_logit(0.0, 1.0, successes, 8.0, group_size=8)
        psi = latents[..., 0] - latents[..., 1]
        agree(psi, line.mean, line.sd, 0.006)
        p = 1 / (1 + np.exp(-psi))
        for found, want in (
            (summarise(p), line.pass_rate),
            (summarise(1 - p**8 - (1 - p) ** 8), line.informative),
        ):
            assert abs(found.mean - want) < 4 * found.mean_error
        plane = grid.ability_filter(
            np.array([[[1.0, -1.0]]]),
            np.zeros((1, 1)),
            np.array([[successes]]),
            np.full((1, 1), 8.0),
            prior_mean=np.zeros(2),
            prior_cov=np.diag([ability_var, intercept_var]),
            drift=0.0,
        )
        mean, cov = plane.mean[0], plane.cov[0]
        agree(latents, mean, np.sqrt(np.diag(cov)), 0.006)
        products = summarise(np.prod(latents - mean, axis=-1))
        assert abs(products.mean - cov[0, 1]) < 4 * products.mean_error


@pytest.mark.slow
def test_two_abilities_with_known_intercepts_against_the_plane():
    """Correlated prior, a repeated prompt, an empty row: all that the update does to a batch."""
    loadings = np.array([[0.8], [-1.2], [0.3]])
    difficulty = np.array([0.5, -0.4, 1.0])
    prior_mean, prior_cov = np.array([0.2, -0.3]), np.array([[0.9, 0.4], [0.4, 1.1]])
    hyper = hyperparameters.default(
        1, ability_mean=jnp.asarray(prior_mean), ability_cov=jnp.asarray(prior_cov)
    )
    model = ability_difficulty.assemble(jnp.asarray(loadings), hyper)
    state = ability_difficulty.init(model)
    known = jnp.zeros_like(state.visits).at[:3].set(difficulty)
    state = state._replace(intercept=Estimate(known, jnp.zeros_like(known)))
    seen = Observation(
        jnp.array([2, 0, 2, 1, 0]),
        jnp.array([1.0, 6.0, 2.0, 1.0, 0.0]),
        jnp.array([4.0, 8.0, 4.0, 8.0, 0.0]),
    )
    draws = jax.jit(
        lambda key: gibbs.sample(
            key, model, state, seen, num_chains=100, num_warmup=20, num_samples=100
        )
    )(jax.random.key(6))
    assert draws.prompt_ids.tolist() == [0, 1, 2, 3, 3]
    np.testing.assert_array_equal(
        draws.intercept[..., :3], np.broadcast_to(difficulty, (100, 100, 3))
    )
    exact = grid.ability_filter(
        np.concatenate([np.ones((3, 1)), loadings], 1)[None],
        difficulty[None],
        np.array([[6.0, 1.0, 3.0]]),
        np.full((1, 3), 8.0),
        prior_mean=prior_mean,
        prior_cov=prior_cov,
        drift=0.0,
    )
    theta = np.asarray(draws.ability)
    agree(theta, exact.mean[0], np.sqrt(np.diag(exact.cov[0])), 0.012)
    products = summarise(np.prod(theta - exact.mean[0], axis=-1))
    assert abs(products.mean - exact.cov[0, 0, 1]) < 4 * products.mean_error
