"""CDAS: three updates by hand, and the narrow range of a difficulty that is a mean of errors."""

import jax
import jax.numpy as jnp
import numpy as np

from fade_jax.trackers import cdas
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
    tracker = cdas.build(2)
    state, update = tracker.init(), jax.jit(tracker.update)

    # 8/8, p = sigmoid(0) = .5, n = 1: d = 0 d + (.5 - 1) / 1 = -.5; R = 0 + .5 / 2.
    state, info = update(state, batch([0], [8], [8]))
    close(state.difficulty, [-0.5, 0])
    close(state.ability, 0.25)
    close(info, (8 * np.log(0.5), 8.0))

    # 0/8, p = sigmoid(.25 + .5) = .67917870, n = 2: d = -.5 / 2 + .67917870 / 2 = .08958935;
    # R = .25 - .58958935 / 2. Evidence 8 log(1 - p); nis (8 p)^2 / (8 p (1 - p)) = 8 p / (1 - p).
    state, info = update(state, batch([0], [0], [8]))
    close(state.difficulty, [0.08958935, 0])
    close(state.ability, -0.04479467)
    close(info, (-9.09496805, 8 * 0.67917870 / 0.32082130))

    # 4/8 on both, given as three rows. p = sigmoid(-.13438402) = .46645446 and sigmoid(-.04479467)
    # = .48880320; d_0 = 2/3 x .08958935 + (.46645446 - .5) / 3, d_1 = .48880320 - .5;
    # R falls by half of (-.04104496 - .01119680).
    state, info = update(state, batch([0, 1, 0], [1, 4, 3], [4, 8, 4]))
    close(state.difficulty, [0.04854439, -0.01119680])
    close(state.ability, -0.01867380)
    close(info.log_evidence, -2.61341629)
    close(state.visits, [3, 1])
    close(tracker.pass_rate(state), jax.nn.sigmoid(jnp.array([-0.06721819, -0.00747700])))


def test_the_first_visits_weigh_less_with_an_offset():
    # n = 0 + 4: d = (.5 - 1) / 4.
    tracker = cdas.build(1, visit_offset=4.0)
    state, _ = tracker.update(tracker.init(), batch([0], [8], [8]))
    close(state.difficulty, [-0.125])
    close(state.ability, 0.125)


def test_a_hundred_solved_visits_say_little():
    # d is a mean of p - 1, so it stays above -1, and R - d = 1.5 |d| with two prompts: what is
    # certain to anyone else keeps p below sigmoid(1.5) here.
    tracker = cdas.build(2)
    update = jax.jit(tracker.update)
    state = tracker.init()
    for _ in range(100):
        state, _ = update(state, batch([0], [8], [8]))
    close(state.ability, -state.difficulty[0] / 2)
    assert -1 < state.difficulty[0] < -0.2
    assert 0.6 < tracker.pass_rate(state)[0] < 0.8
