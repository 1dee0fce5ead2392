"""Evaluation against exact rational arithmetic, Python sets, and rollouts counted one by one."""

import collections
import math
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_policy import random_policy
from scipy import stats

from paced_jax.evaluation import (
    Evaluation,
    by_cell,
    distinct_correct,
    evaluate,
    pass_at_k,
    standard_error,
    summarise,
)
from paced_jax.policy.config import DecoderConfig
from paced_jax.policy.forward import sequence_log_probs
from paced_jax.policy.sampling import sample
from paced_jax.tasks.skills import Problems
from paced_jax.tasks.tokens import EOS, PAD

CONFIG = DecoderConfig(
    vocab_size=5,
    hidden_size=16,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    intermediate_size=24,
)
PROMPTS, GROUP, BATCH, TOKENS = 7, 16, 3, 3
KEY = jax.random.key(5)

options = ("group_size", "batch_size", "temperature")
run = jax.jit(evaluate, static_argnames=options)
draw = jax.jit(sample, static_argnames=("max_tokens", "eos_id", "temperature"))


def exact(successes, trials, k):
    return 1 - Fraction(math.comb(trials - successes, k), math.comb(trials, k))


def test_pass_at_k_equals_exact_arithmetic():
    """Relative error: of many trials too, where 1 - (1 - 1e-5) would keep two digits in float32.
    Trials are traced, so a k above them gives NaN."""
    pairs = [(c, n) for n in (1, 2, 3, 7, 8, 32, 64) for c in range(n + 1)]
    pairs += [(1, 10_000), (3, 10_000), (1, 100_000), (49_999, 100_000), (100_000, 100_000)]
    successes, trials = np.array(pairs).T
    ks = np.array([1, 2, 3, 4, 8, 16, 31, 32, 64])
    got = jax.jit(lambda c, n: pass_at_k(c, n, ks))(jnp.asarray(successes), jnp.asarray(trials))
    want = [[float(exact(c, n, k)) if k <= n else math.nan for c, n in pairs] for k in ks.tolist()]
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, want, rtol=2e-6)
    assert not np.signbit(got).any()
    want = np.array(want)
    for corner in (0.0, 1.0):  # no success, all successes, k = trials: exact
        assert (np.asarray(got)[want == corner] == corner).all() and (want == corner).sum() > 30


@pytest.mark.usefixtures("x64")
def test_pass_at_k_is_unbiased():
    """Its mean over Binomial(8, p) is 1 - (1 - p)^k for every k up to 8."""
    counts = np.arange(9)
    estimate = np.asarray(pass_at_k(jnp.asarray(counts), 8, range(1, 9)))
    for p in (0.01, 0.3, 0.9):
        mean = estimate @ stats.binom.pmf(counts, 8, p)
        np.testing.assert_allclose(mean, 1 - (1 - p) ** np.arange(1, 9), rtol=1e-12)


def test_the_shapes_of_pass_at_k():
    successes = jnp.asarray([[0, 1, 2], [3, 4, 4]])
    for k, shape in ((2, (2, 3)), ([2], (1, 2, 3)), (np.array([1, 2, 4]), (3, 2, 3))):
        for trials in (4, jnp.full((2, 3), 4)):
            got = jax.eval_shape(lambda c, k=k, n=trials: pass_at_k(c, n, k), successes)
            assert got.shape == shape
    np.testing.assert_allclose(pass_at_k(jnp.asarray(1), 4, 1), 0.25, rtol=1e-6)


@pytest.mark.parametrize("k", [0, 5, [1, 5], [], 2.0, [0, 1]])
def test_a_k_out_of_range_is_refused(k: Any):
    with pytest.raises((ValueError, TypeError), match="k"):
        pass_at_k(jnp.asarray([1, 2]), jnp.asarray([4, 6]), k)


def test_distinct_correct_by_hand():
    rows: list[tuple[int, bool, list[int]]] = [
        (0, True, [5, 6]),
        (2, True, [5, 6]),  # another group's
        (0, True, [5, 6]),  # once more
        (0, True, [5]),  # a prefix
        (0, False, [7, 7]),  # wrong
        (0, True, [5, 6, 0]),  # longer by a token 0, which is also what fills the others up
        (2, False, [5, 6]),
        (-1, True, [8]),  # of no group
        (4, True, [9]),
    ]
    tokens, mask = np.zeros((len(rows), 3), np.int32), np.zeros((len(rows), 3), bool)
    tokens[2, 2] = 9  # outside the mask
    for i, (_, _, response) in enumerate(rows):
        tokens[i, : len(response)], mask[i, : len(response)] = response, True
    correct, group = np.array([r[1] for r in rows]), np.array([r[0] for r in rows], np.int32)
    arrays = [jnp.asarray(a) for a in (tokens, mask, correct, group)]
    got = jax.jit(distinct_correct, static_argnums=4)(*arrays, 4)
    assert got.tolist() == [3, 0, 1, 0] and got.dtype == jnp.int32


def test_distinct_correct_equals_a_set():
    rng = np.random.default_rng(0)
    count = jax.jit(distinct_correct, static_argnums=4)
    for _ in range(20):
        tokens = rng.integers(0, 3, (60, 3)).astype(np.int32)
        mask = rng.random((60, 3)) < 0.7
        correct, group = rng.random(60) < 0.6, rng.integers(0, 5, 60).astype(np.int32)
        seen = [set() for _ in range(5)]
        for i in np.flatnonzero(correct):
            seen[group[i]].add(tuple(np.where(mask[i], tokens[i], -7)))
        got = count(*map(jnp.asarray, (tokens, mask, correct, group)), 5)
        assert got.tolist() == [len(s) for s in seen]


def test_cell_means_equal_a_loop_and_empty_cells_are_missing():
    rng = np.random.default_rng(0)
    values = rng.normal(size=40).astype(np.float32)
    skill, length = rng.integers(-1, 4, 40), rng.integers(0, 5, 40)  # some out of range
    cells = jax.jit(by_cell, static_argnums=(3, 4))
    mean, count = cells(jnp.asarray(values), jnp.asarray(skill), jnp.asarray(length), 3, 4)
    for s in range(3):
        for w in range(4):
            here = values[(skill == s) & (length == w + 1)].astype(np.float64)
            assert count[s, w] == len(here)
            np.testing.assert_allclose(mean[s, w], here.mean() if len(here) else 0, atol=1e-6)
    last = jnp.full(40, 2), jnp.full(40, 4)
    mean, count = cells(jnp.ones(40), *last, 3, 4)
    assert np.argwhere(count).tolist() == [[2, 3]]
    np.testing.assert_array_equal(mean, count / 40)


def test_standard_error_is_unbiased_under_clustering():
    """Pass rates p_i ~ Beta(.5, .5), G = 8: the mean of N = 20 has variance
    (Var p + E[p (1 - p)] / G) / N = (1/8 + 1/8/8) / 20. Over 4,000 fixed replications its squared
    estimate is within 4 standard errors of that (false alarm 6e-5)."""
    rng = np.random.default_rng(0)
    rates = rng.binomial(8, rng.beta(0.5, 0.5, (4000, 20))) / 8
    squared = np.array([standard_error(row) ** 2 for row in rates])
    noise = squared.std(ddof=1) / np.sqrt(len(squared))
    assert abs(squared.mean() - (1 / 8 + 1 / 64) / 20) < 4 * noise
    assert noise < 0.01 * squared.mean()


def test_standard_error_by_hand():
    np.testing.assert_allclose(standard_error(np.array([0, 1])), 0.5)
    np.testing.assert_allclose(standard_error(np.array([0.2, 0.4, 0.9])), np.sqrt(0.13 / 3))
    assert standard_error(np.full(5, 0.5)) == 0 and math.isnan(standard_error(np.ones(1)))


@pytest.fixture(scope="module")
def policy():
    return random_policy(CONFIG)


@pytest.fixture(scope="module")
def prompts():
    tokens = np.random.default_rng(0).integers(0, 5, (PROMPTS, 4)).astype(np.int32)
    mask = np.arange(4)[None] < np.array([1, 2, 3, 4, 2, 3, 4])[:, None]
    return jnp.asarray(tokens), jnp.asarray(mask)


@pytest.fixture(scope="module")
def rollouts(policy, prompts):
    """Per prompt, the responses in its group: three batches of three, the last prompt thrice."""
    slot = jnp.repeat(jnp.arange(BATCH, dtype=jnp.int32), GROUP)
    responses = []
    for b in range(3):
        ids = np.minimum(np.arange(b * BATCH, (b + 1) * BATCH), PROMPTS - 1)
        key = jax.random.fold_in(KEY, b)
        out = draw(*policy, *(a[ids] for a in prompts), slot, key, max_tokens=TOKENS, eos_id=EOS)
        rows = zip(np.asarray(out.tokens), np.asarray(out.action_mask), strict=True)
        flat = [tuple(tokens[mask].tolist()) for tokens, mask in rows]
        responses += [flat[i : i + GROUP] for i in range(0, BATCH * GROUP, GROUP)]
    return responses[:PROMPTS]


def as_problems(prompts, answers):
    tokens = np.full((len(answers), TOKENS), PAD, np.int32)
    for row, answer in zip(tokens, answers, strict=True):
        row[: len(answer)] = answer
    lengths = np.array([len(answer) for answer in answers], np.int32)
    prompt_tokens, prompt_mask = prompts
    return Problems(prompt_tokens, prompt_mask, jnp.asarray(tokens), jnp.asarray(lengths))


@pytest.fixture(scope="module")
def problems(prompts, rollouts):
    """Right is the response that the policy gives most often; of those that end, if any does."""
    answers = []
    for responses in rollouts:
        ended = [r for r in responses if r[-1] == EOS] or [(EOS,)]
        answers.append(collections.Counter(ended).most_common(1)[0][0])
    return as_problems(prompts, answers)


def test_evaluate_equals_counting_rollouts_one_by_one(policy, problems, rollouts):
    graphdef, params = policy
    got = run(graphdef, params, problems, KEY, group_size=GROUP, batch_size=BATCH)
    answers = [
        tuple(row[:n].tolist())
        for row, n in zip(
            np.asarray(problems.answer_tokens), np.asarray(problems.answer_lengths), strict=True
        )
    ]
    right = [sum(r == a for r in rs) for rs, a in zip(rollouts, answers, strict=True)]
    assert len(set(right)) > 3 and 0 < sum(right) < PROMPTS * GROUP
    assert got.successes.tolist() == right
    assert got.trials.tolist() == [GROUP] * PROMPTS
    assert got.distinct_correct.tolist() == [int(c > 0) for c in right]
    assert got.response_tokens.tolist() == [sum(map(len, rs)) for rs in rollouts]
    cut = [sum(r[-1] != EOS for r in rs) for rs in rollouts]
    assert got.cut_off.tolist() == cut and 0 < sum(cut) < PROMPTS * GROUP


def test_successes_have_the_policys_own_chances(policy, problems):
    """Chi-square of binomial counts; the p-value is below 1e-3 in 0.1 % of seeds, one is fixed.
    The chances come from teacher forcing the answers."""
    graphdef, params = policy
    each = jnp.arange(PROMPTS, dtype=jnp.int32)
    mask = jnp.arange(TOKENS)[None] < problems.answer_lengths[:, None]
    teacher = jax.jit(sequence_log_probs)(
        graphdef,
        params,
        problems.prompt_tokens,
        problems.prompt_mask,
        each,
        problems.answer_tokens,
        mask,
    )
    chance = np.exp(np.asarray(teacher.log_probs, np.float64).sum(axis=1))
    keys = jax.random.split(KEY, 40)
    counts = sum(
        np.asarray(run(graphdef, params, problems, key, group_size=GROUP, batch_size=BATCH)[0])
        for key in keys
    )
    size = GROUP * len(keys)
    variance = size * chance * (1 - chance)
    normal = variance > 9
    assert normal.sum() > 3
    statistic = ((counts - size * chance) ** 2 / variance)[normal].sum()
    assert stats.chi2.sf(statistic, normal.sum()) > 1e-3


def test_temperature_0_takes_the_likeliest_tokens_all_in_one_batch(policy, prompts):
    graphdef, params = policy
    slot = jnp.arange(PROMPTS, dtype=jnp.int32)
    greedy = draw(
        graphdef, params, *prompts, slot, KEY, max_tokens=TOKENS, eos_id=EOS, temperature=0.0
    )
    rows = zip(np.asarray(greedy.tokens), np.asarray(greedy.action_mask), strict=True)
    responses = [tuple(tokens[mask].tolist()) for tokens, mask in rows]
    ended = [r[-1] == EOS for r in responses]
    assert 0 < sum(ended) < PROMPTS
    answers = [r if end else (3, EOS) for r, end in zip(responses, ended, strict=True)]
    problems = as_problems(prompts, answers)
    sizes: dict[str, Any] = dict(group_size=2, batch_size=100, temperature=0.0)
    got = run(graphdef, params, problems, KEY, **sizes)
    assert got.response_tokens.tolist() == [2 * len(r) for r in responses]
    assert got.successes.tolist() == [2 * end for end in ended]
    assert got.distinct_correct.tolist() == ended
    assert got.cut_off.tolist() == [2 * (not end) for end in ended]


def test_keys_decide_the_rollouts_and_batches_do_not_share_them(policy, problems):
    graphdef, params = policy
    same = jax.tree.map(lambda a: jnp.repeat(a[:1], PROMPTS, axis=0), problems)
    one, again, other = (
        run(graphdef, params, same, key, group_size=GROUP, batch_size=BATCH)
        for key in (KEY, KEY, jax.random.key(6))
    )
    jax.tree.map(np.testing.assert_array_equal, one, again)
    lengths = np.asarray(one.response_tokens)
    assert lengths[:3].tolist() != lengths[3:6].tolist()
    assert (lengths != np.asarray(other.response_tokens)).any()


@pytest.mark.slow
def test_vmapped_seeds_equal_single_runs(policy, problems):
    graphdef, params = policy
    keys = jax.random.split(KEY, 2)
    scales = jnp.asarray([1.0, 0.5])
    many = jax.tree.map(lambda a: jnp.stack([a * s for s in scales]), params)

    def one(params, key):
        return evaluate(graphdef, params, problems, key, group_size=GROUP, batch_size=BATCH)

    together = jax.jit(jax.vmap(one))(many, keys)
    for i in range(2):
        mine = jax.tree.map(lambda a, i=i: a[i], many)
        single = run(graphdef, mine, problems, keys[i], group_size=GROUP, batch_size=BATCH)
        jax.tree.map(lambda a, b, i=i: np.testing.assert_array_equal(a[i], b), together, single)


@pytest.mark.parametrize("bad", [dict(group_size=0), dict(batch_size=0)])
def test_impossible_sizes_are_refused_by_name(policy, problems, bad):
    graphdef, params = policy
    sizes = dict(group_size=2, batch_size=2) | bad
    with pytest.raises(ValueError, match=next(iter(bad))):
        evaluate(graphdef, params, problems, KEY, **sizes)


HAND = Evaluation(
    successes=jnp.asarray([0, 1, 4, 2]),
    trials=jnp.full(4, 4),
    distinct_correct=jnp.asarray([0, 1, 3, 2]),
    response_tokens=jnp.asarray([8, 12, 16, 12]),
    cut_off=jnp.asarray([2, 0, 0, 1]),
)


def test_summary_by_hand():
    got = summarise(HAND, np.array([0, 0, 2, 0]), np.array([1, 3, 1, 3]), skills=("a", "b", "c"))
    want = {
        "pass_at_1": 7 / 16,
        "pass_at_1_standard_error": np.std([0, 1 / 4, 1, 1 / 2], ddof=1) / 2,
        "pass_at_2": (0 + 1 / 2 + 1 + 5 / 6) / 4,
        "pass_at_2_standard_error": np.std([0, 1 / 2, 1, 5 / 6], ddof=1) / 2,
        "pass_at_4": 3 / 4,
        "pass_at_4_standard_error": 1 / 4,
        "no_verdict": 0.0,
        "distinct_correct": 6 / 4,
        "response_tokens": 3.0,
        "cut_off": 3 / 16,
        "skill/a": 1 / 4,
        "skill/c": 1.0,
        "length/1": 1 / 2,
        "length/3": 3 / 8,
        "cell/a/1": 0.0,
        "cell/a/3": 3 / 8,
        "cell/c/1": 1.0,
    }
    assert list(got) == list(want)
    assert all(type(value) is float for value in got.values())
    np.testing.assert_allclose(list(got.values()), list(want.values()), rtol=1e-6)


def test_rollouts_without_a_verdict_are_no_trials():
    ones = np.ones(4, int)
    # The first prompt has no verdict at all, the third one three of four, all right.
    some = HAND._replace(trials=jnp.asarray([0, 4, 3, 4]), successes=jnp.asarray([0, 1, 3, 2]))
    got = summarise(some, ones, ones, rollouts=4)
    assert got["pass_at_1"] == pytest.approx((1 / 4 + 1 + 1 / 2) / 3)
    assert "pass_at_2" in got and "pass_at_4" not in got
    assert got["no_verdict"] == pytest.approx(5 / 16)
    assert got["response_tokens"] == pytest.approx((12 + 16 + 12) / 12)


def test_prompts_that_cannot_be_summarised_are_named():
    ones = np.ones(4, int)
    with pytest.raises(ValueError, match=r"trials: no verdict on any of the 4 prompts"):
        summarise(HAND._replace(trials=jnp.zeros(4, jnp.int32)), ones, ones)
    with pytest.raises(ValueError, match=r"skill must be in 0\.\.7, prompt 3 has 8"):
        summarise(HAND, np.array([0, 1, 7, 8]), ones)
    with pytest.raises(ValueError, match=r"length must be in 1\.\.inf, prompt 1 has 0"):
        summarise(HAND, ones, np.array([1, 0, 1, 1]))
