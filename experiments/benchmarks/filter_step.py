"""How long one step of the filter takes, beside a bare matrix product and beside other libraries.

The step is what a trainer pays each iteration: age the belief (predict), absorb 128 rollout groups
(update, rule `adf`), score every prompt of the pool by the closed-form chance that its next group
is informative, and pick the top 128; one compiled function through the public tracker, its state
donated. The product is `[N, K] x [K, K]`, row-major: the least that any linear model of the pool
costs. Both are timed in turn, in the same run. With the `bench` extra installed, cuthbert and
dynamax run a pool job that they can express too.

    python -m experiments.benchmarks.filter_step --help
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from experiments import command_line
from experiments.benchmarks import filter_step_report, peers
from experiments.benchmarks.timing import interleave, summary
from experiments.run_folder import open_folder, progress, save_results
from fade_jax import ability_difficulty, hyperparameters
from fade_jax.hyperparameters import Hyperparameters
from fade_jax.pool_loadings import PoolLoadings, lay_out
from fade_jax.top import largest
from fade_jax.types import Info, Observation

PARTS = ("call", "predict", "update", "score", "top")


@dataclass(frozen=True, kw_only=True)
class Config:
    """What to time.

    Attributes:
        prompts: N, prompts in the pool.
        skills: K, loadings a prompt.
        batch: rollout groups absorbed per step.
        group_size: rollouts a group.
        chosen: prompts picked by the step.
        repetitions: timed runs of the step and of the product; larger pools take fewer.
        other_prompts: pool sizes to time beside.
        other_skills: numbers of skills to time beside.
        peers: whether to run the other libraries that are installed.
        peer_steps: steps of the pool job.
        peer_repetitions: timed runs of the pool job.
        seed: of loadings, outcomes and the order of the runs.
        quick: a small pool and few repetitions, to see that everything runs.
        out: folder of the results; `runs/filter_step/<UTC time>` if not given.
    """

    prompts: int = 40_315
    skills: int = 16
    batch: int = 128
    group_size: int = 8
    chosen: int = 128
    repetitions: int = 3_000
    other_prompts: tuple[int, ...] = (17_000, 1_000_000)
    other_skills: tuple[int, ...] = (8, 32)
    peers: bool = True
    peer_steps: int = 50
    peer_repetitions: int = 11
    seed: int = 0
    quick: bool = False
    out: Path | None = None

    def __post_init__(self) -> None:
        for name in ("prompts", "skills", "batch", "chosen", "repetitions", "peer_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 2 <= self.group_size <= 64:
            raise ValueError(f"group_size must be in 2..64, got {self.group_size}")
        for name in ("batch", "chosen"):
            if getattr(self, name) > min((self.prompts, *self.other_prompts)):
                raise ValueError(
                    f"{name} must not exceed the smallest pool, got {getattr(self, name)}"
                )

    def shortened(self) -> "Config":
        """The same job in a few seconds."""
        return replace(
            self,
            prompts=min(self.prompts, 4_000),
            skills=min(self.skills, 4),
            other_prompts=(),
            other_skills=(),
            batch=min(self.batch, 32),
            chosen=min(self.chosen, 32),
            repetitions=min(self.repetitions, 50),
            peer_steps=min(self.peer_steps, 5),
            peer_repetitions=min(self.peer_repetitions, 3),
        )


class Pool(NamedTuple):
    """Arguments of the step, all on the device.

    Attributes:
        loadings: [N, K] as the product reads them.
        laid_out: the same as the filter reads them.
        hyper: hyperparameters.
        batches: outcomes to cycle through.
    """

    loadings: jax.Array
    laid_out: PoolLoadings
    hyper: Hyperparameters
    batches: list[Observation]


def make_pool(config: Config) -> Pool:
    """Random whitened loadings, and outcomes of prompts whose pass rates are uniform."""
    rng = np.random.default_rng(config.seed)
    scale = np.float32(1 / np.sqrt(config.skills))
    loadings = scale * rng.standard_normal((config.prompts, config.skills), np.float32)
    trials = np.full(config.batch, config.group_size, np.float32)
    batches = []
    for _ in range(8):
        ids = rng.choice(config.prompts, config.batch, replace=False).astype(np.int32)
        successes = rng.binomial(config.group_size, rng.uniform(size=config.batch))
        rows = Observation(*map(jnp.asarray, (ids, successes.astype(np.float32), trials)))
        batches.append(rows)
    hyper = jax.device_put(hyperparameters.default(config.skills))
    device_loadings = jnp.asarray(loadings)
    return Pool(device_loadings, lay_out(device_loadings), hyper, batches)


class StepOutput(NamedTuple):
    """What a step, or the first parts of one, returns.

    Attributes:
        state: of the filter.
        info: of the update, if asked for.
        result: ids of the chosen prompts; the scores, where the step stops with them.
    """

    state: ability_difficulty.State
    info: Info | None = None
    result: jax.Array | None = None


def step(
    laid_out: PoolLoadings,
    hyper: Hyperparameters,
    state: ability_difficulty.State,
    observation: Observation,
    *,
    config: Config,
    last: str = "top",
    with_info: bool = False,
) -> StepOutput:
    """One step, up to and including the part `last` of `PARTS`."""
    reached = PARTS.index(last)
    tracker = ability_difficulty.build(laid_out, hyper)
    info = None
    if reached >= PARTS.index("predict"):
        state = tracker.predict(state, 1.0)
    if reached >= PARTS.index("update"):
        state, info = tracker.update(state, observation)
    info = info if with_info else None
    if reached < PARTS.index("score"):
        return StepOutput(state, info)
    scores = tracker.informative(state, config.group_size)
    if last == "score":
        return StepOutput(state, info, scores)
    return StepOutput(state, info, largest(scores, config.chosen))


def stepper(pool: Pool, config: Config, **options: Any) -> Callable[[], StepOutput]:
    """The compiled step as a function without arguments that carries its donated state along."""
    compiled = jax.jit(partial(step, config=config, **options), donate_argnames="state")
    build_state = jax.jit(lambda loadings, hyper: ability_difficulty.build(loadings, hyper).init())
    carried = {"state": build_state(pool.laid_out, pool.hyper), "calls": 0}

    def run() -> StepOutput:
        batch = pool.batches[carried["calls"] % len(pool.batches)]
        output = compiled(pool.laid_out, pool.hyper, carried["state"], batch)
        carried.update(state=output.state, calls=carried["calls"] + 1)
        return output

    return run


def product(pool: Pool) -> Callable[[], jax.Array]:
    """The bare matrix product, as a function without arguments."""
    weights = jnp.asarray(
        np.random.default_rng(0).standard_normal((pool.loadings.shape[1],) * 2), jnp.float32
    )
    compiled = jax.jit(jnp.matmul)
    return lambda: compiled(pool.loadings, weights)


def time_step(config: Config) -> dict[str, Any]:
    """Step and product in turn, at the sizes of `config`."""
    pool = make_pool(config)
    candidates = {"step": stepper(pool, config), "product": product(pool)}
    times, first = interleave(candidates, config.repetitions, config.seed)
    step_ms, product_ms = summary(times["step"]), summary(times["product"])
    return {
        "prompts": config.prompts,
        "skills": config.skills,
        "step_ms": step_ms,
        "product_ms": product_ms,
        "ratio_to_product": step_ms["median"] / product_ms["median"],
        "ratio_of_fastest": step_ms["min"] / product_ms["min"],
        "compile_seconds": first["step"],
    }


def time_parts(config: Config) -> dict[str, Any]:
    """What each part adds: medians of steps that stop early, differenced, so they sum to the step.

    `call` is what any call with these arguments costs. A step that also returns Info is beside:
    without it, XLA drops the log evidence.
    """
    pool = make_pool(config)
    candidates: dict[str, Callable[[], Any]] = {
        name: stepper(pool, config, last=name) for name in PARTS
    }
    candidates["with_info"] = stepper(pool, config, with_info=True)
    candidates["product"] = product(pool)
    times, first = interleave(candidates, config.repetitions, config.seed)
    medians = {name: float(np.median(values)) for name, values in times.items()}
    until = [0.0, *(medians[name] for name in PARTS)]
    return {
        "split_ms": {name: until[i + 1] - until[i] for i, name in enumerate(PARTS)},
        "split_step_ms": medians["top"],
        "split_product_ms": medians["product"],
        "step_with_info_ms": summary(times["with_info"]),
        "split_compile_seconds": first,
    }


def sized(config: Config, **changes: Any) -> Config:
    """The same job at another size, with as many repetitions as fit in a few seconds."""
    changed = replace(config, **changes)
    work = changed.prompts * changed.skills / (40_315 * 16)
    return replace(changed, repetitions=max(20, round(config.repetitions / 4 / max(1, work))))


def measure(config: Config) -> dict[str, Any]:
    """Everything there is to time, as results.json holds it."""
    loads = [os.getloadavg()[0]]
    with progress() as bar:
        others = [{"prompts": n} for n in config.other_prompts]
        others += [{"skills": k} for k in config.other_skills]
        task = bar.add_task("timing", total=3 + len(others))
        headline = time_step(config)
        bar.advance(task)
        parts = time_parts(sized(config))
        bar.advance(task)
        sizes = [headline]
        for changes in others:
            sizes.append(time_step(sized(config, **changes)))
            bar.advance(task)
        loads.append(os.getloadavg()[0])
        jobs = [
            peers.PoolJob(
                prompts=config.prompts, batch=config.batch, steps=config.peer_steps,
                trials=config.group_size,
            ),
            peers.PoolJob(
                prompts=min(1_000, config.prompts), batch=min(32, config.batch),
                steps=4 * config.peer_steps, trials=config.group_size,
            ),
        ]  # fmt: skip
        raced = peers.compare(jobs, config.seed, config.peer_repetitions) if config.peers else {}
        bar.advance(task)
    return {
        "prompts": config.prompts,
        "step_ms_median": headline["step_ms"]["median"],
        "product_ms_median": headline["product_ms"]["median"],
        "ratio_to_product": headline["ratio_to_product"],
        "compile_seconds": headline["compile_seconds"],
        "step_ms": headline["step_ms"],
        "product_ms": headline["product_ms"],
        **parts,
        "sizes": sizes,
        "peers": raced,
        "load_average": loads,
    }


def main(config: Config) -> dict[str, Any]:
    """Times, prints, and writes results.json, report.md and step.png.

    Args:
        config: what to time.

    Returns:
        The content of results.json.
    """
    folder = open_folder("filter_step", config.out, config)
    results = save_results(folder, config, measure(config.shortened() if config.quick else config))
    filter_step_report.show(folder, results)
    return results


if __name__ == "__main__":
    command_line.run(main, lambda: tyro.cli(Config, description=__doc__))
