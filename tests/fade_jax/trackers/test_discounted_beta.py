"""Discounted Beta counts: three updates by hand, the plain counter, exact probabilities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import gammaln

from fade_jax.trackers import discounted_beta
from fade_jax.trackers.discounted_beta import log_rising
from fade_jax.types import Observation


def batch(ids, successes, trials):
    """Padded to four rows, so that one compilation serves a file."""
    pad = (0, 4 - len(ids))
    columns = np.pad(successes, pad), np.pad(trials, pad)
    ids = np.pad(ids, pad, constant_values=-1)
    return Observation(jnp.asarray(ids, jnp.int32), *(jnp.asarray(x, float) for x in columns))


def close(left, right):
    np.testing.assert_allclose(left, right, rtol=3e-6, atol=1e-6)


def test_three_updates_by_hand():
    tracker = discounted_beta.build(2, discount=0.5)
    state, update = tracker.init(), jax.jit(tracker.update)

    # 6/8 under Beta(1, 1): all nine counts alike. Var p = 1/12, so the count's variance is
    # 8/4 + 56/12 = 20/3 and nis = (6 - 4)^2 / (20/3). a = (1 + 1) / 2 + 6, b = 1 + 2.
    state, info = update(state, batch([0], [6], [8]))
    close(state, ([7, 1], [3, 1]))
    close(info, (-np.log(9), 0.6))
    close(tracker.pass_rate(state), [0.7, 0.5])

    # 0/8 under Beta(7, 3): (3 4 ... 10) / (10 11 ... 17) = 1814400 / 980179200.
    # Var p = .21 / 11; variance 1.68 + 56 x .21 / 11; nis = 5.6^2 / that. a = 3.5 + .5 + 0,
    # b = 1.5 + .5 + 8.
    state, info = update(state, batch([0], [0], [8]))
    close(state, ([4, 1], [10, 1]))
    close(info, (np.log(1814400 / 980179200), 31.36 / (1.68 + 56 * 0.21 / 11)))

    # 3/4 and 1/4 are 4/8 under Beta(4, 10): 70 (4 5 6 7) (10 11 12 13) / (14 ... 21).
    # Mean 2/7, Var p = 10/49/15; variance 80/49 + 56 x 10/49/15 = 6880/2940, error 12/7.
    # a = 2 + .5 + 4, b = 5 + .5 + 4.
    state, info = update(state, batch([0, 0], [3, 1], [4, 4]))
    close(state, ([6.5, 1], [9.5, 1]))
    close(info, (np.log(70 * 840 * 17160 / 8204716800), (12 / 7) ** 2 / (80 / 49 + 560 / 735)))


def test_the_plain_counter_counts():
    tracker = discounted_beta.build(3, discount=1.0, prior_successes=0.35, prior_failures=0.65)
    state, update = tracker.init(), jax.jit(tracker.update)
    for ids, wins in (([0, 2], [3.0, 8.0]), ([0], [5.0]), ([2, 0], [1.0, 0.0])):
        state, _ = update(state, batch(ids, wins, [8.0] * len(ids)))
        state = tracker.predict(state, 50.0)
    close(state, ([8.35, 0.35, 9.35], [16.65, 0.65, 7.65]))


def test_only_prompts_just_observed_decay():
    tracker = discounted_beta.build(2, discount=0.5)
    update = jax.jit(tracker.update)
    state, _ = update(tracker.init(), batch([0, 1], [8, 8], [8, 8]))
    for _ in range(5):
        state, _ = update(tracker.predict(state, 1.0), batch([0], [0], [8]))
    assert state.successes[1] == 9 and state.failures[1] == 1


@pytest.mark.parametrize(
    ("successes", "failures", "expected"),
    [(1.0, 1.0, 7 / 9), (0.5, 0.5, 0.60723877), (3.35, 5.65, 0.92176638)],
)
def test_exact_probability_of_an_informative_group(successes, failures, expected):
    tracker = discounted_beta.build(2, prior_successes=successes, prior_failures=failures)
    close(tracker.informative(tracker.init(), 8), [expected] * 2)
    close(tracker.informative(tracker.init(), jnp.array([8, 1])), [expected, 0])


def test_a_rising_factorial_in_float32_where_gammaln_cancels():
    start = np.array([1e-3, 0.35, 1, 7.9, 8, 8.1, 50, 1e3, 1e5])
    steps = np.array([0, 0.5, 1, 8, 64])
    start, steps = (x.ravel() for x in np.meshgrid(start, steps))
    exact = gammaln(start + steps) - gammaln(start)
    mine = jax.jit(log_rising)(jnp.asarray(start, jnp.float32), jnp.asarray(steps, jnp.float32))
    np.testing.assert_allclose(mine, exact, rtol=3e-6, atol=3e-6)
    assert np.all(mine[steps == 0] == 0)
    slope = jax.grad(lambda a: log_rising(a, jnp.full(2, 8.0)).sum())(jnp.array([1e-3, 1e3]))
    close(slope, [sum(1 / (a + i) for i in range(8)) for a in (1e-3, 1e3)])


def test_evidence_of_a_history_does_not_depend_on_its_order():
    # Undiscounted counts are exchangeable: any order of visits has one joint probability.
    update = jax.jit(discounted_beta.build(1, discount=1.0).update)
    totals = []
    for order in ((8, 3, 0, 5), (0, 5, 8, 3)):
        state, total = discounted_beta.build(1).init(), 0.0
        for wins in order:
            state, info = update(state, batch([0], [float(wins)], [8.0]))
            total += float(info.log_evidence)
        totals.append(total)
    np.testing.assert_allclose(totals[0], totals[1], rtol=1e-6)
