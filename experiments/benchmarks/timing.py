"""Fair timing on a machine that is never quite idle."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np


def interleave(
    candidates: Mapping[str, Callable[[], Any]], repetitions: int, seed: int
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Times the candidates in turn, round after round.

    Each round runs every candidate once, in an order drawn anew: what disturbs the machine then
    disturbs all alike, and nobody always inherits the same neighbour's caches. Each run ends when
    its arrays are ready.

    Args:
        candidates: functions without arguments that return arrays.
        repetitions: rounds that count, after the first call and two rounds of warm-up.
        seed: of the orders.

    Returns:
        Milliseconds [repetitions] by name, and the seconds of each first call, which compiles.
    """
    first = {name: _seconds(run) for name, run in candidates.items()}
    rng = np.random.default_rng(seed)
    names = list(candidates)
    warm_up = 2
    times = {name: np.empty(warm_up + repetitions) for name in names}
    for round_ in range(warm_up + repetitions):
        for name in rng.permutation(names):
            times[name][round_] = 1e3 * _seconds(candidates[name])
    return {name: values[warm_up:] for name, values in times.items()}, first


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - start


def summary(milliseconds: np.ndarray) -> dict[str, float]:
    """Median, quartiles, 99th percentile, fastest, and how many runs they come from."""
    low, median, high, tail = np.quantile(milliseconds, [0.25, 0.5, 0.75, 0.99])
    return {
        "median": float(median),
        "q25": float(low),
        "q75": float(high),
        "p99": float(tail),
        "min": float(milliseconds.min()),
        "repetitions": len(milliseconds),
    }
