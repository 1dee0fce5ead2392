"""Protocols, and the scan against a loop, with a small tracker of this file's own."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from fade_jax import replay as module
from fade_jax.histories import dense_array
from fade_jax.replay import Batches, cold, dense, replay, replay_batches, sparse
from fade_jax.simulated_history import simulate_history
from fade_jax.types import Info, Observation, Tracker

NUM_PROMPTS = 30
GROUP_SIZE = 8


class State(NamedTuple):
    right: Array
    wrong: Array
    shared: Array


def build(discount) -> Tracker:
    """A discounted Beta whose prior is shared: outcomes of one prompt move all the others."""

    def init():
        return State(jnp.zeros(NUM_PROMPTS), jnp.zeros(NUM_PROMPTS), jnp.asarray([1.0, 1.0]))

    def counts(state):
        return state.right + state.shared[0], state.wrong + state.shared[1]

    def pass_rate(state):
        right, wrong = counts(state)
        return right / (right + wrong)

    def informative(state, group_size):
        right, wrong = counts(state)
        degenerate = [jnp.ones(NUM_PROMPTS), jnp.ones(NUM_PROMPTS)]
        for j in range(group_size):
            degenerate[0] *= (right + j) / (right + wrong + j)
            degenerate[1] *= (wrong + j) / (right + wrong + j)
        return 1 - degenerate[0] - degenerate[1]

    def update(state, observation: Observation):
        ids, successes, trials = observation
        shared = jnp.stack([successes.sum(), (trials - successes).sum()])
        right = state.right.at[ids].add(successes)
        wrong = state.wrong.at[ids].add(trials - successes)
        info = Info(log_evidence=trials.sum(), nis=successes.sum())
        return State(right, wrong, state.shared + shared / 100), info

    def predict(state, elapsed):
        return State(*(leaf * discount**elapsed for leaf in state))

    def draw(key, state):
        return pass_rate(state) * jax.random.uniform(key, (NUM_PROMPTS,))

    return Tracker(init, predict, update, pass_rate, informative, draw)


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    return dense_array(simulate_history(rng, NUM_PROMPTS, 12, GROUP_SIZE, 2, visit_share=0.8)[0])


def scan(discount, successes, trials, observed):
    tracker = build(discount)
    return replay(tracker, tracker.init(), successes, trials, observed, GROUP_SIZE)


compiled = jax.jit(scan)


def loop(discount, successes, trials, observed):
    """The same tracker step by step in float64, absorbing only the rows that were seen."""
    right, wrong, shared = np.zeros(NUM_PROMPTS), np.zeros(NUM_PROMPTS), np.ones(2)
    predictions, pass_rates = np.zeros(trials.shape), np.zeros(trials.shape)
    for step in range(len(trials)):
        a, b = right + shared[0], wrong + shared[1]
        pass_rates[step] = a / (a + b)
        j = np.arange(GROUP_SIZE)[:, None]
        predictions[step] = (
            1 - np.prod((a + j) / (a + b + j), 0) - np.prod((b + j) / (a + b + j), 0)
        )
        for prompt_id in np.flatnonzero(observed[step]):
            y, n = successes[step, prompt_id], trials[step, prompt_id]
            right[prompt_id] += y
            wrong[prompt_id] += n - y
            shared += np.array([y, n - y]) / 100
        right, wrong, shared = right * discount, wrong * discount, shared * discount
    return predictions, pass_rates, (right, wrong, shared)


def test_replay_equals_the_loop(table):
    successes, trials = table
    observed = sparse(trials, 0.5, seed=1, first=2, last=11).observed
    predictions, pass_rates, final, infos = compiled(0.9, successes, trials, observed)
    want = loop(0.9, successes, trials, observed)
    np.testing.assert_allclose(predictions, want[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(pass_rates, want[1], rtol=1e-5)
    for leaf, wanted in zip(final, want[2], strict=True):
        np.testing.assert_allclose(leaf, wanted, rtol=1e-5)
    np.testing.assert_allclose(infos.log_evidence, (trials * observed).sum(1), rtol=1e-6)
    np.testing.assert_allclose(infos.nis, (successes * observed).sum(1), rtol=1e-6)


def test_batches_of_the_whole_pool_are_the_table(table):
    successes, trials = table
    ids = np.broadcast_to(np.arange(NUM_PROMPTS, dtype=np.int32), trials.shape)
    batches = Batches(ids, successes, trials, np.ones(len(trials), np.float32))

    @jax.jit
    def run(batches):
        tracker = build(0.9)
        return replay_batches(tracker, tracker.init(), batches, GROUP_SIZE)

    got, want = run(batches), compiled(0.9, successes, trials, trials > 0)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_batches_replay_as_they_happened(table):
    """Fewer prompts a batch, in any order, padded, with time that passes unevenly."""
    successes, trials = table
    rng = np.random.default_rng(4)
    prompt_ids = np.stack([rng.permutation(NUM_PROMPTS)[:5] for _ in range(6)]).astype(np.int32)
    steps = np.arange(6)[:, None]
    y, n = successes[steps, prompt_ids], trials[steps, prompt_ids]
    y[:, 4], n[:, 4] = 0, 0  # a padded slot
    elapsed = np.array([1, 0, 2.5, 1, 1, 1], np.float32)
    tracker = build(0.9)
    predictions, pass_rates, final, infos = jax.jit(
        lambda batches: replay_batches(tracker, tracker.init(), batches, GROUP_SIZE)
    )(Batches(prompt_ids, y, n, elapsed))
    state = tracker.init()
    for k in range(6):
        want = tracker.informative(state, GROUP_SIZE)[prompt_ids[k]]
        np.testing.assert_allclose(predictions[k], want, rtol=1e-5)
        np.testing.assert_allclose(
            pass_rates[k], tracker.pass_rate(state)[prompt_ids[k]], rtol=1e-5
        )
        state, info = tracker.update(
            state, Observation(*map(jnp.asarray, (prompt_ids[k], y[k], n[k])))
        )
        np.testing.assert_allclose(infos.nis[k], info.nis, rtol=1e-6)
        state = tracker.predict(state, elapsed[k])
    for one, other in zip(final, state, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_replay_never_leaks(table):
    """What happens at step k, or to a hidden prompt, moves no prediction at steps <= k."""
    successes, trials = table
    observed = sparse(trials, 0.5, seed=2, first=2, last=11).observed
    base = compiled(0.9, successes, trials, observed)
    for step in (0, 5, 11):
        changed = successes.copy()
        changed[step] = 0
        other = compiled(0.9, changed, trials, observed)
        for got, want in zip(other[:2], base[:2], strict=True):
            np.testing.assert_array_equal(got[: step + 1], want[: step + 1])
            if step < 11:
                assert np.abs(got[step + 1] - want[step + 1]).max() > 1e-3
    hidden = np.where(observed, successes, np.float32(0))
    for got, want in zip(compiled(0.9, hidden, trials, observed)[:2], base[:2], strict=True):
        np.testing.assert_array_equal(got, want)


def test_replay_is_differentiable(table, x64):
    successes, trials = (jnp.asarray(each, jnp.float64) for each in table)
    observed = jnp.asarray(dense(table[1], last=11).observed)

    @jax.jit
    def loss(discount):
        return (scan(discount, successes, trials, observed)[0] ** 2).mean()

    slope = jax.grad(loss)(0.9)
    finite_difference = (loss(0.9 + 1e-5) - loss(0.9 - 1e-5)) / 2e-5
    np.testing.assert_allclose(slope, finite_difference, rtol=1e-6)


def test_replay_maps_over_masks(table):
    successes, trials = table
    masks = np.stack([sparse(trials, 0.5, seed, 2, 11).observed for seed in range(3)])
    together = jax.jit(jax.vmap(scan, (None, None, None, 0)))(0.9, successes, trials, masks)
    for row, mask in enumerate(masks):
        np.testing.assert_allclose(
            together[0][row], compiled(0.9, successes, trials, mask)[0], rtol=1e-5, atol=1e-6
        )


def test_dense_protocol(table):
    _, trials = table
    protocol = dense(trials, first=1, last=10)
    np.testing.assert_array_equal(protocol.observed, trials > 0)
    np.testing.assert_array_equal(protocol.scored[1:11], trials[1:11] > 0)
    assert not protocol.scored[[0, 11]].any()
    assert (protocol.name, protocol.observed_share) == ("dense", 1.0)


def big_table():
    return (np.random.default_rng(3).random((44, 500)) < 0.9).astype(np.float32) * 8


@pytest.mark.parametrize("protocol_of", [sparse, cold])
def test_hidden_visits_are_the_scored_ones(protocol_of):
    trials = big_table()
    protocol = protocol_of(trials, 0.25, seed=0)
    visited = trials > 0
    assert not (protocol.observed & ~visited).any()
    np.testing.assert_array_equal(protocol.scored[11:], (visited & ~protocol.observed)[11:])
    assert not protocol.scored[:11].any()
    assert (protocol.name, protocol.observed_share) == (protocol_of.__name__, 0.25)
    same = protocol_of(trials, 0.25, seed=0)
    np.testing.assert_array_equal(same.observed, protocol.observed)
    assert (protocol_of(trials, 0.25, seed=1).observed != protocol.observed).any()
    # Nested: one seed's larger share shows all of the smaller one's.
    assert not (protocol.observed & ~protocol_of(trials, 0.5, seed=0).observed).any()
    for share in (0.0, 1.0, -0.1):
        with pytest.raises(ValueError, match=f"observed_share: {share}"):
            protocol_of(trials, share, seed=0)


def test_sparse_masks_visits_and_cold_masks_prompts():
    trials = big_table()
    visited = trials > 0
    # Shares of 19,800 visits (standard error .0031) and of 500 prompts (.019); 5 of them each,
    # a false-alarm rate below 1e-6.
    shown = sparse(trials, 0.25, seed=0).observed
    assert abs(shown.sum() / visited.sum() - 0.25) < 0.016
    assert shown.any(0).all()  # every prompt is seen at some step
    shown = cold(trials, 0.25, seed=0).observed
    assert abs(shown.any(0).mean() - 0.25) < 0.097
    np.testing.assert_array_equal(shown, visited & shown.any(0))


@pytest.mark.parametrize("window", [(1, 44), (-1, 5), (7, 6)])
def test_a_window_outside_the_table(window):
    first, last = window
    message = rf"first, last: {first}\.\.{last} is not a window of steps 0\.\.43"
    for call in (
        lambda: dense(big_table(), first, last),
        lambda: sparse(big_table(), 0.1, 0, first, last),
        lambda: cold(big_table(), 0.1, 0, first, last),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_no_array_at_module_level():
    assert not [value for value in vars(module).values() if isinstance(value, jax.Array)]
