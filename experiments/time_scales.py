"""Two time scales in a recorded run, and what one memory for both costs a tracker.

How long does the order of the prompts last, and how far does their level move meanwhile? Then every
tracker family at several memories: how much it reorders the prompts from one visit to the next
(churn), and how far its level lags behind (staleness), where a quarter of the visits is shown.

    python -m experiments.time_scales
    python -m experiments.time_scales --replayed FOLDER --history FILE.json --prompts FILE
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import tyro
from matplotlib.axes import Axes

from experiments import command_line, figures, replay_bench, run_folder
from experiments.replay_contenders import Params, contenders
from experiments.replay_table import Table
from experiments.replayed_run import ReplayedRun
from fade_jax import time_scales

SHOWN = 0.25
"""Share of each step's visits that trackers are shown."""

FACTORS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(ReplayedRun):
    """Two time scales of a recorded run."""

    masks: int = 3
    """Random masks of what trackers are shown."""
    seed: int = 0
    """Of the masks."""
    out: Path | None = None
    """Folder to write to, runs/time_scales/<time> if not given."""

    def __post_init__(self) -> None:
        """Checks the fields at the door."""
        if self.masks < 1:
            raise ValueError(f"masks must be >= 1, got {self.masks}")
        self.check_files()


@dataclasses.dataclass(frozen=True)
class Family:
    """A tracker at several memories, longest first.

    Attributes:
        label: for people.
        contender: of replay_history; its fitted parameters are kept but for the memory.
        what: the memory, for people.
        values: of it.
        change: `(fitted parameters, value) -> parameters`.
    """

    label: str
    contender: str
    what: str
    values: tuple[float, ...]
    change: Callable[[Params, float], Params]


def _times(*names: str) -> Callable[[Params, float], Params]:
    return lambda params, factor: params | {name: params[name] * factor for name in names}


FAMILIES = (
    Family(
        "EMA",
        "ema_0.3",
        "gain",
        (0.03, 0.1, 0.2, 0.4, 0.7, 1.0),
        lambda params, value: {"rate": value, "start": 0.5},
    ),
    Family(
        "discounted Beta",
        "beta_tuned",
        "discount",
        (1.0, 0.97, 0.9, 0.75, 0.5, 0.25),
        lambda params, value: params | {"discount": value},
    ),
    Family("logit Kalman", "logit_kalman", "drift, times fitted", FACTORS, _times("drift")),
    Family(
        "FADE, K = 0", "fade_k0", "ability drift, times fitted", FACTORS, _times("common_drift")
    ),
    Family(
        "FADE",
        "fade",
        "ability drift, times fitted",
        FACTORS,
        _times("common_drift", "skill_drift"),
    ),
)


def main(config: Config) -> dict[str, Any]:
    """Measures one run.

    Args:
        config: which.

    Returns:
        What results.json holds.
    """
    table, replayed = config.read()
    folder = run_folder.open_folder("time_scales", config.out, config)
    settings, fits = replayed["config"], replayed["fits"]
    loadings = replay_bench.make_loadings(table, settings["num_skills"], settings["seed"])
    pool = replay_bench.make_pool(loadings, np.arange(table.trials.shape[1]))
    known = contenders(with_texts="text" in loadings, with_tags="tags" in loadings)
    _, masks = replay_bench.make_protocols(
        table, seed=config.seed, masks=config.masks, sparse_shares=(SHOWN,), cold_shares=()
    )
    observed = np.stack([mask.observed for mask in masks])
    scored = np.stack([mask.scored for mask in masks])
    first = int(np.flatnonzero(scored.any(axis=(0, 2)))[0])
    curves = {}
    points = sum(len(family.values) for family in FAMILIES)
    with run_folder.task(f"time_scales: {table.source}", points) as advance:
        for family in FAMILIES:
            call = replay_bench.replayer(known[family.contender], pool, table)
            curves[family.label] = {"what": family.what, "values": family.values, "points": []}
            for value in family.values:
                each = {
                    half: family.change(params, value)
                    for half, params in fits[family.contender].items()
                }
                rates = replay_bench.crossed(call, each, observed).pass_rate
                stale = [
                    time_scales.staleness(rate, table.successes, table.trials, mask)
                    for rate, mask in zip(rates, scored, strict=True)
                ]
                churn = [time_scales.churn(rate[first:]) for rate in rates]
                curves[family.label]["points"].append(
                    {"churn": float(np.mean(churn)), "staleness": float(np.mean(stale))}
                )
                advance(f"{family.label}, {family.what} {value:g}", 1)
    results = {
        "history": replayed["history"],
        "run": measure(table),
        "memories": curves,
        "shown": SHOWN,
    }
    content = run_folder.save_results(folder, config, results)
    draw(folder, content)
    write(folder, content)
    return content


def measure(table: Table) -> dict[str, list[float]]:
    """Order kept and level moved, by lag."""
    last = len(table.trials) * 2 // 3
    lags = sorted({*range(1, min(last, 6) + 1), *range(8, last + 1, 4)})
    run = table.successes, table.trials
    return {
        "lag": [float(lag) for lag in lags],
        "order_kept": [time_scales.order_kept(*run, lag) for lag in lags],
        "level_moved": [time_scales.level_moved(*run, lag) for lag in lags],
    }


def draw_run(axis: Axes, run: dict[str, list[float]]) -> None:
    """Order kept and level moved against the lag."""
    for i, (name, label) in enumerate(
        (
            ("order_kept", "order of the prompts that is kept"),
            ("level_moved", "move of the mean pass rate"),
        )
    ):
        axis.plot(
            run["lag"],
            run[name],
            color=figures.COLOURS[i],
            marker=figures.MARKERS[i],
            markersize=4,
            linestyle=figures.LINES[i],
            label=label,
        )
    axis.set_ylim(bottom=0, top=max(1.02, *run["order_kept"]))
    axis.set_xlabel("visits apart")


def draw_memories(axis: Axes, curves: dict[str, Any]) -> None:
    """Churn against staleness, a curve a family."""
    for i, (label, curve) in enumerate(curves.items()):
        axis.plot(
            [point["staleness"] for point in curve["points"]],
            [point["churn"] for point in curve["points"]],
            color=figures.COLOURS[i],
            marker=figures.MARKERS[i],
            markersize=4.5,
            linestyle=figures.LINES[i % 4],
            linewidth=1.3,
            label=label,
        )
    axis.set_yscale("log")
    axis.set_yticks([0.003, 0.01, 0.03, 0.1], ["0.003", "0.01", "0.03", "0.1"])
    axis.set_yticks([], minor=True)
    axis.set_xlim(left=0)
    axis.set_xlabel("staleness: error of the mean pass rate")


def draw(folder: Path, content: dict[str, Any]) -> Path:
    """The picture: what the run does, and what memories pay for it."""
    figures.style()
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.9))
    draw_run(left, content["run"])
    left.set_title(f"{content['history']['source'].split(';')[0]}: two time scales")
    left.legend(loc="center right")
    draw_memories(right, content["memories"])
    right.set_title("trackers at several memories")
    right.set_ylabel("churn: 1 - rank correlation, a visit")
    right.legend(loc="upper right")
    return figures.save(figure, folder / "time_scales.png")


def write(folder: Path, content: dict[str, Any]) -> Path:
    """Writes report.md from what results.json holds."""
    run = content["run"]
    history = content["history"]
    order = [
        (f"{lag:g}", *(f"{x:.3f}" for x in rest)) for lag, *rest in zip(*run.values(), strict=True)
    ]
    memories = [
        (label, f"{curve['what']} {value:g}", f"{point['staleness']:.4f}", f"{point['churn']:.4f}")
        for label, curve in content["memories"].items()
        for value, point in zip(curve["values"], curve["points"], strict=True)
    ]
    sections = [
        f"{history['source']}: {history['prompts']:,} prompts, {history['visits']} visits, groups"
        f" of {history['group_size']}. *Order kept*: correlation of the prompts' true pass rates so"
        " many visits apart, sampling noise taken out. *Level moved*: root mean square change of"
        " their mean.",
        run_folder.markdown_table(("visits apart", "order kept", "level moved"), order),
        f"## What a memory costs\n\nTrackers shown {100 * content['shown']:.0f} % of each visit's"
        " outcomes, fitted as in `replay_history` but for their memory. *Staleness*: error of the"
        " mean predicted pass rate of the prompts not shown, root mean square over visits, chance"
        " taken out. *Churn*: 1 - rank correlation of consecutive estimates.",
        run_folder.markdown_table(("tracker", "memory", "staleness", "churn"), memories),
        run_folder.markdown_figure(
            folder / "time_scales.png",
            "Left: the run. Right: each tracker family from its longest memory to its shortest.",
        ),
    ]
    return run_folder.write_report(folder, "Two time scales", sections, content["provenance"])


if __name__ == "__main__":
    command_line.run(main, lambda: tyro.cli(Config, description=__doc__))
