"""What a live run writes while it goes on, and reads back to go on or to be summed up.

    config.json               what identifies the run
    metrics.jsonl             a line an iteration
    evaluation/metrics.jsonl  a line each time the policy was evaluated
    tensorboard/ of both      the same as events
    groups/<iteration>.npz    every generated group since then; at the end groups.npz, one file
    checkpoints/<iteration>   see `paced_jax.checkpoint`
    summary.json              once the run has ended

Everything but the checkpoints is a log: a run that is resumed cuts what came after its checkpoint,
and a summary is computed from the files alone, whoever wrote which part of them.
"""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from experiments.run_identity import Watch, look_due
from paced_jax import metrics, run_metrics

GROUP_ARRAYS = ("prompt_ids", "successes", "trials", "predicted", "informative", "degenerate")
"""Of every slot [iterations, M]; groups.npz also has `stepped` [iterations], whether it learnt."""


def count_lines(folder: Path) -> int:
    """Iterations a run has logged so far, whoever is writing."""
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


class RunLog:
    """The log of one run, opened where the run goes on; a context manager.

    Args:
        folder: of the run.
        watch: says whether TensorBoard is written, and how often the run is looked at.
        tally: turns Records into lines; told what has been counted before.
        resume_at: iterations done; what the folder holds beyond them is cut, at 0 all of it.
        iterations: of the whole run.

    Attributes:
        looked: whether the log has the look at `resume_at`, where one is due.

    Raises:
        ValueError: the folder holds less than that; nothing is changed then.
    """

    def __init__(
        self,
        folder: Path,
        watch: Watch,
        tally: run_metrics.Tally,
        *,
        resume_at: int,
        iterations: int,
    ):
        self.folder, self._tally = folder, tally
        lines, earlier, looks = _before(folder, resume_at, watch.eval_every)
        if lines:
            tally.resume(earlier["prompt_ids"], lines[-1])
        _set_groups(folder, earlier)
        (folder / "summary.json").unlink(missing_ok=True)
        self._lines = metrics.open_writers(
            folder, tensorboard=watch.tensorboard, resume_at=resume_at
        )
        # A look at the end of a shorter run is none of a longer run's, unless it was due.
        due = resume_at > 0 and look_due(watch, iterations, resume_at)
        self.looked = due and resume_at in looks
        self._looks = metrics.open_writers(
            folder / "evaluation", tensorboard=watch.tensorboard, resume_at=resume_at + due
        )

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(self, *error: object) -> None:
        self._lines.close()
        self._looks.close()

    def chunk(
        self, records: Any, seconds: dict[str, float], pieces: dict[str, float] | None = None
    ) -> None:
        """Writes the lines and groups of a chunk.

        Args:
            records: Records on the host, [C] first.
            seconds: figures of each of its lines; their names end in `_seconds`.
            pieces: figures of the run's first line alone; likewise.
        """
        for iteration, figures in self._tally.figures(records):
            once = pieces or {} if iteration == 0 else {}
            self._lines.write(iteration, figures | seconds | once)
        arrays = {
            name: np.asarray(getattr(_home(records, name), name))[records.live]
            for name in GROUP_ARRAYS
        }
        arrays["stepped"] = np.asarray(records.learn.stepped)[records.live]
        if len(arrays["stepped"]):
            start = int(records.iteration[records.live][0])
            _save_arrays(self.folder / "groups" / f"{start:08d}.npz", arrays)

    def look(self, iteration: int, figures: dict[str, float]) -> None:
        """Writes the line of an evaluation."""
        self._looks.write(iteration, figures)

    def finish(self) -> None:
        """Makes one file of the groups."""
        _save_arrays(self.folder / "groups.npz", read_groups(self.folder))
        shutil.rmtree(self.folder / "groups", ignore_errors=True)


def _home(records: Any, name: str) -> Any:
    return records.observation if hasattr(records.observation, name) else records


def _save_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes an npz in one move."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".npz.tmp")
    with temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)  # pyright: ignore[reportArgumentType]
    os.replace(temporary, path)


def _load_arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return {name: file[name] for name in (*GROUP_ARRAYS, "stepped")}


def read_groups(folder: Path) -> dict[str, np.ndarray]:
    """Every group a run has logged so far, in order.

    Args:
        folder: of the run.

    Returns:
        Arrays [iterations, M] by the names of GROUP_ARRAYS, and `stepped` [iterations]; no names
        before the first chunk.
    """
    whole, parts = folder / "groups.npz", []
    if whole.exists():
        parts.append(_load_arrays(whole))
    done = len(parts[0]["stepped"]) if parts else 0
    # Parts that are in groups.npz already are what a crash between two moves has left.
    for path in sorted((folder / "groups").glob("*.npz")):
        if int(path.stem) >= done:
            parts.append(_load_arrays(path))
    names = parts[0] if parts else ()
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Lines of a log; none where it has not been begun."""
    return metrics.read_json_lines(path) if path.exists() else []


def _before(
    folder: Path, iteration: int, eval_every: int
) -> tuple[list[dict[str, Any]], dict[str, np.ndarray], list[int]]:
    """Lines and groups of the iterations before one, and when it was looked at; changes nothing.

    Raises:
        ValueError: some are missing.
    """
    if not iteration:
        return [], {}, []
    lines = read_lines(folder / "metrics.jsonl")
    lines = [line for line in lines if line["iteration"] < iteration]
    groups = {name: array[:iteration] for name, array in read_groups(folder).items()}
    looks = [look["iteration"] for look in read_lines(folder / "evaluation" / "metrics.jsonl")]
    found = {
        "metrics.jsonl": (len(lines), iteration),
        "groups": (len(groups.get("stepped", ())), iteration),
        "evaluation/metrics.jsonl": (
            sum(look < iteration for look in looks),
            -(-iteration // eval_every),
        ),
    }
    wrong = [
        f"{name} has {has} before it, not {due}" for name, (has, due) in found.items() if has != due
    ]
    if wrong:
        raise ValueError(
            f"{folder}: the checkpoint is of iteration {iteration}; {', '.join(wrong)}"
        )
    return lines, groups, looks


def _set_groups(folder: Path, groups: dict[str, np.ndarray]) -> None:
    """Leaves these groups and no others."""
    if groups:
        _save_arrays(folder / "groups.npz", groups)
    else:
        (folder / "groups.npz").unlink(missing_ok=True)
    shutil.rmtree(folder / "groups", ignore_errors=True)
