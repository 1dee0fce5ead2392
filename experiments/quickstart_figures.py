"""Figures of the quickstart: what was generated, learnt, predicted and chosen."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from experiments import figures
from experiments.run_identity import seed_folder
from fade_jax import calibration
from paced_jax.tasks.skill_pool import SkillPool
from paced_jax.tasks.tokens import SKILLS

Runs = dict[str, list[dict[str, Any]]]


def captions(seeds: int) -> list[tuple[str, str]]:
    """(file, caption) of each figure, for so many seeds."""
    return [
        (
            "progress.png",
            "Effective-group ratio and validation pass rate against rollouts: "
            + (f"mean and range of {seeds} seeds." if seeds > 1 else "one seed."),
        ),
        (
            "calibration.png",
            "Predicted probability that a chosen group is informative against how often it was; "
            "larger points hold more groups.",
        ),
        (
            "chosen.png",
            "What was chosen over time, by skill (top) and length (bottom), all seeds together.",
        ),
    ]


def draw(
    folder: Path,
    runs: Runs,
    pool: SkillPool,
    *,
    skills: Sequence[str] = SKILLS,
    held_out: int = 512,
) -> None:
    """Draws all figures.

    Args:
        folder: of the experiment; runs are in `runs/<method>/seed_<seed>`.
        runs: summaries of every seed by method.
        pool: training prompts.
        skills: names of its skills.
        held_out: validation prompts.
    """
    figures.style()
    groups = {
        name: [
            dict(np.load(seed_folder(folder, name, s["seed"]) / "groups.npz")) for s in summaries
        ]
        for name, summaries in runs.items()
    }
    _progress(folder, runs, groups, held_out)
    _calibration(folder, groups)
    _chosen(folder, groups, pool, skills)


def _band(axis, x, curves: np.ndarray, index: int, label: str) -> None:
    """Mean over seeds and, faintly, their range."""
    colour = figures.COLOURS[index % len(figures.COLOURS)]
    axis.plot(
        x,
        curves.mean(axis=0),
        figures.LINES[index % 4],
        color=colour,
        label=label,
        marker="o" if len(x) < 4 else None,
        zorder=3,
    )
    if len(curves) > 1:
        axis.fill_between(x, curves.min(axis=0), curves.max(axis=0), color=colour, alpha=0.13)


def _progress(folder: Path, runs: Runs, groups, held_out: int) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.7), sharex=True)
    for i, (name, summaries) in enumerate(runs.items()):
        flags = np.array([~g["degenerate"] for g in groups[name]]).mean(axis=2)  # [seeds, its]
        window = max(1, min(10, flags.shape[1] // 10))
        blocks = flags[:, : flags.shape[1] // window * window]
        blocks = blocks.reshape(len(flags), -1, window).mean(axis=2)
        per_iteration = summaries[0]["rollouts"] / flags.shape[1]
        x = (np.arange(blocks.shape[1]) + 0.5) * window * per_iteration
        _band(left, x, blocks, i, name)
        curve = np.array([[p["pass_at_1"] for p in s["validation"]] for s in summaries])
        _band(right, [p["rollouts"] for p in summaries[0]["validation"]], curve, i, name)
    left.set(
        xlabel="rollouts generated", ylabel="effective-group ratio", title="What the budget bought"
    )
    left.set_ylim(0, 1)
    right.set(
        xlabel="rollouts generated",
        ylabel=f"pass rate, {held_out} held-out prompts",
        title="What the policy learnt",
    )
    left.legend(ncols=2, fontsize=8.5 if len(runs) < 6 else 7)
    figures.save(figure, folder / "progress.png")


def _calibration(folder: Path, groups) -> None:
    columns = 5
    figure, axes = figures.small_panels(len(groups), columns, (2.4, 2.6))
    for i, (axis, (name, parts)) in enumerate(zip(axes, groups.items(), strict=True)):
        colour = figures.COLOURS[i % len(figures.COLOURS)]
        used = [g["trials"] > 0 for g in parts]
        predicted = np.concatenate([g["informative"][u] for g, u in zip(parts, used, strict=True)])
        flag = np.concatenate([~g["degenerate"][u] for g, u in zip(parts, used, strict=True)])
        bins = calibration.reliability_bins(np.clip(predicted.astype(float), 0, 1), flag)
        full = bins.count > 0
        axis.plot([0, 1], [0, 1], color="0.6", linewidth=1)
        axis.plot(bins.predicted[full], bins.observed[full], color=colour, zorder=2)
        size = 12 + 140 * bins.count[full] / bins.count.sum()
        axis.scatter(bins.predicted[full], bins.observed[full], s=size, color=colour, zorder=3)
        axis.set(xlim=(-0.06, 1.06), ylim=(-0.06, 1.06), title=name)
        if i >= len(groups) - columns:
            axis.set_xlabel("P(informative)")
        if i % columns == 0:
            axis.set_ylabel("share informative")
    figures.save(figure, folder / "calibration.png")


def _chosen(folder: Path, groups, pool: SkillPool, skills: Sequence[str]) -> None:
    figure, axes = plt.subplots(
        2,
        len(groups),
        figsize=((2.4 if len(groups) < 6 else 1.5) * len(groups) + 1.6, 5.2),
        squeeze=False,
        sharey="row",
    )
    widest = int(pool.length.max())
    for column, (name, parts) in enumerate(groups.items()):
        blocks = max(1, parts[0]["prompt_ids"].shape[0] // 5)
        for row, (values, size) in enumerate(
            ((pool.skill, len(skills)), (pool.length - 1, widest))
        ):
            shares = []
            for part in parts:
                ids = part["prompt_ids"]
                pieces = np.array_split(np.arange(len(ids)), blocks)
                shares.append(
                    [np.bincount(values[ids[p][ids[p] >= 0]], minlength=size) for p in pieces]
                )
            share = np.asarray(shares, float).sum(axis=0).T
            share /= share.sum(axis=0, keepdims=True)
            axis = axes[row, column]
            image = axis.imshow(
                share,
                aspect="auto",
                origin="lower",
                cmap="Blues",
                vmin=0,
                vmax=0.4,
                extent=(0, len(parts[0]["prompt_ids"]), -0.5, size - 0.5),
            )
            axis.grid(False)
            axis.set_xticks(np.linspace(0, len(parts[0]["prompt_ids"]), 3, dtype=int))
            if row == 0:
                axis.set_title(name, fontsize=10.5 if len(groups) < 6 else 8.5)
            else:
                axis.set_xlabel("iteration")
    axes[0, 0].set_yticks(range(len(skills)), skills)
    axes[1, 0].set_yticks(range(widest), [str(n + 1) for n in range(widest)])
    axes[1, 0].set_ylabel("length")
    figure.colorbar(image, ax=axes, label="share of the chosen prompts", shrink=0.8, extend="max")
    figures.save(figure, folder / "chosen.png")
