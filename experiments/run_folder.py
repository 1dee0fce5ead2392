"""What every experiment leaves behind: a folder, by default `runs/<experiment>/<UTC time>`.

`config.json` holds the dataclass that was run, `results.json` config, versions, commit and every
number, `report.md` the same to be read, beside figures as PNG.
"""

import contextlib
import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "flax", "optax", "numpyro", "scikit-learn")

# A pipe has no width: tables are as wide as they are, and no path is broken.
console = Console(width=None if sys.stdout.isatty() else 1000)


def folder_of(name: str, out: Path | None) -> Path:
    """Where an experiment writes: `out`, or `runs/<name>/<UTC time>` if not given.

    Raises:
        ValueError: out is a file.
    """
    if out is not None and Path(out).exists() and not Path(out).is_dir():
        raise ValueError(f"out: {out} is a file, not a folder")
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
    return Path("runs") / name / stamp if out is None else Path(out)


def open_folder(
    name: str,
    out: Path | None,
    config: Any,
    check: Callable[[Path], None] = lambda folder: None,
) -> Path:
    """Makes the run's folder and writes its config, before anything is computed.

    Args:
        name: of the experiment.
        out: where to; `runs/<name>/<UTC time>` if not given.
        config: a dataclass, or a dict of what was run.
        check: refuses a folder that holds something else, before anything is written to it.

    Returns:
        The folder.
    """
    folder = folder_of(name, out)
    check(folder)
    folder.mkdir(parents=True, exist_ok=True)
    content = config if isinstance(config, dict) else dataclasses.asdict(config)
    write_json(folder / "config.json", content)
    return folder


def machine() -> dict[str, Any]:
    """What decides in which order numbers are summed: backend, device, cores."""
    return {
        "backend": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
        "cpus": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
    }


def provenance() -> dict[str, Any]:
    """Versions of everything that can move a number, the commit, and the machine's shape."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "versions": versions,
        "commit": _commit(),
        **machine(),
    }


def _commit() -> str:
    """The checked-out commit, marked where the tree differs from it."""
    root = Path(__file__).resolve().parent
    try:
        head = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown (not a git checkout)"
    return head + (" with local changes" if changed else "")


def write_json(path: Path, content: Any) -> None:
    """Writes JSON in one move, so a crash leaves the old file or the new one, never half."""
    temporary = path.with_suffix(path.suffix + ".tmp")
    temporary.write_text(json.dumps(_plain(content), indent=1, allow_nan=False) + "\n")
    os.replace(temporary, path)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Holds a folder for this process; a process that ends, however it ends, lets go.

    Raises:
        ValueError: another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            import fcntl
        except ImportError:  # not on Windows
            yield
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another process is writing to {folder}") from None
        yield


def read_json(path: Path) -> Any:
    """Reads what `write_json` wrote.

    Raises:
        ValueError: the file is damaged; names it.
    """
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from error


def _plain(value: Any) -> Any:
    """Arrays, paths and non-finite numbers as JSON has them."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, np.ndarray | jax.Array):
        return _plain(np.asarray(value).tolist())
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    if isinstance(value, Path):
        return str(value)
    return value


def save_results(folder: Path, config: Any, results: dict[str, Any]) -> dict[str, Any]:
    """Writes results.json: what was measured, beside config, versions and commit.

    Args:
        folder: of the run.
        config: a dataclass.
        results: what was measured.

    Returns:
        The whole content of the file, as JSON gives it back.
    """
    content = _plain({"config": dataclasses.asdict(config), "provenance": provenance(), **results})
    write_json(folder / "results.json", content)
    return content


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table; floats with four significant digits, thousands with separators."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(_cell(x).replace("|", "\\|") for x in row) + " |" for row in rows]
    return "\n".join(lines)


def print_table(title: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """The same table on the terminal."""
    # Names like E[p] are text, not rich's markup.
    table = Table(title=escape(title), title_justify="left")
    for i, name in enumerate(header):
        table.add_column(escape(name), justify="left" if i == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*[escape(_cell(x)) for x in row])
    console.print(table)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float | np.floating):
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def counted(number: int, noun: str) -> str:
    """A number of things in words.

    >>> counted(1, "seed"), counted(3, "seed")
    ('1 seed', '3 seeds')
    """
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def markdown_figure(path: Path, caption: str) -> str:
    """A figure of a report, over its caption."""
    return f"![{path.stem}]({path.name})\n\n{caption}"


def shown(metric: str) -> str:
    """The name of a metric for people; logs, whose names are words, have `pass_at_1` for pass@1.

    >>> shown("pass_at_8"), shown("informative_realised")
    ('pass@8', 'informative_realised')
    """
    return re.sub(r"^pass_at_(\d+)", r"pass@\1", metric)


def write_report(
    folder: Path, title: str, sections: Sequence[str], made_by: dict[str, Any] | None = None
) -> Path:
    """Writes report.md, ending with how to make it again.

    Args:
        folder: of the run.
        title: first line.
        sections: Markdown paragraphs.
        made_by: `provenance` of the figures; as of now if not given.

    Returns:
        The path.
    """
    content = provenance() if made_by is None else made_by
    versions = ", ".join(f"{k} {v}" for k, v in content["versions"].items())
    made = (
        "## How this was made\n\n"
        f"Python {content['python']}; {versions}; {content['backend']} ({content['device']}, "
        f"{content['cpus']} cores); commit {content['commit']}. The configuration is in "
        "`config.json`, every figure in `results.json`."
    )
    path = folder / "report.md"
    path.write_text("\n\n".join([f"# {title}", *sections, made]) + "\n")
    return path


_QUIET_SECONDS = 30.0


def progress() -> Progress:
    """A progress bar for long work; silent where nobody watches a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not sys.stderr.isatty() and not console.is_terminal,
    )


@contextlib.contextmanager
def task(description: str, total: int) -> Iterator[Callable[[str, int], None]]:
    """A progress bar of one task; gives `(what is happening, how much was just done)`.

    Where nobody watches a terminal it is a line, at most every half minute.
    """
    told = time.monotonic()

    def advance(what: str, done: int) -> None:
        nonlocal told
        bar.update(number, advance=done, description=what)
        if bar.disable and done and time.monotonic() - told > _QUIET_SECONDS:
            console.print(
                f"{what}: {bar.tasks[number].completed:g} of {total}", markup=False, highlight=False
            )
            told = time.monotonic()

    with progress() as bar:
        number = bar.add_task(description, total=total)
        yield advance
