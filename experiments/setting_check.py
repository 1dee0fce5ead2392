"""Is a setting informative? Looks at the oracle and at uniform choice only, before methods run.

The oracle knows the true pass rate of every skill and length (64 rollouts each, not charged,
renewed every 10 iterations). If even that finds few more informative groups than chance, no
scheduler can show anything, and the setting is the wrong one.

    python -m experiments.setting_check --setting tiny
"""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro

from experiments import command_line, intervals, live_run, run_folder, run_identity
from experiments.settings import METHODS, SETTINGS

RATIO = 1.5
"""The oracle must find at least so many times as many informative groups as uniform choice."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Oracle against uniform."""

    setting: Literal["tiny", "base"] = "tiny"
    """Which setting."""
    seeds: tuple[int, ...] = (100, 101, 102)
    """Of choices and rollouts; others than those of the comparisons."""
    iterations: int | None = None
    """Of each run; None for the setting's own."""
    out: Path | None = None
    """Folder to write to, runs/setting_check/<time> if not given; finished runs in it are not
    repeated."""
    watch: live_run.Watch = dataclasses.field(
        default_factory=lambda: live_run.Watch(tensorboard=False)
    )
    """What is looked at on the way."""

    def __post_init__(self) -> None:
        """Refuses an empty check."""
        if len(set(self.seeds)) != len(self.seeds) or not self.seeds:
            raise ValueError(f"seeds must be distinct, at least one, got {self.seeds}")


def main(config: Config) -> dict[str, Any]:
    """Runs oracle and uniform on every seed and compares them.

    Args:
        config: which setting.

    Returns:
        What results.json holds.
    """
    base = SETTINGS[config.setting]
    base = dataclasses.replace(base, iterations=config.iterations or base.iterations)
    run_identity.check_cadence(base, config.watch)
    methods = {name: METHODS[name] for name in ("uniform", "oracle")}

    check = partial(
        run_identity.check_methods,
        setting=base,
        methods=methods,
        seeds=config.seeds,
        watch=config.watch,
    )
    folder = run_folder.open_folder("setting_check", config.out, config, check)
    with command_line.same_command(folder):
        bench = live_run.open_bench(base, config.watch)
        runs = live_run.execute_methods(bench, folder, base, methods, config.seeds)
    results = compare(runs)
    content = run_folder.save_results(
        folder, config, {"setting": dataclasses.asdict(base), **results}
    )
    run_folder.print_table(f"setting {config.setting}", HEADER, rows(content))
    run_folder.console.print(verdict(content))
    write(folder, content)
    return results


POINTS = ("start", "end", "mean")

HEADER = ("scheduler", "informative groups", "validation pass rate: start", "end", "mean")


def rows(results: dict[str, Any]) -> list[tuple[str, ...]]:
    """One line for each of the two."""
    return [
        (name, *(intervals.show(results[name][key]) for key in ("informative", *POINTS)))
        for name in ("uniform", "oracle")
    ]


def verdict(results: dict[str, Any]) -> str:
    """Whether the setting can show anything, in words."""
    return (
        f"The oracle finds {results['ratio']:.2f} times as many informative groups as uniform "
        f"choice (at least {RATIO} wanted): the setting is "
        f"{'informative' if results['ratio'] >= RATIO else 'NOT informative'}."
    )


def write(folder: Path, content: dict[str, Any]) -> Path:
    """Writes report.md of what results.json holds."""
    return run_folder.write_report(
        folder,
        f"Setting {content['config']['setting']}: oracle against uniform",
        [
            run_folder.markdown_table(HEADER, rows(content)),
            verdict(content),
            f"Mean and 95 % t-interval of {len(content['config']['seeds'])} seeds.",
        ],
        content["provenance"],
    )


def compare(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Means over seeds with intervals, and the ratio of informative groups."""
    results: dict[str, Any] = {}
    for name, summaries in runs.items():
        curves = np.array([[point["pass_at_1"] for point in s["validation"]] for s in summaries])
        results[name] = {
            "informative": intervals.of([s["informative_realised"] for s in summaries]),
            "start": intervals.of(curves[:, 0]),
            "end": intervals.of(curves[:, -1]),
            "mean": intervals.of(curves.mean(axis=1)),
        }
    results["ratio"] = (
        results["oracle"]["informative"]["mean"] / (results["uniform"]["informative"]["mean"])
    )
    return results


if __name__ == "__main__":
    command_line.run(main, lambda: tyro.cli(Config, description=__doc__))
