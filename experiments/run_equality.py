"""Are two runs the same run? Last state bit for bit, logs but for what measures time."""

from pathlib import Path
from typing import Any

import numpy as np

from experiments.run_folder import read_json
from experiments.run_log import read_groups
from paced_jax.checkpoint import load_arrays, steps_of
from paced_jax.metrics import read_json_lines

LOGS = ("metrics.jsonl", "evaluation/metrics.jsonl")


def differences(one: Path, two: Path) -> list[str]:
    """Where two finished runs differ; empty if nowhere.

    Args:
        one: folder of a run.
        two: folder of another, of the same configuration.
    """
    found = []
    last = [(steps_of(folder / "checkpoints") or [0])[-1] for folder in (one, two)]
    if last[0] != last[1] or not last[0]:
        return [f"last checkpoint: {last[0]} and {last[1]}"]
    states = [load_arrays(folder / "checkpoints", last[0]) for folder in (one, two)]
    found += [f"state: {name}" for name in _unequal(*states)]
    found += [f"groups: {name}" for name in _unequal(read_groups(one), read_groups(two))]
    both = logs(one), logs(two)
    for name in LOGS:
        lines = [log[name] for log in both]
        if len(lines[0]) != len(lines[1]):
            found.append(f"{name}: {len(lines[0])} and {len(lines[1])} lines")
        for a, b in zip(*lines, strict=False):
            names = [k for k in a | b if k not in a or k not in b or not _same(a[k], b[k])]
            found += [f"{name}, iteration {a['iteration']}: {k}" for k in names]
    summaries = [_timeless(read_json(f / "summary.json")) for f in (one, two)]
    found += [
        f"summary: {name}"
        for name in summaries[0] | summaries[1]
        if any(name not in summary for summary in summaries)
        or summaries[0][name] != summaries[1][name]
    ]
    return found


def logs(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Lines of both logs of a run, but for what measures time."""
    return {name: [_timeless(line) for line in read_json_lines(folder / name)] for name in LOGS}


def _unequal(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> list[str]:
    """Names of arrays that are not the same bits."""
    return [
        name
        for name in one | two
        if name not in one
        or name not in two
        or one[name].dtype != two[name].dtype
        or one[name].shape != two[name].shape
        or one[name].tobytes() != two[name].tobytes()
    ]


def _timeless(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if not name.endswith("_seconds")}


def _same(a: float, b: float) -> bool:
    return a == b or (a != a and b != b)
