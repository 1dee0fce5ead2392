"""Checkpoints: a run that goes on from one is the run that was never ended, bit for bit.

One compiled step of a small run with everything that has state: replay, V, optimiser, PACED's
tracker. Rows 33, 34, 36, 41 and 43 of the public faults are here by name.
"""

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from live_world import host, play, start, unoptimised

from fade_jax import driver
from paced_jax import replay
from paced_jax.checkpoint import CheckpointError, Checkpoints, fingerprint, load_arrays, steps_of

ABOUT = {"run": {"scheduler": "paced", "seed": 0}, "pool": "0123"}
ITERATIONS = 9


@pytest.fixture(scope="module", autouse=True)
def quick_compiler() -> Iterator[None]:
    with unoptimised():
        yield


@functools.cache
def world():
    """(make, setup, init, compiled step)."""
    make, setup, init = start(scheduler="paced")
    return make, setup, init, driver.compile_step(make, chunk=1)


def first(seed: int = 0):
    _, setup, init, _ = world()
    return init(setup, jax.random.key(seed))


@functools.cache
def straight():
    """The run that nobody ends."""
    _, setup, _, step = world()
    return play(step, setup, first(), ITERATIONS)


def advance(state, until: int):
    """Runs on; (state, Records)."""
    _, setup, _, step = world()
    records = []

    def between(state, record):
        records.append(record)
        return state

    state = driver.run(step, setup, state, iterations=until, between=between)
    return state, jax.tree.map(lambda *x: np.concatenate(x), *records)


def straight_records(first: int, last: int):
    return jax.tree.map(lambda x: x[first:last], straight().records)


def _is_replay(node) -> bool:
    return isinstance(node, replay.State)


def assert_same(a, b) -> None:
    jax.tree.map(np.testing.assert_array_equal, a, b)


def adam_of(learner):
    """The moments of the policy, wherever the optimiser keeps them."""
    found = []

    def look(node):
        if isinstance(node, optax.ScaleByAdamState):
            found.append(node)
        return node

    jax.tree.map(
        look, learner.optimizer_state, is_leaf=lambda x: isinstance(x, optax.ScaleByAdamState)
    )
    return max(found, key=lambda adam: len(jax.tree.leaves(adam.mu)))


@pytest.fixture
def saved(tmp_path):
    """A folder with the checkpoint of iteration 4, and that state."""
    state, _ = advance(first(), 4)
    with Checkpoints(tmp_path, ABOUT) as checkpoints:
        checkpoints.save(state)
    return tmp_path, state


@pytest.mark.slow
def test_three_legs_are_one_run_bit_for_bit(tmp_path):
    # Row 36: the second resume is where a counter that restarts goes wrong.
    done = 0
    for until in (4, 7, ITERATIONS):
        with Checkpoints(tmp_path, ABOUT) as checkpoints:
            state = checkpoints.restore(first())
            assert int(state.iteration) == done
            state, records = advance(state, until)
            checkpoints.save(state)
        assert_same(records, straight_records(done, until))
        assert_same(host(state), straight().states[until])
        done = until
    assert steps_of(tmp_path) == [7, 9]  # the last two are kept
    last = straight().states[-1]
    replayed = [x for x in jax.tree.leaves(last.admit, is_leaf=_is_replay) if _is_replay(x)]
    assert last.updates == ITERATIONS and replayed[0].count > 0


def test_a_checkpoint_is_named_by_the_iterations_done_and_learns_no_batch_twice(saved):
    # Row 43: a batch learnt twice after a resume, or a step skipped.
    folder, _ = saved
    assert steps_of(folder) == [4]
    with Checkpoints(folder, ABOUT) as checkpoints:
        _, records = advance(checkpoints.restore(first()), 5)
    expected = straight_records(4, 5)
    loss = records.learn.metrics.figures.loss
    np.testing.assert_allclose(loss, expected.learn.metrics.figures.loss, rtol=1e-6)
    # the loss of another step would not have passed
    others = straight().records.learn.metrics.figures.loss
    assert np.abs(np.delete(others, 4) - loss).min() > 1e-5
    np.testing.assert_array_equal(records.iteration, [4])


def test_keys_go_on(saved):
    # Row 34: a generator that starts from its seed again.
    folder, state = saved
    with Checkpoints(folder, ABOUT) as checkpoints:
        restored = checkpoints.restore(first(seed=1))
    assert jax.random.key_impl(restored.key) == jax.random.key_impl(state.key)
    mine, theirs = restored.key, state.key
    for _ in range(5):
        mine, theirs = jax.random.split(mine)[0], jax.random.split(theirs)[0]
        np.testing.assert_array_equal(jax.random.key_data(mine), jax.random.key_data(theirs))
    assert not np.array_equal(jax.random.key_data(first(1).key), jax.random.key_data(state.key))


@pytest.mark.slow
def test_the_optimiser_comes_back(saved):
    # Row 41: a restore whose result nobody kept.
    folder, state = saved
    with Checkpoints(folder, ABOUT) as checkpoints:
        restored = checkpoints.restore(first())
    mine, theirs = adam_of(restored.learner), adam_of(state.learner)
    size = sum(float(np.abs(x).sum()) for x in jax.tree.leaves(host(mine.mu)))
    assert size > 0 and int(mine.count) == int(theirs.count) == 4
    assert_same(host(mine), host(theirs))
    # A state that kept its first optimiser is told apart, by value and by the step after it.
    forgotten = restored._replace(
        learner=restored.learner._replace(optimizer_state=first().learner.optimizer_state)
    )
    with pytest.raises(AssertionError):
        assert_same(host(adam_of(forgotten.learner)), host(theirs))
    forgotten, _ = advance(forgotten, 5)
    with pytest.raises(AssertionError):
        assert_same(host(forgotten), straight().states[5])


def test_prompts_in_flight_are_proposed_again_exactly_once(saved):
    # Row 33: a cursor ahead of training loses the prompts that were being generated.
    make, setup, _, _ = world()
    folder, state = saved
    generate = jax.jit(lambda setup, state: driver.generate(make(setup), setup, state))
    in_flight = generate(setup, state)  # chosen and sampled, never absorbed: the process ends here
    with Checkpoints(folder, ABOUT) as checkpoints:
        restored = checkpoints.restore(first())
    again = generate(setup, restored)
    np.testing.assert_array_equal(again.choice.rows.prompt_ids, in_flight.choice.rows.prompt_ids)
    np.testing.assert_array_equal(again.rollouts.tokens, in_flight.rollouts.tokens)
    # and once absorbed, the run has moved on to the next ones
    after, records = advance(restored, 5)
    np.testing.assert_array_equal(
        np.unique(records.observation.prompt_ids), np.unique(in_flight.choice.rows.prompt_ids)
    )
    following = generate(setup, after)
    np.testing.assert_array_equal(
        np.unique(following.choice.rows.prompt_ids),
        np.unique(straight_records(5, 6).observation.prompt_ids),
    )


def test_a_state_that_is_given_away_is_saved_as_it_was(tmp_path):
    state, _ = advance(first(), 2)
    expected = host(state)
    with Checkpoints(tmp_path, ABOUT) as checkpoints:
        checkpoints.save(state)
        advance(state, 6)  # donates it while it is being written
    with Checkpoints(tmp_path, ABOUT) as checkpoints:
        assert_same(host(checkpoints.restore(first())), expected)


def test_without_a_checkpoint_the_state_given_is_the_state(tmp_path):
    state = first()
    with Checkpoints(tmp_path / "new", ABOUT) as checkpoints:
        assert checkpoints.restore(state) is state
    assert steps_of(tmp_path / "new") == [] == steps_of(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "about, message",
    [
        (
            ABOUT | {"run": {"scheduler": "fade", "seed": 0}},
            "another run (scheduler: 'paced', wanted 'fade')",
        ),
        (ABOUT | {"run": {"scheduler": "paced", "seed": 1}}, "another run (seed: 0, wanted 1)"),
        (ABOUT | {"pool": "4567"}, "another pool ('0123', wanted '4567')"),
        (ABOUT | {"jax": "9"}, "another jax (None, wanted '9')"),
        ({"run": ABOUT["run"]}, "another pool ('0123', wanted None)"),
    ],
)
def test_another_run_is_refused_by_name(saved, about, message):
    folder, _ = saved
    with (
        Checkpoints(folder, about) as checkpoints,
        pytest.raises(ValueError, match=re.escape(message)),
    ):
        checkpoints.restore(first())
    assert steps_of(folder) == [4]


def test_what_a_run_is_may_be_told_in_any_values_that_json_takes(tmp_path):
    about = {"run": {"seeds": (0, 1), 2: None}}
    with Checkpoints(tmp_path, about) as checkpoints:
        checkpoints.save(first())
    with Checkpoints(tmp_path, about) as checkpoints:
        assert int(checkpoints.restore(first()).iteration) == 0 and steps_of(tmp_path) == [0]


def test_a_run_that_began_again_beside_later_checkpoints_is_told_so(saved):
    folder, state = saved
    expected = host(state)
    with Checkpoints(folder, ABOUT) as checkpoints:
        with pytest.raises(ValueError, match=r"state\.iteration: .* of 4 already, got 0; restore"):
            checkpoints.save(first(seed=1))
        checkpoints.save(state)  # the same one, once more
    with Checkpoints(folder, ABOUT) as checkpoints:
        assert_same(host(checkpoints.restore(first())), expected)
    assert steps_of(folder) == [4]


def test_arrays_of_another_program_are_refused_by_name(saved):
    folder, _ = saved
    state = first()
    short = state._replace(updates=jnp.zeros(2, jnp.int32))
    coarse = state._replace(updates=jnp.float32(0))
    more = state._replace(selector={"extra": jnp.ones(3)})
    for other, message in (
        (short, r"updates is int32 \(\), not int32 \(2,\)"),
        (coarse, r"updates is int32 \(\), not float32 \(\)"),
        (more, "lacks selector/extra"),
    ):
        with Checkpoints(folder, ABOUT) as checkpoints, pytest.raises(ValueError, match=message):
            checkpoints.restore(other)


def damage(folder: Path) -> None:
    """Leaves the folder of a checkpoint without most of its contents, as a crash would."""
    for path in (folder / "state").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_a_half_written_checkpoint_is_ignored(saved):
    folder, state = saved
    # orbax writes beside, and moves the folder to its name when it is whole
    half = folder / "6.orbax-checkpoint-tmp"
    shutil.copytree(folder / "4", half)
    damage(half)
    assert steps_of(folder) == [4]
    with Checkpoints(folder, ABOUT) as checkpoints:
        restored = checkpoints.restore(first())
        assert_same(host(restored), host(state))
        later, _ = advance(restored, 6)
        checkpoints.save(later)
    assert steps_of(folder) == [4, 6] and not half.exists()


def test_a_damaged_checkpoint_gives_way_to_the_one_before(saved):
    folder, state = saved
    expected = host(state)
    later, _ = advance(state, 6)
    with Checkpoints(folder, ABOUT) as checkpoints:
        checkpoints.save(later)
    damage(folder / "6")
    with Checkpoints(folder, ABOUT) as checkpoints:
        with pytest.warns(UserWarning, match=r"checkpoint 6 .* can't be read .*; 4 is used"):
            restored = checkpoints.restore(first())
        assert_same(host(restored), expected)
        later, _ = advance(restored, 6)
        checkpoints.save(later)  # the damaged one is not in the way
    assert_same(load_arrays(folder, 6)["updates"], np.asarray(6, np.int32))
    damage(folder / "6")
    damage(folder / "4")
    with (
        Checkpoints(folder, ABOUT) as checkpoints,
        pytest.raises(CheckpointError, match=r"no checkpoint .* can be read; of 6"),
    ):
        checkpoints.restore(first())


FULL_DISK = """
import resource, signal, sys
import jax, jax.numpy as jnp
from fade_jax import faults
from fade_jax.run_state import RunState
from paced_jax.checkpoint import CheckpointError, Checkpoints, steps_of

folder = sys.argv[1]
def state(done):
    weights = jax.random.normal(jax.random.key(done), (65536,))
    number = jnp.int32(done)
    return RunState(weights, (), (), (), jax.random.key(0), number, number + 0, faults.none())

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond the limit fails, as on a full disk
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
with Checkpoints(folder, {}) as checkpoints:
    checkpoints.save(state(1))
    checkpoints.wait()
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        checkpoints.save(state(2))
        checkpoints.wait()
    except CheckpointError as error:
        print("raised:", error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert steps_of(folder) == [1], steps_of(folder)
with Checkpoints(folder, {}) as checkpoints:
    restored = checkpoints.restore(state(0))
    assert int(restored.iteration) == 1 and (restored.learner == state(1).learner).all()
    checkpoints.save(state(2))
assert steps_of(folder) == [1, 2]
print("good")
"""


def test_a_full_disk_raises_and_keeps_the_last_good_one(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path / "checkpoints")],
        capture_output=True,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, done.stderr
    assert "raised: a checkpoint in" in done.stdout and "the last good one is 1" in done.stdout
    assert done.stdout.strip().endswith("good")


def test_fingerprints_see_contents_shapes_types_and_order():
    one, two = np.arange(4), np.array(["a", "b"])
    prints = [
        fingerprint(arrays)
        for arrays in (
            [one, two],
            [two, one],
            [one.reshape(2, 2), two],
            [one.astype(np.int32), two],
            [one + 1, two],
            [one, np.array(["a", "c"])],
        )
    ]
    assert len(set(prints)) == len(prints)
    assert fingerprint([one.copy(), two]) == prints[0] and len(prints[0]) == 16
    with pytest.raises(ValueError, match="of numbers or strings, got object"):
        fingerprint([np.array(["a", None])])


def test_keep_must_be_positive(tmp_path):
    with pytest.raises(ValueError, match="keep must be at least 1, got 0"):
        Checkpoints(tmp_path, {}, keep=0)
