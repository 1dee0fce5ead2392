"""One pool, on one device or several, in a process of its own; prints one line of JSON.

How many devices a process sees is fixed when jax starts, and memory is best measured in a fresh
one; so `pool_scale` and the tests run this by `run_job`. The step is that of a live run without
the policy: choose through a selector, absorb the outcomes, let one step pass; state donated.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.memory import peak_bytes
from experiments.benchmarks.timing import interleave, summary
from fade_jax import ability_difficulty, driver, faults, hyperparameters, sharded_pool
from fade_jax.hyperparameters import Hyperparameters
from fade_jax.pool_loadings import PoolLoadings, lay_out
from fade_jax.run_state import RunState
from fade_jax.selectors import thompson, top_m, weighted
from fade_jax.simulation import closed_loop
from fade_jax.trackers import discounted_beta
from fade_jax.types import Observation, Scheduler, Selection

GROUP_SIZE = 8
SELECTORS = {"top_m": top_m.build, "weighted": weighted.build, "thompson": thompson.build}
COLLECTIVES = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to run.

    Attributes:
        devices: 0 for the plain program, without a mesh; else simulated devices of a mesh.
        num_prompts: N.
        skills: K.
        groups: chosen per step.
        steps: counted from a fresh pool; their choices are compared.
        repetitions: timed steps; 0 to time nothing.
        tracker: of the belief.
        selector: that chooses, with a tenth explored at random.
        seed: of loadings, choices and outcomes.
    """

    devices: int
    num_prompts: int
    skills: int = 4
    groups: int = 64
    steps: int = 4
    repetitions: int = 0
    tracker: Literal["fade", "discounted_beta"] = "fade"
    selector: Literal["top_m", "weighted", "thompson"] = "top_m"
    seed: int = 0


def run_job(job: Job) -> dict[str, Any]:
    """Runs a job in a fresh process on CPU and returns what it found."""
    flags = f"--xla_force_host_platform_device_count={max(job.devices, 1)}"
    done = subprocess.run(
        [sys.executable, "-m", "experiments.benchmarks.pool_scale_job", json.dumps(asdict(job))],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{job} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def scheduler(job: Job, loadings: PoolLoadings, hyper: Hyperparameters) -> Scheduler:
    """Tracker and selector of the job."""
    if job.tracker == "fade":
        tracker = ability_difficulty.build(loadings, hyper)
    else:
        tracker = discounted_beta.build(job.num_prompts)
    selector = SELECTORS[job.selector](
        tracker,
        num_prompts=job.num_prompts,
        budget=GROUP_SIZE * job.groups,
        group_size=GROUP_SIZE,
        exploration=0.1,
    )
    return Scheduler(tracker, selector)


def init(job: Job, loadings: PoolLoadings, hyper: Hyperparameters) -> RunState:
    """A fresh pool, in which all prompts score alike where nothing tells them apart."""
    tracker, selector, _ = scheduler(job, loadings, hyper)
    zero, key = jnp.int32(0), jax.random.key(job.seed)
    return RunState((), tracker.init(), selector.init(), (), key, zero, zero + 0, faults.none())


def outcomes_of(selection: Selection, key: jax.Array) -> Observation:
    """Groups of prompts whose pass rate is a hash of the id: no array of the pool is read."""
    mixed = selection.prompt_ids.astype(jnp.uint32) * jnp.uint32(2654435761)
    rates = mixed.astype(jnp.float32) / 2.0**32
    verdicts = jax.random.bernoulli(key, rates, (GROUP_SIZE, *rates.shape))
    successes = verdicts.sum(0).astype(jnp.float32)
    trials = selection.group_sizes.astype(jnp.float32)
    return Observation(selection.prompt_ids, jnp.minimum(successes, trials), trials)


def step(
    job: Job, driven: bool, loadings: PoolLoadings, hyper: Hyperparameters, state: RunState
) -> tuple[RunState, Any]:
    """One step; `driven` chooses as the driver does, which also reads what was believed."""
    plan = scheduler(job, loadings, hyper)
    if driven:
        choice = driver.choose(closed_loop.build(plan), state)
        chosen, selection = choice.selector, choice.rows.selection
        told = (choice.predicted, choice.informative, choice.select_info)
    else:
        key = jax.random.fold_in(state.key, state.iteration)
        chosen, selection, told = plan.selector.select(state.selector, state.tracker, key)
    key = jax.random.fold_in(jax.random.key(1), state.iteration)
    observation = outcomes_of(selection, key)
    seen, info = plan.tracker.update(state.tracker, observation)
    state = state._replace(
        tracker=plan.tracker.predict(seen, jnp.float32(1.0)),
        selector=plan.selector.observe(chosen, observation),
        iteration=state.iteration + 1,
    )
    return state, (selection, told, info)


def collectives(hlo: str) -> dict[str, int]:
    """Elements of the largest array that each kind of communication makes."""
    found: dict[str, int] = {}
    for line in hlo.splitlines():
        match = re.search(rf"= (.*?) ({COLLECTIVES})(-start)?\(", line)
        if match:
            shapes = re.findall(r"\w+\[([\d,]*)\]", match.group(1))
            sizes = [int(np.prod([int(n) for n in shape.split(",") if n])) for shape in shapes]
            found[match.group(2)] = max(found.get(match.group(2), 0), *sizes)
    return found


def digest(tree: Any) -> str:
    """SHA-256 of all bits of all arrays."""
    found = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        found.update(np.ascontiguousarray(leaf).tobytes())
    return found.hexdigest()


def cut(state: Any, num_prompts: int) -> Any:
    """A state whose arrays of the pool end at N: how far they are padded depends on the devices."""
    return jax.tree.map(
        lambda x: np.asarray(x)[:num_prompts] if x.ndim == 1 and x.size >= num_prompts else x, state
    )


def per_device(tree: Any) -> int:
    """Bytes of a tree on the device that holds most of it."""
    held: dict[Any, int] = {}
    for leaf in jax.tree.leaves(tree):
        for shard in leaf.addressable_shards:
            held[shard.device] = held.get(shard.device, 0) + shard.data.nbytes
    return max(held.values())


def set_up(job: Job) -> tuple[PoolLoadings, Hyperparameters, Callable[[], RunState]]:
    """Loadings and hyperparameters where they belong, and what makes a fresh state there."""
    rng = np.random.default_rng(job.seed)
    raw = rng.standard_normal((job.num_prompts, job.skills), np.float32)
    raw *= np.float32(max(job.skills, 1) ** -0.5)
    hyper = jax.device_put(hyperparameters.default(job.skills))
    make = partial(init, job)
    if not job.devices:
        loadings = lay_out(jnp.asarray(raw))
        return loadings, hyper, lambda: jax.jit(make)(loadings, hyper)
    mesh = sharded_pool.make_mesh()
    jax.set_mesh(mesh)
    loadings = sharded_pool.lay_out(mesh, raw)
    hyper = sharded_pool.place(mesh, hyper, job.num_prompts)
    fresh = partial(sharded_pool.init, mesh, make, job.num_prompts, loadings, hyper)
    return loadings, hyper, fresh


def measure(job: Job) -> dict[str, Any]:
    """Choices, memory and times of the job, in this process."""
    loadings, hyper, fresh = set_up(job)
    state = fresh()
    layout = jax.tree.map(lambda x: x.sharding, state)

    def compiled(driven: bool):
        jitted = jax.jit(partial(step, job, driven), donate_argnums=2)
        return jitted.lower(loadings, hyper, state).compile()

    start = time.perf_counter()
    driven = compiled(True)
    compile_seconds = time.perf_counter() - start
    outputs = []
    for _ in range(job.steps):
        state, output = driven(loadings, hyper, state)
        outputs.append(jax.device_get(output))
    ids = [np.asarray(output[0].prompt_ids) for output in outputs]
    kept = jax.tree.map(lambda x, was: x.sharding.is_equivalent_to(was, x.ndim), state, layout)
    found = {
        "job": asdict(job),
        "devices": jax.device_count(),
        "ids": [digest(x) for x in ids],
        "distinct": [len(set(x.tolist())) for x in ids],
        "outputs": [digest(x) for x in outputs],
        "state": digest(cut((state.tracker, state.selector), job.num_prompts)),
        "same_layout": all(jax.tree.leaves(kept)),
        "collectives": collectives(driven.as_text() or ""),
        "loadings_bytes": loadings.features.nbytes,
        "loadings_bytes_per_device": per_device(loadings),
        "state_bytes": sum(x.nbytes for x in jax.tree.leaves(state.tracker)),
        "state_bytes_per_device": per_device(state.tracker),
        "compile_seconds": compile_seconds,
    }
    programs = {"driver": driven}
    if job.repetitions:
        programs["step"] = compiled(False)
        del state
        found |= time_programs(job, programs, loadings, hyper, fresh)
    for name, program in programs.items():
        memory = program.memory_analysis()
        assert memory is not None, "this backend does not tell"
        found[f"{name}_temporary_bytes"] = memory.temp_size_in_bytes
    found["peak_resident_bytes"] = peak_bytes()
    return found


def time_programs(job: Job, programs, loadings, hyper, fresh) -> dict[str, Any]:
    """Milliseconds of each program, run in turn, each with a state of its own."""
    states = {name: fresh() for name in programs}

    def advance(name: str):
        states[name], output = programs[name](loadings, hyper, states[name])
        return states[name].tracker, output

    runs = {name: partial(advance, name) for name in programs}
    times, _ = interleave(runs, job.repetitions, job.seed)
    return {f"{name}_ms": summary(values) for name, values in times.items()}


if __name__ == "__main__":
    print(json.dumps(measure(Job(**json.loads(sys.argv[1])))))
