"""The simulator's pieces for the driver, and closed loops scored against the truth.

Shapes: `N` prompts, `K` skills, `D = K + 1` abilities, `M` chosen prompts, `R` rollouts.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from fade_jax import driver, utility
from fade_jax.driver import LearnReport, Pieces, Record, Rows, RunState
from fade_jax.simulation import admission
from fade_jax.simulation.world import World, pass_rates, trained
from fade_jax.types import Observation, Scheduler


class Rollouts(NamedTuple):
    """Simulated rollouts.

    Attributes:
        rows: what was asked for.
        verdicts: [R] int8.
    """

    rows: Rows
    verdicts: Int[Array, " R"]


class Scores(NamedTuple):
    """How good a belief and a choice were, against the truth at the time of choosing.

    Attributes:
        pass_rate_rmse: root mean square error of the tracker's pass rates over the pool.
        informative_true: mean true P(informative) of the chosen groups.
        informative_best: the same of the best choice there was.
        mean_pass_rate: true, over the pool: what the policy has learnt.
    """

    pass_rate_rmse: Float[Array, ""]
    informative_true: Float[Array, ""]
    informative_best: Float[Array, ""]
    mean_pass_rate: Float[Array, ""]


def build(scheduler: Scheduler) -> Pieces:
    """The pieces of a simulated run; its setup is the World, its learner the abilities [D].

    Args:
        scheduler: built for the world's number of prompts.
    """

    def sample(world: World, ability, rows: Rows, key):
        rates = pass_rates(world, ability)[rows.prompt_ids]
        return Rollouts(rows, jax.random.bernoulli(key, rates).astype(jnp.int8)), ()

    rule = admission.build(scheduler.admission, scheduler.selector.max_groups)

    def admit(state, rollouts: Rollouts, verdicts, key):
        _, generated = driver.count(rollouts.rows, verdicts)
        return rule.admit(state, generated, key)

    def learn(world: World, ability, batch: Observation, key):
        noise = world.drift * jax.random.normal(key, ability.shape, ability.dtype)
        report = LearnReport(jnp.asarray(True), jnp.float32(1.0), jnp.int32(-1), ())
        return trained(world, ability, batch) + noise, report

    return Pieces(
        scheduler=scheduler,
        sample=sample,
        verify=lambda world, rollouts: rollouts.verdicts,
        init_admit=rule.init,
        admit=admit,
        learn=learn,
    )


def init(pieces: Pieces, world: World, key: Key[Array, ""]) -> RunState:
    """The state before the first iteration.

    Raises:
        ValueError: a tracker made for another number of prompts than the world's.
    """
    driver.check_size(pieces.scheduler.tracker, world.difficulty.shape[0])
    return driver.init(pieces, world, jnp.array(world.ability), key)


def score(pieces: Pieces, world: World, state: RunState, record: Record, group_size: int) -> Scores:
    """Scores the belief that an iteration started with, and the choice it made.

    Args:
        pieces: of the run.
        world: the truth.
        state: before the iteration.
        record: of the iteration.
        group_size: rollouts of a group, static.
    """
    tracker = pieces.scheduler.tracker
    truth = pass_rates(world, state.learner)
    error = tracker.pass_rate(state.tracker) - truth
    informative = utility.informative_rate(truth, group_size)
    used = record.observation.trials > 0
    count = used.shape[0]
    chosen = jnp.where(used, informative[jnp.maximum(record.observation.prompt_ids, 0)], 0.0)
    best, _ = jax.lax.top_k(informative, min(count, informative.shape[0]))
    return Scores(
        jnp.sqrt((error**2).mean()),
        chosen.sum() / jnp.maximum(used.sum(), 1),
        best.mean(),
        truth.mean(),
    )


def run(
    pieces: Pieces,
    world: World,
    state: RunState,
    *,
    iterations: int,
    group_size: int,
) -> tuple[RunState, tuple[Record, Scores]]:
    """A closed loop of simulated training, scored at every iteration; to be jitted or vmapped.

    Args:
        pieces: of the run.
        world: the truth.
        state: from `init`.
        iterations: static.
        group_size: rollouts of a group, static.

    Returns:
        (last state, (Records, Scores) with a leading axis of iterations).
    """

    def step(state: RunState, _) -> tuple[RunState, tuple[Record, Scores]]:
        after, record = driver.iterate(pieces, world, state)
        return after, (record, score(pieces, world, state, record, group_size))

    return jax.lax.scan(step, state, None, length=iterations)
