"""Schedulers of a live run: their budgets, what they choose by, and FADE's loadings there."""

import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from live_world import unoptimised

from fade_jax import hyperparameters
from fade_jax.trackers import oracle
from paced_jax import partition, schedulers

N, GROUPS, GROUP_SIZE = 40, 6, 4
SIZES: dict[str, Any] = {"budget": GROUPS * GROUP_SIZE, "group_size": GROUP_SIZE}
RNG = np.random.default_rng(0)
EMBEDDINGS = RNG.normal(size=(N, 5)).astype(np.float32)
SETUP = SimpleNamespace(
    embeddings=jnp.asarray(EMBEDDINGS),
    loadings=jnp.asarray(RNG.normal(size=(N, 3)) / np.sqrt(3), jnp.float32),
)


@pytest.fixture(scope="module", autouse=True)
def quick_compiler() -> Iterator[None]:
    with unoptimised():
        yield


NAMES: list[Any] = list(schedulers.PRESETS)


def choices(live, tracker_state=None, draws=8):
    """[draws] selections under different keys."""
    tracker, selector, _ = live.scheduler
    state = tracker.init() if tracker_state is None else tracker_state

    @jax.jit
    @jax.vmap
    def select(key):
        return selector.select(selector.init(), state, key)[1]

    return jax.tree.map(np.asarray, select(jax.random.split(jax.random.key(0), draws)))


@pytest.mark.parametrize("name", NAMES)
def test_every_scheduler_spends_exactly_the_budget(name):
    live = schedulers.make(name, SETUP, **SIZES)
    assert live.scheduler.selector.budget == GROUPS * GROUP_SIZE
    assert live.reads_learner == (name == "paced")
    ids, sizes = choices(live)
    np.testing.assert_array_equal(sizes, GROUP_SIZE)
    assert ids.shape == (8, GROUPS) and ids.min() >= 0 and ids.max() < N
    assert all(len(set(row)) == GROUPS for row in ids.tolist())
    assert len({frozenset(row) for row in ids.tolist()}) > 1  # chance, or ties broken by it
    rates = live.scheduler.tracker.pass_rate(live.scheduler.tracker.init())
    assert rates.shape == (N,)


def test_uniform_walks_through_epochs_if_told():
    sizes: dict[str, Any] = SIZES | {"budget": 8 * GROUP_SIZE}
    tracker, selector, _ = schedulers.make("uniform", SETUP, **sizes, epochs=True).scheduler

    def select(state, key):
        state, selection, _ = selector.select(state, tracker.init(), key)
        return state, selection.prompt_ids

    keys = jax.random.split(jax.random.key(0), 10)
    ids = np.asarray(jax.jit(lambda: jax.lax.scan(select, selector.init(), keys))()[1])
    for epoch in ids.reshape(2, N):  # five iterations of eight prompts each
        assert sorted(epoch) == list(range(N))
    assert ids[0].tolist() != ids[5].tolist()


def test_paced_aims_at_its_target_and_explores_only_if_told():
    def live(**options):
        return schedulers.make("paced", SETUP, **SIZES, **options)

    tracker = live().scheduler.tracker
    head = partition.init(jax.random.key(1), 5)
    kernel = jnp.asarray(0.05 * RNG.normal(size=head.kernel.shape), jnp.float32)
    head = head._replace(kernel=kernel)
    state = tracker.init()._replace(head=head, value=partition.value(head, SETUP.embeddings))
    rate = np.clip(np.asarray(state.value), 0, 1)
    assert (rate < 0.3).any() and (rate > 0.7).any()
    for target in (0.5, 0.9):
        nearest = set(np.argsort(np.abs(rate - target))[:GROUPS].tolist())
        ids, _ = choices(live(target=target), state)
        assert all(set(row) == nearest for row in ids.tolist())
    ids, _ = choices(live(exploration=0.5), state)
    nearest = set(np.argsort(np.abs(rate - 0.5))[: GROUPS // 2].tolist())
    assert all(nearest <= set(row) for row in ids.tolist())
    assert len(set(ids.reshape(-1).tolist())) > GROUPS + 4


def test_the_oracle_is_told_every_cells_rate_and_avoids_hopeless_prompts():
    skill, length = np.arange(N) % 2, np.arange(N) // 2 % 4 + 1
    rates = jnp.asarray([[0.5, 0.25, 0.0, 1.0], [0.9, 0.0, 0.0, 0.0]], jnp.float32)
    live = schedulers.make("oracle", SETUP, **SIZES)
    tracker = live.scheduler.tracker
    state = tracker.init()
    assert isinstance(state, oracle.State) and (state.pass_rate == 0.5).all()
    state = schedulers.tell_oracle(state, rates, skill, length)
    expected = [float(rates[s, n - 1]) for s, n in zip(skill, length, strict=True)]
    np.testing.assert_array_equal(tracker.pass_rate(state), np.array(expected, np.float32))
    p = np.array(expected)
    informative = 1 - p**GROUP_SIZE - (1 - p) ** GROUP_SIZE
    np.testing.assert_allclose(tracker.informative(state, GROUP_SIZE), informative, atol=1e-6)
    ids, _ = choices(live, state, draws=200)
    # 15 of the 40 prompts are worth a group; the others weigh 1e-3 each against .34 to .88.
    assert (informative > 0.3).sum() == 15
    assert (informative[ids] == 0).mean() < 0.05
    # Drawn by weight, not the best alone: every worthwhile prompt comes up.
    assert set(np.flatnonzero(informative > 0.3)) <= set(ids.reshape(-1).tolist())


def test_fades_priors_drift_faster_than_the_default():
    hyper = schedulers.live_hyperparameters(3)
    assert hyper.ability_drift == 0.1 and hyper.ability_mean.shape == (4,)
    tracker = schedulers.make("fade", SETUP, **SIZES).scheduler.tracker
    state = tracker.init()
    aged = tracker.predict(state, 1.0)
    grown = np.asarray(aged.ability.cov - state.ability.cov)
    np.testing.assert_allclose(np.diag(grown), 0.1**2, rtol=1e-3)
    own = hyperparameters.default(3, ability_drift=0.2)
    tracker = schedulers.make("fade", SETUP, hyper=own, **SIZES).scheduler.tracker
    grown = np.asarray(tracker.predict(state, 1.0).ability.cov - state.ability.cov)
    np.testing.assert_allclose(np.diag(grown), 0.2**2, rtol=1e-3)


def test_unknown_names_and_sizes_that_do_not_fit_are_named():
    make = inspect.unwrap(schedulers.make)  # past the type checker of the tests
    with pytest.raises(ValueError, match=r"scheduler: must be one of .*, got 'best'"):
        make("best", SETUP, **SIZES)
    for name in NAMES:
        with pytest.raises(ValueError, match=r"budget .* got 25"):
            schedulers.make(name, SETUP, budget=25, group_size=GROUP_SIZE)
    for name in [name for name, p in schedulers.PRESETS.items() if "exploration" in p.options]:
        with pytest.raises(ValueError, match="exploration"):
            schedulers.make(name, SETUP, exploration=1.5, **SIZES)
    with pytest.raises(ValueError, match="'own' is built by its owner"):
        schedulers.make("own", SETUP, **SIZES)
    with pytest.raises(ValueError, match="target"):
        schedulers.make("paced", SETUP, target=-0.1, **SIZES)


SKILL, LENGTH = np.arange(N) % 4, np.arange(N) // 4 % 3 + 1


def arm(name: Any, **options) -> np.ndarray:
    return schedulers.prompt_loadings(name, EMBEDDINGS, SKILL, LENGTH, **options)


def whitened(features: np.ndarray, num_skills: int) -> np.ndarray:
    """Variances of whitened loadings: unit rows, K principal components, a ridge of 1e-3."""
    rows = features / np.linalg.norm(features, axis=1, keepdims=True)
    variances = np.linalg.eigvalsh(np.cov(rows.T, bias=True))[::-1][:num_skills]
    return variances / (variances + 1e-3 * variances[0]) / num_skills


def test_loadings_are_whitened():
    cells = np.eye(4)[SKILL]
    both = np.eye(12)[SKILL * 3 + LENGTH - 1]
    for loadings, features, num_skills in (
        (arm("embeddings", num_skills=5), EMBEDDINGS, 5),
        (arm("embeddings", num_skills=2), EMBEDDINGS, 2),
        (arm("skill"), cells, 3),
        (arm("skill_length"), both, 11),
    ):
        assert loadings.shape == (N, num_skills) and loadings.dtype == np.float32
        expected = whitened(np.asarray(features, float), num_skills)
        assert (expected > 0.98 / num_skills).all()  # I / K, up to the ridge
        np.testing.assert_allclose(np.cov(loadings.T, bias=True), np.diag(expected), atol=1e-5)
        np.testing.assert_allclose(loadings.mean(0), 0, atol=1e-6)


def test_tag_arms_know_the_tag_and_nothing_else():
    skill, cell = arm("skill"), arm("skill_length")
    for i in range(N):
        for j in range(N):
            same = np.allclose(skill[i], skill[j], atol=1e-6)
            assert same == (SKILL[i] == SKILL[j])
            same = np.allclose(cell[i], cell[j], atol=1e-6)
            assert same == (SKILL[i] == SKILL[j] and LENGTH[i] == LENGTH[j])


def test_the_control_has_the_same_rows_of_other_prompts():
    given = arm("embeddings", num_skills=3)
    control = arm("shuffled", num_skills=3, seed=0)
    np.testing.assert_array_equal(control[np.lexsort(control.T)], given[np.lexsort(given.T)])
    assert (control != given).any(axis=1).mean() > 0.8
    np.testing.assert_array_equal(control, arm("shuffled", num_skills=3, seed=0))
    assert not np.array_equal(control, arm("shuffled", num_skills=3, seed=1))


def test_impossible_loadings_are_named():
    with pytest.raises(ValueError, match=r"num_skills: 6 is not in 0\.\.5"):
        arm("embeddings", num_skills=6)
    make = inspect.unwrap(schedulers.prompt_loadings)
    with pytest.raises(ValueError, match=r"loadings: must be one of .*, got 'words'"):
        make("words", EMBEDDINGS, SKILL, LENGTH)
