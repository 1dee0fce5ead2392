"""Trains a policy and writes down how every rollout group ended: history.npz, for replays.

    python -m experiments.record_history --epochs --iterations 320 --num-train 1024
    python -m experiments.record_history --run runs/quickstart/demo/runs/uniform/seed_0

The second form converts a run that any live experiment has finished. The two histories in
`experiments/data/histories` were made by

    python -m experiments.record_history --policy tiny --epochs --num-train 1024 --chunk 32 \
        --policy-learning-rate 2e-4 --iterations 960 --out runs/record_tiny
    python -m experiments.record_history --policy base --epochs --num-train 1024 --chunk 32 \
        --policy-learning-rate 2e-4 --iterations 256 --out runs/record_base

The files say so themselves, under `command` in their meta.
"""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from experiments import command_line, live_run, run_folder, run_identity
from experiments.train import training_part
from fade_jax import calibration, histories, recording
from fade_jax.histories import History
from paced_jax.schedulers import PRESETS
from paced_jax.tasks.skill_pool import build_pool
from paced_jax.tasks.tokens import SKILLS
from paced_jax.training import TrainConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(TrainConfig):
    """A training run on the skill tasks, kept as a history."""

    scheduler: Annotated[str, command_line.one_of(PRESETS)] = "uniform"
    """Which prompts are trained on."""
    run: Path | None = None
    """Folder of a finished run (with groups.npz) to convert, instead of a new one."""
    out: Path | None = None
    """Folder to write to; a run finished there is not run again."""
    watch: live_run.Watch = dataclasses.field(
        default_factory=lambda: live_run.Watch(
            eval_every=160, eval_group_size=1, test_group_size=1, tensorboard=False
        )
    )
    """What is looked at on the way; of no use to the history."""

    def __post_init__(self) -> None:
        """Refuses options that a finished run has settled."""
        super().__post_init__()
        if self.scheduler == "own":
            raise ValueError("scheduler: 'own' is for Python, see `training.prepare`")
        if self.task_name != "digits":
            raise ValueError(
                f"task: histories are recorded of digit skills, not of {self.task_name!r}"
            )
        if self.run is None:
            return
        if not (self.run / "groups.npz").exists():
            raise ValueError(f"run: no groups.npz in {self.run}; not a finished run")
        for field in dataclasses.fields(TrainConfig):
            default = Config.__dataclass_fields__[field.name].default
            if getattr(self, field.name) != default:
                raise ValueError(f"{field.name}: has no effect with run = {self.run}")


def command_of(training: TrainConfig) -> str:
    """The command line that makes the same run again."""
    parts = ["python -m experiments.record_history"]
    for field in dataclasses.fields(TrainConfig):
        value = getattr(training, field.name)
        if value != Config.__dataclass_fields__[field.name].default:
            flag = f"--{field.name.replace('_', '-')}"
            if isinstance(value, bool):
                parts.append(flag if value else flag.replace("--", "--no-", 1))
            else:
                parts.append(f"{flag} {value}")
    return " ".join(parts)


def history_of(folder: Path) -> History:
    """Reads the history off a finished run.

    Args:
        folder: with config.json and groups.npz, as `live_run` leaves them.

    Returns:
        The history: step is the iteration, source the skill.

    Raises:
        ValueError: a run in another format.
    """
    stored = run_folder.read_json(folder / "config.json")
    if stored.get("format") != run_identity.FORMAT:
        raise ValueError(
            f"{folder} holds a run in format {stored.get('format')}, this reads"
            f" {run_identity.FORMAT}"
        )
    training = TrainConfig(**stored["run"])
    train = build_pool(training.pool_seed, num_train=training.num_train).train
    with np.load(folder / "groups.npz") as file:
        groups = {name: file[name] for name in ("prompt_ids", "successes", "trials", "stepped")}
    meta = {
        "run": stored["run"],
        "policy": training.policy,
        "group_size": training.group_size,
        "step": "iteration",
        "sources": list(SKILLS),
        "jax": stored["jax"],
        "command": command_of(training),
    }
    return recording.from_groups(**groups, text=train.text, source=train.skill, meta=meta)


def describe(history: History) -> dict[str, Any]:
    """What is in a history: sizes, and how pass rate and informative groups moved."""
    by_visit = histories.by_visit(history)
    last = int(by_visit.step.max())

    def at(step: int) -> dict[str, float]:
        rows = by_visit.step == step
        right, tried = by_visit.successes[rows], by_visit.trials[rows]
        return {
            "pass_rate": float(right.sum() / tried.sum()),
            "informative": calibration.effective_group_ratio(right, tried),
        }

    return {
        "prompts": len(history.prompt_key),
        "groups": len(history.step),
        "rollouts": int(history.trials.sum()),
        "iterations": int(history.step.max()) + 1,
        "last_policy_step": int(history.policy_step.max()),
        "most_visits": last + 1,
        "first_visits": at(0),
        "last_visits": at(last),
    }


def main(config: Config) -> dict[str, Any]:
    """Runs, or takes a finished run, and writes its history.

    Args:
        config: of the run.

    Returns:
        What the history holds, and where it is.
    """
    run = config.run
    if run is None:
        training = training_part(config)
        run_identity.check_cadence(training, config.watch)
        folder = run_folder.open_folder(
            "record_history",
            config.out,
            config,
            lambda folder: run_identity.check_runs([(training, folder / "run")], config.watch),
        )
        run_folder.console.print(
            f"{training.policy} under {training.scheduler}: {training.iterations} iterations of"
            f" {training.budget} rollouts; writing to {folder}"
        )
        run = folder / "run"
        with (
            command_line.same_command(folder),
            run_folder.task("record", training.iterations) as advance,
        ):
            bench = live_run.open_bench(training, config.watch)
            live_run.execute(bench, training.scheduler, [training], [run], advance)
    else:
        folder = run_folder.open_folder("record_history", config.out, config)
    history = history_of(run)
    path = folder / "history.npz"
    histories.save_history(path, history)
    summary = describe(history)
    run_folder.save_results(folder, config, {"history": summary})
    first, last = summary.pop("first_visits"), summary.pop("last_visits")
    rows = [(name.replace("_", " "), value) for name, value in summary.items()]
    rows += [(f"{name} at first visits", value) for name, value in first.items()]
    rows += [(f"{name} at last visits", value) for name, value in last.items()]
    run_folder.print_table(f"{path}, {path.stat().st_size / 1000:.0f} kB", ("what", "value"), rows)
    return summary | {"first_visits": first, "last_visits": last, "path": str(path)}


if __name__ == "__main__":
    command_line.run(main, lambda: tyro.cli(Config, description=__doc__))
