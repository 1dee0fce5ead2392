"""Figures that the written pages tell and results do not hold as such: ratios and counts.

Each is a function of the content of all results.json by folder, marked by `figure`; a field of a
template names it, and goes on with keys where it returns a dict.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Results: TypeAlias = Mapping[str, Any]
Figure: TypeAlias = Callable[[Results], Any]

FIGURES: dict[str, Figure] = {}


def figure(function: Figure) -> Figure:
    """Lets templates name a function."""
    FIGURES[function.__name__] = function
    return function
