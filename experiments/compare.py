"""Compares runs: a table and curves of any metrics against rollouts, tokens, seconds or iterations.

    python -m experiments.compare runs/train/a runs/train/b
    python -m experiments.compare runs/headline/tiny/runs/* --metrics pass_at_1 informative_realised
    python -m experiments.compare runs/quickstart/demo/runs/* --against tokens --metrics entropy

A folder is a run, or holds the runs of several seeds (`seed_0`, `seed_1`, ...), drawn thin
under their mean. Unfinished runs are shown as far as they are, those without a whole iteration left
out.
"""

import dataclasses
import re
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import tyro

from experiments import command_line, curves, figures, intervals, run_folder
from experiments.curves import Cost, Logs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Runs to compare."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of runs, or of the seeds of one method."""
    metrics: tuple[str, ...] = ("pass_at_1", "informative_realised", "pass_rate")
    """Names of metrics.jsonl or evaluation/metrics.jsonl (pass@1 is pass_at_1 there); one that is
    wrong lists them all."""
    against: Cost = "rollouts"
    """The horizontal axis."""
    window: int = 10
    """Iterations over which what is logged in each of them is averaged."""
    out: Path | None = None
    """Folder for compare.png, report.md and results.json; runs/compare/<time> if not given."""

    def __post_init__(self) -> None:
        """Refuses a comparison of nothing, naming the field."""
        for name in ("runs", "metrics"):
            values = getattr(self, name)
            if len(set(values)) != len(values) or not values:
                raise ValueError(f"{name} must be distinct, at least one, got {values}")
        if self.window < 1:
            raise ValueError(f"window must be at least 1, got {self.window}")


def read(folders: tuple[Path, ...]) -> dict[str, list[Logs]]:
    """The runs of every folder, by a label.

    Raises:
        ValueError: folders without a run, all of them named, or nothing to compare yet.
    """
    found, refused = {}, []
    for folder in folders:
        inner = folder / "run" if (folder / "run" / "metrics.jsonl").exists() else folder
        seeds = sorted(path.parent for path in inner.glob("seed_*/metrics.jsonl"))
        try:
            runs = [curves.read_run(path) for path in seeds or [inner]]
        except ValueError as error:
            refused.append(f"{error}{_hint(folder)}")
            continue
        begun = [logs for logs in runs if logs.lines]
        if len(begun) < len(runs):
            run_folder.console.print(
                f"{folder}: {len(runs) - len(begun)} left out, no iteration is done", markup=False
            )
        if begun:
            found[_label(folder, folders)] = begun
    if refused:
        raise ValueError("\n".join(f"runs: {line}" for line in refused))
    if not found:
        raise ValueError(f"runs: none of {[str(folder) for folder in folders]} has an iteration")
    return found


HOLDS = {"runs/*": "seed_*", "*": "seed_*", "*/runs/*": "seed_*", "./*": "run"}
"""Where runs may lie within a folder that is none, and what each of those then holds."""


def _hint(folder: Path) -> str:
    """What to give instead of a folder that holds runs but is none."""
    for within, what in HOLDS.items():
        if any(folder.glob(f"{within}/{what}/metrics.jsonl")):
            return f"; it holds some, give {folder / within}"
    return "" if folder.exists() else "; there is nothing of that name"


def check_out(folder: Path) -> None:
    """Refuses to write over the files of anything but a comparison.

    Raises:
        ValueError: naming the folder.
    """
    path = folder / "config.json"
    if path.exists() and "against" not in run_folder.read_json(path):
        raise ValueError(f"out: {folder} holds something else, its config.json would be lost")


def _label(folder: Path, folders: tuple[Path, ...]) -> str:
    """The shortest end of the path that says what it is and tells it from the others."""
    parts = folder.absolute().parts
    says_nothing = parts[-1] == "run" or parts[-1].startswith("seed_")
    for count in range(1 + says_nothing, len(parts) + 1):
        tail = parts[-count:]
        if sum(other.absolute().parts[-count:] == tail for other in folders) == 1:
            return "/".join(tail)
    return str(folder)


def table(
    runs: dict[str, list[Logs]], metrics: tuple[str, ...], against: Cost
) -> dict[str, dict[str, Any]]:
    """What every label came to: its cost, and of each metric the end and the mean.

    The end of what is logged in every iteration is the mean of the last tenth.
    """
    found = {}
    for label, seeds in runs.items():
        row: dict[str, Any] = {
            "seeds": len(seeds),
            "unfinished": sum(not logs.finished for logs in seeds),
            against: intervals.of([curves.costs(logs, against)[-1] for logs in seeds]),
        }
        for metric in metrics:
            ends, means = [], []
            for logs in seeds:
                _, value = curves.series(logs, metric, against)
                tail = 1 if metric in curves.metric_names(logs)[1] else max(1, len(value) // 10)
                ends.append(np.nanmean(value[-tail:]))
                means.append(np.nanmean(value))
            row[metric] = {"end": intervals.of(ends), "mean": intervals.of(means)}
        found[label] = row
    return found


def draw(
    path: Path,
    runs: dict[str, list[Logs]],
    metrics: tuple[str, ...],
    against: Cost,
    window: int,
) -> Path:
    """Draws a panel a metric: seeds thin, their mean thick."""
    figures.style()
    figure, axes = plt.subplots(
        1, len(metrics), figsize=(4.4 * len(metrics) + 0.4, 3.6), squeeze=False
    )
    for axis, metric in zip(axes[0], metrics, strict=True):
        for i, (label, seeds) in enumerate(runs.items()):
            lines = [curves.smooth_series(logs, metric, against, window) for logs in seeds]
            figures.seeds(axis, lines, i, label)
        axis.set(xlabel=against, title=run_folder.shown(metric))
    axes[0, 0].legend(ncols=1 + (len(runs) > 5))
    return figures.save(figure, path)


def cells(rows: dict[str, dict[str, Any]], metric: str, against: Cost) -> list[tuple[Any, ...]]:
    """What is shown of one metric: label, seeds, cost, end and mean."""
    return [
        (
            label,
            f"{row['seeds']}" + (f" ({row['unfinished']} unfinished)" if row["unfinished"] else ""),
            row[against]["mean"],
            *(intervals.show(row[metric][what]) for what in ("end", "mean")),
        )
        for label, row in rows.items()
    ]


def legend(rows: dict[str, dict[str, Any]]) -> str:
    """What stands behind a figure: seeds, and an interval where there is one."""
    seeds = [row["seeds"] for row in rows.values()]
    if max(seeds) == 1:
        return "one seed each: no interval, so no claim"
    where = "" if min(seeds) > 1 else " where there are several"
    return f"means of seeds, with a 95 % t-interval{where}"


def main(config: Config) -> dict[str, Any]:
    """Reads, prints, draws and writes.

    Args:
        config: what to compare.

    Returns:
        What results.json holds.
    """
    runs = read(config.runs)
    metrics = tuple(re.sub(r"^pass@", "pass_at_", name) for name in config.metrics)
    rows = table(runs, metrics, config.against)
    folder = run_folder.open_folder("compare", config.out, config, check_out)
    results = run_folder.save_results(folder, config, {"runs": rows})
    header = ("run", "seeds", config.against, "end", "mean of the run")
    said = legend(rows)
    sections = []
    for metric in metrics:
        name, shown = run_folder.shown(metric), cells(rows, metric, config.against)
        run_folder.print_table(f"{name}: {said}", header, shown)
        sections.append(f"## {name}\n\n{run_folder.markdown_table(header, shown)}")
    path = draw(folder / "compare.png", runs, metrics, config.against, config.window)
    run_folder.write_report(
        folder,
        "Runs compared",
        [
            f"Shown are {said}; the end of what is logged in every iteration is the mean of the"
            " last tenth.",
            *sections,
            run_folder.markdown_figure(
                path,
                f"Metrics against {config.against}: seeds thin, their mean thick; what is logged in"
                f" every iteration is averaged over the last {config.window}.",
            ),
        ],
    )
    run_folder.console.print(f"figure and report: {folder}")
    return results


if __name__ == "__main__":
    command_line.run(main, lambda: tyro.cli(Config, description=__doc__))
