"""A recorded run and its `replay_history`: what experiments that go on from one begin with."""

import dataclasses
from pathlib import Path
from typing import Any

from experiments import run_folder
from experiments.replay_table import HISTORIES, Table, read_table

REPLAYED = Path(__file__).resolve().parent / "results" / "replay_recorded_tiny"

PATHS = ("replayed", "history", "prompts")
"""Fields that say where files lie, not what they hold."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayedRun:
    """A recorded run and what was fitted on it; the head of such an experiment's Config."""

    replayed: Path = REPLAYED
    """Folder of replay_history with the fits of the same run; that of the shipped tiny run if not
    given."""
    history: Path | None = None
    """What was replayed there; the shipped run if not given."""
    prompts: Path | None = None
    """Its texts, where the history has none."""

    def check_files(self) -> None:
        """Checks the paths at the door.

        Raises:
            ValueError: naming the field.
        """
        if not (self.replayed / "results.json").exists():
            raise ValueError(f"replayed: no results.json in {self.replayed}")
        for name in ("history", "prompts"):
            path = getattr(self, name)
            if path is not None and not path.exists():
                raise ValueError(f"{name}: no such file: {path}")

    def read(self) -> tuple[Table, dict[str, Any]]:
        """The run, and the results of its replay.

        Raises:
            ValueError: they are of different runs; names what differs.
        """
        path = self.history or HISTORIES / "tiny_uniform.npz"
        table = read_table(path, self.prompts, seed=0, quick=False)  # nothing is simulated
        replayed = run_folder.read_json(self.replayed / "results.json")
        told = replayed["history"]
        mine = {
            "source": table.source,
            "prompts": table.trials.shape[1],
            "visits": len(table.trials),
            "group_size": table.group_size,
        }
        for name, value in mine.items():
            if told[name] != value:
                raise ValueError(
                    f"replayed: {self.replayed} is of a run whose {name} is {told[name]!r}, this"
                    f" one's is {value!r}"
                )
        return table, replayed
