"""Executes live training runs and keeps everything they did: shared by the live experiments.

A run's folder holds `config.json`, `metrics.jsonl` (a line an iteration) and
`evaluation/metrics.jsonl` (a line each time the policy was evaluated), both also as TensorBoard
events, `groups.npz` (every generated group: prompt, prediction, outcome) and, once it has ended,
`summary.json`; a folder with that file is not run again.
"""

import dataclasses
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import run_folder
from experiments.run_identity import Watch, check_same, identity, runs_of
from fade_jax import calibration, driver
from fade_jax.driver import RunState
from paced_jax import evaluation, metrics, piece_timings, run_metrics, schedulers
from paced_jax.tasks.cell_rates import cell_successes
from paced_jax.tasks.skill_pool import SkillPool
from paced_jax.tasks.skills import MAX_LENGTH, Problems
from paced_jax.tasks.tokens import SKILLS
from paced_jax.training import Ground, Run, TrainConfig, base_rates, prepare, prepare_ground

GROUP_ARRAYS = ("prompt_ids", "successes", "trials", "predicted", "informative", "degenerate")
"""Of every slot [iterations, M]; groups.npz also has `stepped` [iterations], whether it learnt."""

CELLS = len(SKILLS) * MAX_LENGTH
"""Skills x lengths, each of which the oracle is told."""

LEARNT = ("beta_kl", "log_prob_gap", "entropy", "policy_clipped", "partition_clipped", "replay_age")
"""Figures of a step whose means over the run go into its summary."""


@dataclasses.dataclass
class Bench:
    """Compiled functions that runs on one ground share."""

    ground: Ground
    watch: Watch
    evaluate: Callable[..., Any]
    cell_rates: Callable[..., Any]


def open_bench(config: TrainConfig, watch: Watch) -> Bench:
    """Loads policy and pools, and prepares what is compiled once for all methods."""
    ground = prepare_ground(config)
    evaluate = jax.jit(
        partial(evaluation.evaluate, ground.base.graphdef, batch_size=watch.eval_batch),
        static_argnames=("group_size",),
    )
    rates = jax.jit(
        partial(
            cell_successes,
            ground.base.graphdef,
            num_prompts=watch.oracle_rollouts // 8,
            group_size=8,
        )
    )
    return Bench(ground, watch, evaluate, rates)


def compiled_step(run: Run, state: RunState) -> tuple[driver.Step, float]:
    """Compiles a chunk of a run ahead of time; also for other seeds.

    Returns:
        (step, seconds it took).
    """
    started = time.perf_counter()
    step: Any = driver.compile_step(run.make, chunk=run.config.chunk)
    return step.lower(run.setup, state).compile(), time.perf_counter() - started


def execute(
    bench: Bench,
    label: str,
    configs: list[TrainConfig],
    folders: list[Path],
    advance: Callable[[str, int], None],
    keep: Callable[[Any], Any] = lambda policy: None,
) -> list[dict[str, Any]]:
    """Runs configurations that differ in nothing but the seed; they are compiled once.

    Args:
        bench: compiled functions of their ground.
        label: of the method, for people.
        configs: of the runs.
        folders: of each run; one that is finished is read, not run.
        advance: `(what is happening, iterations just done)`, for a progress bar.
        keep: given the trained parameters of every run that was not finished before.

    Returns:
        The summary of each run.
    """
    step = None
    summaries = []
    for config, folder in zip(configs, folders, strict=True):
        done = folder / "summary.json"
        if done.exists():
            check_same(folder, config, bench.watch)
            advance(f"{label}, seed {config.seed}: done before", config.iterations)
            summaries.append(json.loads(done.read_text()))
            continue
        run = prepare(config, bench.ground)
        state = run.init(run.setup, jax.random.key(config.seed))
        compile_seconds = 0.0
        if step is None:
            advance(f"{label}: compiling", 0)
            step, compile_seconds = compiled_step(run, state)
        summary, policy = _run_one(
            bench, run, step, state, folder, partial(advance, f"{label}, seed {config.seed}")
        )
        keep(policy)
        summary["compile_seconds"] = compile_seconds
        run_folder.write_json(done, summary)
        summaries.append(summary)
        if not run_folder.console.is_terminal:  # where no progress bar shows
            run_folder.console.print(
                f"{label}, seed {config.seed}: effective groups"
                f" {summary['informative_realised']:.3f}, validation pass rate"
                f" {summary['validation'][-1]['pass_at_1']:.3f}"
            )
    return summaries


def execute_methods(
    bench: Bench,
    folder: Path,
    setting: TrainConfig,
    methods: dict[str, dict[str, Any]],
    seeds: tuple[int, ...],
) -> dict[str, list[dict[str, Any]]]:
    """Runs every method on every seed, under a progress bar.

    Args:
        bench: compiled functions of the setting's ground.
        folder: of the experiment; runs go to `runs/<method>/seed_<seed>`.
        setting: what the methods have in common.
        methods: what each of them changes in it.
        seeds: of each.

    Returns:
        The summaries of every seed by method.
    """
    planned, runs = runs_of(folder, setting, methods, seeds), {}
    total = len(methods) * len(seeds) * setting.iterations
    with run_folder.task(folder.name, total) as advance:
        for name, each in planned.items():
            configs, folders = map(list, zip(*each, strict=True))
            runs[name] = execute(bench, name, configs, folders, advance)
    return runs


def _run_one(
    bench: Bench, run: Run, step, state, folder: Path, advance
) -> tuple[dict[str, Any], Any]:
    config, watch = run.config, bench.watch
    folder.mkdir(parents=True, exist_ok=True)
    run_folder.write_json(folder / "config.json", identity(config, watch))
    train = run.pools.train
    tally = run_metrics.Tally(
        len(train.skill), {"length": train.length, "base_pass_rate": base_rates(run)}
    )
    # The same for every method and seed, and far from what a run's own keys are folded with.
    evaluation_key = jax.random.fold_in(jax.random.key(config.pool_seed), 2**31 - 1)
    groups: dict[str, list[np.ndarray]] = {name: [] for name in (*GROUP_ARRAYS, "stepped")}
    curve: list[dict[str, float]] = []
    learnt: list[dict[str, float]] = []
    clock: dict[str, Any] = {"evaluation": 0.0, "oracle": 0.0, "chunks": []}
    piece_seconds = piece_timings.piece_seconds(run, state) if watch.profile else {}

    with (
        metrics.open_writers(folder, tensorboard=watch.tensorboard, resume_at=0) as writers,
        metrics.open_writers(
            folder / "evaluation", tensorboard=watch.tensorboard, resume_at=0
        ) as evaluation_writers,
    ):

        def look(state: RunState, iteration: int) -> None:
            started = time.perf_counter()
            figures = evaluate_pool(
                bench,
                state.learner.params.policy,
                run.pools.validation,
                jax.random.fold_in(evaluation_key, iteration),
                watch.eval_group_size,
            )
            figures["rollouts"] = float(iteration * config.budget)
            evaluation_writers.write(iteration, figures)
            curve.append({"iteration": iteration, **figures})
            clock["evaluation"] += time.perf_counter() - started

        def between(state: RunState, records) -> RunState:
            seconds = time.perf_counter() - clock["started"]
            clock["chunks"].append(seconds)
            for iteration, figures in tally.figures(records):
                figures["iteration_seconds"] = seconds / config.chunk
                if iteration == 0:
                    figures |= piece_seconds
                writers.write(iteration, figures)
                learnt.append({key: figures.get(key, np.nan) for key in LEARNT})
            for key in GROUP_ARRAYS:
                source = records.observation if hasattr(records.observation, key) else records
                groups[key].append(np.asarray(getattr(source, key)))
            groups["stepped"].append(np.asarray(records.learn.stepped))
            done = int(state.iteration)
            if done % watch.eval_every == 0 or done >= config.iterations:
                look(state, done)
            advance(config.chunk)
            state = _tell(bench, run, state, clock)
            clock["started"] = time.perf_counter()
            return state

        advance(0)
        look(state, 0)
        state = _tell(bench, run, state, clock)
        clock["started"] = time.perf_counter()
        state = driver.run(step, run.setup, state, iterations=config.iterations, between=between)

    arrays = {key: np.concatenate(parts) for key, parts in groups.items()}
    np.savez_compressed(folder / "groups.npz", **arrays)  # pyright: ignore[reportArgumentType]
    test = evaluate_pool(
        bench,
        state.learner.params.policy,
        run.pools.test,
        jax.random.fold_in(evaluation_key, 2**30),
        watch.test_group_size,
    )
    summary = {
        **summarise(arrays),
        "scheduler": config.scheduler,
        "seed": config.seed,
        "rollouts": tally.rollouts,
        "tokens": tally.tokens,
        "distinct_prompts": int(tally.seen.sum()),
        "updates": int(state.updates),
        "validation": curve,
        "test": test,
        "iteration_seconds": float(np.median(clock["chunks"])) / config.chunk,
        "evaluation_seconds": clock["evaluation"],
        "oracle_seconds": clock["oracle"],
        **piece_seconds,
        **{f"mean_{key}": _mean([line[key] for line in learnt]) for key in LEARNT},
        "greatest_log_prob_gap": float(np.nanmax([0.0, *(x["log_prob_gap"] for x in learnt)])),
    }
    return summary, state.learner.params.policy


def _mean(values: list[float]) -> float | None:
    """Mean of what was measured; None where nothing was."""
    known = [x for x in values if not np.isnan(x)]
    return float(np.mean(known)) if known else None


def evaluate_pool(bench: Bench, policy, pool: SkillPool, key, group_size: int) -> dict[str, float]:
    """Pass rates of a policy on held-out prompts, as `evaluation.summarise` names them."""
    problems = Problems(*(jnp.asarray(x) for x in pool[:4]))
    result = bench.evaluate(policy, problems, key, group_size=group_size)
    return evaluation.summarise(jax.device_get(result), pool.skill, pool.length)


def _tell(bench: Bench, run: Run, state: RunState, clock) -> RunState:
    """Tells the oracle how often each skill and length is solved now; others learn nothing."""
    if run.config.scheduler != "oracle":
        return state
    started = time.perf_counter()
    key = jax.random.fold_in(jax.random.key(run.config.seed + 2**20), int(state.iteration))
    rates = bench.cell_rates(state.learner.params.policy, key).mean(axis=2) / 8
    train = run.pools.train
    told = schedulers.tell_oracle(state.tracker, rates, train.skill, train.length)
    clock["oracle"] += time.perf_counter() - started
    return state._replace(tracker=told)


def summarise(groups: dict[str, np.ndarray]) -> dict[str, float]:
    """How well a run's choices and predictions did; every group weighs the same.

    Args:
        groups: arrays [iterations, M] by the names of GROUP_ARRAYS.

    Returns:
        Effective-group ratio realised and predicted, Brier and calibration errors of
        P(informative) with the noise floor, the error of p_hat.
    """
    used = groups["trials"] > 0
    flag = (~groups["degenerate"][used]).astype(float)
    informative = np.clip(groups["informative"][used].astype(float), 0, 1)
    rate = groups["successes"][used] / groups["trials"][used]
    predicted = groups["predicted"][used]
    square = calibration.unbiased_squared_error(
        predicted.astype(float), groups["successes"][used], groups["trials"][used]
    )
    return {
        "groups": int(used.sum()),
        "informative_realised": float(flag.mean()),
        "informative_predicted": float(informative.mean()),
        "informative_brier": calibration.brier(informative, flag),
        "informative_ece": calibration.expected_calibration_error(informative, flag),
        "informative_ece_floor": calibration.ece_noise_floor(informative),
        "pass_rate_generated": float(rate.mean()),
        "pass_rate_rmse": float(np.sqrt(max(float(np.mean(square)), 0.0))),
        "pass_rate_bias": float((predicted - rate).mean()),
    }
