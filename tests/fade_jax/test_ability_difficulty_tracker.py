"""What the tracker says, draws and costs; precision, donation, compilations."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from filter_world import as_dtype, make_loadings, observe

from fade_jax import ability_difficulty as fade
from fade_jax import dynamics, hyperparameters, shrinkage
from fade_jax.linear_gaussian import Gaussian
from fade_jax.pool_loadings import lay_out
from fade_jax.types import Observation


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
