"""One look for all figures: readable at README width, safe for colour-blind readers."""

from pathlib import Path

import matplotlib
from cycler import cycler

matplotlib.use("Agg")

import matplotlib.pyplot as plt
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


def save(figure: Figure, path: Path) -> Path:
    """Writes a figure and frees it."""
    figure.savefig(path)
    plt.close(figure)
    return path
