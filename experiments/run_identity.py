"""What identifies a live run, so that a finished one stands in for nothing but itself."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax

from experiments import run_folder
from paced_jax.training import TrainConfig

FORMAT = 7
"""Of the files of a run; raised whenever what they hold, or how runs are made, changes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Watch:
    """What is looked at while a policy trains; none of it is charged to the budget."""

    eval_every: int = 20
    """Iterations between two evaluations on the held-out validation prompts; whole chunks."""
    eval_group_size: int = 2
    """Rollouts of each validation prompt."""
    test_group_size: int = 8
    """Rollouts of each test prompt at the end; pass@k for k up to it."""
    eval_batch: int = 128
    """Prompts evaluated at once."""
    tensorboard: bool = True
    """Write TensorBoard event files as well."""
    profile: bool = False
    """Time every piece of an iteration on its own first; logged with the first iteration."""
    oracle_rollouts: int = 64
    """Rollouts of each skill and length that tell the oracle, every chunk."""
    checkpoint_every: int = 20
    """Iterations between two checkpoints, and one at the end; whole chunks."""

    def __post_init__(self) -> None:
        """Refuses sizes that measure nothing."""
        for field in dataclasses.fields(self):
            if field.type is int and getattr(self, field.name) < 1:
                raise ValueError(
                    f"{field.name} must be at least 1, got {getattr(self, field.name)}"
                )
        if self.oracle_rollouts % 8:
            raise ValueError(f"oracle_rollouts must be a multiple of 8, got {self.oracle_rollouts}")


def check_cadence(config: TrainConfig, watch: Watch) -> None:
    """Refuses to look between chunks, where nothing can be seen.

    Raises:
        ValueError: eval_every or checkpoint_every is not a multiple of the chunk.
    """
    for name in ("eval_every", "checkpoint_every"):
        if getattr(watch, name) % config.chunk:
            raise ValueError(
                f"watch.{name} must be a multiple of chunk = {config.chunk}, got"
                f" {getattr(watch, name)}"
            )


def look_due(watch: Watch, iterations: int, done: int) -> bool:
    """Whether a run of `iterations` is looked at once `done` are: regularly, and at its end."""
    return done % watch.eval_every == 0 or done >= iterations


def identity(config: TrainConfig, watch: Watch) -> dict[str, Any]:
    """What a stored run must have in common with a wanted one to stand in for it."""
    looks = dataclasses.asdict(watch)
    del looks["checkpoint_every"]  # changes no number
    return {
        "format": FORMAT,
        "run": dataclasses.asdict(config),
        "watch": looks,
        "jax": jax.__version__,
    }


def check_same(folder: Path, config: TrainConfig, watch: Watch) -> None:
    """Refuses a finished run of something else.

    Raises:
        ValueError: naming folder and first difference.
    """
    _compare(folder, identity(config, watch), ())


def check_resumable(folder: Path, config: TrainConfig, watch: Watch) -> None:
    """Refuses to go on with a run of something else; it may have other `iterations`.

    Raises:
        ValueError: naming folder and first difference.
    """
    if (folder / "config.json").exists():
        _compare(folder, identity(config, watch), ("iterations",))


def iterations_of(folder: Path) -> int:
    """Iterations that the run in a folder was to have; 0 where there is none."""
    path = folder / "config.json"
    return run_folder.read_json(path)["run"]["iterations"] if path.exists() else 0


def _compare(folder: Path, identity: dict[str, Any], free: tuple[str, ...]) -> None:
    stored = run_folder.read_json(folder / "config.json")
    wanted = json.loads(json.dumps(identity))
    for part in wanted:
        mine, theirs = wanted[part], stored.get(part)
        if isinstance(mine, dict) and isinstance(theirs, dict):
            names = [k for k in mine if theirs.get(k) != mine[k] and k not in free]
            if not names:
                continue
            detail = f" ({', '.join(names)})"
        elif theirs == mine:
            continue
        else:
            detail = ""
        raise ValueError(f"{folder} holds a run of another {part}{detail}; take another --out")


def seed_folder(folder: Path, method: str, seed: int) -> Path:
    """Folder of one run of a comparison."""
    return folder / "runs" / method / f"seed_{seed}"


def runs_of(
    folder: Path, setting: TrainConfig, methods: dict[str, dict[str, Any]], seeds: tuple[int, ...]
) -> dict[str, list[tuple[TrainConfig, Path]]]:
    """Configuration and folder of every run of a comparison, by method.

    Args:
        folder: of the experiment; runs go to `runs/<method>/seed_<seed>`.
        setting: what the methods have in common.
        methods: what each of them changes in it.
        seeds: of each.
    """
    return {
        name: [
            (
                dataclasses.replace(setting, seed=seed, **changes),
                seed_folder(folder, name, seed),
            )
            for seed in seeds
        ]
        for name, changes in methods.items()
    }


def check_methods(
    folder: Path,
    *,
    setting: TrainConfig,
    methods: dict[str, dict[str, Any]],
    seeds: tuple[int, ...],
    watch: Watch,
) -> None:
    """Refuses the folder of another comparison; arguments as `runs_of`, errors as `check_same`."""
    for runs in runs_of(folder, setting, methods, seeds).values():
        check_runs(runs, watch)


def check_new(runs: list[tuple[TrainConfig, Path]], watch: Watch) -> None:
    """Refuses a folder of something else, or of a run that was ended, before anything is written.

    Raises:
        ValueError: as `check_same`; or saying how to go on with the run.
    """
    check_runs(runs, watch)
    for _, folder in runs:
        if (folder / "config.json").exists() and not (folder / "summary.json").exists():
            raise ValueError(
                f"out: {folder} holds a run that was ended; --resume {folder.parent} goes on"
            )


def check_runs(runs: list[tuple[TrainConfig, Path]], watch: Watch) -> None:
    """Refuses a folder whose runs are of something else, before anything is written.

    Raises:
        ValueError: as `check_same`, and `check_resumable` for a run that has not ended.
    """
    for config, folder in runs:
        ended = (folder / "summary.json").exists()
        (check_same if ended else check_resumable)(folder, config, watch)
