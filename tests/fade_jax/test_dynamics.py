import jax.numpy as jnp
import numpy as np
import pytest

from fade_jax import dynamics, hyperparameters
from fade_jax.linear_gaussian import Gaussian

ONE = jnp.ones(())


def setting(**changes):
    rng = np.random.default_rng(0)
    half = rng.normal(size=(3, 3))
    hyper = hyperparameters.default(
        2,
        ability_mean=jnp.asarray([1.0, -1.0, 0.5]),
        ability_cov=jnp.asarray(half @ half.T + np.eye(3)),
        **changes,
    )
    return hyper, Gaussian(jnp.asarray([0.2, 0.1, -0.3]), 0.3 * hyper.ability_cov)


def step(kind, hyper, ability, elapsed, nis=ONE):
    return dynamics.move(ability, kind(hyper, ability, elapsed, nis))


def test_random_walk_takes_standard_deviations_per_step(x64):
    hyper, ability = setting(
        ability_drift=jnp.asarray([0.1, 0.2, 0.0]), ability_trend=jnp.asarray([0.02, 0.0, 0.0])
    )
    moved = step(dynamics.random_walk, hyper, ability, 4.0)
    np.testing.assert_allclose(moved.mean - ability.mean, [0.08, 0, 0], atol=1e-15)
    np.testing.assert_allclose(moved.cov - ability.cov, 4 * np.diag([0.01, 0.04, 0]), atol=1e-14)


@pytest.mark.parametrize(
    "kind", [dynamics.random_walk, dynamics.ornstein_uhlenbeck(0.9), dynamics.discount(0.9)]
)
def test_elapsed_adds_up(x64, kind):
    hyper, ability = setting(ability_drift=0.1, ability_trend=0.02)
    twice = step(kind, hyper, step(kind, hyper, ability, 1.0), 2.0)
    once = step(kind, hyper, ability, 3.0)
    np.testing.assert_allclose(twice.mean, once.mean, rtol=1e-12)
    np.testing.assert_allclose(twice.cov, once.cov, rtol=1e-10)
    still = step(kind, hyper, ability, 0.0)
    np.testing.assert_allclose(still.cov, ability.cov, rtol=1e-12)


def test_ornstein_uhlenbeck_settles_at_the_prior(x64):
    hyper, ability = setting()
    settled = step(dynamics.ornstein_uhlenbeck(0.9), hyper, ability, 500.0)
    np.testing.assert_allclose(settled.mean, hyper.ability_mean, rtol=1e-12)
    np.testing.assert_allclose(settled.cov, hyper.ability_cov, rtol=1e-12)


def test_discount_inflates_and_stops_at_the_prior(x64):
    hyper, ability = setting()
    moved = step(dynamics.discount(0.8), hyper, ability, 1.0)
    np.testing.assert_allclose(moved.cov, ability.cov / 0.8, rtol=1e-10)
    np.testing.assert_allclose(moved.mean, ability.mean)
    capped = step(dynamics.discount(0.8), hyper, ability, 100.0)
    np.testing.assert_allclose(capped.cov, hyper.ability_cov, rtol=1e-10)
    # A direction already wider than the prior is left alone.
    wide = Gaussian(ability.mean, 2 * hyper.ability_cov)
    np.testing.assert_allclose(
        step(dynamics.discount(0.8), hyper, wide, 1.0).cov, wide.cov, rtol=1e-10
    )


def test_adaptive_scales_noise_by_the_innovation(x64):
    hyper, ability = setting(ability_drift=0.1)
    base = step(dynamics.random_walk, hyper, ability, 1.0).cov - ability.cov
    kind = dynamics.adaptive(exponent=0.5, highest=4.0)
    for nis, factor in [(1.0, 1.0), (0.25, 0.5), (100.0, 2.0)]:
        grown = step(kind, hyper, ability, 1.0, jnp.asarray(nis)).cov - ability.cov
        np.testing.assert_allclose(grown, factor * base, atol=1e-14)


def test_policy_elapsed():
    got = [float(dynamics.policy_elapsed(kl, 0.02)) for kl in (0.0, 0.01, 0.02, 5.0)]
    np.testing.assert_allclose(got, [0.0, 0.5, 1.0, 10.0], rtol=1e-6)
