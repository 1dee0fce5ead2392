"""The moving average and the oracle: three updates by hand, and what is exact."""

import jax
import jax.numpy as jnp
import numpy as np

from fade_jax.trackers import ema, oracle
from fade_jax.types import Observation


def batch(ids, successes, trials):
    """Padded to four rows, so that one compilation serves a file."""
    pad = (0, 4 - len(ids))
    columns = np.pad(successes, pad), np.pad(trials, pad)
    ids = np.pad(ids, pad, constant_values=-1)
    return Observation(jnp.asarray(ids, jnp.int32), *(jnp.asarray(x, float) for x in columns))


def close(left, right):
    np.testing.assert_allclose(left, right, rtol=2e-6, atol=1e-6)


def test_three_updates_by_hand():
    tracker = ema.build(2, rate=0.5)
    state, update = tracker.init(), jax.jit(tracker.update)
    close(tracker.pass_rate(state), [0.5, 0.5])

    # 8/8 at p = .5: 8 log .5; (8 - 4)^2 / (8 / 4) = 8; then (.5 + 1) / 2.
    state, info = update(state, batch([0], [8], [8]))
    close(tracker.pass_rate(state), [0.75, 0.5])
    close(info, (-5.5451774, 8.0))

    # 2/8 at .75: log(28 x .75^2 x .25^6); (2 - 6)^2 / (8 x 3/16) = 16 / 1.5; (.75 + .25) / 2.
    state, info = update(state, batch([0], [2], [8]))
    close(tracker.pass_rate(state), [0.5, 0.5])
    close(info, (-5.5609258, 32 / 3))

    # 1/4 and 3/4 of one prompt are 4/8: log(70 / 256), no surprise, no change.
    state, info = update(state, batch([0, 0], [1, 3], [4, 4]))
    close(tracker.pass_rate(state), [0.5, 0.5])
    close(info, (-1.2966822, 0.0))


def test_the_plug_in_probability():
    # 1 - p^8 - (1 - p)^8.
    for start, expected in ((0.01, 0.07725531), (0.05, 0.33657957), (0.9, 0.56953278), (0, 0)):
        tracker = ema.build(1, start=float(start))
        close(tracker.informative(tracker.init(), 8), [expected])


def test_a_certain_average_is_scored_at_its_floor():
    # With rate 1 the average is the last visit; p = 1 is scored at 1 - 2^-20, so eight failures
    # cost 8 x 20 log 2 nats, and eight successes next to nothing.
    tracker = ema.build(1, rate=1.0)
    update = jax.jit(tracker.update)
    state, _ = update(tracker.init(), batch([0], [8], [8]))
    assert tracker.pass_rate(state)[0] == 1
    close(update(state, batch([0], [0], [8]))[1].log_evidence, -160 * np.log(2))
    close(update(state, batch([0], [8], [8]))[1].log_evidence, -8 * 2.0**-20)


def test_the_oracle_scores_three_batches_and_is_told_the_rest():
    tracker = oracle.build(jnp.array([0.25, 0.5]))
    state, update = tracker.init(), jax.jit(tracker.update)

    # 2/8 at 1/4: log(28 x .25^2 x .75^6), and exactly what was expected.
    state, info = update(state, batch([0], [2], [8]))
    close(info, (np.log(28 * 729 / 4**8), 0.0))
    # 8/8 at 1/2 and 0/8 at 1/4: (16 / 2 + 4 / 1.5) / 2.
    state, info = update(state, batch([1, 0], [8, 0], [8, 8]))
    close(info, (8 * np.log(0.5) + 8 * np.log(0.75), 16 / 3))
    close(tracker.pass_rate(state), [0.25, 0.5])
    # The truth moves, by `refresh` alone: 1/2 at p = 1 - 1/4.
    state = oracle.refresh(tracker.predict(state, 5.0), jnp.array([0.75, 1.0]))
    state, info = update(state, batch([0], [1], [2]))
    close(info, (np.log(2 * 0.75 * 0.25), 0.25 / 0.375))
    close(tracker.pass_rate(state), [0.75, 1.0])
    close(tracker.informative(state, 2), [0.375, 0.0])
