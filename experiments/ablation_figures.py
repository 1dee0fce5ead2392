"""The figures of `fade_ablation`."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from experiments import figures, intervals
from experiments.ablation_grid import LOOP_TRACKERS

EVIDENCE = (
    "fade",
    "fade_weak",
    "fade_shuffled",
    "fade_k0",
    "kalman",
    "beta",
    "beta_counter",
    "ema",
)


def draw(folder: Path, content: dict[str, Any]) -> list[Path]:
    """Draws what there is."""
    figures.style()
    cells, labels = content["cells"], content["labels"]
    paths = []
    if cells.get("tracking"):
        paths.append(evidence(folder, cells["tracking"], labels))
    if cells.get("filter") and "fade" in cells.get("tracking", {}):
        paths.append(factors(folder, cells["filter"], cells["tracking"]["fade"]))
    if cells.get("jump"):
        paths.append(jump(folder, cells["jump"]))
    if cells.get("loops"):
        paths.append(grid(folder, cells["loops"], labels))
    return paths


def _means(values: dict[str, list[float | None]]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and half width of the interval of each bin."""
    rows = [
        intervals.of([x for x in bin_ if x is not None] or [np.nan]) for bin_ in values.values()
    ]
    half = [0.0 if row["low"] is None else row["mean"] - row["low"] for row in rows]
    return np.array([row["mean"] for row in rows]), np.array(half)


def evidence(folder: Path, cells: dict[str, Any], labels: dict[str, str]) -> Path:
    """Error by visits so far and by iterations since the last one."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), sharey=True)
    names = [name for name in EVIDENCE if name in cells]
    for axis, key, title in zip(
        axes,
        ("by_visits", "by_age"),
        ("By visits so far", "By iterations since the last visit"),
        strict=True,
    ):
        for i, name in enumerate(names):
            mean, half = _means(cells[name][key])
            x = np.arange(len(mean)) + 0.04 * (i - len(names) / 2)
            axis.errorbar(
                x,
                mean,
                half,
                label=labels[name],
                color=figures.COLOURS[i % 8],
                marker=figures.MARKERS[i % 8],
                linestyle=figures.LINES[i % 4],
                markersize=5,
                capsize=2,
            )
        axis.set_xticks(range(len(cells[names[0]][key])), list(cells[names[0]][key]))
        axis.set_title(title)
        axis.set_xlabel("visits" if key == "by_visits" else "iterations")
    axes[0].set_ylabel("RMSE of E[p] (95 % interval over worlds)")
    axes[0].set_ylim(bottom=0)
    axes[1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figures.save(figure, folder / "evidence.png")


def factors(folder: Path, cells: dict[str, Any], reference: dict[str, Any]) -> Path:
    """Every one-factor change: its paired difference to the tuned filter."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for cell in cells.values():
        groups.setdefault(cell["factor"], []).append(cell)
    columns = 3
    rows = -(-len(groups) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(11, 2.3 * rows), squeeze=False)
    for axis, (factor, members) in zip(axes.flat, groups.items(), strict=False):
        found = [intervals.of(np.subtract(c["rmse"], reference["rmse"])) for c in members]
        mean = np.array([f["mean"] for f in found])
        half = np.array([0.0 if f["low"] is None else f["mean"] - f["low"] for f in found])
        axis.axhline(0, color="#999999", linewidth=1)
        axis.errorbar(range(len(mean)), mean, half, marker="o", linestyle="-", capsize=3)
        axis.set_xticks(range(len(mean)), [c["label"] for c in members])
        if max(len(c["label"]) for c in members) > 6:
            axis.tick_params(axis="x", rotation=35)
        axis.set_title(factor)
    for axis in axes.flat[len(groups) :]:
        axis.set_visible(False)
    figure.supylabel("RMSE of E[p] minus the tuned filter's")
    return figures.save(figure, folder / "factors.png")


def jump(folder: Path, cells: dict[str, Any]) -> Path:
    """Share of the leap followed, and what happened to the others."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8))
    for i, (name, cell) in enumerate(cells.items()):
        style: dict[str, Any] = {
            "color": figures.COLOURS[i],
            "linestyle": figures.LINES[i % 4],
            "label": name,
        }
        axes[0].plot(np.mean(cell["followed"], axis=0), **style)
        axes[1].plot(np.mean(cell["others"], axis=0), **style)
    axes[0].axhline(1, color="#999999", linewidth=1)
    axes[0].set_title("Prompts of the skill that leapt")
    axes[0].set_ylabel("share of the leap followed")
    axes[1].set_title("All other prompts")
    axes[1].set_ylabel("mean change of E[p]")
    axes[1].set_ylim(-0.06, 0.06)
    for axis in axes:
        axis.set_xlabel("iterations since the leap")
    axes[0].legend()
    return figures.save(figure, folder / "jump.png")


def grid(folder: Path, cells: dict[str, Any], labels: dict[str, str]) -> Path:
    """Trackers x paradigms: effective groups, and what was learnt."""
    pairs = {tuple(n.split(" x ")): c for n, c in cells.items() if " x " in n}
    pairs = {key: c for key, c in pairs.items() if key[0] in labels}
    names = [t for t in LOOP_TRACKERS if any(key[0] == t for key in pairs)]
    rules = list(dict.fromkeys(key[1] for key in pairs))
    figure, axes = plt.subplots(1, 2, figsize=(12, 0.42 * len(names) + 2.2), sharey=True)
    for axis, key, title in zip(
        axes,
        ("effective", "gain"),
        ("Effective groups", "Gain of the true mean pass rate"),
        strict=True,
    ):
        table = np.array(
            [
                [np.mean(pairs[t, r][key]) if (t, r) in pairs else np.nan for r in rules]
                for t in names
            ]
        )
        axis.grid(False)
        axis.imshow(table, aspect="auto", cmap="cividis")
        middle = (np.nanmin(table) + np.nanmax(table)) / 2
        for (i, j), value in np.ndenumerate(table):
            if not np.isnan(value):
                colour = "black" if value > middle else "white"
                axis.text(j, i, f"{value:.3f}", ha="center", va="center", color=colour, fontsize=8)
        axis.set_xticks(range(len(rules)), rules, rotation=35, ha="right")
        axis.set_yticks(range(len(names)), [labels[t] for t in names])
        axis.set_title(title)
    return figures.save(figure, folder / "paradigms.png")
