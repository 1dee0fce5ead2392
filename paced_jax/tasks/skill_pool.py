"""Pools of distinct skill prompts: training, validation and test, disjoint.

A cell is a skill at a length. Skills with one operand have 10^n distinct prompts of length n, those
with two have 100^n; hence a cell of length 1 has only 10 (or 100) prompts, and one of length 2 has
100 (or 10,000). At the default sizes a full cell gets 7 prompts of each held-out set and about 109
for training; the six 10-prompt cells give 2 + 2 + 6. What small cells can't give is spread evenly
over the others.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Int, Shaped

from paced_jax.policy.text import pad
from paced_jax.tasks.skills import MAX_LENGTH, TWO_OPERANDS, encode
from paced_jax.tasks.tokens import SKILLS, render

HELD_OUT_SHARE = 0.2
"""At most this share of a cell's distinct prompts goes to validation, and as much to test."""


class SkillPool(NamedTuple):
    """Distinct prompts with their answers, in random order; numpy arrays.

    Attributes:
        prompt_tokens: [N, P] int32, padded on the right.
        prompt_mask: [N, P], real tokens.
        answer_tokens: [N, T] int32, EOS included, then padding; T = 0 where a verifier of text
            judges.
        answer_lengths: [N] int32, in 2..T, EOS included.
        skill: [N] int32, index into `SKILLS`.
        length: [N] int32, digits of an operand, in 1..max_length.
        text: [N] str, the prompt in words; a content key.
        gold: [N] str, for a verifier of text; empty without one.
    """

    prompt_tokens: Int[np.ndarray, "N P"]
    prompt_mask: Bool[np.ndarray, "N P"]
    answer_tokens: Int[np.ndarray, "N T"]
    answer_lengths: Int[np.ndarray, " N"]
    skill: Int[np.ndarray, " N"]
    length: Int[np.ndarray, " N"]
    text: Shaped[np.ndarray, " N"]
    gold: Shaped[np.ndarray, " _"] = np.zeros(0, "U1")


class SkillPools(NamedTuple):
    """Three disjoint pools.

    Attributes:
        train: what is trained on.
        validation: looked at on the way.
        test: looked at once, at the end.
    """

    train: SkillPool
    validation: SkillPool
    test: SkillPool


class Problem(NamedTuple):
    """A prompt in tokens, and its only right answer.

    Attributes:
        prompt: token ids.
        answer: token ids, the one that ends a response included.
        text: the prompt in words; tells prompts apart.
        skill: index into the task's skills.
        length: >= 1, a measure of size that pass rates are listed by.
    """

    prompt: Sequence[int]
    answer: Sequence[int]
    text: str
    skill: int = 0
    length: int = 1


def pools_of(
    problems: Sequence[Problem], seed: int, *, num_train: int, num_held_out: int = 128
) -> SkillPools:
    """Splits problems of a task of your own at random, and pads them to one width.

    Args:
        problems: distinct by their text.
        seed: decides the split and the order.
        num_train: most training prompts.
        num_held_out: most validation prompts, and most test prompts; a fifth each where there are
            few.

    Returns:
        The pools.

    Raises:
        ValueError: fewer than three problems, or two of the same text, naming it.

    Example:
        >>> problems = [Problem([1, 5 + i], [5 + i, 2], text=str(i)) for i in range(10)]
        >>> pools = pools_of(problems, 0, num_train=100)
        >>> [len(pool.text) for pool in pools], pools.train.prompt_tokens.shape
        ([6, 2, 2], (6, 2))
    """
    if len(problems) < 3:
        raise ValueError(f"problems: at least 3 are needed, got {len(problems)}")
    texts = [problem.text for problem in problems]
    if len(set(texts)) < len(texts):
        twice = next(text for i, text in enumerate(texts) if text in texts[:i])
        raise ValueError(f"problems: two have the text {twice!r}")
    order = np.random.default_rng(seed).permutation(len(problems))
    held_out = min(num_held_out, max(len(problems) // 5, 1))
    parts = np.split(order, [held_out, 2 * held_out])
    validation, test, train = ([problems[i] for i in part] for part in parts)
    return lay_out([train[:num_train], validation, test])


def lay_out(parts: Sequence[Sequence[Problem]]) -> SkillPools:
    """Pads problems to the longest prompt and the longest answer of all parts.

    Args:
        parts: training, validation and test.
    """
    prompt_width = max(len(problem.prompt) for part in parts for problem in part)
    answer_width = max(len(problem.answer) for part in parts for problem in part)
    pools = []
    for part in parts:
        tokens, mask = pad([problem.prompt for problem in part], prompt_width)
        answers, answer_mask = pad([problem.answer for problem in part], answer_width)
        pools.append(
            SkillPool(
                tokens,
                mask,
                answers,
                answer_mask.sum(axis=1, dtype=np.int32),
                skill=np.array([problem.skill for problem in part], np.int32),
                length=np.array([problem.length for problem in part], np.int32),
                text=np.array([problem.text for problem in part]),
            )
        )
    return SkillPools(*pools)


def distinct_prompts(max_length: int = MAX_LENGTH) -> Int[np.ndarray, "S W"]:
    """How many distinct prompts each cell has: 10^n or 100^n, capped at 2^62.

    Args:
        max_length: W.

    Returns:
        [8, W] int64.
    """
    digits = np.array([[2 if name in TWO_OPERANDS else 1] for name in SKILLS])
    exponents = digits * np.arange(1, max_length + 1)
    return np.minimum(10.0**exponents, 2.0**62).astype(np.int64)


def spread(total: int, capacity: Int[np.ndarray, " C"], rng: np.random.Generator):
    """Shares `total` among cells as evenly as their capacities allow.

    Args:
        total: prompts to hand out.
        capacity: [C], most a cell can take.
        rng: decides which cells get one of the last few.

    Returns:
        [C] int64, summing to total, at most capacity; two cells below capacity differ by <= 1.

    Raises:
        ValueError: if the capacities sum to less than total.
    """
    if capacity.sum() < total:
        raise ValueError(f"asked for {total} prompts, only {capacity.sum()} distinct ones exist")
    # The greatest level whose water fits, then one more for some of the cells with room.
    low, high = 0, total
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (
            (middle, high) if np.minimum(capacity, middle).sum() <= total else (low, middle - 1)
        )
    share = np.minimum(capacity, low)
    room = rng.permutation(np.flatnonzero(capacity > share))
    share[room[: total - share.sum()]] += 1
    return share


def shares(
    exist: Int[np.ndarray, " C"],
    num_train: int,
    num_validation: int,
    num_test: int,
    rng: np.random.Generator,
) -> Int[np.ndarray, "3 C"]:
    """How many prompts of each cell go to training, validation and test.

    Args:
        exist: [C], distinct prompts of a cell.
        num_train: training prompts.
        num_validation: validation prompts.
        num_test: test prompts.
        rng: consumed.

    Returns:
        [3, C] int64; held-out sets take at most `HELD_OUT_SHARE` of a cell each.

    Raises:
        ValueError: as `spread`.
    """
    held_out_most = np.minimum(exist * HELD_OUT_SHARE, num_validation + num_test).astype(np.int64)
    held_out = [spread(num, held_out_most, rng) for num in (num_validation, num_test)]
    left = np.minimum(exist - held_out[0] - held_out[1], num_train)
    return np.stack([spread(num_train, left, rng), *held_out])


def _draw_distinct(count: int, digits: int, rng: np.random.Generator) -> np.ndarray:
    """[count, digits] distinct digit rows, in random order, uniform among such sets."""
    if digits <= 4:
        numbers = rng.permutation(10**digits)[:count]
        return numbers[:, None] // 10 ** np.arange(digits)[None] % 10
    rows = np.zeros((0, digits), np.int64)
    while len(rows) < count:
        rows = np.concatenate([rows, rng.integers(0, 10, (count, digits))])
        rows = rows[np.sort(np.unique(rows, axis=0, return_index=True)[1])]
    return rows[:count]


def build_pool(
    seed: int,
    *,
    num_train: int = 8192,
    num_validation: int = 512,
    num_test: int = 512,
    max_length: int = MAX_LENGTH,
) -> SkillPools:
    """Builds the three pools; every prompt occurs once in all of them together.

    Args:
        seed: decides everything; the same seed gives the same pools.
        num_train: training prompts.
        num_validation: validation prompts, uniform over cells where distinct prompts allow.
        num_test: test prompts, likewise.
        max_length: W; lengths are 1..W.

    Returns:
        `SkillPools` of numpy arrays with P = 2 W + 4 and T = W + 2.

    Raises:
        ValueError: if a set asks for more distinct prompts than exist.

    Example:
        >>> pools = build_pool(0, num_train=80, num_validation=16, num_test=16)
        >>> pools.train.prompt_tokens.shape, pools.test.answer_tokens.shape
        ((80, 24), (16, 12))
    """
    rng = np.random.default_rng(seed)
    exist = distinct_prompts(max_length).reshape(-1)
    quotas = shares(exist, num_train, num_validation, num_test, rng)
    columns: list[list[tuple]] = [[], [], []]
    for cell, quota in enumerate(quotas.T):
        skill, length = cell // max_length, cell % max_length + 1
        operands = 2 if SKILLS[skill] in TWO_OPERANDS else 1
        rows = _draw_distinct(int(quota.sum()), operands * length, rng)
        for part, piece in enumerate(np.split(rows, np.cumsum(quota)[:-1])):
            padded = np.zeros((2, len(piece), max_length), np.int32)
            for i in range(operands):
                padded[i, :, :length] = piece[:, i * length : (i + 1) * length]
            columns[part].append((np.full(len(piece), skill), np.full(len(piece), length), *padded))
    return SkillPools(*(_finish(parts, rng) for parts in columns))


def _finish(parts: list[tuple], rng: np.random.Generator) -> SkillPool:
    skill, length, a, b = (
        np.concatenate(column).astype(np.int32) for column in zip(*parts, strict=True)
    )
    order = rng.permutation(len(skill))
    skill, length, a, b = skill[order], length[order], a[order], b[order]
    problems = jax.tree.map(np.asarray, jax.jit(encode)(skill, length, a, b))
    text = np.array([render(row) for row in problems.prompt_tokens])
    return SkillPool(*problems, skill=skill, length=length, text=text)
