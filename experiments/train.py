"""Trains a policy under any scheduler and objective: on digit skills, or a language model on text.

    python -m experiments.train --scheduler fade --iterations 200
    python -m experiments.train --scheduler mopps --objective grpo --admit drop_degenerate
    python -m experiments.train --policy base --num-prompts 64 --dry-run
    python -m experiments.train --policy smollm2 --scheduler fade
    python -m experiments.train --policy MODEL --prompts FILE.parquet --verifier math
    python -m experiments.train --resume runs/train/20261201-120000 --iterations 400

The sizes of a language model's run are those of `experiments.settings.SMOLLM2` unless told
otherwise. MODEL is a Hugging Face directory of the Llama or Qwen2 family, or a .gguf file.

The last goes on with a run that was ended, or lengthens one; its own options are then the defaults,
and only `iterations` may differ. A run leaves a folder with metrics (JSON lines and TensorBoard),
every generated group, checkpoints, the final policy's pass rates by skill and length, and the
trained weights.
"""

import argparse
import contextlib
import dataclasses
import shlex
import shutil
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import tyro

from experiments import command_line, live_run, run_folder, run_identity
from experiments.settings import SMOLLM2
from paced_jax import piece_timings, schedulers
from paced_jax.objectives import OBJECTIVES
from paced_jax.policy import language_model
from paced_jax.policy.base_policies import known_policies, save_base_policy
from paced_jax.policy.config import DecoderConfig
from paced_jax.policy.language_model import is_language_model
from paced_jax.tasks.named import TASKS
from paced_jax.training import Ground, Run, TrainConfig, prepare, rollouts_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(TrainConfig):
    """A training run."""

    scheduler: Annotated[str, command_line.one_of(schedulers.PRESETS)] = "paced"
    """Which prompts are trained on."""
    objective: Annotated[str, command_line.one_of(OBJECTIVES)] = "paced"
    """The loss."""
    task: Annotated[str, command_line.one_of(TASKS, "auto")] = "auto"
    """What the policy is asked; auto: digits for the shipped policies, and for a language model
    `prompts`, or arithmetic where there are none."""
    out: Path | None = None
    """Folder to write to; runs/train/<time> if not given."""
    resume: Path | None = None
    """Folder of a run that was ended, or is to have more iterations: go on from its last
    checkpoint, as if nothing had happened."""
    dry_run: bool = False
    """Print rollouts, tokens and the estimated time of the run, and stop."""
    watch: live_run.Watch = dataclasses.field(
        default_factory=lambda: live_run.Watch(eval_group_size=4, test_group_size=32, profile=True)
    )
    """What is looked at on the way."""

    def __post_init__(self) -> None:
        """Refuses a scheduler that a command line can't hand over."""
        super().__post_init__()
        if self.scheduler == "own":
            raise ValueError("scheduler: 'own' is for Python, see `training.prepare`")
        if self.resume is None:
            return
        if not (self.resume / "run" / "config.json").exists():
            raise ValueError(f"resume: there is no run in {self.resume}")
        if self.out not in (None, self.resume):
            raise ValueError(f"out: {self.out} has no effect with resume = {self.resume}")


def parse(arguments: Sequence[str] | None = None) -> Config:
    """Reads the command line; what --resume and --policy name decides the defaults.

    Args:
        arguments: those after the program's name; of this process by default.
    """
    reader = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    reader.add_argument("--resume", type=Path)
    reader.add_argument("--policy", default=Config.policy)
    known = reader.parse_known_args(arguments)[0]
    if known.resume is not None:
        default = stored(known.resume)
    elif known.policy not in known_policies() and is_language_model(known.policy):
        default = for_language_model(known.policy)
    else:
        default = Config()
    return tyro.cli(Config, args=arguments, default=default, description=__doc__)


def for_language_model(policy: str) -> Config:
    """What a language model's run is unless told otherwise: sizes that a laptop can bear."""
    setting = dataclasses.replace(SMOLLM2, policy=policy)
    looks = live_run.Watch(eval_batch=16, eval_group_size=2, test_group_size=8, checkpoint_every=10)
    return Config(**dataclasses.asdict(setting), watch=looks)


def stored(folder: Path) -> Config:
    """The configuration that goes on with the run in a folder.

    Raises:
        ValueError: there is none, or one of another format.
    """
    path = folder / "run" / "config.json"
    if not path.exists():
        raise ValueError(f"resume: there is no run in {folder}")
    content = run_folder.read_json(path)
    if content.get("format") != run_identity.FORMAT:
        raise ValueError(
            f"resume: {path} has format {content.get('format')!r}, wanted {run_identity.FORMAT}"
        )
    try:
        # How often to keep a state identifies no run; the folder's own file has it.
        looks = run_folder.read_json(folder / "config.json")["watch"]
        return Config(**content["run"], watch=live_run.Watch(**looks), resume=folder)
    except (KeyError, TypeError) as error:
        raise ValueError(f"resume: what {folder} holds is no configuration: {error}") from error


def training_part(config: TrainConfig) -> TrainConfig:
    """The fields that decide the run."""
    names = [field.name for field in dataclasses.fields(TrainConfig)]
    return TrainConfig(**{name: getattr(config, name) for name in names})


def estimate(bench: live_run.Bench, config: TrainConfig) -> dict[str, Any]:
    """Rollouts, tokens and time of a run, from one timed chunk of it.

    Args:
        bench: of its ground.
        config: of the run.

    Returns:
        JSON values.
    """
    run = prepare(config, bench.ground)
    key = jax.random.key(config.seed)
    pieces = piece_timings.piece_seconds(run, run.init(run.setup, key))
    timing = time_chunk(run)
    chunks = -(-config.iterations // config.chunk)
    looks = 1 + -(-config.iterations // bench.watch.eval_every)
    validation = len(run.pools.validation.skill) * bench.watch.eval_group_size
    test = len(run.pools.test.skill) * bench.watch.test_group_size
    per_rollout = time_evaluation(bench, run)
    return {
        "rollouts": rollouts_of(config),
        "tokens_expected": round(timing["tokens_per_iteration"] * config.iterations),
        "tokens_at_most": rollouts_of(config) * run.max_tokens,
        "evaluation_rollouts": looks * validation + test,
        "oracle_rollouts": (chunks + 1) * live_run.CELLS * bench.watch.oracle_rollouts
        if config.scheduler == "oracle"
        else 0,
        "compile_seconds": timing["compile_seconds"],
        "training_seconds": timing["chunk_seconds"] * chunks,
        "evaluation_seconds": per_rollout * (looks * validation + test),
        **pieces,
    }


def told_in_all(result: dict[str, Any]) -> str:
    """The estimate in a sentence."""
    parts = {name: result[f"{name}_seconds"] for name in ("compile", "training", "evaluation")}
    total = sum(parts.values())
    said = f"In all about {total / 60:.1f} minutes"
    if parts["evaluation"] > total / 2:
        said += (
            f", {parts['evaluation'] / total:.0%} of them for looking at held-out prompts: fewer"
            " with a larger --watch.eval-every, or a smaller --watch.eval-group-size or"
            " --watch.test-group-size"
        )
    return f"{said}."


def time_chunk(run: Run) -> dict[str, float]:
    """Compiles a chunk and times the second one: seconds, and tokens an iteration."""
    state = run.init(run.setup, jax.random.key(run.config.seed))
    step, compile_seconds = live_run.compiled_step(run, state)
    state, _ = step(run.setup, state)
    jax.block_until_ready(state)
    started = time.perf_counter()
    state, records = jax.block_until_ready(step(run.setup, state))
    return {
        "compile_seconds": compile_seconds,
        "chunk_seconds": time.perf_counter() - started,
        "tokens_per_iteration": float(np.mean(records.sample_metrics.tokens)),
    }


def time_evaluation(bench: live_run.Bench, run: Run) -> float:
    """Seconds of a rollout when the policy is looked at, compile time apart."""
    batch = jax.tree.map(lambda x: x[: bench.watch.eval_batch], run.pools.validation)
    for _ in range(2):
        started = time.perf_counter()
        live_run.evaluate_pool(
            bench,
            run.base.params,
            batch,
            jax.random.key(0),
            bench.watch.eval_group_size,
        )
    seconds = time.perf_counter() - started
    return seconds / (len(batch.skill) * bench.watch.eval_group_size)


def main(config: Config) -> dict[str, Any]:
    """Trains, or estimates what training would take.

    Args:
        config: of the run.

    Returns:
        The estimate, or the summary of the run.
    """
    training = training_part(config)
    run_identity.check_cadence(training, config.watch)
    if config.dry_run:
        run_folder.console.print(
            "Compiling and timing two chunks and every piece: a minute or so, some minutes with a"
            " language model."
        )
        with run_folder.console.status("compiling and timing"):
            with contextlib.closing(live_run.open_bench(training, config.watch)) as bench:
                result = estimate(bench, training)
        rows = [(_words(name), value) for name, value in result.items()]
        run_folder.print_table("This run would take", ("what", "value"), rows)
        run_folder.console.print(told_in_all(result))
        return result

    def check(folder: Path) -> None:
        if config.resume is None:
            run_identity.check_new([(training, folder / "run")], config.watch)
        else:
            run_identity.check_resumable(folder / "run", training, config.watch)
            planned = run_identity.iterations_of(folder / "run")
            if training.iterations < planned:
                raise ValueError(
                    f"iterations: {folder} has {planned}, got {training.iterations}; a run can only"
                    " be lengthened"
                )

    folder = run_folder.open_folder("train", config.resume or config.out, config, check)
    run_folder.console.print(
        f"{training.scheduler} / {training.objective}: {training.iterations} iterations of"
        f" {training.budget} rollouts; results in {folder}"
    )
    with (
        command_line.goes_on(lambda: how_to_go_on(folder)),
        run_folder.task("train", training.iterations) as advance,
        contextlib.closing(live_run.open_bench(training, config.watch)) as bench,
    ):
        (summary,) = live_run.execute(
            bench,
            training.scheduler,
            [training],
            [folder / "run"],
            advance,
            keep=partial(keep, folder, bench.ground, training),
            extend=config.resume is not None,
        )
    run_folder.save_results(folder, config, {"summary": summary})
    report(folder, summary)
    return summary


def how_to_go_on(folder: Path) -> str:
    """What goes on with a run that was ended."""
    if not (folder / "run" / "config.json").exists():
        return "nothing was trained yet, so the same command begins again"
    return f"python -m experiments.train --resume {shlex.quote(str(folder))} goes on"


def keep(folder: Path, ground: Ground, config: TrainConfig, policy: Any) -> None:
    """Writes the trained weights: policy.npz, or of a language model the directory `policy`."""
    if ground.model is None:
        decoder = DecoderConfig(**ground.base.metadata["decoder"])
        about = {"run": dataclasses.asdict(config)}
        save_base_policy(folder, "policy", decoder, policy, about, dtype="float32")
        return
    shutil.rmtree(folder / "policy", ignore_errors=True)  # of the run before it was lengthened
    language_model.save(folder / "policy", ground.model._replace(params=policy))


def report(folder: Path, summary: dict[str, Any]) -> None:
    """Prints and writes what the run came to."""
    curve, test = summary["validation"], summary["test"]
    header = ("what", "value")
    profiled = [piece for piece in piece_timings.PIECES if f"{piece}_seconds" in summary]
    rows = [
        ("rollouts", summary["rollouts"]),
        ("sampled tokens", summary["tokens"]),
        ("effective-group ratio", summary["informative_realised"]),
        ("effective-group ratio, as the tracker predicted", summary["informative_predicted"]),
        ("validation pass@1, start", curve[0]["pass_at_1"]),
        ("validation pass@1, end", curve[-1]["pass_at_1"]),
        *((f"test {run_folder.shown(name)}", test[name]) for name in test if _is_pass_at(name)),
        ("test distinct correct answers a prompt", test["distinct_correct"]),
        ("distinct prompts trained on", summary["distinct_prompts"]),
        ("mean beta KL of a step", _measured(summary["mean_beta_kl"])),
        ("greatest sampler / trainer log-prob gap", summary["greatest_log_prob_gap"]),
        ("mean entropy, nats", summary["mean_entropy"]),
        ("share of steps clipped", summary["mean_policy_clipped"]),
        ("mean replay age, steps", summary["mean_replay_age"]),
        ("seconds an iteration", summary["iteration_seconds"]),
        *((f"{piece} alone, seconds", summary[f"{piece}_seconds"]) for piece in profiled),
    ]
    run_folder.print_table("Trained", header, rows)
    skills = [(name[6:], test[name]) for name in test if name.startswith("skill/")]
    lengths = [(name[7:], test[name]) for name in test if name.startswith("length/")]
    run_folder.write_report(
        folder,
        f"Training under {summary['scheduler']}",
        [
            run_folder.markdown_table(header, rows),
            run_folder.markdown_table(("skill", "test pass@1"), skills),
            run_folder.markdown_table(("length", "test pass@1"), lengths),
        ],
    )


def _measured(figure: float | None) -> float | str:
    return "not measured" if figure is None else figure


def _words(name: str) -> str:
    """A figure's name for people; the seconds of a piece are those of one iteration."""
    piece = name.removesuffix("_seconds")
    if piece in piece_timings.PIECES:
        return f"{piece}, seconds an iteration"
    return name.replace("_", " ")


def _is_pass_at(name: str) -> bool:
    return name.startswith("pass_at_") and name.removeprefix("pass_at_").isdigit()


if __name__ == "__main__":
    command_line.run(main, parse)
