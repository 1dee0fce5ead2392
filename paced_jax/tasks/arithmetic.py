"""Few-shot arithmetic in plain text, for language models that were not trained on it.

A prompt is two solved examples and a question, each on a line of its own; the answer is a number
and the end of the line. Six skills at operands of one to three digits:

| skill | question | answer |
|---|---|---|
| add | a + b = | a + b |
| subtract | a - b = | a - b, a >= b |
| multiply | a * b = | a b, b of one digit |
| maximum | max(a, b) = | the greater of two different numbers |
| remainder | a mod b = | what is left of a / b, b from 2 to 9 |
| reverse | reverse(a, b) = | b, a |

Answers are compared token by token, so the verdict is computed in-graph.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from paced_jax.policy.text import Tokenizer
from paced_jax.tasks.skill_pool import Problem, SkillPools, lay_out, shares

MAX_LENGTH = 3
"""Most digits of an operand."""

END = "\n"
"""What ends an answer."""


class Skill(NamedTuple):
    """A kind of question.

    Attributes:
        question: format of a and b, without the answer.
        answer: of a and b.
        valid: which a and b, [problems] each, make a question.
        short: whether b has one digit, however long a is.
    """

    question: str
    answer: Callable[[int, int], str]
    valid: Callable[[np.ndarray, np.ndarray], np.ndarray]
    short: bool


def _always(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.ones(a.shape, bool)


ARITHMETIC = {
    "add": Skill("{} + {} = ", lambda a, b: str(a + b), _always, False),
    "subtract": Skill("{} - {} = ", lambda a, b: str(a - b), np.greater_equal, False),
    "multiply": Skill("{} * {} = ", lambda a, b: str(a * b), _always, True),
    "maximum": Skill("max({}, {}) = ", lambda a, b: str(max(a, b)), np.not_equal, False),
    "remainder": Skill("{} mod {} = ", lambda a, b: str(a % b), lambda a, b: b > 1, True),
    "reverse": Skill("reverse({}, {}) = ", lambda a, b: f"{b}, {a}", np.not_equal, False),
}
"""By name."""

SHOTS = ((4, 3), (17, 5))
"""Operands of the solved examples; not asked about."""


def prompt_text(skill: str, a: int, b: int) -> str:
    """The examples and the question.

    >>> print(prompt_text("add", 12, 7))
    4 + 3 = 7
    17 + 5 = 22
    12 + 7 =
    """
    return "".join(
        [line(skill, *operands) for operands in SHOTS] + [ARITHMETIC[skill].question.format(a, b)]
    )


def line(skill: str, a: int, b: int) -> str:
    """A solved question, with the end of the line."""
    kind = ARITHMETIC[skill]
    return kind.question.format(a, b) + kind.answer(a, b) + END


def questions(
    skill: str, length: int, count: int, rng: np.random.Generator
) -> Int[np.ndarray, "problems 2"]:
    """Distinct operands in random order: `count` of them, or all there are.

    Args:
        skill: a key of `ARITHMETIC`.
        length: digits of a, in 1..3; without leading zeros.
        count: most questions.
        rng: consumed.
    """
    kind = ARITHMETIC[skill]
    first = np.arange(0 if length == 1 else 10 ** (length - 1), 10**length)
    second = np.arange(10) if kind.short else first
    number = rng.permutation(len(first) * len(second))
    a, b = first[number // len(second)], second[number % len(second)]
    shown = np.zeros(a.shape, bool)
    for operands in SHOTS:
        shown |= (a == operands[0]) & (b == operands[1])
    pairs = np.stack([a, b], axis=1)[kind.valid(a, b) & ~shown]
    return pairs[:count]


def end_id(tokenizer: Tokenizer) -> int:
    """The token that ends an answer.

    Raises:
        ValueError: the end of a line is not one token of this tokenizer.
    """
    ids = tokenizer.encode(END)
    if len(ids) != 1:
        raise ValueError(f"tokenizer: the end of a line must be one token, it is {ids}")
    return ids[0]


def build_pool(
    tokenizer: Tokenizer,
    seed: int,
    *,
    num_train: int = 1024,
    num_validation: int = 144,
    num_test: int = 144,
) -> SkillPools:
    """Builds the three disjoint pools, uniform over skills and lengths where questions allow.

    Args:
        tokenizer: of the language model.
        seed: decides everything.
        num_train: training prompts.
        num_validation: validation prompts.
        num_test: test prompts.

    Returns:
        `SkillPools`; `skill` indexes `ARITHMETIC`, `length` is the digits of a.

    Raises:
        ValueError: more prompts than distinct questions, or a tokenizer that joins prompt and
            answer in one token.
    """
    rng = np.random.default_rng(seed)
    cells = [(skill, n) for skill in ARITHMETIC for n in range(1, MAX_LENGTH + 1)]
    total = num_train + num_validation + num_test
    drawn = [questions(*cell, total, rng) for cell in cells]
    exist = np.array([len(pairs) for pairs in drawn])
    quotas = shares(exist, num_train, num_validation, num_test, rng)
    parts: list[list[tuple[int, int, int, int]]] = [[], [], []]
    names = list(ARITHMETIC)
    for (skill, n), pairs, quota in zip(cells, drawn, quotas.T, strict=True):
        for part, rows in zip(parts, np.split(pairs, np.cumsum(quota)), strict=False):
            part += [(names.index(skill), n, int(a), int(b)) for a, b in rows]
    return lay_out([_encode(tokenizer, part, rng) for part in parts])


def _encode(tokenizer, problems, rng) -> list[Problem]:
    """Problems of (skill, length, a, b), in random order."""
    names, rows = list(ARITHMETIC), []
    for i in rng.permutation(len(problems)):
        skill, length, a, b = problems[i]
        prompt = prompt_text(names[skill], a, b)
        whole = prompt + ARITHMETIC[names[skill]].answer(a, b) + END
        start, ids = tokenizer.encode(prompt), tokenizer.encode(whole)
        if ids[: len(start)] != start:
            raise ValueError(f"tokenizer: joins the end of a prompt and its answer in {whole!r}")
        rows.append(Problem(start, ids[len(start) :], prompt, skill, length))
    return rows
