"""Figures of the suite's report, each from what results.json holds."""

from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from experiments import figures as look
from experiments import run_folder, time_scales, when_to_factor
from experiments.suite import live_tables, tables
from experiments.suite.tables import Figures

SWEPT = (
    "K",
    "drift of abilities, times fitted",
    "drift of intercepts, times fitted",
    "prior variance of skills, times fitted",
    "prior variance of intercepts, times fitted",
    "discount factor",
)


CAPTIONS = {
    "gains": "Differences of log loss: left of 0 the tracker named first predicts better; bars are"
    " 95 % intervals.",
    "when": "Simulated worlds: below 1, it pays.",
    "scales": "Above: each run. Below: what every family of trackers pays on it; lower left is"
    " best.",
    "parts": "Log loss of the filter with one thing changed minus the fitted filter's, 10 % of the"
    " visits shown.",
    "live": "In training: dots are means over seeds, small marks the seeds. Above uniform choice"
    " and rivals, then each method's ablation.",
}


def live_name(policy: str) -> str:
    """The figure of a policy's training runs."""
    return "live" if policy == "tiny" else f"live_{policy}"


def known(figures: Figures) -> dict[str, str]:
    """Markdown of the figures that there are results for, by name."""
    parts = tables.of_kind(figures, "histories", "parts").values()
    there = {
        "gains": bool(tables.gains(figures)),
        "when": "when" in figures.get("simulation", {}),
        "scales": bool(tables.of_kind(figures, "histories", "scales")),
        "parts": any(len(found["variants"]) > 5 for found in parts),
    }
    for policy, found in live_tables.by_policy(figures).items():
        there[live_name(policy)] = len(found) > 1
    return {
        name: run_folder.markdown_figure(Path(f"{name}.png"), CAPTIONS[name.partition("_")[0]])
        for name in there
        if there[name]
    }


def draw(folder: Path, figures: Figures) -> None:
    """Draws the `known` figures into a folder."""
    look.style()
    drawing = {
        "gains": lambda path: _gains(path, figures),
        "when": lambda path: when_to_factor.draw(path, figures["simulation"]["when"]),
        "scales": lambda path: _scales(path, figures),
        "parts": lambda path: _parts(path, figures),
    }
    for policy, found in live_tables.by_policy(figures).items():
        drawing[live_name(policy)] = partial(_live, found=found)
    for name in known(figures):
        drawing[name](folder / f"{name}.png")


def _gains(path: Path, figures: Figures) -> Path:
    """Differences of log loss with intervals: a panel a comparison, a row a run and protocol."""
    found = tables.gains(figures)
    pairs = [pair for pair in tables.GAINS if any(each["pair"] == pair for each in found)]
    rows = list(dict.fromkeys((each["run"], each["protocol"]) for each in found))
    names = {each["run"]: each["name"].partition(" (")[0] for each in found}
    short = {
        ("fade_k0", "logit_kalman"): "a common ability",
        ("fade", "fade_k0"): "text loadings beside it",
        ("fade_tags", "fade_k0"): "tags beside it",
        ("fade_shuffled", "fade_k0"): "shuffled loadings (control)",
    }
    figure, axes = plt.subplots(
        1, len(pairs), figsize=(2.4 * len(pairs) + 2.2, 0.27 * len(rows) + 1.2), sharey=True
    )
    for axis, pair in zip(np.atleast_1d(axes), pairs, strict=True):
        axis.axvline(0, color="#999999", linewidth=1, zorder=0)
        for each in (each for each in found if each["pair"] == pair):
            y = rows.index((each["run"], each["protocol"]))
            i = tables.RUNS.index(each["run"])
            axis.errorbar(
                1000 * each["mean"],
                y,
                xerr=1000 * np.array([[each["mean"] - each["low"]], [each["high"] - each["mean"]]]),
                color=look.COLOURS[i],
                marker=look.MARKERS[i],
                markersize=5,
                capsize=2,
            )
        axis.set_title(short[pair])
        axis.set_xlabel("difference, nats / 1000")
        axis.set_yticks(range(len(rows)), [f"{names[run]}, {shown}" for run, shown in rows])
        axis.grid(axis="y", visible=False)
    np.atleast_1d(axes)[0].invert_yaxis()
    return look.save(figure, path)


def _scales(path: Path, figures: Figures) -> Path:
    """Two rows: the runs, and the memories."""
    scales, called = tables.of_kind(figures, "histories", "scales"), tables.run_names(figures)
    figure, axes = plt.subplots(
        2, len(scales), figsize=(3.3 * len(scales) + 0.6, 6.4), sharey="row", squeeze=False
    )
    for column, (run, found) in enumerate(scales.items()):
        time_scales.draw_run(axes[0, column], found["run"])
        time_scales.draw_memories(axes[1, column], found["memories"])
        axes[0, column].set_title(called[run])
        axes[1, column].locator_params(axis="x", nbins=5)
    axes[0, 0].legend(loc="center left")
    axes[0, 0].set_ylabel("correlation; pass rate")
    axes[1, 0].set_ylabel("churn: 1 - rank correlation, a visit")
    axes[1, -1].legend(loc="lower left")
    return look.save(figure, path)


def _parts(path: Path, figures: Figures) -> Path:
    """Log loss of the sparse protocol around the fit: a panel a factor, a line a run."""
    parts, called = tables.of_kind(figures, "histories", "parts"), tables.run_names(figures)
    factors = [
        factor
        for factor in SWEPT
        if any(row["factor"] == factor for f in parts.values() for row in f["variants"].values())
    ]
    columns = min(3, len(factors))
    lines = -(-len(factors) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(3.2 * columns, 2.7 * lines), squeeze=False)
    for axis, factor in zip(axes.flat, factors, strict=False):
        axis.axhline(0, color="#999999", linewidth=1, zorder=0)
        for run, found in parts.items():
            i = tables.RUNS.index(run)
            rows = [row for row in found["variants"].values() if row["factor"] == factor]
            if not rows:
                continue
            gaps = [row["figures"][1]["minus_fitted"] for row in rows]
            mean = np.array([1000 * gap["mean"] for gap in gaps])
            ends = np.array([[1000 * gap[end] for gap in gaps] for end in ("low", "high")])
            axis.errorbar(
                np.arange(len(rows)) + 0.08 * (i - 1),
                mean,
                yerr=np.abs(ends - mean),
                color=look.COLOURS[i],
                marker=look.MARKERS[i],
                linestyle=look.LINES[i],
                markersize=4,
                linewidth=1.3,
                capsize=2,
                label=called[run],
            )
            axis.set_xticks(range(len(rows)), [row["label"] for row in rows])
        axis.set_title(factor, fontsize=9)
    for axis in axes.flat[len(factors) :]:
        axis.set_visible(False)
    for axis in axes[:, 0]:
        axis.set_ylabel("difference, nats / 1000")
    axes[0, 0].legend()
    return look.save(figure, path)


def _live(path: Path, found: live_tables.Found) -> Path:
    """Effective groups and validation: a row a method, every seed drawn."""
    groups: dict[str, list[str]] = {}
    for method in found:
        whole = method if method in ("fade_thompson", "paced") else live_tables.base_of(method)
        groups.setdefault(whole or "uniform", []).append(method)
    order = [
        (i, method)
        for i, whole in enumerate(("uniform", "fade_thompson", "paced"))
        if whole in groups
        for method in sorted(groups[whole], key=lambda name: (name != whole, name))
    ]
    columns = {
        "informative_realised": "informative share of the groups",
        "validation_mean": "validation pass rate, mean over the run",
    }
    figure, axes = plt.subplots(
        1, len(columns), figsize=(8.6, 0.3 * len(order) + 1.2), sharey=True, squeeze=False
    )
    for axis, (name, label) in zip(axes[0], columns.items(), strict=True):
        for y, (i, method) in enumerate(order):
            each = found[method]["figures"][name]
            axis.plot(
                each["values"], [y] * len(each["values"]), "|", color=look.COLOURS[i], alpha=0.6
            )
            axis.plot(each["mean"], y, look.MARKERS[i], color=look.COLOURS[i], markersize=6)
        if "uniform" in found:
            even = found["uniform"]["figures"][name]["mean"]
            axis.axvline(even, color="#999999", linewidth=1, zorder=0)
        axis.set_xlabel(label)
        axis.margins(x=0.08)
        axis.grid(axis="y", visible=False)
    axes[0, 0].set_yticks(range(len(order)), [method for _, method in order])
    axes[0, 0].invert_yaxis()
    return look.save(figure, path)
