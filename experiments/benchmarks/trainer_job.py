"""Our side of the trainer's benchmark, run by `trainer` in a process of its own.

The pieces are those of a training run: `sample`, `learn`, and `driver.choose` and `driver.record`
with the FADE scheduler.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.trainer_pipe import serve
from experiments.benchmarks.trainer_work import Work
from fade_jax import driver
from paced_jax import admit, optimizers, partition, pieces, schedulers
from paced_jax.learning import LearnOptions, learn
from paced_jax.objectives import grpo, paced
from paced_jax.pieces import Setup
from paced_jax.policy import hf
from paced_jax.policy.decoder import GraphDef
from paced_jax.policy.forward import logits, sequence_log_probs
from paced_jax.policy.sampling import sample
from paced_jax.types import PartitionUpdate, TrainBatch

POOLS = (8_192, 40_000)
SKILLS = 16
SCHEDULED = 50
NEVER = -1
"""An end of sequence that is no token: every response has all its tokens."""


def make_setup(prompts: jax.Array, mask: jax.Array, pool: int, loadings: Any = ()) -> Setup:
    """Constants of a run over `pool` prompts, of which the given ones are the first."""
    embeddings = jax.random.normal(jax.random.key(1), (pool, SKILLS))
    return Setup(
        prompts,
        mask,
        jnp.zeros((1, 1), jnp.int32),
        jnp.ones(1, jnp.int32),
        embeddings,
        loadings,
        (),
    )


def prepare(folder: Path) -> Mapping[str, Callable[[], dict[str, Any]]]:
    """Loads the work and makes the actions."""
    work = Work(**json.loads((folder / "work.json").read_text()))
    rows = {name: jnp.asarray(x) for name, x in np.load(folder / "rows.npz").items()}
    graphdef, policy, _ = hf.load(folder)
    optimizer = optimizers.make_optimizer(1e-6, policy_weight_decay=0.0)
    carried: dict[str, Any] = {
        "learner": jax.jit(
            lambda policy: pieces.init_learner(
                policy, partition.init(jax.random.key(0), SKILLS), optimizer
            )
        )(policy),
        "calls": 0,
    }
    groups = jnp.repeat(jnp.arange(work.prompts, dtype=jnp.int32), work.group_size)
    alone = jnp.arange(work.rows, dtype=jnp.int32)

    def fresh_key() -> jax.Array:
        carried["calls"] += 1
        return jax.random.fold_in(jax.random.key(work.seed), carried["calls"])

    def laid_out(shared: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
        if shared:
            return rows["prompts"], rows["mask"], groups
        return rows["prompts"][groups], rows["mask"][groups], alone

    def sampler(shared: bool = True) -> Callable[[], dict[str, Any]]:
        prompts, mask, group = laid_out(shared)
        run = jax.jit(partial(sample, graphdef, max_tokens=work.response_length, eos_id=NEVER))

        def action() -> dict[str, Any]:
            drawn = run(carried["learner"].params.policy, prompts, mask, group, fresh_key())
            tokens = np.asarray(drawn.tokens)
            return {"tokens": tokens.size, "mean_log_prob": float(drawn.log_probs.mean())}

        return action

    def trainer(objective, measure_kl: bool, shared: bool = True) -> Callable[[], dict[str, Any]]:
        prompts, mask, group = laid_out(shared)
        setup = make_setup(prompts, mask, prompts.shape[0])
        batch = make_batch(rows, setup, group, graphdef, policy)
        options = LearnOptions(objective=objective, measure_kl=measure_kl)
        step = jax.jit(
            partial(
                learn,
                graphdef=graphdef,
                options=options,
                optimizer=optimizer,
                num_groups=prompts.shape[0],
                num_replayed=0,
            ),
            donate_argnums=1,
        )

        def action() -> dict[str, Any]:
            learner, report = step(setup, carried["learner"], batch, jax.random.key(0))
            carried["learner"] = learner
            assert bool(report.stepped), "the step was refused"
            return {"gradient_norm": float(report.metrics.policy_norm)}

        return action

    def think() -> dict[str, Any]:
        out = jax.jit(partial(logits, graphdef))(policy, rows["prompts"], rows["mask"])
        np.save(folder / "logits_ours.npy", np.asarray(out)[np.asarray(rows["mask"])])
        return {}

    plain = {"logits": think, "sample": sampler(), "train": trainer(grpo(), False)}
    if not work.variants:
        return plain
    return plain | {
        "train, KL measured": trainer(grpo(), True),
        "train, balance": trainer(paced(), False),
        "train, balance, KL measured": trainer(paced(), True),
        "sample, prompts repeated": sampler(shared=False),
        "train, balance, prompts repeated": trainer(paced(), False, shared=False),
        **{f"schedule {pool}": scheduler(work, graphdef, pool) for pool in POOLS},
    }


def make_batch(rows, setup: Setup, group: jax.Array, graphdef, policy) -> TrainBatch:
    """The rows as `admit.fresh_batch` would lay them out, with the policy's own log-probs."""
    shape, num_rows = rows["responses"].shape, rows["responses"].shape[0]
    ones, mask = jnp.ones(num_rows), jnp.ones(shape, bool)
    own = jax.jit(partial(sequence_log_probs, graphdef))(
        policy, setup.prompt_tokens, setup.prompt_mask, group, rows["responses"], mask
    )
    return TrainBatch(
        prompt_ids=group,
        group=group,
        tokens=rows["responses"],
        action_mask=mask,
        log_probs=own.log_probs,
        policy_version=jnp.zeros(num_rows, jnp.int32),
        predicted=0.5 * ones,
        rewards=rows["rewards"],
        weight=ones,
        group_pass_rate=0.5 * ones,
        partition=PartitionUpdate(ones, 0 * ones, 0 * ones),
    )


def scheduler(work: Work, graphdef: GraphDef, pool: int) -> Callable[[], dict[str, Any]]:
    """Choose and record over a pool, `SCHEDULED` times in turn, each with the last one's belief."""
    loadings = jax.random.normal(jax.random.key(2), (pool, SKILLS)) / SKILLS**0.5
    setup = make_setup(jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1), bool), pool, loadings)

    def build(setup: Setup) -> driver.Pieces:
        live = schedulers.make("fade", setup, budget=work.rows, group_size=work.group_size)
        rule = admit.all_groups(work.rows, live.scheduler.selector.max_groups)
        return pieces.build(
            live.scheduler,
            rule,
            graphdef=graphdef,
            options=LearnOptions(objective=grpo()),
            optimizer=optimizers.make_optimizer(1e-6),
            max_tokens=work.response_length,
            eos_id=NEVER,
        )

    report = driver.LearnReport(jnp.bool_(True), jnp.float32(1), jnp.int32(-1), ())

    def step(setup: Setup, state: driver.RunState):
        built = build(setup)
        choice = driver.choose(built, state)
        right = jax.random.bernoulli(
            jax.random.fold_in(state.key, state.iteration), 0.5, (work.rows,)
        )
        _, observation = driver.count(choice.rows, right.astype(jnp.int8))
        seen, chosen, _ = driver.record(
            built, setup, state.tracker, choice, observation, (), report
        )
        return state._replace(tracker=seen, selector=chosen, iteration=state.iteration + 1)

    compiled = jax.jit(step, donate_argnums=1)
    carried: dict[str, Any] = {}

    def action() -> dict[str, Any]:
        if not carried:
            start = jax.jit(lambda setup, key: driver.init(build(setup), setup, (), key))
            carried["state"] = start(setup, jax.random.key(work.seed))
        for _ in range(SCHEDULED):
            carried["state"] = jax.block_until_ready(compiled(setup, carried["state"]))
        return {"steps": SCHEDULED}

    return action


def about() -> dict[str, Any]:
    """Versions."""
    return {"jax": jax.__version__, "flax": flax.__version__}


if __name__ == "__main__":
    serve(prepare, about)
