"""Every tracker through every property. A newcomer joins by one line in TRACKERS.

Compilation is what takes the time, so each tracker is compiled once (`compiled`), for batches of
`ROWS` rows, and all properties share those functions. They may be traced once, whatever comes.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fade_jax import moments
from fade_jax.trackers import cdas, discounted_beta, ema, logit_kalman, markov, oracle
from fade_jax.types import Observation, Tracker

N = 12
ROWS = 8
TRUTH = np.linspace(0.05, 0.95, N)
SIZES = (0, 1, 2, 3, 8, 17, 64)


class Case(NamedTuple):
    """One tracker.

    build: (num_prompts, hyper) -> Tracker, hyper a float or a traced scalar.
    hyper: two values of that hyperparameter.
    sizes: False where `informative` knows no group size (the chain of states).
    learns: False where counts teach nothing (the oracle).
    approximate: error allowed between closed forms and the belief they stand for.
    """

    build: Callable[[int, Any], Tracker]
    hyper: tuple[float, float]
    sizes: bool = True
    learns: bool = True
    approximate: float = 1e-5


def told(num_prompts, scale):
    truth = jnp.asarray(np.resize(TRUTH, num_prompts), jnp.result_type(float))
    return oracle.build(scale * truth)


def kalman(rule, hyper, name):
    return Case(lambda n, h: logit_kalman.build(n, rule=rule, **{name: h}), hyper, approximate=4e-3)


TRACKERS = {
    "ema": Case(lambda n, h: ema.build(n, rate=h), (0.1, 0.3)),
    "discounted beta": Case(lambda n, h: discounted_beta.build(n, discount=h), (0.5, 1.0)),
    "markov": Case(lambda n, h: markov.build(n, discount=h), (0.7, 0.5), sizes=False),
    "cdas": Case(lambda n, h: cdas.build(n, visit_offset=h), (1.0, 2.0)),
    "kalman": kalman(moments.adf(), (0.2, 0.6), "drift"),
    "kgps": kalman(moments.ekf(), (0.5, 1.0), "prior_var"),
    "oracle": Case(told, (0.9, 1.0), learns=False),
}


class Compiled(NamedTuple):
    """A tracker, its compiled functions, and a state with some history behind it."""

    case: Case
    tracker: Tracker
    state: Any
    update: Callable
    predict: Callable
    read: Callable  # state -> (pass_rate, informative at 8)
    sizes: Callable  # state -> {size: informative}
    draw: Callable


@cache
def compiled(name):
    case = TRACKERS[name]
    tracker = case.build(N, case.hyper[0])
    chex.clear_trace_counter()
    update = jax.jit(chex.assert_max_traces(tracker.update, n=1))
    predict = jax.jit(chex.assert_max_traces(tracker.predict, n=1))
    state = tracker.init()
    for observation in stream(8):
        state = predict(update(state, observation)[0], 1.0)
    return Compiled(
        case,
        tracker,
        state,
        update,
        predict,
        jax.jit(lambda s: (tracker.pass_rate(s), tracker.informative(s, 8))),
        jax.jit(lambda s: {size: tracker.informative(s, size) for size in SIZES}),
        jax.jit(tracker.draw),
    )


@pytest.fixture(params=TRACKERS)
def c(request):
    return compiled(request.param)


def batch(ids, successes, trials, rows=ROWS):
    """An observation padded to `rows`."""
    dtype = jnp.result_type(float)
    pad = (0, rows - len(ids))
    return Observation(
        jnp.asarray(np.pad(ids, pad, constant_values=-1), jnp.int32),
        jnp.asarray(np.pad(successes, pad), dtype),
        jnp.asarray(np.pad(np.broadcast_to(trials, len(ids)), pad), dtype),
    )


def stream(steps, trials=8):
    """A fixed history: `steps` batches of five prompts."""
    rng = np.random.default_rng(7)
    ids = [rng.permutation(N)[:5] for _ in range(steps)]
    return [batch(i, rng.binomial(trials, TRUTH[i]), trials) for i in ids]


def stack(trees):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def run(tracker, history):
    """A scan of update and predict over a stacked history."""

    def step(state, observation):
        state, info = tracker.update(state, observation)
        return tracker.predict(state, 1.0), info

    return jax.lax.scan(step, tracker.init(), history)


def visit(c, visits):
    """The state of a fresh tracker after visits [(ids, successes)] of 8, one a step."""
    state = c.tracker.init()
    for ids, successes in visits:
        state = c.predict(c.update(state, batch(ids, successes, 8))[0], 1.0)
    return state


def close(left, right, rtol=2e-6, atol=1e-6):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol), left, right)


def same(left, right):
    jax.tree.map(np.testing.assert_array_equal, left, right)


def test_readings_are_float32_in_their_ranges(c):
    for reading in (*c.read(c.state), c.draw(jax.random.key(0), c.state)):
        assert reading.shape == (N,) and reading.dtype == jnp.float32
        assert np.all((reading >= 0) & (reading <= 1))
    for leaf in jax.tree.leaves((c.state, c.update(c.state, batch([1], [1], 8))[1])):
        assert leaf.dtype in (jnp.float32, jnp.int32, jnp.bool_)
        assert not leaf.weak_type
    fresh = jax.tree.leaves(c.tracker.init())  # no two share a buffer: a step may donate them all
    assert len({leaf.unsafe_buffer_pointer() for leaf in fresh}) == len(fresh)


def test_a_batch_without_trials_changes_no_bit(c):
    odd_ids = batch([-1, 0, 3, 3, N, N + 7, -(2**31), 2**31 - 1], [0] * 8, 0)
    state, info = c.update(c.state, odd_ids)
    same(state, c.state)
    assert info.log_evidence == 0 and info.nis == 0


def test_inert_rows_add_nothing_to_a_batch(c):
    # The padding carries ids that are out of range, live, and repeated.
    padded = batch([-1, 4, 9, 9, N, 1, 7], [0, 3, 8, 0, 0, 0, 0], [0, 8, 8, 0, 0, 8, 0])
    close(c.update(c.state, padded), c.update(c.state, batch([4, 9, 1], [3, 8, 0], 8)))


def test_rows_of_unknown_prompts_are_dropped(c):
    stray = batch([4, N, -1, 9, 2**31 - 1, -(2**31)], [3, 5, 2, 8, 1, 1], 8)
    close(c.update(c.state, stray), c.update(c.state, batch([4, 9], [3, 8], 8)))


def test_repeated_ids_are_one_prompt(c):
    split = batch([5, 2, 5, 5], [1, 4, 2, 0], [2, 8, 4, 2])
    close(c.update(c.state, split), c.update(c.state, batch([5, 2], [3, 4], 8)))


def test_the_order_of_rows_does_not_matter(c):
    ids, wins, order = np.array([3, 0, 11, 7, 3]), np.array([2, 0, 8, 5, 1]), [4, 2, 0, 1, 3]
    permuted = c.update(c.state, batch(ids[order], wins[order], 8))
    close(permuted, c.update(c.state, batch(ids, wins, 8)))


def test_neither_compilation_nor_padding_changes_anything(c):
    ids, wins, trials = [3, 0, 11, 3], [2, 0, 8, 1], [8, 8, 8, 4]
    state, info = c.update(c.state, batch(ids, wins, trials))
    state = c.predict(state, 1.0)
    with jax.disable_jit():
        plain, plain_info = c.tracker.update(c.state, batch(ids, wins, trials, rows=4))
        plain = c.tracker.predict(plain, 1.0)
        readings = c.tracker.pass_rate(plain), c.tracker.informative(plain, 8)
    close((state, info, c.read(state)), (plain, plain_info, readings), rtol=1e-5)


def test_a_scan_equals_its_steps_and_vmaps_over_seeds_and_hyperparameters(c):
    streams = [stream(4), stream(4, trials=3)]

    @jax.jit
    @jax.vmap
    def whole(hyper, history):
        tracker = c.case.build(N, hyper)
        state, infos = run(tracker, history)
        return state, infos, tracker.informative(state, 8)

    histories = stack([stack(s) for s in streams])
    hypers = jnp.asarray(c.case.hyper, jnp.float32)
    first, second = (jax.tree.map(lambda x, i=i: x[i], whole(hypers, histories)) for i in (0, 1))
    state, infos = c.tracker.init(), []
    for observation in streams[0]:
        state, info = c.update(state, observation)
        state = c.predict(state, 1.0)
        infos.append(info)
    close(first, (state, stack(infos), c.read(state)[1]), rtol=2e-5, atol=1e-5)
    # Lanes do not look at each other, and each has its own hyperparameter.
    turned = whole(hypers[::-1], jax.tree.map(lambda x: x[::-1], histories))
    close(jax.tree.map(lambda x: x[0], turned), second)
    mixed = whole(hypers[::-1], histories)
    assert np.abs(mixed[2][0] - first[2]).max() > 1e-3


def test_the_score_has_the_right_gradient(c, x64):
    history = stack(stream(2))

    def score(hyper):
        tracker = c.case.build(N, hyper)
        state, infos = run(tracker, history)
        return infos.log_evidence.sum() + tracker.pass_rate(state).sum()

    at, h = c.case.hyper[0], 1e-4
    points = jnp.asarray([at - h, at, at + h])
    scores, slopes = jax.jit(jax.vmap(lambda x: jax.jvp(score, (x,), (jnp.ones_like(x),))))(points)
    difference = (scores[2] - scores[0]) / (2 * h)
    assert abs(difference) > 1e-3  # or the test would see nothing
    # Beyond the error of the difference (h^2), only that of a quadrature with its own nodes.
    np.testing.assert_allclose(slopes[1], difference, rtol=1e-5 + c.case.approximate)
    # Reverse mode is what the tuning uses: it must exist (no `while_loop`); tracing is enough.
    assert jax.eval_shape(jax.grad(score), points[1]).shape == ()


def test_informative_by_size(c):
    by_size = c.sizes(c.state)
    same((by_size[0], by_size[1]), (np.zeros(N), np.zeros(N)))
    for size in SIZES[2:]:
        bound = 1 - 2.0 ** (1 - size) if c.case.sizes else 1.0
        assert np.all((by_size[size] >= 0) & (by_size[size] <= bound + 1e-6))
    mixed = np.resize(SIZES, N)
    alone = np.stack([by_size[size][i] for i, size in enumerate(mixed)])
    close(jax.jit(c.tracker.informative)(c.state, jnp.asarray(mixed, jnp.int32)), alone)


@pytest.mark.parametrize("trials", [1, 2, 8])
@pytest.mark.parametrize("prompt", [0, 5, 10])
def test_the_evidence_is_a_distribution_that_agrees_with_the_readings(c, trials, prompt):
    # One prompt, every count: probabilities sum to 1, their mean is n E[p], what lies between the
    # ends is P(informative), and the innovation squared has mean 1.
    counts = np.arange(trials + 1)
    infos = stack([c.update(c.state, batch([prompt], [s], trials))[1] for s in counts])
    probability = np.exp(np.asarray(infos.log_evidence, np.float64))
    tolerance = c.case.approximate
    np.testing.assert_allclose(probability.sum(), 1, atol=tolerance)
    expected = c.sizes(c.state)[trials][prompt]
    np.testing.assert_allclose(probability[1:-1].sum(), expected, atol=tolerance)
    if c.case.sizes or trials == 1:  # the chain spreads its mixed state over 1..n-1 only
        mean = (counts * probability).sum() / trials
        np.testing.assert_allclose(mean, c.read(c.state)[0][prompt], atol=tolerance)
        np.testing.assert_allclose((probability * infos.nis).sum(), 1, atol=1e-3 + 10 * tolerance)


def test_draws_have_the_belief_as_their_distribution(c):
    # Standard error of a mean of 1,024 values: 5 of them, 12 prompts x 2 readings x 8 trackers,
    # false-alarm rate below 2e-4 under a fixed seed. Point estimates must be exact.
    keys = jax.random.split(jax.random.key(1), 1024)
    draws = np.asarray(jax.jit(jax.vmap(c.tracker.draw, (0, None)))(keys, c.state), np.float64)
    rate, informative = c.read(c.state)
    mixed = 1 - draws**8 - (1 - draws) ** 8 if c.case.sizes else (draws > 0) & (draws < 1)
    for values, reading in ((draws, rate), (mixed, informative)):
        error = np.abs(values.mean(0) - reading)
        assert np.all(error <= 5 * values.std(0) / 32 + c.case.approximate)


def test_a_long_absence_settles(c):
    same(c.read(c.predict(c.state, 0.0)), c.read(c.state))
    far = c.predict(c.state, 1000.0)
    close(c.read(far), c.read(c.predict(far, 1.0)), rtol=1e-2)
    # A prompt seen solved is not written off: unseen, it only becomes more of an open question.
    solved = visit(c, [([3], [8])] * 3)
    assert c.read(c.predict(solved, 1000.0))[0][3] <= c.read(solved)[0][3]


def test_graded_rewards_lie_between_whole_ones(c):
    updates = [c.update(c.state, batch([6], [s], 8)) for s in (2.0, 2.5, 3.0)]
    low, middle, high = (c.read(state)[0][6] for state, _ in updates)
    assert low < middle < high if c.case.learns else low == middle == high
    low, middle, high = (info.log_evidence for _, info in updates)
    assert min(low, high) < middle < max(low, high) + 0.1  # log-concave in the count


def test_order_is_learned(c):
    # Rates .125, .5, .875: forty visits of exactly their expected counts.
    low, middle, high = c.read(visit(c, [([0, 1, 2], [1, 4, 7])] * 40))[0][:3]
    if c.case.learns:
        assert low < middle - 0.05 and middle < high - 0.05


def test_a_solved_prompt_comes_back(c):
    # 8/8 five times, then its rate is .5: informative again within five visits.
    if c.case.learns:
        state = visit(c, [([0], [8])] * 5 + [([0], [4])] * 5)
        assert c.read(state)[1][0] > 0.5


def test_saturation_leaves_the_belief_alive(c):
    # 200 visits of 0/8, then 8/8: the rate moves up, and all is scored as a probability. Each
    # rollout costs at most 20 log 2 nats, the floor of a scored probability.
    if c.case.learns:
        state = visit(c, [([0], [0])] * 200)
        surprised, info = c.update(state, batch([0], [8], 8))
        after = c.predict(surprised, 1.0)
        assert 0 <= c.read(state)[0][0] < c.read(after)[0][0] <= 1
        assert -160 * np.log(2) - 1e-3 <= info.log_evidence < -1
        info = c.update(after, batch([0], [4], 8))[1]
        assert -160 * np.log(2) <= info.log_evidence < 0
        assert info.nis >= 0
