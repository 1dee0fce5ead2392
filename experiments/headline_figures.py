"""Figures of the headline comparison: seeds thin, means thick."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from experiments import curves, figures
from experiments.curves import Logs

Runs = dict[str, list[Logs]]


def captions(name: str) -> list[tuple[str, str]]:
    """(file, caption) of each figure of a part."""
    return [
        (
            f"{name}_validation.png",
            "Validation pass rate against rollouts: seeds thin, their mean thick, uniform's mean "
            "in grey.",
        ),
        (
            f"{name}_effective.png",
            "Share of the generated groups that were neither all right nor all wrong, means of 20 "
            "iterations: seeds thin, their mean thick, uniform's mean in grey.",
        ),
        (
            f"{name}_chosen.png",
            "What was chosen, means over seeds: pass rate of the chosen groups and, for their "
            "difficulty, of their skill and length under the base policy (means of 20 iterations); "
            "distinct prompts.",
        ),
    ]


def draw(folder: Path, name: str, runs: Runs) -> None:
    """Draws all figures of a part.

    Args:
        folder: to write to.
        name: of the part, the beginning of each file's name.
        runs: logs of every method and seed.
    """
    figures.style()
    _panels(
        folder / f"{name}_validation.png",
        runs,
        "pass_at_1",
        "pass rate, 512 held-out prompts",
        1,
    )
    _panels(
        folder / f"{name}_effective.png",
        runs,
        "informative_realised",
        "effective-group ratio",
        20,
    )
    _chosen(folder / f"{name}_chosen.png", runs)


def _curves(seeds: list[Logs], metric: str, window: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Every seed's metric against thousands of rollouts."""
    pairs = [curves.smooth_series(logs, metric, "rollouts", window) for logs in seeds]
    return [(x / 1000, y) for x, y in pairs]


def _mean(seeds: list[Logs], metric: str, window: int) -> tuple[np.ndarray, np.ndarray]:
    pairs = _curves(seeds, metric, window)
    return pairs[0][0], np.mean([y for _, y in pairs], axis=0)


def _panels(path: Path, runs: Runs, metric: str, label: str, window: int) -> None:
    """A small panel a method."""
    figure, axes = figures.small_panels(len(runs), 5, (2.0, 1.9))
    for i, (axis, (name, seeds)) in enumerate(zip(axes, runs.items(), strict=True)):
        if "uniform" in runs and name != "uniform":
            axis.plot(*_mean(runs["uniform"], metric, window), color="0.55", linewidth=1.4)
        figures.seeds(axis, _curves(seeds, metric, window), i, None)
        axis.set_title(name)
    figure.supxlabel("thousand rollouts", fontsize=10)
    figure.supylabel(label, fontsize=10)
    figures.save(figure, path)


def _chosen(path: Path, runs: Runs) -> None:
    """Difficulty of what was chosen, and how many prompts were."""
    panels = (
        ("pass_rate", "pass rate of the chosen"),
        ("chosen_base_pass_rate", "their pass rate under the base policy"),
        ("distinct_prompts", "distinct prompts so far"),
    )
    figure, axes = plt.subplots(1, 3, figsize=(10.5, 4.4))
    for axis, (metric, title) in zip(axes, panels, strict=True):
        for i, (name, seeds) in enumerate(runs.items()):
            x, y = _mean(seeds, metric, 1 if metric == "distinct_prompts" else 20)
            axis.plot(
                x,
                y,
                figures.LINES[i // len(figures.COLOURS) % len(figures.LINES)],
                color=figures.COLOURS[i % len(figures.COLOURS)],
                label=name,
            )
        axis.set(title=title, xlabel="thousand rollouts")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(8, len(runs)))
    figures.save(figure, path)
