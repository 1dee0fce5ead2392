"""The figures of `assumptions.md`: each is a link to a results file, whose title says where in it.

    [.36](results/verify_exactness/results.json "unknown_difficulties/rows/rule=adf/sd_ratio_mean")

A path goes down by keys and, in a list, by position or by `name=value;name=value`; names reach into
an entry by dots. Numbers in a list are averaged. Two paths may be divided or subtracted.
"""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

ASSUMPTIONS = Path(__file__).resolve().parent / "assumptions.md"
"""The page."""

LINK = re.compile(r"\[([^\]\[]+)\]\(([^)\s]+)\s+\"([^\"]+)\"\)")
OPERATION = re.compile(r" (-|/) ")


class Figure(NamedTuple):
    """A number as the page has it.

    Attributes:
        text: as it is written.
        source: results file, from the folder of the page.
        path: where in it.
    """

    text: str
    source: str
    path: str


def figures(text: str) -> list[Figure]:
    """All figures of a page.

    Args:
        text: Markdown.
    """
    return [Figure(*match) for match in LINK.findall(text)]


def sources(text: str) -> list[str]:
    """The results files that a page quotes, each once."""
    return sorted({figure.source for figure in figures(text)})


def measured(figure: Figure, folder: Path) -> float:
    """The number that a figure stands for.

    Args:
        figure: of the page.
        folder: that its source is relative to.

    Raises:
        ValueError: the path leads nowhere, or to more than one entry.
    """
    content = json.loads((folder / figure.source).read_text())
    first, *rest = OPERATION.split(figure.path)
    value = _at(content, first)
    for operation, path in zip(rest[::2], rest[1::2], strict=True):
        other = _at(content, path)
        value = value - other if operation == "-" else value / other
    return value


def agrees(text: str, value: float) -> bool:
    """Whether a number is the rounded value.

    >>> agrees(".018", 0.0184), agrees(".018", 0.0187), agrees("16 %", 0.163)
    (True, False, True)
    """
    plain = text.replace(",", "").removesuffix("%").strip()
    value = 100 * value if text.endswith("%") else value
    number, exponent = float(plain), 0
    if "e" in plain:
        plain, _, power = plain.partition("e")
        exponent = int(power)
    decimals = len(plain.partition(".")[2])
    return abs(number - value) <= 0.5001 * 10.0 ** (exponent - decimals)


def bare_numbers(text: str) -> list[str]:
    """Numbers of a page that no results file stands behind; code and plain links don't count."""
    text = LINK.sub(" ", text)
    text = re.sub(r"`[^`]*`", " ", text)
    text = re.sub(r"\[[^\]]*\]\([^)]*\)", " ", text)
    return re.findall(r"(?<![\w.])[-+]?\d*\.?\d+", text)


def for_site(text: str) -> str:
    """The page without the titles, which say nothing to a reader; the files lie beside it."""
    return LINK.sub(r"[\1](\2)", text)


def _at(content: Any, path: str) -> float:
    value = content
    for part in path.split("/"):
        value = _step(value, part, path)
    if isinstance(value, list):
        value = sum(value) / len(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{path!r}: is no number, but {type(value).__name__}")
    return float(value)


def _step(value: Any, part: str, path: str) -> Any:
    if isinstance(value, dict):
        if part not in value:
            raise ValueError(f"{path!r}: no {part!r} among {sorted(value)}")
        return value[part]
    if re.fullmatch(r"-?\d+", part):
        return value[int(part)]
    wanted = [word.split("=", 1) for word in part.split(";")]
    found = [entry for entry in value if all(_is(entry, *pair) for pair in wanted)]
    if len(found) != 1:
        raise ValueError(f"{path!r}: {len(found)} entries have {part!r}, wanted one")
    return found[0]


def _is(entry: Any, name: str, wanted: str) -> bool:
    for key in name.split("."):
        entry = entry[key]
    if isinstance(entry, int | float):
        return entry == float(wanted)
    return str(entry) == wanted
