"""Curves of finished or unfinished live runs, against what they cost.

Shapes: `C` points of a curve.
"""

from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float

from experiments.run_folder import read_json
from experiments.run_log import read_lines
from paced_jax.metrics import read_json_lines

Cost: TypeAlias = Literal["iterations", "rollouts", "tokens", "seconds"]
"""What a curve is drawn against. Seconds are those of training: evaluations and compilation apart,
an iteration at the run's own median."""


class Logs(NamedTuple):
    """What a run has logged.

    Attributes:
        folder: of the run.
        config: of the run.
        lines: of metrics.jsonl, an iteration each.
        looks: of evaluation/metrics.jsonl, before iteration `iteration` each; none beyond lines.
    """

    folder: Path
    config: dict[str, Any]
    lines: list[dict[str, Any]]
    looks: list[dict[str, Any]]

    @property
    def finished(self) -> bool:
        """Whether the run has ended."""
        return (self.folder / "summary.json").exists()


def read_run(folder: Path) -> Logs:
    """Reads a run's logs.

    Raises:
        ValueError: it is no folder of a run.
    """
    path = folder / "config.json"
    if not path.exists() or not (folder / "metrics.jsonl").exists():
        raise ValueError(f"{folder} is no folder of a run: no config.json or no metrics.jsonl")
    # A run that goes on meanwhile, or was ended while it cut its logs, may have looks ahead.
    lines = read_json_lines(folder / "metrics.jsonl")
    looks = read_lines(folder / "evaluation" / "metrics.jsonl")
    looks = [look for look in looks if look["iteration"] <= len(lines)]
    return Logs(folder, read_json(path)["run"], lines, looks)


def metric_names(logs: Logs) -> tuple[set[str], set[str]]:
    """Names of what was logged in iterations, and in evaluations."""
    return (
        {name for line in logs.lines for name in line} - {"iteration"},
        {name for look in logs.looks for name in look} - {"iteration"},
    )


def costs(logs: Logs, against: Cost) -> Float[np.ndarray, " C"]:
    """What a run had cost before each of its iterations, and at its end.

    Args:
        logs: of the run.
        against: which cost.

    Returns:
        [iterations + 1].
    """
    count = len(logs.lines)
    if against == "iterations":
        return np.arange(count + 1.0)
    if against == "seconds":
        # A median, since a machine that others share makes single iterations slow.
        median = float(np.median([line["iteration_seconds"] for line in logs.lines]))
        return median * np.arange(count + 1.0)
    return np.array([0.0, *(line[against] for line in logs.lines)])


def series(
    logs: Logs, metric: str, against: Cost
) -> tuple[Float[np.ndarray, " C"], Float[np.ndarray, " C"]]:
    """A metric of a run against its cost.

    Args:
        logs: of the run.
        metric: a name of either log; one that is in both is taken from the evaluations.
        against: which cost.

    Returns:
        (cost, value); of an evaluation, what the policy evaluated had cost; of an iteration, what
        the run had cost after it. NaN where the metric is missing.

    Raises:
        ValueError: the metric is in neither log.
    """
    cost = costs(logs, against)
    in_lines, in_looks = metric_names(logs)
    if metric in in_looks:
        at = [look["iteration"] for look in logs.looks]
        return cost[at], np.array([look.get(metric, np.nan) for look in logs.looks])
    if metric not in in_lines:
        known = ", ".join(sorted(in_looks | in_lines))
        raise ValueError(f"metrics: {logs.folder} has no {metric!r}; it has {known}")
    return cost[1:], np.array([line.get(metric, np.nan) for line in logs.lines])


def reaches(cost: Float[np.ndarray, " C"], value: Float[np.ndarray, " C"], target: float) -> float:
    """The cost at which a curve first reaches a target, between its points by a straight line.

    Args:
        cost: [C], ascending.
        value: [C]; where it is NaN the line goes on to the next point.
        target: to be reached from below.

    Returns:
        The cost; infinity where the curve stays below.

    Example:
        >>> reaches(np.array([0.0, 10.0, 20.0]), np.array([0.1, 0.3, 0.2]), 0.2)
        5.0
    """
    cost, value = cost[~np.isnan(value)], value[~np.isnan(value)]
    above = np.flatnonzero(value >= target)
    if not len(above):
        return float("inf")
    i = above[0]
    if i == 0:
        return float(cost[0])
    share = (target - value[i - 1]) / (value[i] - value[i - 1])
    return float(cost[i - 1] + share * (cost[i] - cost[i - 1]))


def smoothed(value: Float[np.ndarray, " C"], window: int) -> Float[np.ndarray, " C"]:
    """Means of the last `window` points, fewer at the beginning; gaps are left out."""
    known = ~np.isnan(value)
    sums = np.cumsum(np.where(known, value, 0.0))
    counts = np.cumsum(known)
    sums[window:], counts[window:] = (
        sums[window:] - sums[:-window],
        counts[window:] - counts[:-window],
    )
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def smooth_series(
    logs: Logs, metric: str, against: Cost, window: int
) -> tuple[Float[np.ndarray, " C"], Float[np.ndarray, " C"]]:
    """`series`, with what is logged in every iteration `smoothed`; evaluations stay as they are."""
    cost, value = series(logs, metric, against)
    return cost, value if metric in metric_names(logs)[1] else smoothed(value, window)
