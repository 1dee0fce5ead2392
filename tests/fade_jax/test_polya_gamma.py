import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from fade_jax import polya_gamma

TILTS = np.concatenate(
    [
        np.geomspace(1e-4, 60, 120),
        # both sides of every switch between series and closed form
        [0.00999, 0.01001, 0.0999, 0.1001, 0.4999, 0.5001],
    ]
)


def exact_mean(c):
    return mpmath.tanh(c / 2) / (2 * c)


def exact_variance(c):
    return (mpmath.sinh(c) - c) * mpmath.sech(c / 2) ** 2 / (4 * c**3)


def relative_errors(function, exact, dtype):
    tilt = jnp.asarray(TILTS, dtype)
    with mpmath.workdps(60):
        truth = [exact(mpmath.mpf(float(c))) for c in np.asarray(tilt, np.float64)]
        got = np.asarray(function(jnp.ones_like(tilt), tilt), np.float64)
        return np.array([float(abs(g / t - 1)) for g, t in zip(got, truth, strict=True)])


def test_moments_match_high_precision_in_float64(x64):
    assert relative_errors(polya_gamma.mean, exact_mean, jnp.float64).max() < 2e-15
    assert relative_errors(polya_gamma.variance, exact_variance, jnp.float64).max() < 5e-12


def test_moments_match_high_precision_in_float32():
    assert relative_errors(polya_gamma.mean, exact_mean, jnp.float32).max() < 3e-7
    assert relative_errors(polya_gamma.variance, exact_variance, jnp.float32).max() < 5e-6


def test_limits_sign_and_scaling():
    trials = jnp.asarray([0.0, 8.0, 8.0, 8.0])
    tilt = jnp.asarray([1.0, 0.0, 3.0, -3.0])
    mean = polya_gamma.mean(trials, tilt)
    np.testing.assert_allclose(mean[:2], [0.0, 2.0], rtol=1e-7)
    assert mean[2] == mean[3]
    variance = polya_gamma.variance(trials, tilt)
    np.testing.assert_allclose(variance[:2], [0.0, 8 / 24], rtol=1e-6)
    huge = jnp.asarray([1e4])
    np.testing.assert_allclose(polya_gamma.mean(jnp.ones(1), huge), 1 / 2e4, rtol=1e-6)
    np.testing.assert_allclose(polya_gamma.variance(jnp.ones(1), huge), 1 / 2e12, rtol=1e-6)


@pytest.mark.parametrize("moment", [polya_gamma.mean, polya_gamma.variance])
@pytest.mark.parametrize("tilt", [0.0, 1e-3, 0.09, 0.3, 2.0, 40.0])
def test_gradients_match_finite_differences(x64, moment, tilt):
    one = jnp.ones(())
    slope = jax.grad(lambda c: moment(one, c))(jnp.asarray(tilt))
    step = 1e-5
    if tilt == 0:
        assert slope == 0  # even functions
    else:
        up, down = (moment(one, jnp.asarray(tilt + sign * step)) for sign in (1, -1))
        np.testing.assert_allclose(slope, (up - down) / (2 * step), rtol=1e-5, atol=1e-9)


def test_mean_is_twice_the_jaakkola_jordan_coefficient(x64):
    # log sigmoid(psi) >= log sigmoid(xi) + (psi - xi) / 2 - lambda(xi) (psi^2 - xi^2), touching at
    # psi = +-xi (Jaakkola & Jordan 2000); lambda = E[PG(1, xi)] / 2.
    psi = np.linspace(-6, 6, 241)
    for xi in (0.3, 1.5, 4.0):
        lam = float(polya_gamma.mean(jnp.ones(()), jnp.asarray(xi))) / 2
        bound = -np.logaddexp(0, -xi) + (psi - xi) / 2 - lam * (psi**2 - xi**2)
        gap = -np.logaddexp(0, -psi) - bound
        assert gap.min() > -1e-12
        at_touch = np.abs(np.abs(psi) - xi) < 1e-9
        if at_touch.any():
            np.testing.assert_allclose(gap[at_touch], 0, atol=1e-12)


@pytest.mark.slow
def test_draws_have_the_exact_moments():
    # 4,000 draws: the standard error of the mean is sqrt(var / 4000), of the variance about
    # var sqrt(2 / 4000) times a kurtosis factor below 2. 5 standard errors: false alarm < 1e-5.
    count = 4000
    for seed, (trials, tilt) in enumerate([(1.0, 0.0), (8.0, 2.0), (3.0, -6.0)]):
        draws = np.asarray(
            polya_gamma.sample(
                jax.random.key(seed), jnp.full((count,), trials), jnp.full((count,), tilt)
            )
        )
        mean = float(polya_gamma.mean(jnp.asarray(trials), jnp.asarray(tilt)))
        variance = float(polya_gamma.variance(jnp.asarray(trials), jnp.asarray(tilt)))
        assert abs(draws.mean() - mean) < 5 * np.sqrt(variance / count)
        assert abs(draws.var() - variance) < 5 * 2 * variance * np.sqrt(2 / count)
    none = polya_gamma.sample(jax.random.key(0), jnp.zeros((2,)), jnp.ones((2,)))
    assert none.tolist() == [0.0, 0.0]
