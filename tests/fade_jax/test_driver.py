"""The loop itself, in a world that can be followed by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from driver_world import BUDGET, GROUP_SIZE, MAX_GROUPS, NUM_PROMPTS, make, setup, start

from fade_jax import driver
from fade_jax.trackers import discounted_beta
from fade_jax.types import Observation

pytestmark = pytest.mark.standard_promotion


def leaves(state):
    """Arrays of a state, its key as numbers."""
    state = state._replace(key=jax.random.key_data(state.key))
    return [np.asarray(x) for x in jax.tree.leaves(state)]


def assert_same(a, b, tolerance=0.0):
    for x, y in zip(leaves(a), leaves(b), strict=True):
        if tolerance and x.dtype.kind == "f":
            np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(x, y)


def play(pieces, iterations, chunk, seed=0, constants=None):
    """(last state, all Records)."""
    constants = setup() if constants is None else constants
    records = []
    state = driver.run(
        driver.compile_step(pieces, chunk=chunk),
        constants,
        start(pieces, constants, seed),
        iterations=iterations,
        between=lambda state, record: (records.append(record), state)[1],
    )
    return state, jax.tree.map(lambda *x: np.concatenate(x), *records)


@pytest.mark.parametrize("scheduler", ["uniform", pytest.param("kalman", marks=pytest.mark.slow)])
def test_step_by_step_a_scan_of_chunks_and_no_jit_are_one_driver(scheduler):
    pieces = make(scheduler=scheduler, drop=True, every=2)
    one, ones = play(pieces, 6, chunk=1)
    six, sixes = play(pieces, 6, chunk=6)
    assert_same(one, six)
    jax.tree.map(np.testing.assert_array_equal, ones, sixes)
    with jax.disable_jit():
        state = start(pieces, setup())
        for _ in range(6):
            state, _ = driver.iterate(pieces(setup()), setup(), state)
    # Without a compiler sums are not fused; choices and counts agree exactly all the same.
    assert_same(one, state, tolerance=1e-6)


@pytest.mark.slow
def test_seeds_by_vmap_equal_single_runs():
    pieces = make(scheduler="kalman")
    constants = setup()
    step = driver.compile_step(pieces, chunk=4, seeds=True)
    states = [start(pieces, constants, seed) for seed in range(3)]
    many = jax.tree.map(lambda *x: jnp.stack(x), *states)
    many = driver.run(step, constants, many, iterations=8)
    for seed in range(3):
        single, _ = play(pieces, 8, chunk=4, seed=seed)
        assert_same(single, jax.tree.map(lambda x, seed=seed: x[seed], many), tolerance=1e-6)


def test_a_step_is_traced_once():
    traced = []
    pieces = make()

    def counting(constants):
        traced.append(1)
        return pieces(constants)

    constants = setup()
    step = driver.compile_step(counting, chunk=2)
    state = start(pieces, constants)
    for seed in (0, 1):
        state = driver.run(step, constants, start(pieces, constants, seed), iterations=6)
    assert int(state.iteration) == 6
    assert len(traced) == 1


@pytest.mark.slow
def test_verdicts_from_the_host_give_the_same_run():
    inside, _ = play(make(), 5, chunk=1)
    outside = make(in_graph=False)
    constants, calls = setup(), []

    def judge(constants, rollouts):
        calls.append(1)
        return np.asarray(rollouts.verdicts)

    step = driver.compile_step(outside, chunk=1, host_verify=judge)
    state = driver.run(step, constants, start(outside, constants), iterations=5)
    assert len(calls) == 5
    assert_same(inside, state, tolerance=1e-6)
    with pytest.raises(ValueError, match="verify"):
        driver.iterate(outside(constants), constants, start(outside, constants))
    for chunk, seeds in ((2, False), (1, True)):
        with pytest.raises(ValueError, match="host_verify"):
            driver.compile_step(outside, host_verify=judge, chunk=chunk, seeds=seeds)
    with pytest.raises(ValueError, match="chunk"):
        driver.compile_step(outside, chunk=0)
    for wrong in (np.zeros(BUDGET - 1), np.zeros((BUDGET, 1))):
        short = driver.compile_step(outside, chunk=1, host_verify=lambda c, r, wrong=wrong: wrong)
        with pytest.raises(ValueError, match=r"host_verify must return verdicts \(12,\)"):
            short(constants, start(outside, constants))


def test_every_iteration_spends_exactly_the_budget_on_distinct_prompts():
    _, records = play(make(scheduler="kalman"), 10, chunk=5)
    ids, _, trials = records.observation
    np.testing.assert_array_equal(trials.sum(axis=1), BUDGET)
    np.testing.assert_array_equal(trials, GROUP_SIZE)
    assert all(len(set(row)) == MAX_GROUPS for row in ids.tolist())
    # rows were laid out by group: what `sample` was asked for is what was chosen
    np.testing.assert_array_equal(records.sample_metrics, np.repeat(ids, GROUP_SIZE, axis=1))


def test_the_tracker_sees_every_group_also_those_the_learner_never_gets():
    pieces = make(drop=True, every=3)
    constants = setup(jnp.full(NUM_PROMPTS, -30.0))  # all right, always: nothing to learn
    state, records = play(pieces, 6, chunk=3, constants=constants)
    assert int(state.updates) == 0 and float(state.learner.ability) == 0.0
    assert records.degenerate.all() and not records.ready.any()
    tracker = discounted_beta.build(NUM_PROMPTS)
    expected = tracker.init()
    for ids, successes, trials in zip(*records.observation, strict=True):
        seen = Observation(jnp.asarray(ids), jnp.asarray(successes), jnp.asarray(trials))
        expected, _ = tracker.update(expected, seen)
    np.testing.assert_allclose(state.tracker.successes, expected.successes, rtol=1e-6)
    np.testing.assert_allclose(state.tracker.failures, expected.failures, rtol=1e-6)


@pytest.mark.parametrize(("every", "aged"), [(1, 4), (2, 2), (100, 0)])
def test_time_passes_only_when_the_learner_steps(every, aged):
    constants, pieces = setup(), make(scheduler="kalman", every=every)
    tracker = pieces(constants).scheduler.tracker
    state, records = play(pieces, 4, chunk=2)
    assert int(state.updates) == aged
    # The belief about a prompt nobody has visited moves by ageing alone.
    unseen = np.setdiff1d(np.arange(NUM_PROMPTS), records.observation.prompt_ids)
    assert unseen.size > 0
    expected = tracker.init()
    for _ in range(aged):
        expected = tracker.predict(expected, 1.0)
    for read in (tracker.pass_rate, lambda state: tracker.informative(state, GROUP_SIZE)):
        got, want = np.asarray(read(state.tracker)), np.asarray(read(expected))
        np.testing.assert_allclose(got[unseen], want[unseen], rtol=1e-6)


def test_predictions_are_made_before_the_outcomes():
    pieces = make(scheduler="kalman")
    constants = setup()
    tracker = pieces(constants).scheduler.tracker
    step = driver.compile_step(pieces, chunk=1)
    state = start(pieces, constants)
    for _ in range(4):
        rates = np.asarray(tracker.pass_rate(state.tracker))
        informative = np.asarray(tracker.informative(state.tracker, GROUP_SIZE))
        state, record = step(constants, state)
        ids = np.asarray(record.observation.prompt_ids[0])
        np.testing.assert_allclose(record.predicted[0], rates[ids], rtol=1e-6)
        np.testing.assert_allclose(record.informative[0], informative[ids], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (float("nan"), "nan successes"),
        pytest.param(float("inf"), "inf successes", marks=pytest.mark.slow),
        (2.0, "must be in 0..1"),
    ],
)
def test_an_impossible_verdict_raises_and_leaves_the_last_good_state(spoil, words):
    with pytest.raises(driver.DriverFault) as caught:
        play(make(spoil_iteration=3, spoil=spoil), 8, chunk=4)
    good, _ = play(make(), 3, chunk=3)
    after, later = play(make(), 4, chunk=4)
    ids = later.observation.prompt_ids[3]
    message = str(caught.value)
    assert words in message and "iteration 3, prompt" in message
    assert int(message.split("prompt ")[1].split(":")[0]) == ids[0]
    assert_same(good, caught.value.state)
    assert int(after.iteration) == 4


def test_a_learner_that_is_not_finite_raises_and_leaves_the_last_good_state():
    with pytest.raises(driver.DriverFault, match=r"iteration 2, prompt 7: .*not finite") as caught:
        play(make(bad_learner_at=2), 8, chunk=8)
    good, _ = play(make(), 2, chunk=2)
    assert_same(good, caught.value.state)


@pytest.mark.slow
def test_the_good_iterations_before_a_fault_are_kept_and_the_run_goes_on():
    constants, seen = setup(), []

    def between(state, record):
        seen.extend(record.iteration[record.live].tolist())
        return state

    bad, good = make(spoil_iteration=3), make()
    step = driver.compile_step(bad, chunk=5)
    with pytest.raises(driver.DriverFault) as caught:
        driver.run(step, constants, start(bad, constants), iterations=10, between=between)
    assert seen == [0, 1, 2]
    healed = driver.compile_step(good, chunk=5)
    after = driver.run(healed, constants, caught.value.state, iterations=8)
    whole, _ = play(good, 8, chunk=1)
    assert_same(whole, after)


@pytest.mark.slow
def test_a_fault_of_one_seed_is_found_among_many():
    constants = setup()
    fine, bad = make(), make(bad_learner_at=0)
    step = driver.compile_step(bad, chunk=1, seeds=True)
    states = [start(fine, constants, seed) for seed in range(2)]
    ahead = states[0]._replace(learner=states[0].learner._replace(steps=jnp.int32(5)))
    many = jax.tree.map(lambda *x: jnp.stack(x), ahead, states[1])
    with pytest.raises(driver.DriverFault, match="prompt 7"):
        driver.run(step, constants, many, iterations=1)


def test_rollouts_without_a_verdict_are_neither_successes_nor_trials():
    _, records = play(make(spoil_iteration=0, spoil=-1.0), 1, chunk=1)
    assert records.missing.sum() == 1
    assert records.observation.trials.sum() == BUDGET - 1
    assert records.live.all()


def test_a_run_continued_from_its_state_is_the_run_uninterrupted():
    pieces, constants = make(scheduler="kalman"), setup()
    whole, _ = play(pieces, 8, chunk=2)
    half, _ = play(pieces, 4, chunk=2)
    copy = jax.tree.map(jnp.array, half)
    assert_same(
        whole, driver.run(driver.compile_step(pieces, chunk=2), constants, copy, iterations=8)
    )
