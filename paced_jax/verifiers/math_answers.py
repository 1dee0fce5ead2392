r"""Final answers to mathematics problems, on math-verify, in worker processes.

| Rule | Gold | Response | Verdict |
|---|---|---|---|
| the last box wins, also when it never closes | `4` | `\boxed{4} ... \boxed{` | 0 |
| no answer at all, or an empty box | `4` | `Let me think.` (several lines) | 0 |
| nested text in a box | `E` | `\boxed{\text{E}}` | 1 |
| leading zeros, decimals of a whole number | `4`, `27.0` | `\boxed{004}`, `\boxed{27}` | 1 |
| plain-text mathematics | `\frac{\pi}{2}` | `pi/2` | 1 |
| "find all": every answer, nothing else, any order | `1331 and 1728` | `1728` | 0 |
| sets and lists are one; pairs and intervals keep order and brackets | `\{1,2\}` | `2, 1` | 1 |
| `\pm` is two answers | `\pm 3` | `3, -3` | 1 |
| thousands: groups of three digits, no space after the comma | `1,000` | `1000` | 1 |
| a unit on one side only is ignored | `5.4 \text{ cents}` | `5.4` | 1 |
| two units must be the same | `5 \text{ cm}` | `5 \text{ m}` | 0 |
| so a letter after a plain number is a unit | `5m` | `5` | 1 |
| percent: as a sign or as a hundredth | `50\%` | `50`, `0.5` | 1 |
| but a plain number is not read as percent | `50` | `0.5` | 0 |
| a name before the value | `3` | `x = 3` | 1 |
| rounded decimals: equal to 6 places | `\frac13` | `0.333333` | 1 |
| words and letters: as text, case and brackets apart | `\text{(C)}` | `c` | 1 |
| an answer that no parser reads | `3` | `\boxed{\frac{1}{}}` | -1 `unparsed` |
| a gold that no parser reads, other text | | | -1 `gold unparsed` |

The answer is text from a model and is never evaluated as Python (`sympy.parse_expr` would).
"""

import dataclasses
import re
from typing import Any

from paced_jax.verifiers import math_text
from paced_jax.verifiers.pool import WorkerPool
from paced_jax.verifiers.verdicts import NONE, RIGHT, WRONG

# Golds that math-verify 0.9.0 cannot read, by benchmark and id: another writing of the same answer
# is none (`gold unparsed`) or wrong there; the gold's own text is right. (minerva_math 112 is read,
# but one comparison took 10 seconds: another writing of it may be a timeout.)
READ_AS_TEXT_ONLY: dict[str, dict[int | str, str]] = {
    "minerva_math": {
        5: "np.arcsin(10/13): a Python name",
        27: "an equation with a derivative and solar symbols",
        261: r"\hbar",
        268: "a subscripted E is not read",
        269: "a subscripted E is not read",
    },
    "olympiadbench": {
        1782: r"an equation for m_{\max}",
        1965: "a sentence about f, with conditions",
        2045: "t(0,4], an interval scaled by t",
    },
}
"""Why each is not read, by benchmark and id."""

_WARM_UP = (
    (r"\frac{1}{2}", "0.5"),
    ("2x + 1", "1 + 2x"),
    ("x = 3", "y = 4"),
    ("(1, 2)", "(2, 1)"),
    ("pi/2", r"\frac{\pi}{2} + \sin 1"),
    (r"\text{David}", r"\text{Evelyn}"),
)


def load() -> None:
    """Imports math-verify and warms it up; ImportError names the extra where it is missing."""
    try:
        import math_verify  # noqa: F401
    except ImportError as error:
        raise ImportError("math answers need the extra fade-jax[verifiers]") from error
    # The first parse and comparison of a process build grammars and tables for seconds; a forked
    # worker inherits them.
    for answer, gold in _WARM_UP:
        compare(answer, gold)


def grade(response: str, gold: str) -> tuple[int, str]:
    """Judges a response without any time limit; `MathVerifier` adds that.

    Args:
        response: the model's text.
        gold: the answer, as text or LaTeX.

    Returns:
        (verdict, reason), by the table of this module.
    """
    answer = math_text.find_answer(response)
    if answer is None or not any(c.isalnum() for c in answer):
        return WRONG, "no answer"
    answer, gold = math_text.tidy(answer), math_text.tidy(gold)
    if math_text.words(answer) == math_text.words(gold):
        return RIGHT, "same text"
    return compare(answer, gold)


def compare(answer: str, gold: str) -> tuple[int, str]:
    """Compares two tidied answers as mathematics; (verdict, reason)."""
    wanted = [_Part(text) for text in math_text.split_parts(gold)]
    given = [_Part(text) for text in math_text.split_parts(answer)]
    if any(part.unreadable for part in wanted):
        return NONE, "gold unparsed"
    if any(part.unreadable for part in given):
        return NONE, "unparsed"
    given, wanted = _distinct(given), _distinct(wanted)
    if len(given) != len(wanted):
        return WRONG, "unequal"
    for part in wanted:
        match = next((other for other in given if part.equals(other)), None)
        if match is None:
            return WRONG, "unequal"
        given.remove(match)
    return RIGHT, "equal"


def _distinct(parts: list["_Part"]) -> list["_Part"]:
    kept: list[_Part] = []
    for part in parts:
        if not any(part.equals(other) for other in kept):
            kept.append(part)
    return kept


class _Part:
    """One answer of a list: its value without the unit, and the unit."""

    def __init__(self, text: str):
        self.text = math_text.words(text)
        number, self.unit = math_text.split_unit(text)
        self.parsed = _parse(number)
        self.unreadable = not self.parsed and any(c in r"\^_=<>+*/(){}[]" for c in text)

    def equals(self, gold: "_Part") -> bool:
        if self.text == gold.text:
            return True
        if not self.parsed or not gold.parsed:
            return False
        units = {self.unit, gold.unit}
        if units == {"percent", None}:
            return self._same(gold) or self._same(gold, percent=True)
        return len(units - {None, "unit"}) <= 1 and self._same(gold)

    def _same(self, gold: "_Part", percent: bool = False) -> bool:
        import math_verify

        left, right = gold.parsed, self.parsed
        if percent:
            left = [x / 100 if gold.unit else x for x in left]
            right = [x / 100 if self.unit else x for x in right]
        return math_verify.verify(left, right, timeout_seconds=None, raise_on_error=True)


def _parse(text: str) -> list[Any]:
    """The text's sympy expressions, at most one; none when math-verify cannot read it."""
    import math_verify

    latex = math_text.plain_to_latex(text)
    config = math_verify.LatexExtractionConfig(boxed_match_priority=-1)
    if re.search(r"(?<![a-zA-Z\\])[a-z]$", latex):
        # It would take a variable at the end, such as m or h, for a unit and drop it.
        rules = dataclasses.replace(config.normalization_config, units=False)
        config = dataclasses.replace(config, normalization_config=rules)
    return math_verify.parse(
        f"${latex}$",
        [config],
        fallback_mode="no_fallback",
        parsing_timeout=None,  # pyright: ignore[reportArgumentType]  # its own text says None
        raise_on_error=True,
    )


class MathVerifier(WorkerPool):
    """Judges final answers to mathematics problems, by the table of this module.

    Golds are the answers' texts.

    Args:
        workers: number of processes, >= 1.
        limit: seconds of wall clock a response may take, > 0.

    Raises:
        ValueError: naming the field; also without the extra `fade-jax[verifiers]`.
    """

    def __init__(self, *, workers: int = 4, limit: float = 5.0):
        super().__init__(f"{__name__}:grade", workers=workers, limit=limit)
