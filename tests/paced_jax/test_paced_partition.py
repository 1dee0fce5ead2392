"""The value head, the inversion of log Z, and the PACED tracker."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy.special import erf
from scipy.stats import binom

from fade_jax.types import Observation
from paced_jax import paced_tracker, partition


def slow_value(head, x):
    """The same network, written out in numpy float64."""
    for layer in head.hidden:
        kernel, bias, scale, shift = (np.asarray(a, float) for a in layer)
        x = x @ kernel + bias
        x = x * 0.5 * (1 + erf(x / np.sqrt(2)))
        x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
        x = x * scale + shift
    return (x @ np.asarray(head.kernel, float) + np.asarray(head.bias, float))[:, 0]


def perturbed_head(features, hidden=8):
    head = partition.init(jax.random.key(0), features, num_hidden=hidden)
    rng = np.random.default_rng(1)
    return jax.tree.map(
        lambda a: jnp.asarray(np.asarray(a) + 0.1 * rng.normal(size=a.shape), a.dtype), head
    )


def test_head_starts_at_one_half_and_is_the_network_described():
    x = jnp.asarray(np.random.default_rng(2).normal(size=(20, 5)), jnp.float32)
    start = partition.init(jax.random.key(0), 5, num_hidden=8)
    assert (partition.value(start, x) == 0.5).all()
    assert (partition.value(partition.init(jax.random.key(0), 5, start=0.0), x) == 0).all()
    head = perturbed_head(5)
    value = partition.value(head, x)
    assert value.dtype == jnp.float32 and value.shape == (20,)
    # float32 against float64 through two layers of 8 units: a few ulps.
    np.testing.assert_allclose(value, slow_value(head, np.asarray(x, float)), atol=1e-5)
    assert np.std(value) > 0.05
    # One prompt's value does not depend on the others in the batch.
    np.testing.assert_allclose(partition.value(head, x[3:5]), value[3:5], atol=1e-6)
    assert partition.value(head, x.astype(jnp.bfloat16)).dtype == jnp.float32


def test_standardise():
    x = 7.0 + np.random.default_rng(0).normal(size=(500, 3)) * [1e-2, 1.0, 50.0]
    x = np.concatenate([x, np.full((500, 1), 0.95), np.zeros((500, 1))], axis=1)
    y = np.asarray(partition.standardise(jnp.asarray(x, jnp.float16)), float)
    np.testing.assert_allclose(y[:, 1:3].mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(y[:, :3].std(0), 1, rtol=1e-4)
    assert (y[:, 3:] == 0).all()


@pytest.mark.parametrize("multiplier", [1, 15, 100])
def test_pass_rate_from_log_z_does_not_overflow(multiplier):
    rates = [0.0, 0.01, 0.25, 0.5, 0.9, 1.0]
    with mpmath.workdps(60):
        grown = [1 - mpmath.mpf(p) + mpmath.mpf(p) * mpmath.exp(multiplier) for p in rates]
        log_z = [float(mpmath.log(z)) for z in grown]
    beta = jnp.float32(1 / multiplier)
    p = partition.pass_rate_from_log_z(jnp.asarray(log_z, jnp.float32), beta)
    # float32 holds log Z near 100 to 4e-6, which is the relative error of p.
    np.testing.assert_allclose(p, rates, atol=1e-5)
    beyond = jnp.asarray([-3.0, multiplier + 7.0, np.nan], jnp.float32)
    np.testing.assert_allclose(partition.pass_rate_from_log_z(beyond, beta), [0, 1, np.nan])


def observation(ids, successes, trials):
    return Observation(
        jnp.asarray(ids, jnp.int32), jnp.asarray(successes, float), jnp.asarray(trials, float)
    )


def test_tracker_is_a_copy_of_the_learners_head():
    x = jnp.asarray(np.random.default_rng(2).normal(size=(6, 5)), jnp.float32)
    head = perturbed_head(5)
    middle = np.median(slow_value(head, np.asarray(x, float)))
    head = head._replace(bias=head.bias + np.float32(1.0 - middle))
    tracker = paced_tracker.build(x, partition.init(jax.random.key(0), 5, num_hidden=8))
    state = tracker.init()
    assert (tracker.pass_rate(state) == 0.5).all()
    state = paced_tracker.refresh(state, head, x)
    rate = np.clip(slow_value(head, np.asarray(x, float)), 0, 1)
    assert rate.max() == 1.0 and 0 < rate.min() < 1  # both ends matter: V is not confined
    np.testing.assert_allclose(tracker.pass_rate(state), rate, atol=1e-5)
    sizes = jnp.array([0, 1, 2, 4, 8, 64], jnp.int32)
    exact = np.where(sizes < 2, 0, 1 - rate ** np.asarray(sizes) - (1 - rate) ** np.asarray(sizes))
    np.testing.assert_allclose(tracker.informative(state, sizes), exact, atol=1e-4)
    assert (tracker.draw(jax.random.key(0), state) == tracker.pass_rate(state)).all()
    assert tracker.predict(state, 1.0) is state
    np.testing.assert_allclose(paced_tracker.nearness(state, 0.7), -np.abs(rate - 0.7), atol=1e-5)
    # Outcomes are scored and teach nothing: the learner does that. Repeated prompts are merged.
    inner = int(np.argmin(np.abs(rate - 0.5)))
    after, info = tracker.update(state, observation([inner, 0, inner], [3, 7, 2], [8, 0, 8]))
    jax.tree.map(np.testing.assert_array_equal, after, state)
    np.testing.assert_allclose(info.log_evidence, binom.logpmf(5, 16, rate[inner]), atol=1e-4)
    nis = (5 - 16 * rate[inner]) ** 2 / (16 * rate[inner] * (1 - rate[inner]))
    np.testing.assert_allclose(info.nis, nis, rtol=1e-3)


def test_tracker_fits_where_nothing_else_trains_v():
    # Two kinds of prompts, pass rates .2 and .9; half of each kind is never observed.
    kind = np.arange(40) % 2
    noise = np.random.default_rng(0).normal(size=40)
    x = partition.standardise(jnp.asarray(np.stack([kind, noise], axis=1), jnp.float32))
    head = partition.init(jax.random.key(1), 2, num_hidden=8)
    tracker = paced_tracker.build(x, head, fit=True, learning_rate=1e-2)
    seen = np.arange(20)

    @jax.jit
    def visit(observation):
        """300 updates with the same counts, and the states before each."""

        def body(state, _):
            after, info = tracker.update(state, observation)
            return after, (state, info.log_evidence)

        state, (states, evidence) = jax.lax.scan(body, tracker.init(), length=300)
        return state, states, evidence

    counts = observation(seen, np.where(seen % 2, 0.9, 0.2) * 8, np.full(20, 8.0))
    state, _, evidence = visit(counts)
    rate = np.asarray(tracker.pass_rate(state))
    np.testing.assert_allclose(rate[:20], np.where(seen % 2, 0.9, 0.2), atol=0.02)
    error = np.abs(rate[20:] - np.where(np.arange(20, 40) % 2, 0.9, 0.2))
    assert error.mean() < 0.05  # unseen prompts are read off their embeddings
    assert evidence[-1] > evidence[0] + 20  # nats, 20 groups of 8
    # Without trials nothing moves, the optimiser's count and moments included.
    same, states, evidence = visit(observation(seen, np.zeros(20), np.zeros(20)))
    jax.tree.map(np.testing.assert_array_equal, same, jax.tree.map(lambda x: x[0], states))
    assert (evidence == 0).all() and (same.value == 0.5).all()
    # Observed rates weigh by their trials: 20 visits of one prompt, 8/8 once and 0/1 otherwise.
    once = observation(np.zeros(20), np.arange(20) == 0, np.full(20, 1.0))
    _, states, _ = visit(
        once._replace(successes=8 * once.successes, trials=once.trials + 7 * once.successes)
    )
    np.testing.assert_allclose(states.value[-1, 0], 8 / 27, atol=0.02)
