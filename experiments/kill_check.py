"""Kills training runs at random moments, resumes them, and compares with runs nobody killed.

    python -m experiments.kill_check
    python -m experiments.kill_check --kills 3 --schedulers paced --iterations 40

The process is ended by SIGKILL, which it can neither see nor soften, a random number of iterations
and a random moment after it has gone on: amid a step, a log line, an evaluation, a checkpoint. When
it has been killed often enough it is left to finish, and must then be the same run: the last state
bit for bit, every group, and every figure but those that measure time.
"""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from experiments import command_line, run_folder
from experiments.run_equality import differences
from experiments.run_log import count_lines
from paced_jax.checkpoint import steps_of
from paced_jax.schedulers import PRESETS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Random kills of training runs."""

    kills: int = 20
    """In all, shared evenly by the schedulers."""
    schedulers: tuple[Annotated[str, command_line.one_of(PRESETS)], ...] = ("paced", "fade")
    """paced has V, its optimiser and replay in its state, fade a filter over all prompts."""
    iterations: int = 160
    """Of each run; a run that ends before it has been killed often enough is begun again."""
    longest: float = 1.0
    """Seconds after the iteration it is to reach at which a process is killed at the latest."""
    seed: int = 0
    """Of the moments."""
    out: Path | None = None
    """Folder to write to; runs/kill_check/<time> if not given."""

    def __post_init__(self) -> None:
        """Refuses a check of nothing, naming the field."""
        if len(set(self.schedulers)) != len(self.schedulers) or not self.schedulers:
            raise ValueError(f"schedulers must be distinct, at least one, got {self.schedulers}")
        if self.kills < len(self.schedulers):
            raise ValueError(
                f"kills must be at least {len(self.schedulers)}, one a scheduler, got {self.kills}"
            )
        if self.iterations < 4 or self.iterations % 4:
            raise ValueError(f"iterations must be a multiple of 4, got {self.iterations}")
        if not self.longest > 0:
            raise ValueError(f"longest must be positive, got {self.longest}")


SIZES = (
    *("--num-prompts", "8", "--num-train", "800", "--chunk", "2"),
    *("--watch.eval-every", "4", "--watch.checkpoint-every", "4"),
    *("--watch.eval-group-size", "1", "--watch.test-group-size", "1", "--watch.no-profile"),
)
"""Small steps, so that a kill may come upon any of the things a run does between them."""


class Trainer:
    """Runs of one scheduler, as processes.

    Args:
        folder: of the check.
        scheduler: of the runs.
        iterations: of each.
    """

    def __init__(self, folder: Path, scheduler: str, iterations: int):
        self._folder, self._options = folder, ["--scheduler", scheduler, *SIZES]
        self._options += ["--iterations", str(iterations)]
        # What one process has compiled the others load.
        self._environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled")}

    def start(self, out: Path) -> subprocess.Popen:
        """Starts a run, or goes on with it."""
        options = [*self._options, "--out", str(out)]
        if (out / "run" / "config.json").exists():
            options = ["--resume", str(out)]
        with (self._folder / f"{out.name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "experiments.train", *options],
                stdout=log,
                stderr=log,
                env=self._environment,
            )

    def finish(self, out: Path) -> None:
        """Runs to the end.

        Raises:
            RuntimeError: it ended otherwise.
        """
        if self.start(out).wait():
            raise RuntimeError(f"the run in {out} failed, see {self._folder / out.name}.log")


def kill_once(trainer: Trainer, out: Path, ahead: int, delay: float) -> dict[str, Any] | None:
    """Starts or resumes a run and kills it some time after it has gone on.

    Args:
        trainer: starts it.
        out: its folder.
        ahead: new lines it writes first.
        delay: seconds from then to the kill.

    Returns:
        Where it was killed; None if it had ended by itself.

    Raises:
        RuntimeError: it failed, or began again in place of going on from its checkpoint.
    """
    before, kept = count_lines(out / "run"), steps_of(out / "run" / "checkpoints")
    resume_at = kept[-1] if kept else 0
    earlier = log_before(out / "run", resume_at)
    process, opened = trainer.start(out), False
    # A resumed run first cuts its log to the checkpoint; from then on a longer log is progress.
    while process.poll() is None:
        lines = count_lines(out / "run")
        opened = opened or lines == resume_at or before == resume_at
        if opened and lines >= resume_at + ahead:
            break
        time.sleep(0.02)
    try:
        process.wait(delay)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
    # Lines tell the seconds they took: a run that began again would have written others.
    if log_before(out / "run", resume_at) != earlier:
        raise RuntimeError(f"the run in {out} did not go on from its checkpoint of {resume_at}")
    if process.returncode == -signal.SIGKILL:
        checkpoints = out / "run" / "checkpoints"
        return {
            "resumed_at": resume_at,
            "killed_after": count_lines(out / "run"),
            "last_checkpoint": (steps_of(checkpoints) or [0])[-1],
            "amid_a_checkpoint": any("tmp" in path.name for path in checkpoints.glob("*")),
        }
    if process.returncode:
        raise RuntimeError(f"the run in {out} failed with {process.returncode}")
    return None


def log_before(folder: Path, iteration: int) -> bytes:
    """The lines of the iterations before one, as they were written."""
    path = folder / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return b"".join(lines[:iteration])


def main(config: Config) -> dict[str, Any]:
    """Kills, resumes and compares.

    Args:
        config: how often.

    Returns:
        What results.json holds.

    Raises:
        RuntimeError: a resumed run differs from the one that nobody killed, or no run of a
            scheduler went on from a checkpoint.
    """
    folder = run_folder.open_folder("kill_check", config.out, config).absolute()
    rng = np.random.default_rng(config.seed)
    kills: list[dict[str, Any]] = []
    compared: list[dict[str, Any]] = []
    with run_folder.task("kill_check", config.kills) as advance:
        for number, scheduler in enumerate(config.schedulers):
            trainer = Trainer(folder, scheduler, config.iterations)
            advance(f"{scheduler}: the run nobody kills", 0)
            reference = folder / f"{scheduler}_straight"
            trainer.finish(reference)
            share = len(range(number, config.kills, len(config.schedulers)))
            spread = max(8, 2 * config.iterations // share)  # so that the kills span a run
            mine, attempt = 0, 0
            while mine < share:
                victim = folder / f"{scheduler}_killed_{attempt}"
                while mine < share:
                    ahead = int(rng.integers(1, spread + 1))
                    found = kill_once(trainer, victim, ahead, rng.uniform(0, config.longest))
                    if found is None:
                        break
                    mine += 1
                    kills.append({"run": victim.name, **found})
                    advance(f"{scheduler}: killed after {found['killed_after']} iterations", 1)
                trainer.finish(victim)
                compared.append(
                    {
                        "run": victim.name,
                        "scheduler": scheduler,
                        "kills": sum(kill["run"] == victim.name for kill in kills),
                        "resumes": sum(
                            kill["last_checkpoint"] > 0
                            for kill in kills
                            if kill["run"] == victim.name
                        ),
                        "differences": differences(reference / "run", victim / "run"),
                    }
                )
                attempt += 1
    results = run_folder.save_results(folder, config, {"kills": kills, "compared": compared})
    write(folder, results)
    run_folder.print_table("Killed and resumed", HEADER, rows(results))
    different = [entry["run"] for entry in compared if entry["differences"]]
    if different:
        raise RuntimeError(f"{different} differ from the runs that nobody killed, see {folder}")
    unchecked = [
        scheduler
        for scheduler in config.schedulers
        if not any(entry["resumes"] for entry in compared if entry["scheduler"] == scheduler)
    ]
    if unchecked:
        raise RuntimeError(
            f"no run of {unchecked} went on from a checkpoint, nothing was checked; see {folder}"
        )
    return results


HEADER = ("run", "kills", "from a checkpoint", "differences from the run nobody killed")


def rows(results: dict[str, Any]) -> list[tuple[Any, ...]]:
    """One line a run that was killed."""
    return [
        (entry["run"], entry["kills"], entry["resumes"], "; ".join(entry["differences"]) or "none")
        for entry in results["compared"]
    ]


def write(folder: Path, content: dict[str, Any]) -> Path:
    """Writes report.md of what results.json holds."""
    points = ("run", "resumed at", "killed after", "last whole checkpoint", "amid a checkpoint")
    return run_folder.write_report(
        folder,
        "Runs that were killed and resumed",
        [
            "Compared: every array of the last checkpoint bit for bit, every generated group, "
            "every line of both logs and the summary, but for names that end in `_seconds`.",
            run_folder.markdown_table(HEADER, rows(content)),
            "Where SIGKILL came, in iterations:",
            run_folder.markdown_table(points, [tuple(kill.values()) for kill in content["kills"]]),
        ],
        content["provenance"],
    )


if __name__ == "__main__":
    command_line.run(main, lambda: tyro.cli(Config, description=__doc__))
