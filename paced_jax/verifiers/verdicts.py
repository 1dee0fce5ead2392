"""What a verifier says: right, wrong or none, and why none.

A verdict of none is neither a success nor a trial (`fade_jax.outcomes.group_outcomes`): a grader
that crashed or ran out of time must not look like a wrong answer.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int8

RIGHT, WRONG, NONE = 1, 0, -1
"""Verdicts; NONE where the verifier failed, was stopped or could not read the answer."""


class Verdicts(NamedTuple):
    """Verdicts on a batch of responses.

    Attributes:
        verdict: [R] int8: 1 right, 0 wrong, -1 none; what `group_outcomes` counts.
        reason: [R], one or two words a row: how the verdict came about ("equal", "timeout", ...).
        seconds: [R], wall-clock seconds a row took from its own start, >= 0.
    """

    verdict: Int8[np.ndarray, " R"]
    reason: tuple[str, ...]
    seconds: Float[np.ndarray, " R"]


@runtime_checkable
class Verifier(Protocol):
    """Judges responses on the host; safe to call from any thread."""

    def verify(self, responses: Sequence[str], golds: Sequence[str]) -> Verdicts:
        """Judges each response against the gold answer of its row."""
        ...

    def close(self) -> None:
        """Ends the verifier's processes; calling it twice is fine."""
        ...


def why_none(verdicts: Verdicts) -> dict[str, int]:
    """Counts the rows without a verdict by reason.

    >>> verdicts = Verdicts(np.array([1, -1, -1], np.int8), ("equal", "timeout", "timeout"),
    ...                     np.zeros(3))
    >>> why_none(verdicts)
    {'timeout': 2}
    """
    return dict(Counter(r for v, r in zip(*verdicts[:2], strict=True) if v == NONE))


def as_verdicts(rows: Sequence[tuple[int, str, float]]) -> Verdicts:
    """Turns rows of (verdict, reason, seconds) into arrays."""
    return Verdicts(
        verdict=np.array([verdict for verdict, _, _ in rows], np.int8),
        reason=tuple(reason for _, reason, _ in rows),
        seconds=np.array([seconds for *_, seconds in rows], np.float64),
    )


def check_rows(responses: Sequence[str], golds: Sequence[str]) -> None:
    """Raises a ValueError unless both are sequences of strings of one length."""
    for name, rows in (("responses", responses), ("golds", golds)):
        if isinstance(rows, str):
            raise ValueError(f"{name}: must be a sequence of strings, got one string {rows!r}")
        for row, text in enumerate(rows):
            if not isinstance(text, str):
                raise ValueError(f"{name}: row {row} must be a string, got {text!r}")
    if len(responses) != len(golds):
        raise ValueError(f"golds: must be as many as responses, {len(responses)}, got {len(golds)}")
