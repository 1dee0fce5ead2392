r"""Published mathematics benchmarks from their files: problems with gold answers as plain strings.

What is done to a gold answer, so that it can be put into `\boxed{}` and compared:

* dollar signs that open or close LaTeX go, and so does a full stop at the end;
* AIME answers are whole numbers: `025` becomes `25`, `336^\circ` becomes `336`;
* AMC answers are floats in the file: `27.0` becomes `27`;
* GSM8K's is what follows `####`, without commas between digits;
* Minerva has none; it is the content of the one `\boxed{}` of the solution;
* OlympiadBench's is a list of one string (or a string that holds that list), several answers in one
  string between commas; `several` then says that all of them are asked for. Its unit is kept apart.
  Its `error` (one row, 0.1) is left out: the problem itself asks for one decimal place.

Everything else stays as published: LaTeX, `\text{(C)}`, `5.4 \text{ cents}`, `np.arcsin(10/13)`.
"""

import ast
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fade_jax.prompt_rows import Row, plain_answer, read_field, read_rows, value_at
from paced_jax.verifiers.math_text import braced


class Problem(NamedTuple):
    """A problem of a benchmark.

    Attributes:
        id: the benchmark's name and the file's own id, or the row where it has none.
        text: as published.
        answer: the gold answer, never empty.
        several: whether the file says that there are several answers, all asked for; they stand
            between commas.
        unit: of the answer where the file keeps it apart, in LaTeX, else empty.
        subject: or empty.
        level: 1 (easy) to 5, or 0 where the file has none.
    """

    id: str
    text: str
    answer: str
    several: bool = False
    unit: str = ""
    subject: str = ""
    level: int = 0


def load_benchmark(
    name: str, path: str | os.PathLike[str], *, any_count: bool = False
) -> tuple[Problem, ...]:
    """Reads the file of a benchmark, and checks that it is whole.

    Args:
        name: one of `ROW_COUNTS`: aime24, aime25, amc23, math500, minerva_math, olympiadbench,
            gsm8k.
        path: its file, as Qwen2.5-Math's evaluation and grade-school-math publish them
            (`<name>/test.jsonl`).
        any_count: takes a file with another number of rows, e.g. a part of the benchmark.

    Returns:
        The problems, in the order of the file; their ids differ.

    Raises:
        ValueError: for an unknown name, another number of rows, or a row that lacks something,
            naming file, row and field.
    """
    if name not in _LAYOUTS:
        raise ValueError(f"name: {name!r} is none of {', '.join(_LAYOUTS)}")
    layout = _LAYOUTS[name]
    problems = tuple(_problem(name, i, row, layout) for i, row in enumerate(read_rows(path)))
    if len(problems) != layout.rows and not any_count:
        raise ValueError(
            f"{os.path.basename(os.fspath(path))}: {len(problems)} rows, {name} has {layout.rows}"
        )
    if len({problem.id for problem in problems}) < len(problems):
        raise ValueError(f"{os.path.basename(os.fspath(path))}: {layout.id} repeats")
    return problems


def last_boxed(text: str) -> str | None:
    r"""What the last `\boxed{...}` holds, braces balanced.

    >>> last_boxed(r"so $\boxed{\frac{1}{2}}$, not \boxed{\text{\{E\}}}.")
    '\\text{\\{E\\}}'

    Returns:
        The content; None without a box, or where the last one is not closed.
    """
    start = text.rfind(r"\boxed{")
    if start < 0:
        return None
    return braced(text, start + len(r"\boxed{"))


class _Layout(NamedTuple):
    rows: int
    text: str
    answer: str
    gold: Callable[[Any], str]
    id: str | None = None
    subject: str | None = None
    level: str | None = None


def _problem(name: str, number: int, row: Row, layout: _Layout) -> Problem:
    text = value_at(row, layout.text)
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{row.place}: {layout.text} is {text!r}, not a problem")
    answer = _without_dollars(read_field(row, layout.answer, layout.gold))
    if not answer:
        raise ValueError(f"{row.place}: {layout.answer} holds no answer")
    return Problem(
        id=f"{name}/{number if layout.id is None else value_at(row, layout.id)}",
        text=text.strip(),
        answer=answer,
        several=bool(row.record.get("is_multiple_answer")),
        unit=_without_dollars(row.record.get("unit") or ""),
        subject="" if layout.subject is None else str(value_at(row, layout.subject)),
        level=0 if layout.level is None else int(value_at(row, layout.level)),
    )


def _without_dollars(text: str) -> str:
    text = " ".join(re.sub(r"(?<!\\)\$", "", text).split())
    return text.removesuffix(".").rstrip()


def _aime(value: Any) -> str:
    text = re.sub(r"\^\s*(\\circ|\{\s*\\circ\s*\})\s*$", "", plain_answer(value).strip())
    if not re.fullmatch(r"\d{1,3}", text):
        raise ValueError(f"{value!r} is no whole number in 0..999")
    return str(int(text))


def _gsm8k(value: Any) -> str:
    _, mark, text = plain_answer(value).rpartition("####")
    number = text.strip().replace(",", "")
    if not mark or not re.fullmatch(r"-?\d+(\.\d+)?", number):
        raise ValueError(f"{text[-60:]!r} holds no number after ####")
    return number


def _minerva(value: Any) -> str:
    text = plain_answer(value)
    boxes, answer = text.count(r"\boxed"), last_boxed(text)
    if boxes != 1 or answer is None:
        raise ValueError(rf"{boxes} times \boxed, needs one that is closed")
    return answer


def _olympiadbench(value: Any) -> str:
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError) as error:
            raise ValueError(f"{value!r} is no list of strings") from error
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"{value!r} is no list of strings")
    return ",".join(value)


_LAYOUTS: Mapping[str, _Layout] = {
    "aime24": _Layout(30, "problem", "answer", _aime, id="id"),
    "aime25": _Layout(30, "problem", "answer", _aime),
    "amc23": _Layout(40, "problem", "answer", plain_answer, id="id"),
    "math500": _Layout(
        500, "problem", "answer", plain_answer, id="unique_id", subject="subject", level="level"
    ),
    "minerva_math": _Layout(272, "problem", "solution", _minerva, id="idx", subject="type"),
    "olympiadbench": _Layout(
        675, "question", "final_answer", _olympiadbench, id="id", subject="subfield"
    ),
    "gsm8k": _Layout(1319, "question", "answer", _gsm8k),
}

ROW_COUNTS = {name: layout.rows for name, layout in _LAYOUTS.items()}
"""The benchmarks, and how many problems each has."""
