"""One stream of outcomes that any tracker can be shown afterwards, and its errors.

Under uniform choice what is visited doesn't depend on what is believed. So the run is simulated
once, and every tracker reads the same rollouts: differences between trackers are paired.

Shapes: `S` iterations, `N` prompts, `M` groups of an iteration, `D` abilities.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from fade_jax import driver, presets
from fade_jax.simulation import closed_loop
from fade_jax.simulation.world import World, pass_rates
from fade_jax.types import Observation, Tracker


class Exposure(NamedTuple):
    """A simulated run under uniform choice.

    Attributes:
        observation: [S, M] outcomes of every iteration.
        pass_rate: [S, N] true, before the iteration.
        visits: [S, N] int32, groups of each prompt before the iteration.
        age: [S, N] int32, iterations since the last one; S where there is none.
    """

    observation: Observation
    pass_rate: Float[Array, "S N"]
    visits: Int[Array, "S N"]
    age: Int[Array, "S N"]


class Shadow(NamedTuple):
    """What a tracker said before each iteration.

    Attributes:
        pass_rate: [S, N], E[p].
        informative: [S, N], P(informative group).
        log_evidence: [S], of the outcomes that followed, nats.
    """

    pass_rate: Float[Array, "S N"]
    informative: Float[Array, "S N"]
    log_evidence: Float[Array, " S"]


def expose(
    world: World,
    key: Key[Array, ""],
    *,
    iterations: int,
    budget: int,
    group_size: int,
    jump: Float[Array, " D"] | None = None,
    jump_at: int = 0,
) -> Exposure:
    """Simulates a run under uniform choice; the policy learns from it as from any other.

    Args:
        world: the truth.
        key: consumed.
        iterations: S, static.
        budget: rollouts of an iteration.
        group_size: rollouts of a group.
        jump: added to the abilities before iteration `jump_at`; nothing by default.
        jump_at: static, 0..S-1.

    Raises:
        ValueError: a jump that never comes.
    """
    if jump is not None and not 0 <= jump_at < iterations:
        raise ValueError(f"jump_at must be in 0..{iterations - 1}, got {jump_at}")
    num_prompts = world.difficulty.shape[0]
    pieces = closed_loop.build(presets.uniform(num_prompts, budget=budget, group_size=group_size))
    nothing = jnp.zeros_like(world.ability)

    def step(state, iteration):
        push = nothing if jump is None else jnp.where(iteration == jump_at, jump, nothing)
        state = state._replace(learner=state.learner + push)
        after, record = driver.iterate(pieces, world, state)
        return after, (record.observation, pass_rates(world, state.learner))

    start = closed_loop.init(pieces, world, key)
    numbers = jnp.arange(iterations, dtype=jnp.int32)
    _, (seen, truth) = jax.lax.scan(step, start, numbers)

    def count(carry, row):
        visits, last = carry
        number, ids, trials = row
        age = jnp.where(visits > 0, number - last, iterations)
        one = (trials > 0).astype(jnp.int32)
        after = (visits.at[ids].add(one), last.at[ids].max(jnp.where(trials > 0, number, -1)))
        return after, (visits, age)

    zero = jnp.zeros(num_prompts, jnp.int32)
    _, (visits, age) = jax.lax.scan(
        count, (zero, zero - 1), (numbers, seen.prompt_ids, seen.trials)
    )
    return Exposure(seen, truth, visits, age)


def shadow(tracker: Tracker, exposure: Exposure, group_size: int) -> Shadow:
    """Shows a run to a tracker: it predicts each iteration, then absorbs it, then ages by one.

    Args:
        tracker: of N prompts.
        exposure: the run.
        group_size: of the groups predicted, static.
    """

    def step(state, seen: Observation):
        said = tracker.pass_rate(state), tracker.informative(state, group_size)
        state, info = tracker.update(state, seen)
        return tracker.predict(state, 1.0), (*said, info.log_evidence)

    _, said = jax.lax.scan(step, tracker.init(), exposure.observation)
    return Shadow(*said)


def mean_squared_error(said: Shadow, exposure: Exposure, first: int) -> Float[Array, ""]:
    """Mean of (E[p] - p)^2 over the pool and the iterations from `first` on; differentiable."""
    return ((said.pass_rate - exposure.pass_rate)[first:] ** 2).mean()


def rmse_within(
    error: Float[np.ndarray, "S N"], within: Bool[np.ndarray, "S N"]
) -> tuple[float, int]:
    """Root mean square of some errors, and how many; NaN for none."""
    chosen = error[within]
    return (float(np.sqrt(np.mean(chosen**2))) if chosen.size else float("nan")), chosen.size
