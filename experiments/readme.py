"""Writes every page whose numbers come from committed results, and every report.

Templates are in `experiments/templates`, at the path that they are written to; README.md's fills
the section between its two marks. A field begins with a folder of `experiments/results` and goes on
into its results.json, or it begins with a figure or table of `experiments/measured_*.py`. Reports
are written by the experiments' own functions, see `experiments.reports`.

    python -m experiments.readme
    python -m experiments.readme --check  # writes nothing, exits with 1 where a file differs
"""

import dataclasses
import functools
import re
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tyro

from experiments import (  # the measured ones put their figures into FIGURES
    command_line,
    measured_filter,  # noqa: F401
    measured_live,  # noqa: F401
    measured_speed,  # noqa: F401
    measured_suite,  # noqa: F401
    measured_tables,  # noqa: F401
    reports,
    run_folder,
)
from experiments.measured import FIGURES
from experiments.number_text import fill

ROOT = Path(__file__).resolve().parents[1]
TEMPLATES = ROOT / "experiments" / "templates"
README = ROOT / "README.md"
BEGIN = "<!-- written by python -m experiments.readme from experiments/templates/README.md -->"
END = "<!-- end of what is written -->"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Pages and reports, from committed results."""

    check: bool = False
    """Only compare, and name the first line that differs."""


class Results(Mapping[str, Any]):
    """Content of `results.json` by folder, read when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        path = reports.RESULTS / name / "results.json"
        if not path.exists():
            raise KeyError(name)
        return _read(path)

    def __iter__(self) -> Iterator[str]:
        return (path.parent.name for path in sorted(reports.RESULTS.glob("*/results.json")))

    def __len__(self) -> int:
        return len(list(iter(self)))


@functools.cache
def _read(path: Path) -> Any:
    return run_folder.read_json(path)


class Names(Mapping[str, Any]):
    """What a field may begin with: a figure, a table, or a folder of results."""

    def __init__(self, results: Mapping[str, Any]):
        self._results, self._made = results, FIGURES

    def __getitem__(self, name: str) -> Any:
        return self._made[name](self._results) if name in self._made else self._results[name]

    def __iter__(self) -> Iterator[str]:
        return iter([*self._made, *self._results])

    def __len__(self) -> int:
        return len(self._made) + len(self._results)


def pages() -> dict[Path, str]:
    """Every page that has a template, as it should be."""
    names, made = Names(Results()), {}
    for template in sorted(TEMPLATES.rglob("*.md")):
        place = template.relative_to(TEMPLATES)
        try:
            text = wrap(fill(template.read_text(), names))
        except ValueError as error:
            raise ValueError(f"{template}: {error}") from error
        if ROOT / place == README:
            made[README] = between_marks(README.read_text(), text)
        else:
            source = template.relative_to(ROOT).as_posix()
            head = f"<!-- written by python -m experiments.readme from {source} -->"
            made[ROOT / place] = head + "\n" + text
    return made


def wrap(text: str) -> str:
    r"""Fills the lines of Markdown's paragraphs and list items again; all else stays as it is.

    >>> print(wrap("* a\n  b\n* c\n\n| d | e |\n"))
    * a b
    * c
    <BLANKLINE>
    | d | e |
    <BLANKLINE>

    Raises:
        ValueError: a line would begin with what Markdown takes for the mark of a list.
    """
    blocks = []
    for block in text.strip("\n").split("\n\n"):
        if not block.startswith(("|", "#", "![", "```")):
            items = re.split(r"\n(?=\* )", block)
            block = "\n".join(_filled(item, "  " * item.startswith("* ")) for item in items)
        blocks.append(block)
    return "\n\n".join(blocks) + "\n"


def _filled(item: str, indent: str) -> str:
    lines = textwrap.wrap(
        re.sub(r"(\d) %", "\\1\0%", " ".join(item.split())),  # no line ends between the two
        100,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    for line in lines[1:]:
        if re.match(r"\s*([-+*]|\d+[.)])\s", line):
            raise ValueError(f"would begin a list: {line}")
    return "\n".join(lines).replace("\0", " ")


def between_marks(page: str, text: str) -> str:
    """A page with something else between its marks.

    Raises:
        ValueError: it has not both marks once, in order.
    """
    before, begun, rest = page.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not (begun and ended) or BEGIN in after or END in before + after:
        raise ValueError(f"README.md must have {BEGIN} and {END} once, in this order")
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"


def written_reports() -> dict[Path, str]:
    """Every report, as today's code writes it from the stored results."""
    made = {}
    for name in reports.WRITERS:
        with tempfile.TemporaryDirectory() as scratch:
            made[reports.RESULTS / name / "report.md"] = reports.written(name, Path(scratch))
    return made


def first_difference(path: Path, wanted: str) -> str | None:
    """Where a file differs from what it should be, in words; None where it does not."""
    found = path.read_text().splitlines() if path.exists() else []
    lines = wanted.splitlines()
    for number in range(max(len(found), len(lines))):
        pair = [side[number] if number < len(side) else "(nothing)" for side in (found, lines)]
        if pair[0] != pair[1]:
            return f"{path}:{number + 1}\n  is        {pair[0]}\n  should be {pair[1]}"
    return None


def main(config: Config) -> dict[str, Any]:
    """Writes the files, or compares them.

    Args:
        config: which of the two.

    Returns:
        `different`: where, in words, each file that was not as it should be differed.
    """
    different = []
    for path, text in {**pages(), **written_reports()}.items():
        difference = first_difference(path, text)
        if difference is None:
            continue
        different.append(difference)
        if config.check:
            run_folder.console.print(difference, markup=False, highlight=False)
        else:
            path.write_text(text)
            run_folder.console.print(f"wrote {path}", markup=False, highlight=False)
    return {"different": different}


if __name__ == "__main__":
    config = tyro.cli(Config, description=__doc__)
    found = command_line.run(main, lambda: config)
    sys.exit(1 if config.check and found["different"] else 0)
