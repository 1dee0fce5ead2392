"""A world small enough to follow by hand: one ability that grows with every informative batch."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fade_jax import driver, outcomes
from fade_jax.driver import LearnReport, Pieces
from fade_jax.selectors import top_m, uniform
from fade_jax.trackers import discounted_beta, logit_kalman
from fade_jax.types import Scheduler

NUM_PROMPTS, MAX_GROUPS, GROUP_SIZE = 12, 3, 4
BUDGET = MAX_GROUPS * GROUP_SIZE


class Setup(NamedTuple):
    difficulty: Any


class Learner(NamedTuple):
    ability: Any
    steps: Any


class Rollouts(NamedTuple):
    group: Any
    verdicts: Any


def setup(difficulty=None):
    if difficulty is None:
        difficulty = jnp.linspace(-2.0, 2.0, NUM_PROMPTS)
    return Setup(jnp.asarray(difficulty))


def learner():
    return Learner(jnp.zeros(()), jnp.int32(0))


def make(
    *,
    scheduler="uniform",
    drop=False,
    every=1,
    spoil_iteration=-1,
    spoil=float("nan"),
    bad_learner_at=-1,
    in_graph=True,
):
    """Builds `make(setup) -> Pieces`.

    `drop` keeps degenerate groups from the learner; `every` makes only each so manieth batch ready;
    `spoil` is the verdict of the iteration's first rollout; in step `bad_learner_at` the learner
    reports prompt 7.
    """

    def build_scheduler():
        if scheduler == "uniform":
            tracker = discounted_beta.build(NUM_PROMPTS)
            build: Any = uniform.build
            more: dict[str, Any] = {}
        else:
            tracker = logit_kalman.build(NUM_PROMPTS)
            build, more = top_m.build, {"exploration": 0.4}
        sizes = {"num_prompts": NUM_PROMPTS, "budget": BUDGET, "group_size": GROUP_SIZE}
        return Scheduler(tracker, build(tracker, **sizes, **more))

    def sample(setup, learner, rows, key):
        chance = jax.nn.sigmoid(learner.ability - setup.difficulty[rows.prompt_ids])
        score = jax.random.bernoulli(key, chance).astype(jnp.float32)
        hit = (learner.steps == spoil_iteration) & (jnp.arange(BUDGET) == 0)
        return Rollouts(rows.group, jnp.where(hit, spoil, score)), rows.prompt_ids

    def admit(state, rollouts, verdicts, key):
        del key
        counts = outcomes.group_outcomes(verdicts, rollouts.group, MAX_GROUPS)
        wanted = ~counts.degenerate if drop else counts.trials > 0
        ready = wanted.any() & ((state + 1) % every == 0)
        return state + 1, (wanted, counts.successes), ready

    def learn(setup, learner, batch, key):
        wanted, _ = batch
        bad = learner.steps == bad_learner_at
        moved = Learner(learner.ability + 0.1 * wanted.sum().astype(jnp.float32), learner.steps + 1)
        learner = jax.tree.map(lambda a, b: jnp.where(bad, a, b), learner, moved)
        report = LearnReport(
            ~bad, jnp.float32(1.0), jnp.where(bad, 7, -1).astype(jnp.int32), wanted.sum()
        )
        return learner, report

    def build(setup):
        return Pieces(
            scheduler=build_scheduler(),
            sample=sample,
            verify=(lambda setup, rollouts: rollouts.verdicts) if in_graph else None,
            init_admit=lambda: jnp.int32(0),
            admit=admit,
            learn=learn,
        )

    return build


def start(make_pieces, constants, seed=0):
    def init(constants, key):
        return driver.init(make_pieces(constants), constants, learner(), key)

    return jax.jit(init)(constants, jax.random.key(seed))
