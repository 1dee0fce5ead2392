"""When does factoring ability from difficulty pay? Still and fast worlds, small and large pools.

In every cell FADE (told the true skills, and told none) and a logit Kalman filter a prompt are
tuned on other worlds of the same kind, then shown the same uniform runs. What matters is how far
abilities move between two visits of a prompt, so the axes are their drift and the visits a prompt
gets.

    python -m experiments.when_to_factor
"""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import tyro

from experiments import cells, command_line, figures, intervals, run_folder
from experiments.ablation_grid import trackers
from experiments.ablation_world import Bench, Setting, make_cases, told

ENTRIES = ("kalman", "fade_k0", "fade")
FIRST_TUNING_SEED = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Drift x visits."""

    drifts: tuple[float, ...] = (0.0, 0.03, 0.08, 0.2)
    """Standard deviations an ability wanders by per iteration, logits; training adds a quarter of
    it, so that nothing moves at 0."""
    pools: tuple[int, ...] = (100, 400, 1600)
    """Numbers of prompts: 32, 8 and 2 visits each in 200 iterations of 16 groups."""
    seeds: int = 10
    """Worlds of each cell."""
    tuning_seeds: int = 4
    """Other worlds, that trackers are tuned on."""
    fit_steps: int = 40
    """Gradient steps of each fit."""
    iterations: int = 200
    """Of every run."""
    out: Path | None = None
    """Folder to write to, runs/when_to_factor/<time> if not given; finished cells are kept."""
    quick: bool = False
    """Two small cells, to see it work."""

    def __post_init__(self) -> None:
        """Refuses what measures nothing."""
        for name in ("seeds", "tuning_seeds", "fit_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.iterations < 40:
            raise ValueError(f"iterations must be at least 40, got {self.iterations}")
        for name in ("drifts", "pools"):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                raise ValueError(f"{name} must be distinct, at least one, got {values}")
        if min(self.drifts) < 0:
            raise ValueError(f"drifts must be >= 0, got {self.drifts}")
        if min(self.pools) < 16:
            raise ValueError(f"pools must be at least 16, got {self.pools}")

    @property
    def effective(self) -> "Config":
        """What is run: itself, or the small version."""
        if not self.quick:
            return self
        return Config(
            drifts=(0.0, 0.2),
            pools=(40,),
            seeds=2,
            tuning_seeds=1,
            fit_steps=2,
            iterations=40,
            out=self.out,
        )

    def setting(self, drift: float, pool: int) -> Setting:
        """The world of a cell."""
        return Setting(
            num_prompts=pool,
            iterations=self.iterations,
            first_scored=20,
            drift=drift,
            learning_rate=drift / 4,
        )


def main(config: Config) -> dict[str, Any]:
    """Runs every cell that is missing, then draws.

    Args:
        config: which cells.

    Returns:
        What results.json holds.
    """
    config = config.effective
    identity = dataclasses.asdict(config) | {"out": None}
    folder = run_folder.open_folder(
        "when_to_factor", config.out, config, check=lambda folder: cells.check(folder, identity)
    )
    store, found = cells.Cells(folder, identity), []
    total = len(config.pools) * len(config.drifts)
    with run_folder.task("when_to_factor", total) as advance:
        for pool in config.pools:
            bench = Bench(config.setting(0.0, pool))  # its programs do not know the drift
            for drift in config.drifts:
                compute = partial(cell, config, bench, drift, pool)
                found.append(summarise(store.get(f"{pool}", f"drift {drift:g}", compute)))
                advance(f"{pool} prompts, drift {drift:g}", 1)
    content = run_folder.save_results(folder, config, {"cells": found})
    draw(folder / "when.png", content)
    write(folder, content)
    run_folder.print_table("RMSE of E[p]", HEADER, rows(content))
    run_folder.console.print(f"report: {folder / 'report.md'}")
    return content


def cell(config: Config, bench: Bench, drift: float, pool: int) -> dict[str, Any]:
    """Errors of every tracker in one kind of world."""
    setting = config.setting(drift, pool)
    others = make_cases(setting, range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + config.tuning_seeds))
    cases = make_cases(setting, range(config.seeds))
    table, figures_of = trackers(), {}
    for name in ENTRIES:
        entry = table[name]
        params = bench.tune(
            name, entry.contender, told(entry.loadings, others), others, config.fit_steps
        )
        scores = bench.shadow(name, entry.contender, params, told(entry.loadings, cases), cases)
        figures_of[name] = {
            "params": params,
            "rmse": scores["rmse"],
            "top_informative": scores["top_informative"],
            "log_loss": scores["log_loss"],
            "ece": scores["ece"],
        }
    return {
        "drift": drift,
        "num_prompts": pool,
        "visits": setting.groups * setting.iterations / pool,
        "trackers": figures_of,
    }


HEADER = (
    *("visits a prompt", "drift"),
    *("logit Kalman", "FADE, K = 0", "FADE"),
    *("K = 0 / Kalman", "FADE / K = 0"),
)


def ratio(cell: dict[str, Any], above: str, below: str) -> dict[str, Any]:
    """Of two trackers' errors, world by world."""
    a, b = (np.array(cell["trackers"][name]["rmse"]) for name in (above, below))
    return intervals.of(a / b)


def summarise(cell: dict[str, Any]) -> dict[str, Any]:
    """A cell as the report needs it: errors, and what a common ability and skills make of them."""
    kept = {key: cell[key] for key in ("drift", "num_prompts", "visits")}
    errors = {name: intervals.of(found["rmse"]) for name, found in cell["trackers"].items()}
    params = {name: found["params"] for name, found in cell["trackers"].items()}
    return kept | {
        "rmse": errors,
        "common": ratio(cell, "fade_k0", "kalman"),
        "skills": ratio(cell, "fade", "fade_k0"),
        "params": params,
    }


def rows(content: dict[str, Any]) -> list[tuple[str, ...]]:
    """A line a cell."""
    return [
        (
            f"{cell['visits']:g}",
            f"{cell['drift']:g}",
            *(intervals.show(cell["rmse"][name]) for name in ENTRIES),
            intervals.show(cell["common"]),
            intervals.show(cell["skills"]),
        )
        for cell in content["cells"]
    ]


def draw(path: Path, content: dict[str, Any]) -> Path:
    """Ratios of errors against drift, a line a pool."""
    figures.style()
    figure, axes = plt.subplots(1, 2, figsize=(9.6, 3.7), sharey=True)
    pools = sorted({cell["num_prompts"] for cell in content["cells"]})
    for axis, name, title in (
        (axes[0], "common", "a common ability: FADE, K = 0 / logit Kalman"),
        (axes[1], "skills", "skills beside it: FADE / FADE, K = 0"),
    ):
        axis.axhline(1, color="#bbbbbb", linewidth=1, zorder=0)
        for i, pool in enumerate(pools):
            cells = [c for c in content["cells"] if c["num_prompts"] == pool]
            found = [c[name] for c in cells]
            mean = np.array([f["mean"] for f in found])
            low = np.array([f["mean"] if f["low"] is None else f["low"] for f in found])
            axis.errorbar(
                np.arange(len(cells)) + 0.06 * (i - (len(pools) - 1) / 2),
                mean,
                yerr=mean - low,
                color=figures.COLOURS[i],
                marker=figures.MARKERS[i],
                linestyle=figures.LINES[i],
                markersize=5,
                capsize=2,
                label=f"{cells[0]['visits']:g} visits a prompt",
            )
            axis.set_xticks(range(len(cells)), [f"{c['drift']:g}" for c in cells])
        axis.set_title(title)
        axis.set_xlabel("drift of abilities, logits an iteration")
    axes[0].set_ylabel("ratio of RMSE of E[p]")
    axes[0].legend()
    return figures.save(figure, path)


def write(folder: Path, content: dict[str, Any]) -> Path:
    """Writes report.md from what results.json holds."""
    config = content["config"]
    sections = [
        f"Simulated worlds of 6 skills; 16 groups of 8 an iteration, {config['iterations']}"
        f" iterations, scored from iteration 20; {config['seeds']} worlds a cell, trackers tuned on"
        f" {config['tuning_seeds']} others of the same kind. RMSE of E[p] and ratios world by"
        " world; brackets are 95 % t-intervals. Below 1 the tracker named first errs less.",
        run_folder.markdown_table(HEADER, rows(content)),
        run_folder.markdown_figure(folder / "when.png", "Below 1, factoring pays."),
    ]
    return run_folder.write_report(folder, "When factoring pays", sections, content["provenance"])


if __name__ == "__main__":
    command_line.run(main, lambda: tyro.cli(Config, description=__doc__))
