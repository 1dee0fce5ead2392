"""NUTS against quadrature, and its refusal to answer when chains cannot be trusted.

Agreement within 4 Monte Carlo standard errors: false alarms at 6e-5 for each of 16 numbers; seeds
are fixed. The tests run with JAX in float32, the sampler in float64 by itself.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fade_jax.reference import grid, nuts
from fade_jax.reference.monte_carlo import summarise


def test_pinned_posteriors_of_one_logit():
    """Two independent cases as the coordinates of one model, so that one run serves both."""
    pinned = {
        3.0: (-0.353598, 0.598264, 0.419200, 0.955996),
        0.0: (-1.555428, 0.685518, 0.194429, 0.753146),
    }
    draws = nuts.static(
        jax.random.key(1),
        np.eye(2),
        np.array(list(pinned)),
        np.full(2, 8.0),
        ability=(np.zeros(2), np.eye(2)),
        intercept=(np.zeros(2), np.zeros(2)),
        num_chains=64,
        num_warmup=300,
        num_samples=700,
    )
    assert draws.ability.dtype == np.float64 and jnp.zeros(1).dtype == jnp.float32
    assert draws.divergences.tolist() == [0] * 64 and draws.r_hat < 1.01
    np.testing.assert_array_equal(draws.intercept, 0.0)
    p = 1 / (1 + np.exp(-draws.ability))
    logit, rate, useful = map(summarise, (draws.ability, p, 1 - p**8 - (1 - p) ** 8))
    found = np.stack([logit.mean, logit.sd, rate.mean, useful.mean], -1)
    error = np.stack([logit.mean_error, logit.sd_error, rate.mean_error, useful.mean_error], -1)
    assert error.max() <= 0.004
    np.testing.assert_array_less(np.abs(found - np.array(list(pinned.values()))), 4 * error)


@pytest.mark.slow
def test_dynamic_run_against_the_plane():
    """One prompt visited twice: (psi_1, psi_2) has a correlated prior and a posterior on a grid.

    psi_t = theta_t - d with theta a random walk: variances a + s and a + q^2 + s, covariance a + s.
    """
    a, s, q, counts = 0.6, 0.5, 0.8, np.array([7.0, 1.0])
    draws = nuts.dynamic(
        jax.random.key(2),
        np.ones((2, 1)),
        np.array([[1], [1]]),
        counts[:, None],
        np.full((2, 1), 8.0),
        ability=(np.array([0.3]), a * np.eye(1)),
        intercept=(np.array([0.0, -0.2]), np.array([0.4, s])),
        drift=q,
        num_chains=16,
        num_warmup=250,
        num_samples=400,
    )
    assert draws.ability.shape == (16, 400, 2, 1) and draws.intercept.shape == (16, 400, 2)
    exact = grid.ability_filter(
        np.eye(2)[None],
        np.zeros((1, 2)),
        counts[None],
        np.full((1, 2), 8.0),
        prior_mean=np.array([0.5, 0.5]),
        prior_cov=np.array([[a + s, a + s], [a + s, a + s + q**2]]),
        drift=0.0,
    )
    psi = draws.ability[..., 0] - draws.intercept[..., 1:]
    found = summarise(psi)
    assert found.mean_error.max() < 0.015
    np.testing.assert_array_less(np.abs(found.mean - exact.mean[0]), 4 * found.mean_error)
    sd = np.sqrt(np.diag(exact.cov[0]))
    np.testing.assert_array_less(np.abs(found.sd - sd), 4 * found.sd_error)
    products = summarise(np.prod(psi - exact.mean[0], axis=-1))
    assert abs(products.mean - exact.cov[0, 0, 1]) < 4 * products.mean_error
    # The prompt never visited keeps its prior.
    unseen = summarise(draws.intercept[..., 0])
    assert abs(unseen.mean) < 4 * unseen.mean_error
    assert abs(unseen.sd - np.sqrt(0.4)) < 4 * unseen.sd_error


def test_untrustworthy_chains_are_refused():
    fine = np.zeros(3, int)
    assert nuts.require_agreement(fine, 1.0099, 1.01) is None
    with pytest.raises(nuts.SamplingError, match=r"diverged: \[0, 2, 0\]"):
        nuts.require_agreement(np.array([0, 2, 0]), 1.0, 1.01)
    for r_hat in (1.01, np.nan):
        with pytest.raises(nuts.SamplingError, match="R-hat"):
            nuts.require_agreement(fine, r_hat, 1.01)


@pytest.mark.slow
def test_nuts_refuses_a_run_that_has_not_converged():
    with pytest.raises(nuts.SamplingError, match="R-hat"):
        nuts.static(
            jax.random.key(0),
            np.ones((1, 1)),
            np.array([3.0]),
            np.array([8.0]),
            ability=(np.zeros(1), np.ones((1, 1))),
            intercept=(np.zeros(1), np.ones(1)),
            num_warmup=5,
            num_samples=10,
            max_r_hat=1.0,
        )
