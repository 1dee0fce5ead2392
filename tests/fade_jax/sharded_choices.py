"""Run in a process of its own: the driver's choices on a mesh, as hashes. See test_sharded_pool.

    python sharded_choices.py '{"devices": 8, "num_prompts": 50001, ...}'

`devices` 0 is the plain program, without a mesh. Prints one line of JSON.
"""

import hashlib
import json
import os
import re
import sys
from pathlib import Path

JOB = json.loads(sys.argv[1])
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={max(JOB['devices'], 1)}"
sys.path.insert(0, str(Path(__file__).parents[2]))

import jax
import jax.numpy as jnp
import numpy as np

from fade_jax import ability_difficulty, driver, hyperparameters, sharded_pool
from fade_jax.pool_loadings import lay_out
from fade_jax.run_state import Rows, RunState
from fade_jax.selectors import thompson, top_m, weighted
from fade_jax.simulation import closed_loop
from fade_jax.trackers import discounted_beta
from fade_jax.types import Observation, Scheduler

GROUP_SIZE = 8
SELECTORS = {"top_m": top_m.build, "weighted": weighted.build, "thompson": thompson.build}


def scheduler(loadings, hyper):
    if JOB["tracker"] == "fade":
        tracker = ability_difficulty.build(loadings, hyper)
    else:
        tracker = discounted_beta.build(JOB["num_prompts"])
    selector = SELECTORS[JOB["selector"]](
        tracker,
        num_prompts=JOB["num_prompts"],
        budget=GROUP_SIZE * JOB["groups"],
        group_size=GROUP_SIZE,
        exploration=0.1,
    )
    return Scheduler(tracker, selector)


def outcomes_of(rows: Rows, key) -> Observation:
    """Pass rates from a hash of the id: no array of the pool has a part in it."""
    mixed = rows.prompt_ids.astype(jnp.uint32) * jnp.uint32(2654435761)
    rates = mixed.astype(jnp.float32) / 2.0**32
    verdicts = jax.random.bernoulli(key, rates).astype(jnp.int8)
    return driver.count(rows, verdicts)[1]


def step(loadings, hyper, state: RunState):
    pieces = closed_loop.build(scheduler(loadings, hyper))
    choice = driver.choose(pieces, state)
    key = jax.random.fold_in(jax.random.key(1), state.iteration)
    observation = outcomes_of(choice.rows, key)
    tracker, selector = pieces.scheduler
    seen, info = tracker.update(state.tracker, observation)
    state = state._replace(
        tracker=tracker.predict(seen, jnp.float32(1.0)),
        selector=selector.observe(choice.selector, observation),
        iteration=state.iteration + 1,
    )
    return state, (choice.rows.selection, choice.predicted, choice.informative, info)


def init(loadings, hyper) -> RunState:
    tracker, selector = scheduler(loadings, hyper)
    zero = jnp.int32(0)
    return RunState((), tracker.init(), selector.init(), (), jax.random.key(0), zero, zero + 0,
                    driver.no_fault())  # fmt: skip


def features(num_prompts: int, num_skills: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    drawn = rng.standard_normal((num_prompts, num_skills), np.float32)
    return drawn / np.float32(max(num_skills, 1) ** 0.5)


def digest(tree) -> str:
    found = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        found.update(np.ascontiguousarray(leaf).tobytes())
    return found.hexdigest()


def without_padding(state, num_prompts: int):
    """Arrays of the pool cut to N: how far they are padded depends on the devices."""
    return jax.tree.map(
        lambda x: np.asarray(x)[:num_prompts] if x.ndim == 1 and x.size >= num_prompts else x, state
    )


def collectives(hlo: str) -> dict[str, int]:
    """Elements of the largest result of each kind of communication."""
    found: dict[str, int] = {}
    names = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"
    for line in hlo.splitlines():
        match = re.search(rf"= (.*?) ({names})(-start)?\(", line)
        if match:
            shapes = re.findall(r"\w+\[([\d,]*)\]", match.group(1))
            sizes = [int(np.prod([int(n) for n in shape.split(",") if n])) for shape in shapes]
            found[match.group(2)] = max(found.get(match.group(2), 0), *sizes)
    return found


def main() -> dict:
    num_prompts, num_skills = JOB["num_prompts"], JOB["skills"]
    mesh = sharded_pool.make_mesh() if JOB["devices"] else None
    hyper = hyperparameters.default(num_skills)
    raw = features(num_prompts, num_skills)
    if mesh is None:
        loadings = lay_out(jnp.asarray(raw))
        state = jax.jit(init)(loadings, hyper)
    else:
        loadings = sharded_pool.lay_out(mesh, raw)
        hyper = sharded_pool.place(mesh, hyper, num_prompts)
        jax.set_mesh(mesh)
        state = sharded_pool.init(mesh, init, num_prompts, loadings, hyper)
    laid_out = jax.tree.map(lambda x: x.sharding, state)
    del raw
    compiled = jax.jit(step, donate_argnums=2).lower(loadings, hyper, state).compile()
    ids, choices = [], []
    for _ in range(JOB["steps"]):
        state, seen = compiled(loadings, hyper, state)
        ids.append(np.asarray(seen[0].prompt_ids))
        choices.append(digest(seen))
    memory = compiled.memory_analysis()
    kept = jax.tree.map(lambda x, where: x.sharding.is_equivalent_to(where, x.ndim),
                        state, laid_out)  # fmt: skip
    held = [shard.data.nbytes for shard in loadings.features.addressable_shards]
    return {
        "devices": jax.device_count(),
        "ids": [digest(x) for x in ids],
        "distinct": [len(set(x.tolist())) for x in ids],
        "choices": choices,
        "state": digest(without_padding((state.tracker, state.selector), num_prompts)),
        "same_layout": all(jax.tree.leaves(kept)),
        "largest_part_of_loadings": max(held) / loadings.features.nbytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "collectives": collectives(compiled.as_text()),
    }


if __name__ == "__main__":
    print(json.dumps(main()))
