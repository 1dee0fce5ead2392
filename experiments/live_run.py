"""Executes live training runs and keeps everything they did: shared by the live experiments.

What a run's folder holds, `run_log` says. A run that has ended is not run again; one that was ended
goes on from its last checkpoint, and comes out as if nothing had happened: bit for bit on the same
number of the same cores, since others add numbers in another order.
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

from experiments import run_folder, run_summary
from experiments.run_identity import (
    Watch,
    check_resumable,
    check_same,
    identity,
    iterations_of,
    look_due,
    runs_of,
)
from experiments.run_log import RunLog
from fade_jax import driver, faults
from fade_jax.driver import RunState
from paced_jax import evaluation, host_evaluation, piece_timings, run_metrics, schedulers
from paced_jax.checkpoint import Checkpoints, fingerprint
from paced_jax.tasks.cell_rates import cell_successes
from paced_jax.tasks.skill_pool import SkillPool
from paced_jax.tasks.skills import MAX_LENGTH, Problems
from paced_jax.tasks.tokens import SKILLS
from paced_jax.training import (
    Ground,
    Run,
    TrainConfig,
    base_rates,
    compile_step,
    prepare,
    prepare_ground,
)

CELLS = len(SKILLS) * MAX_LENGTH
"""Skills x lengths, each of which the oracle is told."""


@dataclasses.dataclass
class Bench:
    """Compiled functions that runs on one ground share."""

    ground: Ground
    watch: Watch
    evaluate: Callable[..., Any]
    cell_rates: Callable[..., Any]

    def close(self) -> None:
        """Ends the processes of the ground's verifier, if it has one."""
        self.ground.close()


def open_bench(config: TrainConfig, watch: Watch) -> Bench:
    """Loads policy and pools, and prepares what is compiled once for all methods."""
    ground = prepare_ground(config)
    rates = jax.jit(
        partial(
            cell_successes,
            ground.base.graphdef,
            num_prompts=watch.oracle_rollouts // 8,
            group_size=8,
        )
    )
    return Bench(ground, watch, make_evaluate(ground, watch), rates)


def make_evaluate(ground: Ground, watch: Watch) -> Callable[..., evaluation.Evaluation]:
    """`(policy, pool, key, group_size=G) -> Evaluation`, compiled, or judged on the host."""
    graphdef, task = ground.base.graphdef, ground.task
    if task.judge is not None:
        sampler = host_evaluation.make_sampler(
            graphdef, max_tokens=task.max_tokens, eos_id=task.eos_id
        )
        return partial(
            host_evaluation.evaluate,
            sampler,
            task.judge,
            batch_size=watch.eval_batch,
            eos_id=task.eos_id,
        )
    compiled = jax.jit(
        partial(evaluation.evaluate, graphdef, batch_size=watch.eval_batch, eos_id=task.eos_id),
        static_argnames=("group_size",),
    )

    def evaluate(policy, pool: SkillPool, key, *, group_size: int):
        problems = Problems(*(jnp.asarray(x) for x in pool[:4]))
        return compiled(policy, problems, key, group_size=group_size)

    return evaluate


def compiled_step(run: Run, state: RunState) -> tuple[driver.Step, float]:
    """Compiles a chunk of a run ahead of time; also for other seeds.

    Returns:
        (step, seconds it took).
    """
    started = time.perf_counter()
    return compile_step(run, state), time.perf_counter() - started


def execute(
    bench: Bench,
    label: str,
    configs: list[TrainConfig],
    folders: list[Path],
    advance: Callable[[str, int], None],
    keep: Callable[[Any], Any] = lambda policy: None,
    extend: bool = False,
) -> list[dict[str, Any]]:
    """Runs configurations that differ in nothing but the seed; they are compiled once.

    Args:
        bench: compiled functions of their ground.
        label: of the method, for people.
        configs: of the runs.
        folders: of each run; one that is finished is read, not run; one that was ended goes on.
        advance: `(what is happening, iterations just done)`, for a progress bar.
        keep: given the trained parameters of every run that was not finished before.
        extend: whether a finished run of fewer iterations goes on too.

    Returns:
        The summary of each run.
    """
    step = None
    summaries = []
    for config, folder in zip(configs, folders, strict=True):
        done = folder / "summary.json"
        longer = extend and config.iterations > iterations_of(folder)
        if done.exists() and not longer:
            check_same(folder, config, bench.watch)
            advance(f"{label}, seed {config.seed}: done before", config.iterations)
            summaries.append(run_folder.read_json(done))
            continue
        check_resumable(folder, config, bench.watch)
        run = prepare(config, bench.ground)
        state = run.init(run.setup, jax.random.key(config.seed))
        compile_seconds = 0.0
        with run_folder.alone(folder):
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


def _about(run: Run, watch: Watch) -> dict[str, Any]:
    """What a checkpoint must have in common with the run that goes on from it."""
    about = identity(run.config, watch)
    del about["run"]["iterations"]
    about["pool"] = fingerprint(array for pool in run.pools for array in pool)
    about["policy"] = fingerprint(jax.tree.leaves(run.base.params))
    return json.loads(json.dumps(about))


def _run_one(
    bench: Bench, run: Run, step, state, folder: Path, advance
) -> tuple[dict[str, Any], Any]:
    """Runs to the end, from the newest checkpoint where there is one."""
    config, watch = run.config, bench.watch
    train = run.pools.train
    labels, rates = {"length": train.length}, base_rates(run)
    if rates is not None:
        labels["base_pass_rate"] = rates
    tally = run_metrics.Tally(len(train.skill), labels)
    # The same for every method and seed, and far from what a run's own keys are folded with.
    evaluation_key = jax.random.fold_in(jax.random.key(config.pool_seed), 2**31 - 1)
    clock: dict[str, float] = {}

    def look(log: RunLog, state: RunState) -> None:
        began, iteration = time.perf_counter(), int(state.iteration)
        figures = evaluate_pool(
            bench,
            state.learner.params.policy,
            run.pools.validation,
            jax.random.fold_in(evaluation_key, iteration),
            watch.eval_group_size,
        )
        figures["rollouts"] = float(iteration * config.budget)
        figures["evaluation_seconds"] = time.perf_counter() - began
        log.look(iteration, figures)

    with Checkpoints(folder / "checkpoints", _about(run, watch)) as checkpoints:
        state = checkpoints.restore(state)
        resume_at = int(state.iteration)
        if not resume_at and (folder / "summary.json").exists():
            raise ValueError(
                f"checkpoints: {folder} has ended and has none to go on from; its log would be lost"
            )
        if resume_at > config.iterations:
            raise ValueError(
                f"iterations: {folder} has done {resume_at} already, got {config.iterations}"
            )
        advance(resume_at)
        with RunLog(folder, watch, tally, resume_at=resume_at, iterations=config.iterations) as log:
            if (folder / "config.json").exists():
                run_folder.console.print(
                    f"{folder} goes on from iteration {resume_at}", markup=False
                )
                _note_machine(folder)
            content = identity(config, watch) | {"machine": run_folder.machine()}
            run_folder.write_json(folder / "config.json", content)
            pieces = {}
            if not resume_at and watch.profile:
                pieces = piece_timings.piece_seconds(run, state)
            if look_due(watch, config.iterations, resume_at) and not log.looked:
                look(log, state)
            if not resume_at:
                state = _tell(bench, run, state)

            def between(state: RunState, records) -> RunState:
                spent = {"iteration_seconds": (time.perf_counter() - clock["began"]) / config.chunk}
                log.chunk(records, spent, pieces)
                if int(state.fault.kind) != faults.NONE:
                    return state  # looked at and kept when it was good; the driver raises
                done = int(state.iteration)
                if look_due(watch, config.iterations, done):
                    look(log, state)
                state = _tell(bench, run, state)
                if done % watch.checkpoint_every == 0 or done >= config.iterations:
                    checkpoints.save(state)
                advance(config.chunk)
                clock["began"] = time.perf_counter()
                return state

            clock["began"] = time.perf_counter()
            state = driver.run(
                step, run.setup, state, iterations=config.iterations, between=between
            )
            log.finish()

    policy = state.learner.params.policy
    key = jax.random.fold_in(evaluation_key, 2**30)
    test = evaluate_pool(bench, policy, run.pools.test, key, watch.test_group_size)
    return run_summary.of_run(folder, config, test, updates=int(state.updates)), policy


def _note_machine(folder: Path) -> None:
    """Says so where a run goes on elsewhere: sums round otherwise, its last bits may differ."""
    now = run_folder.machine()
    before = run_folder.read_json(folder / "config.json").get("machine", now)
    if before != now:
        run_folder.console.print(
            f"{folder} goes on with {now}, so far {before}: its last bits may differ", markup=False
        )


def evaluate_pool(bench: Bench, policy, pool: SkillPool, key, group_size: int) -> dict[str, float]:
    """Pass rates of a policy on held-out prompts, as `evaluation.summarise` names them."""
    result = bench.evaluate(policy, pool, key, group_size=group_size)
    return evaluation.summarise(
        jax.device_get(result),
        pool.skill,
        pool.length,
        skills=bench.ground.task.skills,
        rollouts=group_size,
    )


def _tell(bench: Bench, run: Run, state: RunState) -> RunState:
    """Tells the oracle how often each skill and length is solved now; others learn nothing."""
    if run.config.scheduler != "oracle":
        return state
    key = jax.random.fold_in(jax.random.key(run.config.seed + 2**20), int(state.iteration))
    rates = bench.cell_rates(state.learner.params.policy, key).mean(axis=2) / 8
    train = run.pools.train
    told = schedulers.tell_oracle(state.tracker, rates, train.skill, train.length)
    return state._replace(tracker=told)
