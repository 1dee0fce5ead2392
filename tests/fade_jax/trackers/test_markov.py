"""The chain of states (DPS): three updates by hand, a slow independent copy, long jumps."""

import jax
import jax.numpy as jnp
import numpy as np

from fade_jax.trackers import markov
from fade_jax.types import Observation


def batch(ids, successes, trials):
    """Padded to four rows, so that one compilation serves a file."""
    pad = (0, 4 - len(ids))
    columns = np.pad(successes, pad), np.pad(trials, pad)
    ids = np.pad(ids, pad, constant_values=-1)
    return Observation(jnp.asarray(ids, jnp.int32), *(jnp.asarray(x, float) for x in columns))


def close(left, right, rtol=2e-6):
    np.testing.assert_allclose(left, right, rtol=rtol, atol=1e-6)


def test_three_updates_by_hand():
    # All with alpha0 = 1, discount 1/2.
    tracker = markov.build(1, discount=0.5)
    state, update, predict = tracker.init(), jax.jit(tracker.update), jax.jit(tracker.predict)

    # 3/8 is mixed. Evidence: P(mixed) = 1/3, times 56/256 cut to 1..7 successes (254/256).
    # Nis: E p = 1/2, E p^2 = 1/3 + 1/12, Var = 1/6, variance of the count 2 + 56/6; error 1.
    # xi: from each state 1/3 to mixed. alpha = (1 + 1) / 2 + xi: rows (1, 4/3, 1).
    state, info = update(state, batch([0], [3], [8]))
    close(info, (np.log(56 / 762), 1 / (2 + 56 / 6)))
    close(state.transitions[:, :, 0], [[1, 4 / 3, 1]] * 3)
    close(state.belief[:, 0], [0, 1, 0])
    # Next step: the row of "mixed" over 10/3. Mixed rate (3 + 1) / (8 + 2).
    state = predict(state, 1.0)
    close(state.belief[:, 0], [0.3, 0.4, 0.3])
    close(tracker.pass_rate(state), [0.3 + 0.4 * 0.4])
    close(tracker.informative(state, 8), [0.4])

    # 8/8: P(all right) = .3; the transition mixed -> right is certain.
    # alpha = (old + 1) / 2 + xi: (1, 7/6, 1), mixed (1, 7/6, 2).
    state, info = update(state, batch([0], [8], [8]))
    close(info.log_evidence, np.log(0.3))
    close(state.transitions[:, :, 0], [[1, 7 / 6, 1], [1, 7 / 6, 2], [1, 7 / 6, 1]])
    state = predict(state, 1.0)
    close(state.belief[:, 0], [6 / 19, 7 / 19, 6 / 19])
    # A step unseen: alpha fades to (1, 13/12, 1), mixed (1, 13/12, 3/2); belief (6, 7, 6) / 19
    # times the rows (12, 13, 12) / 37, (12, 13, 18) / 43, (12, 13, 12) / 37.
    state = predict(state, 1.0)
    close(state.transitions[1, :, 0], [1, 13 / 12, 3 / 2])
    close(state.belief[:, 0], np.array([9300, 10075, 10854]) / 30229)

    # 0/8, the origin unknown: xi is proportional to (6 x 12/37, 7 x 12/43, 6 x 12/37), which is
    # (258, 259, 258) / 775. alpha = (old + 1) / 2 + xi.
    state, info = update(state, batch([0], [0], [8]))
    close(info.log_evidence, np.log(9300 / 30229))
    expected = [
        [1 + 258 / 775, 25 / 24, 1],
        [1 + 259 / 775, 25 / 24, 5 / 4],
        [1 + 258 / 775, 25 / 24, 1],
    ]
    close(state.transitions[:, :, 0], expected)
    state = predict(state, 1.0)
    close(state.belief[:, 0], np.array([24792, 19375, 18600]) / 62767)


def slow_chain(history, discount, prior, num_prompts):
    """The published recursion, one prompt and one entry at a time, in float64."""
    alpha = {i: np.full((3, 3), prior) for i in range(num_prompts)}
    now = {i: np.full(3, 1 / 3) for i in range(num_prompts)}
    before = {i: np.full(3, 1 / 3) for i in range(num_prompts)}
    for seen in history:
        for i in range(num_prompts):
            phi = [[alpha[i][j][k] / sum(alpha[i][j]) for k in range(3)] for j in range(3)]
            xi = np.zeros((3, 3))
            if i in seen:
                k = 0 if seen[i] == 0 else 2 if seen[i] == 8 else 1
                total = sum(before[i][j] * phi[j][k] for j in range(3))
                for j in range(3):
                    xi[j, k] = before[i][j] * phi[j][k] / total
                now[i] = np.eye(3)[k]
            alpha[i] = discount * alpha[i] + (1 - discount) * prior + xi
            phi = [[alpha[i][j][k] / sum(alpha[i][j]) for k in range(3)] for j in range(3)]
            before[i] = now[i]
            now[i] = np.array([sum(now[i][j] * phi[j][k] for j in range(3)) for k in range(3)])
    return np.stack(list(now.values()), 1), np.stack(list(alpha.values()), 2)


def test_equals_the_slow_chain():
    rng = np.random.default_rng(3)
    tracker = markov.build(6, discount=0.7, prior_count=1.5)
    step = jax.jit(lambda s, o: tracker.predict(tracker.update(s, o)[0], 1.0))
    state, history = tracker.init(), []
    for _ in range(40):
        ids = rng.permutation(6)[:2]
        wins = rng.choice([0, 3, 8], 2)
        history.append(dict(zip(ids.tolist(), wins.tolist(), strict=True)))
        state = step(state, batch(ids, wins, [8, 8]))
    belief, alpha = slow_chain(history, 0.7, 1.5, 6)
    close(state.belief, belief, rtol=2e-5)
    close(state.transitions, alpha, rtol=2e-5)


def test_whole_jumps_and_fractions():
    tracker = markov.build(1, discount=1.0)
    state, update, predict = tracker.init(), jax.jit(tracker.update), jax.jit(tracker.predict)
    for wins in (0.0, 0.0, 0.0, 4.0, 8.0, 8.0, 4.0, 0.0):
        state = predict(update(state, batch([0], [wins], [8.0]))[0], 1.0)
    state, _ = update(state, batch([0], [0.0], [8.0]))
    alpha = np.asarray(state.transitions[:, :, 0], np.float64)
    phi = alpha / alpha.sum(1, keepdims=True)
    # Nothing fades, so a jump is a power of the matrix, whatever its length.
    for steps in (1, 2, 3, 7, 64, 1000):
        expected = np.eye(3)[0] @ np.linalg.matrix_power(phi, steps)
        close(predict(state, float(steps)).belief[:, 0], expected, rtol=1e-5)
        previous = np.eye(3)[0] @ np.linalg.matrix_power(phi, steps - 1)
        close(predict(state, float(steps)).previous[:, 0], previous, rtol=1e-5)
    # Half a step is half of the way; no time is no change, to the bit.
    close(predict(state, 0.5).belief[:, 0], (np.eye(3)[0] + phi[0]) / 2)
    jax.tree.map(np.testing.assert_array_equal, predict(state, 0.0), state)
    # Continuous in the length, also across whole numbers.
    for at in (1.0, 2.0, 4.0):
        sides = predict(state, at - 1e-5).belief, predict(state, at + 1e-5).belief
        np.testing.assert_allclose(*sides, atol=1e-4)


def test_forgetting_is_by_time_and_not_twice():
    # alpha - 1 after one 3/8 visit is 1/3 in the column of "mixed"; it then halves every step, the
    # visit having paid for its own.
    tracker = markov.build(1, discount=0.5)
    predict = jax.jit(tracker.predict)
    state, _ = jax.jit(tracker.update)(tracker.init(), batch([0], [3], [8]))
    for elapsed, left in ((1.0, 1.0), (3.0, 0.25), (1.5, 0.5**0.5)):
        aged = predict(state, elapsed)
        close(aged.transitions[:, 1, 0], [1 + left / 3] * 3)
    halves = predict(predict(state, 0.5), 1.5)
    close(halves.transitions[:, 1, 0], [1 + 0.5 / 3] * 3)


def test_a_second_look_within_a_step_counts_no_transition():
    tracker = markov.build(1)
    update = jax.jit(tracker.update)
    state, _ = update(tracker.init(), batch([0], [3], [8]))
    again, _ = update(state, batch([0], [0], [8]))
    np.testing.assert_array_equal(again.transitions, state.transitions)
    close(again.belief[:, 0], [1, 0, 0])
