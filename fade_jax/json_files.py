"""JSON of a file, or an error that names the file."""

import json
from pathlib import Path
from typing import Any


def read_json(path: Path) -> Any:
    """Reads a file of JSON.

    Args:
        path: of the file, UTF-8.

    Raises:
        ValueError: it is not there, cannot be read or is no JSON; names folder and file.

    Example:
        >>> read_json(Path("nowhere/config.json"))
        Traceback (most recent call last):
        ValueError: nowhere/config.json: [Errno 2] No such file or directory: 'nowhere/config.json'
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path.parent.name}/{path.name}: {error}") from error
