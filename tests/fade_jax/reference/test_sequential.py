"""The textbook updates against dense numpy algebra of another form, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fade_jax.linear_gaussian import Gaussian
from fade_jax.moments import Site
from fade_jax.reference import sequential
from fade_jax.reference.identities import identities
from fade_jax.types import Estimate

pytestmark = pytest.mark.usefixtures("x64")


def problem(seed, dim=4, size=6):
    rng = np.random.default_rng(seed)
    factor = rng.standard_normal((dim, dim))
    mean, cov = rng.standard_normal(dim), factor @ factor.T + 0.1 * np.eye(dim)
    design, precision = rng.standard_normal((size, dim)), rng.gamma(1.0, 1.0, size)
    precision[2] = 0.0
    shift = rng.standard_normal(size) * (precision > 0)
    return mean, cov, design, precision, shift


def kalman(mean, cov, design, precision, shift):
    """Covariance form with observations shift / precision of variance 1 / precision."""
    live = precision > 0
    design, precision, shift = design[live], precision[live], shift[live]
    gain = cov @ design.T @ np.linalg.inv(design @ cov @ design.T + np.diag(1 / precision))
    return mean + gain @ (shift / precision - design @ mean), cov - gain @ design @ cov


def test_one_unit_observation_of_a_unit_prior():
    one = jnp.ones(1)
    found = sequential.condition(Gaussian(jnp.zeros(1), jnp.eye(1)), jnp.ones((1, 1)), one, one)
    assert found.mean.tolist() == [0.5] and found.cov.tolist() == [[0.5]]


def test_one_at_a_time_is_the_kalman_step_in_any_order():
    mean, cov, design, precision, shift = problem(0)
    want = kalman(mean, cov, design, precision, shift)
    for order in (np.arange(6), np.random.default_rng(1).permutation(6)):
        prior = Gaussian(jnp.asarray(mean), jnp.asarray(cov))
        rows = (jnp.asarray(x[order]) for x in (design, precision, shift))
        found = jax.jit(sequential.condition)(prior, *rows)
        for a, b in zip(found, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


def test_joint_step_is_the_kalman_step_of_all_latents():
    rng = np.random.default_rng(3)
    mean, cov, *_ = problem(2, dim=2)
    d_mean, d_var = rng.standard_normal(5), rng.uniform(0.1, 3.0, 5)
    design = rng.standard_normal((5, 2))
    ids = np.array([4, 0, 4, 2], np.int32)  # a prompt seen twice, two never
    precision, shift = np.array([0.5, 2.0, 1.5, 0.0]), np.array([1.0, -0.3, 0.2, 0.0])
    cov_all = np.zeros((7, 7))
    cov_all[:2, :2], cov_all[2:, 2:] = cov, np.diag(d_var)
    rows = np.concatenate([design, -np.eye(5)], 1)[ids]
    want = kalman(np.concatenate([mean, d_mean]), cov_all, rows, precision, shift)
    found = sequential.joint_step(
        Gaussian(jnp.asarray(mean), jnp.asarray(cov)),
        Estimate(jnp.asarray(d_mean), jnp.asarray(d_var)),
        jnp.asarray(design),
        jnp.asarray(ids),
        Site(jnp.asarray(precision), jnp.asarray(shift)),
    )
    for a, b in zip(found, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)
    assert found.mean[3] == pytest.approx(d_mean[1], abs=1e-12)  # prompt 1: never seen
    assert found.cov[3, 3] == pytest.approx(d_var[1], abs=1e-12)


@pytest.mark.parametrize("seed", [0, 1])
def test_every_identity_holds_to_rounding(seed):
    found = identities(seed)
    assert len(found) == 12
    assert max(found.values()) < 1e-10, found


def test_an_identity_notices_a_wrong_sign(monkeypatch):
    from fade_jax.reference import gibbs

    right = gibbs.intercepts_given
    monkeypatch.setattr(
        gibbs, "intercepts_given", lambda law, along, omega, kappa: right(law, along, omega, -kappa)
    )
    found = identities(0, batch=6)  # another shape: compiled anew, with the fault
    assert found["Gibbs half-step, d given theta and omega = joint step"] > 1e-2
