"""Means over seeds with their uncertainty."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats


def of(values: Sequence[float] | np.ndarray) -> dict[str, Any]:
    """Mean and 95 % Student t-interval; with fewer than two values the interval is unknown.

    >>> of([1.0, 2.0, 3.0])["mean"]
    2.0
    """
    x = np.asarray(values, float)
    mean, low, high = float(x.mean()), None, None
    if len(x) > 1:
        half = float(stats.t.ppf(0.975, len(x) - 1) * x.std(ddof=1) / np.sqrt(len(x)))
        low, high = mean - half, mean + half
    return {"mean": mean, "low": low, "high": high, "values": x.tolist()}


def show(interval: dict[str, Any], digits: int = 3) -> str:
    """`mean (low to high)`, or the mean alone; thousands, which are counts, without decimals.

    >>> show(of([19200.0]))
    '19,200'
    """
    form = ",.0f" if abs(interval["mean"]) >= 1000 else f".{digits}f"
    mean = format(interval["mean"], form)
    if interval["low"] is None:
        return mean
    return f"{mean} ({interval['low']:{form}} to {interval['high']:{form}})"


def excludes_zero(interval: dict[str, Any]) -> bool:
    """Whether an interval is known and leaves 0 out.

    >>> excludes_zero(of([1.0, 1.1])), excludes_zero(of([1.0]))
    (True, False)
    """
    return interval["low"] is not None and not interval["low"] <= 0 <= interval["high"]
