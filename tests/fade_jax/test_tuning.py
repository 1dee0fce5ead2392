import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fade_jax import ability_difficulty, hyperparameters, replay, tuning
from fade_jax.pool_loadings import lay_out
from fade_jax.trackers import discounted_beta

pytestmark = pytest.mark.standard_promotion


@pytest.mark.parametrize(
    ("constraint", "value"),
    [
        (tuning.real(), jnp.asarray(-3.0)),
        (tuning.positive(), jnp.asarray([0.1, 7.0])),
        (tuning.unit_interval(), jnp.asarray(0.97)),
        (tuning.fixed(), jnp.asarray(2.0)),
        (tuning.covariance(), jnp.asarray([[2.0, 0.5], [0.5, 1.0]])),
    ],
)
def test_constraints_invert(constraint, value):
    np.testing.assert_allclose(constraint.bind(constraint.free(value)), value, rtol=1e-5)


def test_a_learned_covariance_stays_positive_definite():
    """500 steps towards a singular target: an unconstrained matrix would leave the cone."""
    target = jnp.asarray([[1.0, 1.0], [1.0, 1.0]])

    def score(params):
        return -jnp.sum((params["cov"] - target) ** 2)

    fit = jax.jit(
        lambda start: tuning.fit(
            score, {"cov": start}, {"cov": tuning.covariance()}, steps=500, learning_rate=0.1
        )
    )(jnp.eye(2))
    cov = np.asarray(fit.params["cov"], np.float64)
    np.testing.assert_array_equal(cov, cov.T)
    assert np.linalg.eigvalsh(cov)[0] >= 0
    np.testing.assert_allclose(cov, target, atol=0.05)


def test_a_fit_never_ends_worse_than_it_started():
    def score(params):  # a cliff: beyond 1.01 the score is NaN
        x = params["x"]
        return jnp.where(x > 1.01, jnp.nan, x)

    fit = tuning.fit(
        score, {"x": jnp.ones(())}, {"x": tuning.positive()}, steps=20, learning_rate=0.5
    )
    assert 1.0 <= float(fit.score) <= 1.01
    with pytest.raises(ValueError, match="steps must be >= 1, got 0"):
        tuning.fit(score, {"x": jnp.ones(())}, {"x": tuning.real()}, steps=0)


def simulated(drift, num_prompts=60, num_steps=40, seed=0):
    rng = np.random.default_rng(seed)
    intercept = rng.normal(0, 1.2, num_prompts)
    ability = np.cumsum(drift * rng.normal(size=num_steps))
    rate = 1 / (1 + np.exp(-(ability[:, None] - intercept)))
    return rng.binomial(8, rate).astype(np.float32), np.full(rate.shape, 8, np.float32)


def log_score(tracker, successes, trials):
    info = replay.replay(tracker, tracker.init(), successes, trials, trials > 0, 8)[3]
    return info.log_evidence.sum() / trials.size


@pytest.mark.slow
def test_empirical_bayes_recovers_the_drift():
    """One ability moving .3 a step, seen through 60 prompts x 8: about 40 steps of evidence, so
    the fitted sd has a relative standard error near 1 / sqrt(2 x 40) = .11; bounds at 4 of them.
    """
    successes, trials = map(jnp.asarray, simulated(0.3))

    def score(params):
        hyper = hyperparameters.default(0, **params, intercept_drift=0.0)
        return log_score(
            ability_difficulty.build(lay_out(jnp.zeros((60, 0))), hyper), successes, trials
        )

    start = {"ability_drift": jnp.asarray(0.05), "intercept_var": jnp.asarray(4.0)}
    free = {"ability_drift": tuning.positive(), "intercept_var": tuning.positive()}
    fit = jax.jit(lambda p: tuning.fit(score, p, free, steps=60, learning_rate=0.15))(start)
    assert 0.3 / 1.6 < float(fit.params["ability_drift"]) < 0.3 * 1.6
    # sd 1.2 over 60 prompts: relative standard error of the variance sqrt(2 / 60) = .18.
    assert 1.44 / 2.2 < float(fit.params["intercept_var"]) < 1.44 * 2.2
    assert float(fit.score) > float(fit.trace[0])


@pytest.mark.slow
def test_gradient_through_the_filter_matches_finite_differences(x64):
    successes, trials = (jnp.asarray(x[:6, :8], jnp.float64) for x in simulated(0.3))
    loadings = jnp.asarray(np.random.default_rng(0).normal(size=(8, 2)) / np.sqrt(2))

    @jax.jit
    def score(log_drift):
        hyper = hyperparameters.default(2, ability_drift=jnp.exp(log_drift))
        return log_score(ability_difficulty.build(loadings, hyper), successes, trials)

    at = jnp.asarray(-2.0)
    slope = jax.jit(jax.grad(score))(at)
    step = 1e-4
    want = (score(at + step) - score(at - step)) / (2 * step)
    # Quadrature nodes are held while differentiating: equal up to their own error.
    np.testing.assert_allclose(slope, want, rtol=2e-3)


def test_rivals_can_be_tuned_too():
    successes, trials = map(jnp.asarray, simulated(0.3))

    def score(params):
        return log_score(discounted_beta.build(60, **params), successes, trials)

    start = {"discount": jnp.asarray(0.99)}
    fit = jax.jit(
        lambda p: tuning.fit(
            score, p, {"discount": tuning.unit_interval()}, steps=60, learning_rate=0.3
        )
    )(start)
    assert 0.3 < float(fit.params["discount"]) < 0.95
