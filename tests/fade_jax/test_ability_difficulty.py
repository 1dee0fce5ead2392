from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fade_jax import ability_difficulty as fade
from fade_jax import dynamics, hyperparameters, moments, shrinkage
from fade_jax.linear_gaussian import Gaussian
from fade_jax.pool_loadings import lay_out
from fade_jax.types import Observation

RULES = {
    "pg": moments.pg(),
    "pg_laplace": moments.pg_laplace(),
    "laplace": moments.laplace(),
    "ekf": moments.ekf(),
    "adf": moments.adf(),
    "ep": moments.ep(),
}


def make_loadings(num_prompts, num_skills, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(num_prompts, num_skills)) / np.sqrt(max(num_skills, 1))


def observe(ids, successes, trials, dtype=jnp.float32):
    return Observation(
        jnp.asarray(ids, jnp.int32), jnp.asarray(successes, dtype), jnp.asarray(trials, dtype)
    )


def update(model, observation, state=None):
    """One compiled update, from the prior if no state is given."""
    start = fade.init(model) if state is None else state
    return jax.jit(partial(fade.update, model))(start, observation)


def as_dtype(hyper, dtype):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), hyper)


def given_omega(omega, rule_shift):
    """A moment rule whose sites are handed in: the update is then linear-Gaussian and exact."""

    def site(prior, current, successes, trials):
        live = trials > 0
        return moments.Site(jnp.where(live, omega, 0.0), jnp.where(live, rule_shift, 0.0))

    return moments.MomentRule(site)


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


def test_tracker_readings_against_dense_algebra(x64):
    loadings = make_loadings(11, 3)
    hyper = hyperparameters.default(3, loading_scale=0.7)
    tracker = fade.build(jnp.asarray(loadings), hyper)
    model = fade.assemble(jnp.asarray(loadings), hyper)
    state, _ = jax.jit(tracker.update)(
        tracker.init(), observe([0, 5, 7], [8, 2, 0], [8, 8, 8], jnp.float64)
    )
    design = np.concatenate([np.ones((11, 1)), 0.7 * loadings], 1)
    difficulty = fade.intercepts(model, state)
    mean = design @ np.asarray(state.ability.mean) - difficulty.mean
    var = np.einsum("ni,ij,nj->n", design, state.ability.cov, design) + difficulty.var
    logits = fade.predictive(model, state)
    np.testing.assert_allclose(logits.mean, mean, rtol=1e-10)
    np.testing.assert_allclose(logits.var, var, rtol=1e-10)
    # Utility by a fine trapezoid: the closed form is within .0025.
    z = np.linspace(-9, 9, 4001)
    psi = mean[:, None] + np.sqrt(var)[:, None] * z
    weight = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
    p = 1 / (1 + np.exp(-psi))
    want = ((1 - p**8 - (1 - p) ** 8) * weight).sum(1)
    assert np.abs(tracker.informative(state, 8) - want).max() < 0.0025
    sizes = jnp.full((11,), 8, jnp.int32)
    np.testing.assert_allclose(
        tracker.informative(state, sizes), tracker.informative(state, 8), atol=1e-6
    )
    assert np.abs(tracker.pass_rate(state) - (p * weight).sum(1)).max() < 0.0025
    assert tracker.informative(state, 1).tolist() == [0.0] * 11


@pytest.mark.slow
def test_wide_and_narrow_pools_score_alike():
    """More skills than are unrolled take the matrix product; both must say the same."""
    loadings = np.concatenate([make_loadings(40, 5), np.zeros((40, 35))], 1)
    batch = observe([0, 5, 7], [8, 2, 0], [8, 8, 8])

    def run(a):
        tracker = fade.build(jnp.asarray(a, jnp.float32), hyperparameters.default(a.shape[1]))
        state, _ = jax.jit(tracker.update)(tracker.init(), batch)
        return tracker.informative(state, 8)

    np.testing.assert_allclose(run(loadings), run(loadings[:, :5]), atol=2e-6)


def test_draws_are_joint():
    """Thompson draws share one ability: their spread and correlation are the posterior's.

    2,000 draws: standard error of a correlation about 1 / sqrt(2000) = .022, of a standard
    deviation 1.6 %; bounds at more than 4 standard errors, false alarm below 1e-4.
    """
    loadings = jnp.asarray([[1.0], [1.0], [-1.0]])
    hyper = hyperparameters.default(1, intercept_var=0.1)
    tracker = fade.build(loadings, hyper)
    model = fade.assemble(loadings, hyper)
    state, _ = jax.jit(tracker.update)(tracker.init(), observe([0], [6], [8]))
    keys = jax.random.split(jax.random.key(0), 2000)
    draws = np.asarray(jax.vmap(lambda key: tracker.draw(key, state))(keys), np.float64)
    logits = np.log(draws) - np.log1p(-draws)
    moments_ = fade.predictive(model, state)
    assert np.abs(logits.std(0) / np.sqrt(moments_.var) - 1).max() < 0.07
    assert np.abs((logits.mean(0) - moments_.mean) / np.sqrt(moments_.var)).max() < 0.1
    design = np.array([[1, 1.0], [1, 1], [1, -1]])
    shared = design @ np.asarray(state.ability.cov) @ design.T
    want = shared / np.sqrt(np.outer(moments_.var, moments_.var))
    got = np.corrcoef(logits.T)
    off = ~np.eye(3, dtype=bool)
    assert np.abs(got - want)[off].max() < 0.09


def test_one_compilation_for_batches_of_any_filling():
    loadings = lay_out(jnp.asarray(make_loadings(300, 4), jnp.float32))
    hyper = hyperparameters.default(4)

    @jax.jit
    @chex.assert_max_traces(n=1)
    def step(loadings, hyper, state, batch):
        tracker = fade.build(loadings, hyper)
        state, info = tracker.update(tracker.predict(state, 1.0), batch)
        return state, info, jax.lax.top_k(tracker.informative(state, 8), 16)[1]

    tracker = fade.build(loadings, hyper)
    state = tracker.init()
    rng = np.random.default_rng(0)
    for live in (128, 57, 1, 128):
        ids = np.full(128, -1)
        ids[:live] = rng.choice(300, live, replace=False)
        trials = np.where(ids >= 0, 8, 0)
        batch = observe(ids, rng.integers(0, 9, 128) * (trials > 0), trials)
        short = observe(ids[:live], batch.successes[:live], trials[:live])
        want, _ = jax.jit(tracker.update)(
            tracker.predict(state, 1.0), short
        )  # not padded, not compiled
        state, _, chosen = step(loadings, hyper, state, batch)
        chex.assert_trees_all_close(state, want, rtol=2e-4, atol=2e-5)
        assert len(set(chosen.tolist())) == 16


def test_seeds_and_hyperparameters_by_vmap_equal_single_runs(x64):
    loadings = jnp.asarray(make_loadings(10, 2))
    batch = observe([0, 5, 7], [8, 2, 0], [8, 8, 8], jnp.float64)

    def run(drift):
        tracker = fade.build(loadings, hyperparameters.default(2, ability_drift=drift))
        state, _ = jax.jit(tracker.update)(tracker.predict(tracker.init(), 3.0), batch)
        return tracker.informative(state, 8)

    drifts = jnp.asarray([0.05, 0.3])
    both = jax.vmap(run)(drifts)
    for drift, got in zip(drifts, both, strict=True):
        np.testing.assert_allclose(got, run(drift), rtol=1e-10)


def test_stays_sane_where_curvature_vanishes():
    """200 visits of 0 of 8, a long gap, then 8 of 8; and groups of one."""
    tracker = fade.build(
        jnp.zeros((3, 0)), hyperparameters.default(0, ability_drift=0.2, intercept_drift=0.2)
    )

    def visit(state, successes):
        state, info = tracker.update(state, observe([0, 1], [successes, 0], [8, 1]))
        return tracker.predict(state, 1.0), info

    visit = jax.jit(visit)
    state = tracker.init()
    for _ in range(200):
        state, _ = visit(state, 0)
    low = tracker.pass_rate(state)
    assert low[0] < 0.02
    state, info = visit(tracker.predict(state, 1000.0), 8)
    rate = tracker.pass_rate(state)
    assert 0.5 < rate[0] < 0.999  # moved by the surprise, not thrown past it
    assert np.isfinite(float(info.log_evidence))
    model = fade.assemble(
        jnp.zeros((3, 0)), hyperparameters.default(0, ability_drift=0.2, intercept_drift=0.2)
    )
    assert float(jnp.abs(fade.predictive(model, state).mean).max()) < 40


@pytest.mark.slow
def test_float32_follows_float64_over_a_run(x64):
    rng = np.random.default_rng(0)
    loadings = make_loadings(200, 16)
    steps = 60
    ids = np.stack([rng.choice(200, 32, replace=False) for _ in range(steps)])
    successes = rng.binomial(8, 0.4, size=(steps, 32))

    def run(dtype):
        hyper = as_dtype(hyperparameters.default(16), dtype)
        tracker = fade.build(jnp.asarray(loadings, dtype), hyper)

        def step(state, data):
            ids, y = data
            batch = Observation(ids, y, jnp.full_like(y, 8.0))
            state, info = tracker.update(tracker.predict(state, 1.0), batch)
            return state, info.log_evidence

        data = (jnp.asarray(ids, jnp.int32), jnp.asarray(successes, dtype))
        state, evidence = jax.lax.scan(step, tracker.init(), data)
        return tracker.informative(state, 8), evidence

    (low, low_evidence), (high, high_evidence) = run(jnp.float32), run(jnp.float64)
    assert low.dtype == jnp.float32
    np.testing.assert_allclose(low, high, atol=2e-4)
    np.testing.assert_allclose(low_evidence, high_evidence, rtol=1e-3)


def test_informative_rollouts_about_the_ability(x64):
    """Knowing the intercept makes the same group tell more about the ability."""
    loadings = jnp.asarray([[1.0], [1.0]])
    model = fade.assemble(loadings, hyperparameters.default(1))
    state = fade.init(model)
    var = state.intercept.var.at[0].set(0.01)
    state = state._replace(intercept=state.intercept._replace(var=var))
    gain = fade.ability_information(model, state, 8)
    assert gain[0] > gain[1] > 0


def test_dimensions_are_checked():
    with pytest.raises(ValueError, match=r"K \+ 1 = 3 entries .* K = 2 skills, got 2"):
        fade.build(jnp.zeros((4, 2)), hyperparameters.default(1))


def test_dynamics_reach_the_filter(x64):
    hyper = hyperparameters.default(1, ability_mean=jnp.asarray([1.0, -1.0]))
    model = fade.assemble(
        jnp.asarray(make_loadings(5, 1)), hyper, dynamics=dynamics.ornstein_uhlenbeck(0.9)
    )
    state = fade.init(model)._replace(ability=Gaussian(jnp.asarray([3.0, 0.0]), 0.5 * jnp.eye(2)))
    moved = fade.predict(model, state, 2.0)
    np.testing.assert_allclose(moved.ability.mean, [1 + 0.81 * 2, -1 + 0.81 * 1], rtol=1e-12)
    np.testing.assert_allclose(
        moved.ability.cov, (0.81**2 * 0.5 + 1 - 0.81**2) * np.eye(2), rtol=1e-12
    )
    assert moved.clock == 2


def test_a_fresh_state_can_be_donated_and_leaves_the_hyperparameters_alone():
    loadings = jnp.asarray(make_loadings(20, 2), jnp.float32)
    hyper = hyperparameters.default(2)

    def step(hyper, state, batch):
        return fade.build(loadings, hyper).update(state, batch)[0]

    start = fade.build(loadings, hyper).init()
    state = jax.jit(step, donate_argnums=1)(hyper, start, observe([0], [8], [8]))
    assert state.visits[0] == 1
    assert hyper.ability_mean.tolist() == [0.0, 0.0, 0.0]


def test_options_without_effect_are_refused():
    loadings = jnp.zeros((4, 2))
    with pytest.raises(ValueError, match="shrinkage"):
        fade.build(loadings, hyperparameters.default(2), shrinkage=shrinkage.ridge(), joint=True)
    with pytest.raises(ValueError, match=r"K \+ 1 = 3"):
        fade.build(loadings, hyperparameters.default(1), joint=True)
