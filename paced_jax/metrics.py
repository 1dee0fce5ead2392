"""Writers for the metrics of a training run: one line of JSON an iteration, and TensorBoard.

The JSON lines are the record: nothing is lost on a crash but the line being written, and a resumed
run cuts what came after its checkpoint, so that its file reads like an uninterrupted run's, and
TensorBoard's events are written from it anew. TensorBoard shows the same scalars under the same
names; hence names are made of letters, digits and `_ - . /`, which TensorBoard leaves alone
(`pass_at_1`, not `pass@1`).

A value that is not finite has no number in JSON. It is written as `null`, read back as NaN, and
leaves a gap in TensorBoard's curve: a metric that is missing in some iterations is passed as NaN.
"""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, SupportsFloat, SupportsIndex, runtime_checkable

import numpy as np

_NAME = re.compile(r"[\w.-][\w./-]*", re.ASCII)


@runtime_checkable
class Writer(Protocol):
    """Takes the scalars of iterations, in ascending order."""

    def write(self, iteration: SupportsIndex, scalars: Mapping[str, SupportsFloat]) -> None:
        """Writes the scalars of one iteration."""
        ...

    def close(self) -> None:
        """Writes what is left and lets go of the file."""
        ...


def _checked(scalars: Mapping[str, SupportsFloat]) -> dict[str, float]:
    """Names that every writer keeps as they are, and plain floats."""
    floats = {}
    for name, value in scalars.items():
        if not _NAME.fullmatch(name) or name == "iteration":
            raise ValueError(f"metric {name!r}: names are made of letters, digits and _ - . /")
        if np.ndim(value):  # type: ignore[arg-type]
            raise ValueError(f"metric {name!r} must be a scalar, got shape {np.shape(value)}")  # type: ignore[arg-type]
        floats[name] = float(value)
    return floats


def _whole_lines(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Each line's object and where the line ends; a last line without its end is left out."""
    end = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            end += len(line)
            try:
                content = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number} is not JSON") from error
            if not isinstance(content, dict) or not isinstance(content.get("iteration"), int):
                raise ValueError(f"{path}, line {number} has no iteration")
            yield content, end


def read_json_lines(path: str | Path) -> list[dict[str, Any]]:
    """Reads what `JsonLines` wrote.

    Args:
        path: of the file.

    Returns:
        One dict an iteration: `iteration`, an int, then floats, NaN for `null`. A half-written last
        line is left out.

    Raises:
        ValueError: for any other line that is not JSON or has no iteration, by its number.
    """
    return [
        {name: math.nan if value is None else value for name, value in content.items()}
        for content, _ in _whole_lines(Path(path))
    ]


class JsonLines:
    """Appends one JSON object an iteration to a file, `iteration` first.

    Every line is handed to the operating system before `write` returns, so that a killed process
    loses at most the line it was writing; opening the file drops such a half line.

    Example:
        >>> import tempfile
        >>> lines = JsonLines(Path(tempfile.mkdtemp()) / "metrics.jsonl")
        >>> for iteration in range(3):
        ...     lines.write(iteration, {"pass_rate": 0.25 * iteration, "replay_age": math.nan})
        >>> lines.cut(1)
        >>> lines.close()
        >>> read_json_lines(lines.path)
        [{'iteration': 0, 'pass_rate': 0.0, 'replay_age': nan}]
    """

    def __init__(self, path: str | Path) -> None:
        """Opens the file for appending, making it and its folder where they are missing.

        Raises:
            ValueError: as `read_json_lines`.
        """
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.touch()
        self._open()

    def _open(self, before: int | None = None) -> None:
        """Keeps the lines of iterations < before, in one atomic step, and opens for appending."""
        end, self._last = 0, -1
        for content, line_end in _whole_lines(self.path):
            if before is not None and content["iteration"] >= before:
                break
            end, self._last = line_end, content["iteration"]
        if end < self.path.stat().st_size:
            temporary = self.path.with_name(self.path.name + ".tmp")
            with self.path.open("rb") as old, temporary.open("wb") as new:
                new.write(old.read(end))
                new.flush()
                os.fsync(new.fileno())
            os.replace(temporary, self.path)
        self._file = self.path.open("ab")

    def write(self, iteration: SupportsIndex, scalars: Mapping[str, SupportsFloat]) -> None:
        """Appends a line.

        Args:
            iteration: greater than that of the last line.
            scalars: floats, or 0-d arrays; NaN and infinities become `null`.

        Raises:
            ValueError: for an iteration that is not greater than the last, for a value that is not
                a scalar, and for a name that TensorBoard would change.
        """
        number = iteration.__index__()
        if number <= self._last:
            raise ValueError(
                f"iteration {number} comes after {self._last} in {self.path}: cut({number}) first"
            )
        finite = {k: v if math.isfinite(v) else None for k, v in _checked(scalars).items()}
        line = json.dumps({"iteration": number, **finite}, allow_nan=False)
        self._file.write(line.encode() + b"\n")
        self._file.flush()
        self._last = number

    def cut(self, iteration: SupportsIndex) -> None:
        """Drops the lines of `iteration` and later, as a run resumed at `iteration` must.

        What is kept is copied to a temporary file that then takes the place of the old one: a crash
        leaves either the old file or the new one.
        """
        self._file.close()
        self._open(iteration.__index__())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class TensorBoard:
    """Writes scalars as TensorBoard's event files.

    Events are written in the background, every 10 seconds and by `close`; a killed run lacks the
    last of them until `open_writers` resumes it.
    """

    def __init__(self, folder: str | Path) -> None:
        """Starts a new event file in the folder, and deletes what older ones hold.

        Args:
            folder: where the event files are; made if missing.
        """
        from tensorboardX import SummaryWriter  # here, because it brings protobuf along

        for old in Path(folder).glob("*tfevents*"):
            old.unlink()
        self._writer = SummaryWriter(str(folder), flush_secs=10)

    def write(self, iteration: SupportsIndex, scalars: Mapping[str, SupportsFloat]) -> None:
        """Writes the scalars that are finite; they are stored as float32.

        Raises:
            ValueError: for a value that is not a scalar, and for a name that TensorBoard would
                change.
        """
        for name, value in _checked(scalars).items():
            if math.isfinite(value):
                self._writer.add_scalar(name, value, iteration.__index__())

    def close(self) -> None:
        """Writes what is left and ends the background thread."""
        self._writer.close()


class Writers:
    """Several writers as one; a context manager that closes them all."""

    def __init__(self, *writers: Writer) -> None:
        self._writers = writers

    def write(self, iteration: SupportsIndex, scalars: Mapping[str, SupportsFloat]) -> None:
        """Hands the scalars of one iteration to every writer."""
        floats = _checked(scalars)
        for writer in self._writers:
            writer.write(iteration, floats)

    def close(self) -> None:
        """Closes every writer."""
        for writer in self._writers:
            writer.close()

    def __enter__(self) -> "Writers":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def open_writers(
    folder: str | Path, *, tensorboard: bool = True, resume_at: SupportsIndex | None = None
) -> Writers:
    """Opens the writers of a run: `metrics.jsonl`, and event files under `tensorboard/`.

    Args:
        folder: of the run; made if missing.
        tensorboard: whether to write event files as well.
        resume_at: the first iteration that will be written: what the folder holds of it and later
            ones is cut. 0 starts again; None is for a folder without metrics. Event files are
            written anew from what is kept, since a killed run lacks the last events.

    Returns:
        `Writers`, to be closed, or used in a `with` statement.

    Raises:
        ValueError: if the folder holds metrics and `resume_at` is None.
    """
    folder = Path(folder)
    path = folder / "metrics.jsonl"
    if resume_at is None and path.exists() and path.stat().st_size:
        raise ValueError(
            f"folder {folder} already holds metrics: resume_at must say from which iteration they "
            "are to be replaced, 0 for all of them"
        )
    lines = JsonLines(path)
    first = 0 if resume_at is None else resume_at
    lines.cut(first)
    if not tensorboard:
        return Writers(lines)
    board = TensorBoard(folder / "tensorboard")
    for line in read_json_lines(path):
        board.write(line.pop("iteration"), line)
    return Writers(lines, board)
