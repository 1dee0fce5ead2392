import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fade_jax import ability_difficulty, hyperparameters
from fade_jax.linear_gaussian import Gaussian
from fade_jax.reference import gibbs, grid, nuts
from fade_jax.reference.identities import identities
from fade_jax.reference.monte_carlo import split_r_hat, summarise
from fade_jax.types import Estimate, Observation

pytestmark = pytest.mark.standard_promotion
# Prior N(0, 1) on the logit: mean, sd, E[p], P(the next 8 are informative).
PINNED = {
    3: (-0.353598, 0.598264, 0.419200, 0.955996),
    0: (-1.555428, 0.685518, 0.194429, 0.753146),
}


def four(psi):
    """The pinned quantities from draws [C, S], with their Monte Carlo standard errors."""
    p = 1 / (1 + np.exp(-psi))
    found = summarise(np.stack([psi, p, 1 - p**8 - (1 - p) ** 8], -1))
    values = (found.mean[0], found.sd[0], found.mean[1], found.mean[2])
    return values, (
        found.mean_error[0],
        found.sd_error[0],
        found.mean_error[1],
        found.mean_error[2],
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_every_form_of_the_gaussian_step_agrees(seed):
    worst = identities(seed)
    assert len(worst) >= 10
    assert max(worst.values()) < 1e-10, worst


@pytest.mark.parametrize("successes", PINNED)
def test_quadrature_of_one_logit(successes):
    got = grid.binomial_logit(0.0, 1.0, float(successes), 8.0, group_size=8)
    np.testing.assert_allclose([float(x) for x in got[:4]], PINNED[successes], atol=1e-6)
    psi = np.linspace(-12, 12, 20_001)  # an independent rule: plain sums over a fixed range
    weight = np.exp(-(psi**2) / 2 + successes * psi - 8 * np.logaddexp(0, psi))
    np.testing.assert_allclose(got[0], (weight * psi).sum() / weight.sum(), atol=1e-9)


@pytest.mark.parametrize("successes", PINNED)
def test_nuts_agrees_with_quadrature(successes):
    # Within 4 standard errors each, 8 quantities: false alarm about 5e-4 over both cases.
    draws = nuts.static(
        jax.random.key(successes),
        np.ones((1, 1)),
        np.array([float(successes)]),
        np.array([8.0]),
        ability=Gaussian(jnp.zeros(1), jnp.ones((1, 1))),
        intercept=Estimate(jnp.zeros(1), jnp.zeros(1)),
        num_warmup=300,
        num_samples=4000,
    )
    assert draws.divergences.sum() == 0
    assert draws.r_hat < 1.01
    values, errors = four(draws.ability[..., 0])
    assert max(errors) <= 0.004
    assert (np.abs(np.subtract(values, PINNED[successes])) < 4 * np.array(errors) + 1e-6).all()


@pytest.mark.parametrize("successes", PINNED)
def test_gibbs_from_the_filters_own_update_agrees_with_quadrature(x64, successes):
    # theta ~ N(0, .5), d ~ N(0, .5): the logit has the pinned prior. 4 standard errors as above.
    hyper = hyperparameters.default(
        0, ability_cov=jnp.asarray([[0.5]]), intercept_var=0.5, intercept_drift=0.0
    )
    model = ability_difficulty.assemble(jnp.zeros((1, 0)), hyper)
    seen = Observation(jnp.asarray([0]), jnp.asarray([float(successes)]), jnp.asarray([8.0]))
    state = ability_difficulty.init(model)
    draws = jax.jit(
        lambda key: gibbs.sample(
            key, model, state, seen, num_chains=64, num_warmup=100, num_samples=400
        )
    )(jax.random.key(successes))
    psi = np.asarray(draws.ability[..., 0] - draws.intercept[..., 0])
    values, errors = four(psi)
    assert (np.abs(np.subtract(values, PINNED[successes])) < 4 * np.array(errors) + 1e-6).all()
    # On the plane: half of the logit's mean each, and Cov(theta, d) = (var(psi prior) - ...) / 4.
    pair = summarise(np.stack([draws.ability[..., 0], draws.intercept[..., 0]], -1))
    want = PINNED[successes][0] / 2
    assert (np.abs(pair.mean - [want, -want]) < 4 * pair.mean_error).all()


def test_scalar_grid_follows_a_gaussian_walk():
    """Without outcomes the grid only drifts: means stay, variances grow by drift^2 a step."""
    none = np.zeros((12, 1))
    found = grid.scalar_filter(none, none, prior_mean=0.3, prior_var=0.5, drift=0.4)
    np.testing.assert_allclose(found.mean[:, 0], 0.3, atol=1e-8)
    variances = found[1][:, 0]
    np.testing.assert_allclose(variances, 0.5 + 0.16 * np.arange(12), rtol=1e-6)


def test_scalar_grid_on_one_count_is_the_quadrature():
    y, n = np.array([[3.0]]), np.array([[8.0]])
    found = grid.scalar_filter(y, n, prior_mean=0.0, prior_var=1.0, drift=0.0)
    np.testing.assert_allclose(found.mean[0, 0], PINNED[3][0], atol=1e-6)


def test_r_hat_and_errors_of_known_draws():
    # Independent draws: MCSE of the mean is sd / sqrt(draws); 8,000 draws, 15 % tolerance.
    draws = np.random.default_rng(0).normal(2.0, 3.0, size=(8, 1000))
    found = summarise(draws)
    np.testing.assert_allclose(found.mean_error, 3 / np.sqrt(8000), rtol=0.15)
    np.testing.assert_allclose(found.sd_error, 3 / np.sqrt(16000), rtol=0.15)
    assert split_r_hat(draws) < 1.01
    drifting = draws + np.linspace(0, 5, 8)[:, None]
    assert split_r_hat(drifting) > 1.1


def test_nuts_refuses_a_run_that_has_not_converged():
    with pytest.raises(nuts.SamplingError, match="R-hat"):
        nuts.static(
            jax.random.key(0),
            np.ones((1, 1)),
            np.array([3.0]),
            np.array([8.0]),
            ability=Gaussian(jnp.zeros(1), jnp.ones((1, 1))),
            intercept=Estimate(jnp.zeros(1), jnp.ones(1)),
            num_warmup=5,
            num_samples=10,
            max_r_hat=1.0,
        )
