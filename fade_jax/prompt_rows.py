"""Rows of a data set on disk: JSON Lines, Parquet, or what Hugging Face `datasets` saved.

Nothing is loaded whole but the rows themselves. pyarrow is imported where it is needed.
"""

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fade_jax.json_files import read_json

T = TypeVar("T")

_JSON_LINES = (".jsonl", ".ndjson")
_SHARD = re.compile(r"(.+)-\d+-of-\d+")
_SPLIT_NAMES = re.compile(r"(train|test|validation|valid|val|dev|eval)([-_.]|$)", re.IGNORECASE)


class Row(NamedTuple):
    """One row of a data set.

    Attributes:
        place: the file and the row in it, counted from 0; for messages.
        record: the fields.
    """

    place: str
    record: Mapping[str, Any]


def read_rows(
    path: str | os.PathLike[str],
    columns: Sequence[str] | None = None,
    *,
    split: str | None = None,
) -> Iterator[Row]:
    """Reads a data set row by row, in the order of its files.

    Args:
        path: a file that ends in .jsonl, .ndjson or .parquet; a folder that `save_to_disk` of
            Hugging Face `datasets` wrote; or a folder of Parquet files, taken in order of name.
        columns: what to read of Parquet and Arrow files, for speed; a dotted path names a field
            inside a column. All columns by default.
        split: which split of a folder that holds several, for example "train".

    Yields:
        The rows. Blank lines of JSON Lines are no rows.

    Raises:
        ValueError: for another kind of file, a split that is missing or not chosen, a file that
            can't be read, a column that is missing, a line that holds no JSON object, no rows.
    """
    path = Path(path)
    empty = True
    for file in _files(path, split):
        for row in _READERS[file.suffix](file, columns):
            empty = False
            yield row
    if empty:
        raise ValueError(f"{path.name}: no rows")


def value_at(row: Row, column: str) -> Any:
    """The value of a field.

    >>> value_at(Row("a.jsonl, row 0", {"reward_model": {"ground_truth": "4"}}),
    ...     "reward_model.ground_truth")
    '4'

    Args:
        row: of `read_rows`.
        column: a name, or a dotted path into nested fields.

    Returns:
        The value, never None.

    Raises:
        ValueError: for a field that is missing or null, naming file, row and field.
    """
    value: Any = row.record
    for part in [column] if column in row.record else column.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise ValueError(f"{row.place}: no field {column!r}; fields: {', '.join(row.record)}")
        value = value[part]
    if value is None:
        raise ValueError(f"{row.place}: {column} is null")
    return value


def read_field(row: Row, column: str, read: Callable[[Any], T]) -> T:
    """`read(value_at(row, column))`; a ValueError of `read` then names file, row and field."""
    value = value_at(row, column)
    try:
        return read(value)
    except ValueError as error:
        raise ValueError(f"{row.place}: {column}: {error}") from None


def plain_answer(value: Any) -> str:
    """An answer as a string; whole numbers without a decimal point.

    >>> plain_answer("025"), plain_answer(27.0), plain_answer(-1.5)
    ('025', '27', '-1.5')

    Raises:
        ValueError: for what is neither a string nor a finite number.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value.is_integer() else repr(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise ValueError(f"{str(value)[:60]!r} ({type(value).__name__}) is no string or number")


def prompt_text(value: Any) -> tuple[str, str | None]:
    r"""A prompt's text, and its system message if it has one.

    >>> prompt_text([{"role": "user", "content": "1 + 1"}])
    ('1 + 1', None)

    Args:
        value: a string; or a chat: messages with role and content, of a system and a user. Several
            messages of one role are joined by "\n".

    Raises:
        ValueError: for anything else, an empty prompt, or messages of another role.
    """
    if isinstance(value, str):
        return _checked_text(value), None
    if isinstance(value, Mapping) and isinstance(value.get("role"), list):  # a list of messages
        columns = (value["role"], value.get("content") or [])  # as older `datasets` store it
        value = [{"role": r, "content": c} for r, c in zip(*columns, strict=True)]
    if not isinstance(value, list):
        raise ValueError(f"{str(value)[:60]!r} is neither text nor a list of messages")
    contents: dict[str, list[str]] = {"system": [], "user": []}
    for message in value:
        role = message.get("role") if isinstance(message, Mapping) else None
        content = message.get("content") if isinstance(message, Mapping) else None
        if role not in contents or not isinstance(content, str):
            raise ValueError(
                f"{str(message)[:80]!r} is no message of a system or user with text as content"
            )
        contents[role].append(content)
    system = "\n".join(contents["system"])
    return _checked_text("\n".join(contents["user"])), system or None


def _checked_text(text: str) -> str:
    if not text.strip():
        raise ValueError(f"{text!r} is empty")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{text[:60]!r} is not valid Unicode: {error.reason}") from None
    return text


def _files(path: Path, split: str | None) -> list[Path]:
    """The files of a data set, in order."""
    if path.is_dir():
        if (path / "dataset_dict.json").exists():
            splits = read_json(path / "dataset_dict.json").get("splits", [])
            return _saved_files(path / _chosen(path, splits, split))
        if (path / "state.json").exists():
            name = read_json(path / "state.json").get("_split")
            if split is not None and split != name:
                raise ValueError(f"split: {path.name} holds {name!r} alone, not {split!r}")
            return _saved_files(path)
        return _parquet_files(path, split)
    if not path.exists():
        raise ValueError(f"path: {path} does not exist")
    if path.suffix not in (*_JSON_LINES, ".parquet"):
        raise ValueError(
            f"path: {path.name!r} is no folder and ends in none of .jsonl, .ndjson, .parquet"
        )
    if split is not None:
        raise ValueError(f"split: {path.name!r} is one file and has no splits, asked for {split!r}")
    return [path]


def _saved_files(folder: Path) -> list[Path]:
    state = read_json(folder / "state.json")
    if state.get("_indices_data_files"):
        raise ValueError(f"{folder.name}: saved with an indices mapping; save it flattened")
    return [folder / each["filename"] for each in state.get("_data_files", [])]


def _parquet_files(folder: Path, split: str | None) -> list[Path]:
    """Parquet files of a folder and those below it, of one split."""
    by_split: dict[str, list[Path]] = {}
    for file in sorted(folder.rglob("*.parquet")):
        inside = file.relative_to(folder)
        if not any(part.startswith(".") for part in inside.parts):
            by_split.setdefault(_split_of(inside), []).append(file)
    if not by_split:
        raise ValueError(
            f"path: {folder.name!r} holds no Parquet files, and `save_to_disk` did not write it"
        )
    return by_split[_chosen(folder, list(by_split), split)]


def _split_of(file: Path) -> str:
    """What the name of a file, or of a folder above it, says: train-00000-of-00002, test."""
    shard = _SHARD.fullmatch(file.stem)
    if shard:
        return shard[1]
    for name in (file.stem, *file.parts[-2::-1]):
        named = _SPLIT_NAMES.match(name)
        if named:
            return named[1]
    return "(no split in its name)"


def _chosen(path: Path, splits: Sequence[str], split: str | None) -> str:
    if split is None and len(splits) == 1:
        return splits[0]
    if split is None or split not in splits:
        wanted = "choose one" if split is None else f"not {split!r}"
        raise ValueError(f"split: {path.name} holds {', '.join(splits)}; {wanted}")
    return split


def _json_lines(path: Path, columns: Sequence[str] | None) -> Iterator[Row]:
    number = 0
    with open(path, "rb") as file:
        for line_number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            place = f"{path.name}, row {number}"
            try:
                record = json.loads(line.decode("utf-8-sig"))
            except ValueError as error:  # of the encoding, or of JSON
                raise ValueError(f"{place} (line {line_number}): not JSON: {error}") from error
            if not isinstance(record, dict):
                raise ValueError(
                    f"{place} (line {line_number}): a {type(record).__name__}, not a JSON object"
                )
            yield Row(place, record)
            number += 1


def _parquet(path: Path, columns: Sequence[str] | None) -> Iterator[Row]:
    from pyarrow import ArrowException, parquet

    try:
        with parquet.ParquetFile(path) as file:
            names = _column_names(path, file.schema_arrow.names, columns)
            yield from _batch_rows(path, file.iter_batches(batch_size=4096, columns=names))
    except (ArrowException, OSError) as error:
        raise ValueError(f"{path.name}: {error}") from error


def _arrow_stream(path: Path, columns: Sequence[str] | None) -> Iterator[Row]:
    import pyarrow
    from pyarrow import ipc

    try:
        with pyarrow.memory_map(str(path)) as source, ipc.open_stream(source) as stream:
            names = _column_names(path, stream.schema.names, columns)
            yield from _batch_rows(path, (batch.select(names) for batch in stream))
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path.name}: {error}") from error


def _batch_rows(path: Path, batches: Iterator[Any]) -> Iterator[Row]:
    number = 0
    for batch in batches:
        for record in batch.to_pylist():
            yield Row(f"{path.name}, row {number}", record)
            number += 1


def _column_names(path: Path, names: Sequence[str], columns: Sequence[str] | None) -> list[str]:
    """The top-level columns that hold what is asked for."""
    if columns is None:
        return list(names)
    tops = {column: column if column in names else column.split(".")[0] for column in columns}
    for column, top in tops.items():
        if top not in names:
            raise ValueError(f"{path.name}: no column {column!r}; columns: {', '.join(names)}")
    return list(dict.fromkeys(tops.values()))


_READERS = {
    **dict.fromkeys(_JSON_LINES, _json_lines),
    ".parquet": _parquet,
    ".arrow": _arrow_stream,
}
