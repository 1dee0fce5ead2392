"""One look for all figures: readable at README width, safe for colour-blind readers."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from cycler import cycler

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe & Ito's palette, in an order that keeps neighbours apart in grey too.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#999999")
LINES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def style() -> None:
    """Sets matplotlib's defaults for this project."""
    plt.rcParams.update(
        {
            "figure.dpi": 110,
            "savefig.dpi": 150,
            "font.size": 10,
            "axes.titlesize": 10.5,
            "axes.titlelocation": "left",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.alpha": 0.25,
            "grid.linewidth": 0.6,
            "lines.linewidth": 1.8,
            "legend.frameon": False,
            "legend.fontsize": 8.5,
            "axes.prop_cycle": cycler(color=COLOURS),
            "figure.constrained_layout.use": True,
        }
    )


def seeds(
    axis: Axes, curves: Sequence[tuple[np.ndarray, np.ndarray]], index: int, label: str | None
) -> None:
    """Draws every seed thin and the mean of all thick.

    Args:
        axis: to draw on.
        curves: (x, y) of each seed. Where their x differ, the mean is taken at the first's, by
            straight lines, as far as all of them go.
        index: which colour and line.
        label: of the mean.
    """
    colour = COLOURS[index % len(COLOURS)]
    line = LINES[index // len(COLOURS) % len(LINES)]
    if len(curves) > 1:
        for x, y in curves:
            axis.plot(x, y, color=colour, linewidth=0.6, alpha=0.45, zorder=2)
    x = curves[0][0]
    x = x[x <= min(other[-1] for other, _ in curves) * (1 + 1e-9)]
    mean = np.mean([np.interp(x, *curve) for curve in curves], axis=0)
    axis.plot(x, mean, line, color=colour, label=label, zorder=3)


def small_panels(count: int, columns: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """A grid of small panels on the same axes, the last of them perhaps left free.

    Args:
        count: panels.
        columns: in a row at most.
        size: width and height of one, inches.

    Returns:
        (figure, panels row by row, `count` of them).
    """
    columns = min(columns, count)
    rows = -(-count // columns)
    figure, axes = plt.subplots(
        rows,
        columns,
        figsize=(size[0] * columns + 0.5, size[1] * rows + 0.5),
        sharex=True,
        sharey=True,
        squeeze=False,
    )
    for axis in axes.flat[count:]:
        axis.set_visible(False)
    # Where the panel below is free, this one is the lowest that shows.
    for axis in axes.flat[max(0, count - columns) : count]:
        axis.tick_params(labelbottom=True)
    return figure, list(axes.flat[:count])


def save(figure: Figure, path: Path) -> Path:
    """Writes a figure and frees it."""
    figure.savefig(path)
    plt.close(figure)
    return path
