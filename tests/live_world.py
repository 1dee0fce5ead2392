"""Training runs small enough to compare whole: a random decoder, forty short skill prompts."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from random_policy import random_policy

from fade_jax import driver
from paced_jax import partition
from paced_jax.policy.base_policies import BasePolicy
from paced_jax.policy.config import DecoderConfig
from paced_jax.policy.forward import prompt_embeddings
from paced_jax.tasks.skill_pool import build_pool
from paced_jax.tasks.task import SKILL_TASK
from paced_jax.tasks.tokens import DIGIT_0, VOCAB_SIZE
from paced_jax.training import Ground, TrainConfig, prepare

NUM_PROMPTS, GROUP_SIZE, POOL = 4, 4, 40
BUDGET = NUM_PROMPTS * GROUP_SIZE


@functools.cache
def ground() -> Ground:
    """What all runs share: a policy of one layer, prompts of one or two digits."""
    decoder = DecoderConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        intermediate_size=16,
    )
    graphdef, params = random_policy(decoder)
    pools = build_pool(0, num_train=POOL, num_validation=8, num_test=8, max_length=2)
    embed = jax.jit(functools.partial(prompt_embeddings, graphdef))
    raw = embed(params, pools.train.prompt_tokens, pools.train.prompt_mask)
    embeddings = jax.jit(partition.standardise)(raw)
    metadata = {"pass_rate": {"any": [0.0]}}
    base = BasePolicy(graphdef, params, metadata)
    return Ground(config(), base, SKILL_TASK, pools, embeddings)


def config(**changes: Any) -> TrainConfig:
    """A configuration of `ground` whose policy moves visibly within a few steps."""
    plan: dict[str, Any] = {"num_prompts": NUM_PROMPTS, "group_size": GROUP_SIZE}
    plan |= {"num_train": POOL, "iterations": 4, "chunk": 1}
    plan |= {"policy_learning_rate": 1e-2}
    if changes.get("objective", "paced") in ("paced", "flowrl"):
        plan["partition_learning_rate"] = 1e-2
    return TrainConfig(**(plan | changes))


class Seen(NamedTuple):
    """What a Record of these runs holds beside its figures."""

    figures: Any
    rows: Any


def lenient_verdict(setup, rollouts):
    """Right where the first token is a low digit or none: about half of all responses.

    A prompt whose answer has a negative length gets no number for a verdict.
    """
    right = rollouts.tokens[:, 0] < DIGIT_0 + 8
    spoiled = setup.answer_lengths[rollouts.prompt_ids] < 0
    return jnp.where(spoiled, jnp.nan, right.astype(jnp.float32))


def start(**changes: Any):
    """(make, setup, init) of a run; its Records show rollouts and training batches too."""
    run = prepare(config(**changes), ground())

    def make(setup):
        pieces = run.make(setup)

        def sample(*arguments):
            rollouts, figures = pieces.sample(*arguments)
            return rollouts, Seen(figures, rollouts)

        def learn(setup, learner, batch, key):
            learner, report = pieces.learn(setup, learner, batch, key)
            return learner, report._replace(metrics=Seen(report.metrics, batch))

        return pieces._replace(sample=sample, learn=learn, verify=lenient_verdict)

    return make, run.setup, run.init


def host(tree):
    """Numpy copies, keys as numbers: a state that has been given away can't be read."""
    return jax.tree.map(
        lambda x: np.array(
            jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        ),
        tree,
    )


class Played(NamedTuple):
    """Host copies of the states, the first one included, and the Records joined by iteration."""

    states: list[Any]
    records: driver.Record


def play(step, setup, state, iterations: int) -> Played:
    """Runs the driver, keeping what it leaves between chunks."""
    states, records = [host(state)], []

    def between(state, record):
        states.append(host(state))
        records.append(record)
        return state

    driver.run(step, setup, state, iterations=iterations, between=between)
    return Played(states, jax.tree.map(lambda *x: np.concatenate(x), *records))


@contextlib.contextmanager
def unoptimised() -> Iterator[None]:
    """Compiles in half the time; the same programs, less well translated.

    Compiling is nearly all the time these tests take.
    """
    name = "jax_disable_most_optimizations"
    before = jax.config.read(name)
    jax.config.update(name, True)
    try:
        yield
    finally:
        jax.config.update(name, before)
