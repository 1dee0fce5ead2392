"""Skill tasks against plain Python on strings and integers."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from paced_jax.tasks.skill_pool import build_pool, distinct_prompts, spread
from paced_jax.tasks.skills import draw_problems, encode, verify
from paced_jax.tasks.tokens import BOS, EOS, PAD, SKILLS, render

WIDTH = 10


def number(digits):
    return int("".join(map(str, reversed(digits))))


def little_endian(value, at_least):
    return [int(c) for c in reversed(str(value).zfill(at_least))]


ORACLES = {
    "add": lambda a, b: little_endian(number(a) + number(b), len(a)),
    "reverse": lambda a, b: list(reversed(a)),
    "sort": lambda a, b: sorted(a),
    "running_sum": lambda a, b: [sum(a[: i + 1]) % 10 for i in range(len(a))],
    "digitwise_add": lambda a, b: [(x + y) % 10 for x, y in zip(a, b, strict=True)],
    "running_max": lambda a, b: [max(a[: i + 1]) for i in range(len(a))],
    "successor": lambda a, b: little_endian(number(a) + 1, len(a)),
    "alternating_sum": lambda a, b: [
        (sum(a[: i + 1 : 2]) - sum(a[1 : i + 1 : 2])) % 10 for i in range(len(a))
    ],
}
TWO = {"add", "digitwise_add"}


def words(name, a, b):
    """A prompt in words, straight from the definition."""
    second = [";", *map(str, b)] if name in TWO else []
    return " ".join([name, *map(str, a), *second, "="])


def every(length):
    return [list(digits) for digits in itertools.product(range(10), repeat=length)]


def some_problems():
    """(name, a, b): every short problem, many long ones, the longest carries."""
    rng = np.random.default_rng(1)
    for name in SKILLS:
        if name in TWO:
            yield from ((name, x, y) for x in every(1) for y in every(1))
            pairs = rng.integers(0, 10, (1000, 2, 2)).tolist()
            yield from ((name, x, y) for x, y in pairs)
        else:
            yield from ((name, x, []) for n in (1, 2, 3) for x in every(n))
        for n in range(3, WIDTH + 1):
            for x, y in rng.integers(0, 10, (20, 2, n)).tolist():
                yield name, x, y if name in TWO else []
        yield name, [9] * WIDTH, [9] * WIDTH if name in TWO else []


def test_every_short_problem_and_many_long_ones():
    problems = list(some_problems())
    a, b = np.zeros((2, len(problems), WIDTH), np.int32)
    lengths = np.array([len(x) for _, x, _ in problems], np.int32)
    for i, (_, x, y) in enumerate(problems):
        a[i, : len(x)], b[i, : len(y)] = x, y
    # Digits past the length must not matter.
    rng = np.random.default_rng(0)
    past = np.arange(WIDTH)[None] >= lengths[:, None]
    a, b = (np.where(past, rng.integers(0, 10, d.shape), d).astype(np.int32) for d in (a, b))
    skill = np.array([SKILLS.index(name) for name, _, _ in problems], np.int32)
    out = jax.tree.map(np.asarray, jax.jit(encode)(*map(jnp.asarray, (skill, lengths, a, b))))
    for i, (name, x, y) in enumerate(problems):
        prompt, mask, count = out.prompt_tokens[i], out.prompt_mask[i], out.answer_lengths[i]
        assert render(prompt) == words(name, x, y)
        assert prompt[0] == BOS and mask[: mask.sum()].all() and not (prompt[mask] == PAD).any()
        want = " ".join([*map(str, ORACLES[name](x, y)), "<eos>"])
        assert render(out.answer_tokens[i]) == want, words(name, x, y)
        assert out.answer_tokens[i, count - 1] == EOS
        assert (out.answer_tokens[i, count:] == PAD).all()


def test_verify_wants_the_answer_the_end_and_nothing_else():
    answers = jnp.asarray([[5, 6, EOS, PAD], [7, 8, 9, EOS]], jnp.int32)
    lengths = jnp.asarray([3, 4], jnp.int32)
    cases = [
        (0, [5, 6, EOS], 1),
        (0, [5, 7, EOS], 0),
        (0, [5, EOS], 0),
        (0, [EOS], 0),
        (0, [5, 6, 6, EOS], 0),
        (0, [5, 6, 6, 6], 0),  # never ended
        (1, [7, 8, 9, EOS], 1),
        (1, [7, 8, 9, 9], 0),
        (1, [5, 6, EOS], 0),  # another prompt's answer
    ]
    tokens = np.full((len(cases), 4), EOS, np.int32)  # what follows a response is EOS
    mask = np.zeros((len(cases), 4), bool)
    for i, (_, response, _) in enumerate(cases):
        tokens[i, : len(response)], mask[i, : len(response)] = response, True
    ids = jnp.asarray([c[0] for c in cases], jnp.int32)
    got = jax.jit(verify)(answers, lengths, ids, jnp.asarray(tokens), jnp.asarray(mask))
    assert got.dtype == jnp.int8
    np.testing.assert_array_equal(got, [c[2] for c in cases])


def test_verify_equals_a_comparison_of_lists():
    """All responses over three tokens, against both answers, and under `vmap`."""
    answers = jnp.asarray([[5, EOS, PAD], [6, 5, EOS]], jnp.int32)
    lengths = jnp.asarray([2, 3], jnp.int32)
    responses = [
        list(r[: r.index(EOS) + 1]) if EOS in r else list(r)
        for r in itertools.product((5, 6, EOS, PAD), repeat=3)
    ]
    tokens, mask = np.full((64, 3), 6, np.int32), np.zeros((64, 3), bool)
    for i, r in enumerate(responses):
        tokens[i, : len(r)], mask[i, : len(r)] = r, True
    ids = np.repeat(np.arange(2, dtype=np.int32)[:, None], 64, axis=1)
    run = jax.vmap(lambda i: verify(answers, lengths, i, jnp.asarray(tokens), jnp.asarray(mask)))
    got = np.asarray(jax.jit(run)(jnp.asarray(ids)))
    for prompt, answer in enumerate([[5, EOS], [6, 5, EOS]]):
        np.testing.assert_array_equal(got[prompt], [int(r == answer) for r in responses])


def test_cells_are_drawn_by_weight():
    """Chi-square over 6 cells with 5,000 draws: a false alarm in 0.1 % of seeds; fixed seed."""
    weights = jnp.zeros((8, 4)).at[jnp.asarray([0, 3, 7]), 1].set(jnp.asarray([1.0, 2.0, 1.0]))
    weights = weights.at[jnp.asarray([1, 2, 3]), 3].set(4.0)
    problems, skill, length = jax.jit(draw_problems, static_argnums=2)(
        jax.random.key(0), weights, 5000
    )
    counts = np.zeros((8, 4))
    np.add.at(counts, (np.asarray(skill), np.asarray(length) - 1), 1)
    want = np.asarray(weights) / 16 * 5000
    assert (counts[want == 0] == 0).all()
    assert stats.chisquare(counts[want > 0], want[want > 0]).pvalue > 1e-3
    for i in range(0, 5000, 50):
        name, *rest = render(np.asarray(problems.prompt_tokens[i])).split()
        operands = [[int(d) for d in part.split()] for part in " ".join(rest[:-1]).split(" ; ")]
        assert (name, len(operands[0])) == (SKILLS[int(skill[i])], int(length[i]))
        want_words = [*map(str, ORACLES[name](operands[0], operands[-1])), "<eos>"]
        assert render(np.asarray(problems.answer_tokens[i])).split() == want_words


@pytest.fixture(scope="module")
def pools():
    return build_pool(0)


def test_pools_are_distinct_disjoint_and_of_the_documented_size(pools):
    assert [len(p.text) for p in pools] == [8192, 512, 512]
    texts = np.concatenate([p.text for p in pools])
    assert len(np.unique(texts)) == len(texts)
    rows = np.concatenate([p.prompt_tokens for p in pools])
    assert len(np.unique(rows, axis=0)) == len(texts)
    assert pools.train.prompt_tokens.shape[1] == 24 and pools.train.answer_tokens.shape[1] == 12


def test_pools_are_uniform_over_cells_as_far_as_prompts_exist(pools):
    exist = distinct_prompts()
    assert exist[0, :2].tolist() == [100, 10_000] and exist[1, :3].tolist() == [10, 100, 1000]
    for pool, few in zip(pools, (86, 2, 2), strict=True):
        counts = np.zeros((8, 10), int)
        np.add.at(counts, (pool.skill, pool.length - 1), 1)
        small = exist == 10
        assert (counts[small] == (6 if pool is pools.train else few)).all()
        full = counts[exist > 100]
        assert full.max() - full.min() <= 1
        assert counts[exist == 100].min() >= min(full.min(), few)


def test_answers_of_the_pools_are_right(pools):
    for pool in pools:
        for i in range(0, len(pool.text), 17):
            name, *rest = pool.text[i].split()
            assert name == SKILLS[pool.skill[i]]
            operands = [[int(d) for d in p.split()] for p in " ".join(rest[:-1]).split(" ; ")]
            assert all(len(o) == pool.length[i] for o in operands)
            assert len(operands) == (2 if name in TWO else 1)
            want = [*map(str, ORACLES[name](operands[0], operands[-1])), "<eos>"]
            assert render(pool.answer_tokens[i]).split() == want
            assert pool.answer_lengths[i] == len(want)


def test_the_seed_decides_the_pools(pools):
    again, other = build_pool(0), build_pool(1)
    np.testing.assert_array_equal(again.train.text, pools.train.text)
    np.testing.assert_array_equal(again.test.answer_tokens, pools.test.answer_tokens)
    assert (other.train.text != pools.train.text).mean() > 0.9


def test_asking_for_more_prompts_than_exist_is_refused():
    with pytest.raises(ValueError, match="asked for 300 prompts, only 244 distinct"):
        build_pool(0, num_train=300, num_validation=8, num_test=8, max_length=1)


def test_spread_equals_handing_out_one_at_a_time():
    rng = np.random.default_rng(0)
    for _ in range(50):
        capacity = rng.integers(0, 12, 6)
        total = int(rng.integers(0, capacity.sum() + 1))
        share = spread(total, capacity, rng)
        slow = np.zeros(6, int)
        for _ in range(total):
            open_ = np.flatnonzero(slow < capacity)
            slow[open_[np.argmin(slow[open_])]] += 1
        assert share.sum() == total and (share <= capacity).all()
        np.testing.assert_array_equal(np.sort(share), np.sort(slow))
