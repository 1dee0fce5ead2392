from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fade_jax import ability_difficulty as fade
from fade_jax import hyperparameters, joint_filter, moments
from fade_jax.types import Observation


def setting(num_prompts=6, num_skills=2, **changes):
    rng = np.random.default_rng(0)
    loadings = jnp.asarray(rng.normal(size=(num_prompts, num_skills)) / np.sqrt(num_skills))
    return loadings, hyperparameters.default(num_skills, intercept_drift=0.0, **changes)


def observe(ids, successes, trials):
    return Observation(
        jnp.asarray(ids, jnp.int32), jnp.asarray(successes, float), jnp.asarray(trials, float)
    )


@pytest.mark.parametrize("rule", [moments.adf(), moments.pg(), moments.ep(), moments.pg_laplace()])
def test_first_update_equals_the_factored_filter(x64, rule):
    # Nothing has been dropped yet, so ability, intercepts and evidence must be the same numbers.
    loadings, hyper = setting()
    batch = observe([0, 3, 4, -1], [8, 1, 4, 0], [8, 8, 8, 0])
    joint = joint_filter.assemble(loadings, hyper, rule=rule)
    factored = fade.assemble(loadings, hyper, rule=rule)

    def run(module, model):
        return jax.jit(
            lambda batch: module.update(
                model, module.predict(model, module.init(model), 1.0), batch
            )
        )(batch)

    (big, big_info), (small, small_info) = run(joint_filter, joint), run(fade, factored)
    np.testing.assert_allclose(big.latents.mean[:3], small.ability.mean, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(big.latents.cov[:3, :3], small.ability.cov, rtol=1e-9, atol=1e-11)
    intercepts = fade.intercepts(factored, small)
    np.testing.assert_allclose(big.latents.mean[3:], intercepts.mean, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(jnp.diagonal(big.latents.cov)[3:], intercepts.var, rtol=1e-9)
    np.testing.assert_allclose(big_info.log_evidence, small_info.log_evidence, rtol=1e-9)
    np.testing.assert_allclose(big_info.nis, small_info.nis, rtol=1e-9)


def test_known_intercepts_leave_nothing_to_drop(x64):
    loadings, hyper = setting(intercept_var=1e-13)
    joint = fade.build(loadings, hyper, joint=True)
    factored = fade.build(loadings, hyper)
    step = {
        tracker: jax.jit(lambda s, b, t=tracker: t.predict(t.update(s, b)[0], 1.0))
        for tracker in (joint, factored)
    }
    states = {tracker: tracker.init() for tracker in (joint, factored)}
    rng = np.random.default_rng(1)
    for _ in range(5):
        batch = observe(rng.choice(6, 3, replace=False), rng.integers(0, 9, 3), [8, 8, 8])
        states = {tracker: step[tracker](states[tracker], batch) for tracker in states}
    np.testing.assert_allclose(
        joint.informative(states[joint], 8), factored.informative(states[factored], 8), atol=1e-9
    )


def test_repeated_visits_are_where_dropping_shows(x64):
    """Without the cross-covariance the ability looks better known than it is."""
    loadings, hyper = setting(num_skills=0, num_prompts=4)
    joint = joint_filter.assemble(loadings, hyper)
    factored = fade.assemble(loadings, hyper)
    batch = observe([0, 1, 2, 3], [6, 2, 4, 5], [8, 8, 8, 8])
    steps = [
        jax.jit(partial(m.update, model)) for m, model in ((joint_filter, joint), (fade, factored))
    ]
    big, small = joint_filter.init(joint), fade.init(factored)
    for _ in range(10):
        (big, _), (small, _) = steps[0](big, batch), steps[1](small, batch)
    # The gauge keeps theta_0 uncertain: 4 intercepts of variance 4 leave it 1 / (1 + 4 / 4) of its
    # prior variance 1 at best, and the joint filter knows.
    assert big.latents.cov[0, 0] > 1 / (1 + 4 / 4) - 1e-9
    assert small.ability.cov[0, 0] < 0.5 * big.latents.cov[0, 0]


def test_tracker_contract(x64):
    loadings, hyper = setting()
    tracker = joint_filter.build(loadings, hyper)
    update = jax.jit(tracker.update)
    state, info = update(tracker.init(), observe([1, 2], [8, 0], [8, 8]))
    merged, _ = update(tracker.init(), observe([2, 1, 1], [0, 5, 3], [8, 5, 3]))
    chex.assert_trees_all_close(state, merged, rtol=1e-9, atol=1e-11)
    same, _ = update(state, observe([1, -1], [0, 0], [0, 0]))
    chex.assert_trees_all_equal(same, state)
    assert info.log_evidence < 0
    draws = jax.vmap(lambda key: tracker.draw(key, state))(
        jax.random.split(jax.random.key(0), 4000)
    )
    logits = np.log(draws) - np.log1p(-draws)
    model = joint_filter.assemble(loadings, hyper)
    want = np.asarray(model.design @ state.latents.cov @ model.design.T)
    # 4,000 draws: standard error of a covariance at most sqrt(2 / 4000) of the variances, .022.
    scale = np.sqrt(np.outer(np.diag(want), np.diag(want)))
    assert (np.abs(np.cov(logits.T) - want) / scale).max() < 0.11
