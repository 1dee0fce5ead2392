"""Report and figure of `warm_start`."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from experiments import figures, run_folder

TITLES = {"constant": "K = 0", "tags": "skill tags", "text": "text loadings"}
HEADER = (
    "loadings",
    "cold start after",
    "its log loss",
    "arm",
    "rollouts",
    "95 % interval",
    "orders",
)


def rollouts(value: float | None) -> str:
    """A number of rollouts; None and infinity are never."""
    return "never" if value is None or not np.isfinite(value) else f"{value:,.0f}"


def _interval(row: dict[str, Any]) -> str:
    return f"{rollouts(row['low'])} to {rollouts(row['high'])}"


def mark_rows(direction: dict[str, Any], score: str = "log loss") -> list[tuple[str, ...]]:
    """One line for each loadings, mark and arm."""
    lines = []
    for kind, content in direction["kinds"].items():
        for row in content["marks"]:
            if row["score"] != score:
                continue
            ends = [np.inf if x is None else x for x in row["orders"]]
            lines.append(
                (
                    TITLES[kind],
                    f"{row['cold_rollouts']:,} ({row['cold_epochs']} epochs)",
                    f"{row['cold_score']:.4f}",
                    row["arm"],
                    rollouts(row["rollouts"]),
                    _interval(row),
                    f"{rollouts(min(ends))} to {rollouts(max(ends))}",
                )
            )
    return lines


def _epoch_rows(direction: dict[str, Any], figure: str) -> tuple[list[str], list[tuple[str, ...]]]:
    """Each arm's figure in each of the first epochs and in the last."""
    rows = []
    header: list[str] = []
    for kind, content in direction["kinds"].items():
        epochs = sorted({row["epoch"] for row in content["epochs"]})
        shown = [e for e in epochs if e <= 6 or e == epochs[-1]]
        header = ["loadings", "arm", *(f"epoch {e}" for e in shown)]
        for arm in dict.fromkeys(row["arm"] for row in content["epochs"]):
            by_epoch = {r["epoch"]: r for r in content["epochs"] if r["arm"] == arm}
            rows.append((TITLES[kind], arm, *(f"{by_epoch[e][figure]:.4f}" for e in shown)))
    return header, rows


def _difference_rows(direction: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            TITLES[kind],
            row["arm"],
            row["over"],
            f"{row['mean']:+.4f}",
            f"{row['low']:+.4f} to {row['high']:+.4f}",
        )
        for kind, content in direction["kinds"].items()
        for row in content["differences"]
    ]


def show(content: dict[str, Any]) -> None:
    """Prints the main table of each direction."""
    for direction in content["directions"]:
        title = f"{direction['first']}, then {direction['second']}"
        run_folder.print_table(title, HEADER, mark_rows(direction))


def write(folder: Path, content: dict[str, Any]) -> Path:
    """Writes report.md."""
    sections = [
        "FADE follows a first policy's run to its end; a second policy's run on the same prompts "
        "is then predicted batch by batch. *Cold*: from the prior. *Warm*: with the first run's "
        "intercepts, mean and variance, which go on learning; *+ x %*: with that share of the "
        "prior variance added to theirs, for what policies disagree on; *means*: with the prior's "
        "variance; *frozen*: with intercepts that learn nothing more; *shuffled*, *shuffled "
        "means*: with another prompt's, the controls (mean of several permutations). In all of "
        "them the ability starts at the prior. Priors and drift rates were fitted by empirical "
        "Bayes on the first run alone and are the same for all arms.",
        "Every number scores P(the group is informative), stated before the batch. The mark is the "
        "cold start's mean loss over the epoch that follows its first (second, ...) pass through "
        "the prompts. An arm has reached it at the first rollout from which its mean loss over an "
        "epoch's length is, and stays, no higher; later on it may exceed the mark as far as the "
        "cold start itself does. That is harsh: one later epoch a hair above, and the count starts "
        "there; the cold start meets its own mark by definition. An arm that reaches it at 0 "
        "predicts its own first epoch as well as that. Intervals: bootstrap over prompts, marks "
        "redrawn too. *Orders*: range over replays in which each epoch's groups come in another "
        "order.",
        "![Log loss against rollouts](warm_start.png)",
    ]
    for direction in content["directions"]:
        sections.append(f"## {direction['first']}, then {direction['second']}")
        sections.append(
            f"{direction['shared_prompts']:,} of {direction['prompts']:,} prompts were in the "
            f"first run. Correlation of the pass rates the two runs saw: "
            f"{direction['pass_rate_correlation']:.3f}. The second run: {direction['batches']} "
            f"batches of {direction['rollouts_a_batch']} rollouts."
        )
        sections.append(run_folder.markdown_table(HEADER, mark_rows(direction)))
        sections.append("By the Brier score:")
        header = tuple("its Brier" if name == "its log loss" else name for name in HEADER)
        sections.append(run_folder.markdown_table(header, mark_rows(direction, "Brier")))
        sections.append("Log loss minus cold start's (negative: better than cold):")
        header = ("loadings", "arm", "over", "difference", "95 % interval")
        sections.append(run_folder.markdown_table(header, _difference_rows(direction)))
        for figure, name in (("log_loss", "Log loss"), ("ece", "ECE (10 bins)")):
            sections.append(f"{name} by epoch of the second run:")
            sections.append(run_folder.markdown_table(*_epoch_rows(direction, figure)))
        floor = np.mean([r["floor"] for c in direction["kinds"].values() for r in c["epochs"]])
        sections.append(f"A perfectly calibrated prediction would have an ECE of {floor:.3f} here.")
        fits = [
            (TITLES[kind], ", ".join(f"{k} {v:.4g}" for k, v in c["params"].items()))
            for kind, c in direction["kinds"].items()
        ]
        sections.append(f"Fitted on the run of {direction['first']}, time in epochs:")
        sections.append(run_folder.markdown_table(("loadings", "parameters"), fits))
    return run_folder.write_report(
        folder, "Warm start from another policy's run", sections, content["provenance"]
    )


def draw(path: Path, content: dict[str, Any]) -> None:
    """Log loss over a moving epoch against rollouts; a panel for each direction and loadings."""
    figures.style()
    directions = content["directions"]
    kinds = list(directions[0]["kinds"])
    figure, axes = plt.subplots(
        len(directions),
        len(kinds),
        figsize=(3.7 * len(kinds), 3.1 * len(directions)),
        squeeze=False,
    )
    for row, direction in zip(axes, directions, strict=True):
        per_batch = direction["rollouts_a_batch"]
        for axis, kind in zip(row, kinds, strict=True):
            curves = direction["kinds"][kind]["curves"]
            shown = [arm for arm in curves if "means" not in arm]  # six lines are enough
            for i, (arm, band) in enumerate((arm, curves[arm]) for arm in shown):
                mean, low, high = (np.asarray(band[key]) for key in ("mean", "low", "high"))
                x = per_batch * np.asarray(band["batch"]) / 1000
                axis.plot(
                    x, mean, color=figures.COLOURS[i], linestyle=figures.LINES[i % 4], label=arm
                )
                axis.fill_between(x, low, high, color=figures.COLOURS[i], alpha=0.12, linewidth=0)
            epoch = per_batch * direction["epoch_batches"] / 1000
            axis.axvline(epoch, color="#999999", linewidth=0.8, zorder=0)
            axis.set_title(f"{direction['first']}, then {direction['second']}: {TITLES[kind]}")
        row[0].set_ylabel("log loss over the next epoch, nats")
        low = min(axis.get_ylim()[0] for axis in row)
        high = max(axis.get_ylim()[1] for axis in row)
        for axis in row:
            axis.set_ylim(low, high)
    for axis in axes[-1]:
        axis.set_xlabel("rollouts absorbed, thousands")
    axes[0, 0].legend()
    figures.save(figure, path)
