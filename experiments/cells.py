"""Finished cells of a long experiment, kept in its folder, so that what was ended goes on."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments import run_folder


def check(folder: Path, identity: dict[str, Any]) -> None:
    """Refuses a folder whose cells were made by something else; writes nothing.

    Args:
        folder: of the experiment.
        identity: what cells must have in common to stand in one table.

    Raises:
        ValueError: naming the differences.
    """
    mark = folder / "cells" / "identity.json"
    if not mark.exists():
        return
    stored, wanted = run_folder.read_json(mark), json.loads(json.dumps(identity))
    differ = [key for key in wanted if stored.get(key) != wanted[key]]
    if differ:
        raise ValueError(
            f"out: {folder} holds cells made with another {', '.join(differ)}; take another"
        )


class Cells:
    """Cells of a folder: `cells/<part>/<name>.json`; arguments and errors as `check`."""

    def __init__(self, folder: Path, identity: dict[str, Any]):
        check(folder, identity)
        self.folder = folder / "cells"
        self.folder.mkdir(parents=True, exist_ok=True)
        run_folder.write_json(self.folder / "identity.json", identity)

    def path(self, part: str, name: str) -> Path:
        """Where a cell is kept."""
        return self.folder / part / (name.replace("/", "_").replace(" ", "_") + ".json")

    def get(self, part: str, name: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The cell, computed if it is not there; `name` is one of its entries."""
        path = self.path(part, name)
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            run_folder.write_json(path, {"name": name, **compute()})
        return run_folder.read_json(path)
