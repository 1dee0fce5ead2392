"""The update against algebra and slow code, and what must hold of every belief."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from filter_world import RULES, given_omega, make_loadings, observe, update

from fade_jax import ability_difficulty as fade
from fade_jax import hyperparameters, moments, shrinkage


def test_update_equals_a_brute_force_joint_kalman_step(x64):
    """All of (theta, d) at once, information form, numpy: what elimination must reproduce."""
    rng = np.random.default_rng(3)
    num_prompts, num_skills, batch = 7, 2, 4
    loadings = make_loadings(num_prompts, num_skills)
    half = rng.normal(size=(3, 3))
    hyper = hyperparameters.default(
        num_skills,
        ability_mean=jnp.asarray(rng.normal(size=3)),
        ability_cov=jnp.asarray(half @ half.T + np.eye(3)),
        intercept_mean=0.4,
        intercept_var=2.5,
        intercept_drift=0.3,
    )
    ids = np.array([1, 2, 4, 6])
    omega, kappa = rng.gamma(2.0, 1.0, batch), rng.normal(size=batch)
    rule = given_omega(jnp.asarray(omega), jnp.asarray(kappa))
    model = fade.assemble(jnp.asarray(loadings), hyper, rule=rule)
    # Prompts visited at different times carry different variances into the step.
    state = fade.init(model)
    variances = rng.uniform(0.5, 2.0, num_prompts)
    var = state.intercept.var.at[:num_prompts].set(jnp.asarray(variances))
    state = state._replace(intercept=state.intercept._replace(var=var))
    state = fade.predict(model, state, 1.0)
    aged = fade.intercepts(model, state)
    new, _ = update(model, observe(ids, np.full(4, 4.0), np.full(4, 8.0), jnp.float64), state)

    dim = 3 + num_prompts
    prior_cov = np.zeros((dim, dim))
    prior_cov[:3, :3] = state.ability.cov
    prior_cov[3:, 3:] = np.diag(aged.var)
    prior_mean = np.concatenate([state.ability.mean, aged.mean])
    design = np.zeros((batch, dim))
    design[:, 0], design[:, 1:3] = 1, loadings[ids]
    design[np.arange(batch), 3 + ids] = -1
    information = np.linalg.inv(prior_cov) + design.T @ np.diag(omega) @ design
    cov = np.linalg.inv(information)
    mean = cov @ (np.linalg.inv(prior_cov) @ prior_mean + design.T @ kappa)

    np.testing.assert_allclose(new.ability.mean, mean[:3], rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(new.ability.cov, cov[:3, :3], rtol=1e-10, atol=1e-10)
    after = fade.intercepts(model, new)
    np.testing.assert_allclose(after.mean, mean[3:], rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(after.var, np.diag(cov)[3:], rtol=1e-10, atol=1e-10)


def slow_update(loadings, hyper, ids, successes, trials, passes=4):
    """The `pg` update from the notes, a loop over prompts and a plain inverse, float64."""
    design = np.concatenate([np.ones((len(ids), 1)), loadings[ids]], axis=1)
    mean, cov = np.asarray(hyper.ability_mean), np.asarray(hyper.ability_cov)
    delta = np.full(len(ids), float(hyper.intercept_mean))
    s = np.full(len(ids), float(hyper.intercept_var))
    mu = design @ mean - delta
    v = np.einsum("bi,ij,bj->b", design, cov, design) + s
    for _ in range(passes):
        c = np.sqrt(mu**2 + v)
        omega = trials * np.tanh(c / 2) / (2 * c)
        kappa = successes - trials / 2
        information, target = np.linalg.inv(cov), np.linalg.inv(cov) @ mean
        for b in range(len(ids)):
            w = omega[b] / (1 + omega[b] * s[b])
            r = (kappa[b] + omega[b] * delta[b]) / (1 + omega[b] * s[b])
            information = information + w * np.outer(design[b], design[b])
            target = target + r * design[b]
        new_cov = np.linalg.inv(information)
        new_mean = new_cov @ target
        q = 1 / (1 + omega * s)
        along = design @ new_mean
        spread = np.einsum("bi,ij,bj->b", design, new_cov, design)
        new_delta = delta + s * q * (omega * (along - delta) - kappa)
        new_s = s * q + (omega * s * q) ** 2 * spread
        mu, v = along - new_delta, q**2 * spread + s * q
    return new_mean, new_cov, new_delta, new_s


def test_pg_update_equals_slow_independent_code(x64):
    loadings = make_loadings(9, 3)
    hyper = hyperparameters.default(3, intercept_mean=0.2)
    ids, successes, trials = np.array([0, 3, 8]), np.array([8.0, 1.0, 3.0]), np.array([8.0, 8, 4])
    model = fade.assemble(jnp.asarray(loadings), hyper, rule=moments.pg(passes=4))
    state, _ = update(model, observe(ids, successes, trials, jnp.float64))
    mean, cov, delta, s = slow_update(loadings, hyper, ids, successes, trials)
    np.testing.assert_allclose(state.ability.mean, mean, rtol=1e-10)
    np.testing.assert_allclose(state.ability.cov, cov, rtol=1e-10)
    after = fade.intercepts(model, state)
    np.testing.assert_allclose(after.mean[ids], delta, rtol=1e-10)
    np.testing.assert_allclose(after.var[ids], s, rtol=1e-10)


@pytest.mark.parametrize("name", RULES)
def test_merged_padded_and_permuted_batches_agree(x64, name):
    hyper = hyperparameters.default(2)
    tracker = fade.build(jnp.asarray(make_loadings(20, 2)), hyper, rule=RULES[name])
    update = jax.jit(tracker.update)
    start = tracker.predict(tracker.init(), 1.0)
    f64 = jnp.float64
    want, info = update(start, observe([3, 9, 11], [7, 2, 8], [16, 8, 8], f64))
    for ids, successes, trials in [
        ([11, 9, 3], [8, 2, 7], [8, 8, 16]),
        ([3, 9, 3, 11], [4, 2, 3, 8], [8, 8, 8, 8]),
        ([9, -1, 3, 11, 400, 5], [2, 0, 7, 8, 0, 0], [8, 0, 16, 8, 0, 0]),
    ]:
        got, got_info = update(start, observe(ids, successes, trials, f64))
        chex.assert_trees_all_close(got, want, rtol=1e-10, atol=1e-12)
        chex.assert_trees_all_close(got_info, info, rtol=1e-9, atol=1e-9)
    untouched = [i for i in range(20) if i not in (3, 9, 11)]
    for new, old in zip(want.intercept, start.intercept, strict=True):
        np.testing.assert_array_equal(new[jnp.asarray(untouched)], old[jnp.asarray(untouched)])


@pytest.mark.parametrize("name", RULES)
def test_an_empty_batch_changes_nothing_bit_for_bit(name):
    tracker = fade.build(
        jnp.asarray(make_loadings(20, 2), jnp.float32), hyperparameters.default(2), rule=RULES[name]
    )
    state, _ = jax.jit(tracker.update)(tracker.init(), observe([1, 2], [8, 0], [8, 8]))
    state = tracker.predict(state, 1.0)
    got, info = jax.jit(tracker.update)(state, observe([1, -1, 30], [0, 0, 0], [0, 0, 0]))
    chex.assert_trees_all_equal(got, state)
    assert abs(float(info.log_evidence)) < 1e-5
    assert float(info.nis) == 0


def test_evidence_reaches_prompts_that_share_the_skill_and_no_others(x64):
    loadings = jnp.asarray([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    hyper = hyperparameters.default(2, ability_cov=jnp.diag(jnp.asarray([1e-12, 1.0, 1.0])))
    model = fade.assemble(loadings, hyper)
    before = fade.init(model)
    after, _ = update(model, observe([0], [8], [8], jnp.float64), before)
    shift = fade.predictive(model, after).mean - fade.predictive(model, before).mean
    assert shift[0] > shift[1] > 0.1
    assert abs(shift[2]) < 1e-9
    np.testing.assert_allclose(shift[3], -shift[1], atol=1e-9)
    # An unobserved prompt moves by its loading times the ability's step; its intercept stays.
    step = after.ability.mean - before.ability.mean
    np.testing.assert_allclose(shift[1], step[0] + step[1], rtol=1e-12)
    assert after.intercept.mean[1] == before.intercept.mean[1]


def test_predictions_do_not_depend_on_the_basis_of_the_skills(x64):
    loadings = make_loadings(12, 3)
    rotation = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
    hyper = hyperparameters.default(3, ability_drift=0.1)
    batch = observe([0, 5, 7], [8, 2, 0], [8, 8, 8], jnp.float64)

    def run(a):
        tracker = fade.build(jnp.asarray(a), hyper)
        state, _ = jax.jit(tracker.update)(tracker.predict(tracker.init(), 1.0), batch)
        return tracker.informative(state, 8)

    np.testing.assert_allclose(run(loadings @ rotation), run(loadings), rtol=1e-9)


def test_the_gauge_between_ability_and_intercepts_is_invisible(x64):
    loadings = jnp.asarray(make_loadings(12, 1))
    batch = observe([0, 5, 7], [8, 2, 0], [8, 8, 8], jnp.float64)

    def run(shift):
        hyper = hyperparameters.default(
            1, ability_mean=jnp.asarray([shift, 0.0]), intercept_mean=shift
        )
        tracker = fade.build(loadings, hyper)
        state, _ = jax.jit(tracker.update)(tracker.predict(tracker.init(), 1.0), batch)
        return tracker.pass_rate(state)

    np.testing.assert_allclose(run(3.0), run(0.0), rtol=1e-9)


@pytest.mark.parametrize(
    "name",
    ["pg", "adf", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ep", "laplace"))],
)
def test_an_update_never_widens_any_belief(x64, name):
    # The likelihood is log-concave, so the exact posterior cannot be wider either.
    rng = np.random.default_rng(0)
    model = fade.assemble(
        jnp.asarray(make_loadings(30, 4)), hyperparameters.default(4), rule=RULES[name]
    )
    state = fade.init(model)
    step = jax.jit(partial(fade.update, model))
    for _ in range(6):
        ids = rng.choice(30, 10, replace=False)
        batch = observe(ids, rng.integers(0, 9, 10), np.full(10, 8), jnp.float64)
        before = fade.predictive(model, state).var
        old_cov = state.ability.cov
        state, _ = step(state, batch)
        assert (fade.predictive(model, state).var <= before + 1e-9).all()
        assert np.linalg.eigvalsh(old_cov - state.ability.cov)[0] > -1e-9


def test_special_case_without_ability_is_one_logit_per_prompt(x64):
    """K = 0 and a pinned constant: prompts are independent, each a scalar Gaussian step."""
    hyper = hyperparameters.default(
        0, ability_cov=jnp.full((1, 1), 1e-14), ability_drift=0.0, intercept_var=2.0
    )
    model = fade.assemble(jnp.zeros((5, 0)), hyper, rule=moments.adf())
    state, _ = update(model, observe([2, 4], [6, 0], [8, 8], jnp.float64))
    prior = fade.Estimate(jnp.zeros(2), jnp.full((2,), 2.0))
    site = moments.adf().site(prior, prior, jnp.asarray([6.0, 0.0]), jnp.asarray([8.0, 8.0]))
    var = 1 / (1 / 2.0 + site.precision)
    logits = fade.predictive(model, state)
    np.testing.assert_allclose(logits.var[jnp.asarray([2, 4])], var, rtol=1e-9)
    np.testing.assert_allclose(logits.mean[jnp.asarray([2, 4])], var * site.shift, rtol=1e-9)
    np.testing.assert_allclose(logits.mean[0], 0.0, atol=1e-12)


def test_special_case_known_difficulties_is_a_rasch_ability_tracker(x64):
    """D = 1 and no intercept variance: the notes' ability-only Gaussian step."""
    hyper = hyperparameters.default(0, intercept_var=1e-14, intercept_drift=0.0)
    model = fade.assemble(jnp.zeros((4, 0)), hyper, rule=moments.ekf())
    state, _ = update(model, observe([0, 1], [8, 6], [8, 8], jnp.float64))
    information = 1.0 + 2 * 8 * 0.25  # prior + two groups at p = 1/2
    np.testing.assert_allclose(state.ability.cov[0, 0], 1 / information, rtol=1e-9)
    np.testing.assert_allclose(state.ability.mean[0], (4 + 2) / information, rtol=1e-9)


def test_intercepts_age_lazily_as_they_would_step_by_step(x64):
    hyper = hyperparameters.default(1, intercept_drift=0.2, intercept_var=1.0)
    model = fade.assemble(jnp.asarray(make_loadings(6, 1)), hyper)
    state, _ = update(model, observe([0, 1], [8, 0], [8, 8], jnp.float64))
    first = fade.intercepts(model, state).var
    for _ in range(5):
        state = fade.predict(model, state, 1.0)
    aged = fade.intercepts(model, state).var
    np.testing.assert_allclose(aged[:2], first[:2] + 5 * 0.2**2, rtol=1e-12)
    np.testing.assert_allclose(aged[2:], 1.0, rtol=1e-12)  # never wider than the prior
    # A visit writes the aged moments back and restarts the clock.
    state, _ = update(model, observe([0], [4], [8], jnp.float64), state)
    assert state.last_visit[0] == 5
    assert state.last_visit[1] == 0
    assert state.visits[:3].tolist() == [2, 1, 0]
    assert fade.intercepts(model, state).var[0] < aged[0]


@pytest.mark.slow
def test_ridge_pulls_to_the_group_and_staged_follows_its_schedule(x64):
    hyper = hyperparameters.default(0, intercept_mean=0.5, intercept_drift=0.0)
    batch = observe([0], [8], [8], jnp.float64)

    def run(rule):
        model = fade.assemble(jnp.zeros((3, 0)), hyper, shrinkage=rule)
        state, _ = update(model, batch)
        after = fade.intercepts(model, state)
        for _ in range(10):
            state = fade.predict(model, state, 1.0)
        return after, fade.intercepts(model, state)

    bayes, _ = run(shrinkage.bayes())
    now, later = run(shrinkage.ridge(rate=0.1))
    np.testing.assert_allclose(now.mean, bayes.mean, rtol=1e-12)
    np.testing.assert_allclose(later.mean - 0.5, 0.9**10 * (now.mean - 0.5), rtol=1e-10, atol=1e-12)
    now, later = run(shrinkage.staged(factor=0.5, floor=0.1))
    np.testing.assert_allclose(now.mean, bayes.mean, rtol=1e-12)
    np.testing.assert_allclose(now.var, [2.0, 4.0, 4.0], rtol=1e-12)
    np.testing.assert_allclose(later.var, now.var, rtol=1e-12)
    # Robbins-Monro from prior mean logit -.5 (wide: E[p] by the closed form): one step of size
    # gain (E[p] - 1) / (0 + 1), variance 4 * 1 / (0 + 1 + 1).
    now, _ = run(shrinkage.robbins_monro(first=1.0, gain=4.0))
    model = fade.assemble(jnp.zeros((3, 0)), hyper)
    tracker = fade.build(jnp.zeros((3, 0)), hyper)
    expected = 0.5 + 4 * (float(tracker.pass_rate(fade.init(model))[0]) - 1)
    np.testing.assert_allclose(now.mean[0], expected, rtol=1e-10)
    np.testing.assert_allclose(now.var[0], 2.0, rtol=1e-12)
