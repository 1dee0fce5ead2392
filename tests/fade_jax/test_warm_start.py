"""A second run on known intercepts: what it starts from, and what frozen ones leave to learn."""

import doctest
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fade_jax import ability_difficulty as fade
from fade_jax import hyperparameters, moments, shrinkage, warm_start
from fade_jax.types import Estimate, Observation


def make_model(num_prompts=5, num_skills=2, rule=None, kind=shrinkage.bayes, seed=0, **changes):
    rng = np.random.default_rng(seed)
    half = rng.normal(size=(num_skills + 1, num_skills + 1))
    hyper = hyperparameters.default(
        num_skills,
        ability_mean=jnp.asarray(rng.normal(size=num_skills + 1)),
        ability_cov=jnp.asarray(half @ half.T + np.eye(num_skills + 1)),
        **{"intercept_mean": 0.4, "intercept_var": 2.5, "intercept_drift": 0.3, **changes},
    )
    loadings = jnp.asarray(rng.normal(size=(num_prompts, num_skills)))
    rule = moments.adf() if rule is None else rule
    return fade.assemble(loadings, hyper, rule=rule, shrinkage=kind())


def observe(ids, successes):
    counts = jnp.asarray(successes, float)
    return Observation(jnp.asarray(ids, jnp.int32), counts, jnp.full_like(counts, 8.0))


def run(model, state, batches):
    for ids, successes in batches:
        state, _ = jax.jit(partial(fade.update, model))(state, observe(ids, successes))
        state = fade.predict(model, state, 1.0)
    return state


FIRST = [([0, 2], [8.0, 1.0]), ([0, 1], [7.0, 0.0]), ([4, 2], [3.0, 2.0])]


def test_a_warm_state_is_the_prior_with_the_first_runs_intercepts(x64):
    model = make_model()
    finished = run(model, fade.init(model), FIRST)
    known = fade.intercepts(model, finished)
    # As of the end of the first run: prompt 0 was last seen two steps before it.
    np.testing.assert_allclose(known.mean, finished.intercept.mean[:5], rtol=0)
    np.testing.assert_allclose(known.var[0], finished.intercept.var[0] + 2 * 0.3**2, rtol=1e-12)
    assert float(known.var[3]) == 2.5  # never seen: still the prior

    warm, prior = warm_start.init(model, known), fade.init(model)
    np.testing.assert_array_equal(warm.intercept.mean[:5], known.mean)
    np.testing.assert_array_equal(warm.intercept.var[:5], known.var)
    chex.assert_trees_all_equal(warm._replace(intercept=prior.intercept), prior)
    # Nothing is aged a second time: the new clock starts at 0.
    chex.assert_trees_all_equal(fade.intercepts(model, warm), known)
    # and with the prior's own intercepts it is the prior.
    chex.assert_trees_all_equal(warm_start.init(model, fade.intercepts(model, prior)), prior)


@pytest.mark.slow
def test_frozen_intercepts_stay_bit_for_bit_and_the_ability_learns():
    model = make_model(kind=shrinkage.frozen)
    rng = np.random.default_rng(1)
    mean, var = rng.normal(size=5), rng.uniform(0.1, 4, 5)  # one variance beyond the prior's
    known = Estimate(jnp.asarray(mean, jnp.float32), jnp.asarray(var, jnp.float32))
    warm = warm_start.init(model, known)
    after = run(model, warm, FIRST)
    chex.assert_trees_all_equal(fade.intercepts(model, after), known)
    chex.assert_trees_all_equal(after.intercept, warm.intercept)
    assert after.visits[:5].tolist() == [2, 1, 2, 0, 1]
    assert float(after.clock) == 3
    assert float(jnp.abs(after.ability.mean - warm.ability.mean).max()) > 0.1
    # The default rule moves them.
    free = make_model()
    moved = run(free, warm_start.init(free, known), FIRST)
    assert float(jnp.abs(moved.intercept.mean - warm.intercept.mean)[0]) > 0.1


def test_frozen_ability_equals_the_step_with_known_intercept_uncertainty(x64):
    """psi = a . theta - d with d ~ N(mean, var) integrated out: numpy, one dense solve."""
    rng = np.random.default_rng(2)
    ids = np.array([0, 1, 3, 4])
    omega, kappa = rng.gamma(2.0, 1.0, 4), rng.normal(size=4)

    def site(prior, current, successes, trials):
        return moments.Site(jnp.asarray(omega), jnp.asarray(kappa))

    model = make_model(rule=moments.MomentRule(site), kind=shrinkage.frozen)
    mean, var = rng.normal(size=5), rng.uniform(0.1, 2, 5)
    state = warm_start.init(model, Estimate(jnp.asarray(mean), jnp.asarray(var)))
    new, _ = fade.update(model, state, observe(ids, [4.0] * 4))

    design = np.concatenate([np.ones((4, 1)), np.asarray(model.loadings.features[:, ids]).T], 1)
    # A site says psi = kappa / omega with variance 1 / omega; d adds its own mean and variance.
    target, noise = kappa / omega + mean[ids], 1 / omega + var[ids]
    cov = np.asarray(state.ability.cov)
    gain = cov @ design.T @ np.linalg.inv(design @ cov @ design.T + np.diag(noise))
    want = state.ability.mean + gain @ (target - design @ state.ability.mean)
    np.testing.assert_allclose(new.ability.mean, want, rtol=1e-10)
    np.testing.assert_allclose(new.ability.cov, cov - gain @ design @ cov, rtol=1e-9, atol=1e-12)


def test_widened_intercepts_keep_their_means(x64):
    hyper = hyperparameters.default(0, intercept_var=2.5)
    first = Estimate(jnp.array([1.0, -2.0]), jnp.array([0.1, 2.2]))
    got = warm_start.widen(first, 0.5, hyper)
    np.testing.assert_allclose(got.var, [0.6, 2.5], rtol=1e-12)
    np.testing.assert_array_equal(got.mean, first.mean)
    chex.assert_trees_all_equal(warm_start.widen(first, 0.0, hyper), first)
    # and means alone, in a second run with the frozen rule too: never infinite.
    assert warm_start.widen(first, jnp.inf, hyper).var.tolist() == [2.5, 2.5]


def test_intercepts_follow_their_keys_into_another_pool():
    hyper = hyperparameters.default(0, intercept_mean=0.5, intercept_var=9.0)
    first = Estimate(jnp.array([1.0, 2.0, 3.0]), jnp.array([0.1, 0.2, 0.3]))
    got = warm_start.match(first, ["a", "b", "c"], np.array(["c", "z", "a", "c"]), hyper)
    assert got.mean.tolist() == [3.0, 0.5, 1.0, 3.0]
    np.testing.assert_allclose(got.var, [0.3, 9.0, 0.1, 0.3], rtol=1e-6)
    assert got.mean.dtype == jnp.float32
    assert warm_start.match(first, ["a", "b", "c"], [], hyper).mean.shape == (0,)


def test_what_does_not_fit_is_refused_by_name():
    model = make_model()
    short = Estimate(jnp.zeros(4), jnp.ones(4))
    with pytest.raises(ValueError, match=r"intercepts.mean: needs shape \(5,\).* got \(4,\)"):
        warm_start.init(model, short)
    padded = fade.init(model).intercept  # a state's own, with the padding
    with pytest.raises(ValueError, match=r"intercepts.mean: .* got \(128,\)"):
        warm_start.init(model, padded)
    with pytest.raises(ValueError, match="old_keys: rows 0 and 2 are both 'a'"):
        warm_start.match(short, ["a", "b", "a", "c"], ["a"], model.hyper)
    with pytest.raises(ValueError, match=r"intercepts.mean: \(4,\) for 2 old_keys"):
        warm_start.match(short, ["a", "b"], ["a"], model.hyper)


def test_examples():
    assert doctest.testmod(warm_start).failed == 0
