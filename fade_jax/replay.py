"""Replay of a recorded history: the protocols that score a tracker, and the scan that runs it.

Shapes: `S` steps, `N` prompts. A protocol says which outcomes a tracker is shown and which of its
predictions count. Step k is predicted from the steps before it, always.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fade_jax.histories import History
from fade_jax.types import GroupSize, Info, Observation, State, Tracker


class Batches(NamedTuple):
    """A history as it happened: one row a batch of groups, padded to the largest.

    Attributes:
        prompt_ids: [I, B] int32; 0 in padded slots.
        successes: [I, B].
        trials: [I, B]; 0 in padded slots.
        elapsed: [I] time from a batch to the next.
    """

    prompt_ids: Int[Array | np.ndarray, "*I B"]
    successes: Float[Array | np.ndarray, "*I B"]
    trials: Float[Array | np.ndarray, "*I B"]
    elapsed: Float[Array | np.ndarray, "*I"]


def to_batches(history: History, steps_per_unit: float = 1.0) -> Batches:
    """Lays a history out by the steps at which its groups were sampled.

    Args:
        history: not empty; rows of equal `step` make a batch.
        steps_per_unit: optimiser steps that make one unit of time; those of an epoch, say, give
            drift rates per epoch. Time between batches is the difference of their `policy_step`;
            after the last it is that before.

    Returns:
        Batches; I is the number of different steps.

    Raises:
        ValueError: where the policy changed within a step, or went back; for no rows; for a
            steps_per_unit that is not positive.
    """
    if not (np.isfinite(steps_per_unit) and steps_per_unit > 0):
        raise ValueError(f"steps_per_unit must be positive, got {steps_per_unit}")
    step, start, count = np.unique(history.step, return_index=True, return_counts=True)
    if not len(step):
        raise ValueError("history: has no rows")
    policy_step = history.policy_step[start].astype(np.int64)
    if (mixed := history.policy_step != np.repeat(policy_step, count)).any():
        row = int(np.argmax(mixed))
        raise ValueError(
            f"policy_step: {history.policy_step[row]} at row {row} differs in its step"
        )
    if (np.diff(policy_step) < 0).any():
        raise ValueError("policy_step: falls from one step to the next")
    row, slot = np.repeat(np.arange(len(step)), count), np.arange(len(history.step))
    slot = slot - np.repeat(start, count)
    shape = (len(step), int(count.max()))
    prompt_ids = np.zeros(shape, np.int32)
    successes, trials = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    prompt_ids[row, slot] = history.prompt_id
    successes[row, slot], trials[row, slot] = history.successes, history.trials
    gaps = np.diff(policy_step)
    elapsed = np.append(gaps, gaps[-1:] if len(gaps) else 1) / steps_per_unit
    return Batches(prompt_ids, successes, trials, elapsed.astype(np.float32))


class Protocol(NamedTuple):
    """Which prompts of each step a tracker is shown, and which of its predictions are scored.

    Attributes:
        observed: [S, N] prompts whose outcomes the tracker absorbs, after the step is predicted.
        scored: [S, N] predictions that count; every one has an outcome to be compared with.
        name: "dense", "sparse" or "cold".
        observed_share: the share of prompts observed, in 0..1.
    """

    observed: Bool[np.ndarray, "S N"]
    scored: Bool[np.ndarray, "S N"]
    name: str
    observed_share: float


def dense(trials: Float[np.ndarray, "S N"], first: int = 1, last: int = 43) -> Protocol:
    """Shows everything and scores every visit in the window, each before it is absorbed.

    Args:
        trials: [S, N] table, as of `dense_array`.
        first: the first step scored.
        last: the last step scored, inclusive.

    Returns:
        Protocol.

    Raises:
        ValueError: where the window leaves the table.
    """
    visited = trials > 0
    return Protocol(visited, visited & _window(trials, first, last), "dense", 1.0)


def sparse(
    trials: Float[np.ndarray, "S N"],
    observed_share: float,
    seed: int,
    first: int = 11,
    last: int = 43,
) -> Protocol:
    """Shows a random share of the visits of every step and scores the others in the window.

    Per-prompt trackers go stale here; what prompts share does not. One seed's masks are nested: a
    larger share shows all that a smaller one does.

    Args:
        trials: [S, N] table.
        observed_share: probability that a visit is shown, in (0, 1).
        seed: of the mask.
        first: the first step scored.
        last: the last step scored, inclusive.

    Returns:
        Protocol.

    Raises:
        ValueError: for a share outside (0, 1), or where the window leaves the table.
    """
    shown = np.random.default_rng(seed).random(trials.shape) < _share(observed_share)
    visited = trials > 0
    scored = visited & ~shown & _window(trials, first, last)
    return Protocol(visited & shown, scored, "sparse", observed_share)


def cold(
    trials: Float[np.ndarray, "S N"],
    observed_share: float,
    seed: int,
    first: int = 11,
    last: int = 43,
) -> Protocol:
    """Shows all visits of a random share of the prompts, none of the others; scores those others.

    Their predictions rest on ability, loadings and the prior alone: a cold start.

    Args:
        trials: [S, N] table.
        observed_share: probability that a prompt is shown, in (0, 1).
        seed: of the mask.
        first: the first step scored.
        last: the last step scored, inclusive.

    Returns:
        Protocol.

    Raises:
        ValueError: for a share outside (0, 1), or where the window leaves the table.
    """
    shown = np.random.default_rng(seed).random(trials.shape[1]) < _share(observed_share)
    visited = trials > 0
    scored = visited & ~shown & _window(trials, first, last)
    return Protocol(visited & shown, scored, "cold", observed_share)


def _window(trials: np.ndarray, first: int, last: int) -> np.ndarray:
    if not 0 <= first <= last < len(trials):
        raise ValueError(
            f"first, last: {first}..{last} is not a window of steps 0..{len(trials) - 1}"
        )
    steps = np.arange(len(trials))
    return ((steps >= first) & (steps <= last))[:, None]


def _share(observed_share: float) -> float:
    if not 0 < observed_share < 1:
        raise ValueError(f"observed_share: {observed_share} is not in (0, 1)")
    return observed_share


def replay(
    tracker: Tracker,
    state: State,
    successes: Float[Array | np.ndarray, "S N"],
    trials: Float[Array | np.ndarray, "S N"],
    observed: Bool[Array | np.ndarray, "S N"],
    group_size: GroupSize,
) -> tuple[Float[Array, "S N"], Float[Array, "S N"], State, Info]:
    """Runs a tracker over a recorded history: predict step k, then absorb it, then age by one.

    One `lax.scan`, so it can be compiled, vmapped over masks, and differentiated with respect to
    what the tracker was built from.

    Args:
        tracker: of N prompts.
        state: the belief before step 0.
        successes: [S, N] table.
        trials: [S, N] table; 0 where a prompt was not visited.
        observed: [S, N] visits the tracker absorbs.
        group_size: G of the predicted groups.

    Returns:
        [S, N] P(the group of that visit is informative) and [S, N] E[p], both from the steps before
        it; the state after the last step; Info of every step, stacked along S.
    """
    ids = jnp.arange(trials.shape[1], dtype=jnp.int32)

    def step(state: State, row: tuple[Array, Array, Array]) -> tuple[State, Any]:
        successes, trials, observed = row
        seen = (jnp.where(observed, successes, 0), jnp.where(observed, trials, 0))
        prediction = tracker.informative(state, group_size), tracker.pass_rate(state)
        state, info = tracker.update(state, Observation(ids, *seen))
        return tracker.predict(state, 1.0), (*prediction, info)

    rows: Any = (successes, trials, observed)
    state, (predictions, pass_rates, infos) = jax.lax.scan(step, state, rows)
    return predictions, pass_rates, state, infos


def replay_batches(
    tracker: Tracker,
    state: State,
    batches: Batches,
    group_size: GroupSize,
) -> tuple[Float[Array, "I B"], Float[Array, "I B"], State, Info]:
    """Runs a tracker over a recorded history as it happened, batch by batch.

    As `replay`, for runs that visit few prompts at a time: only those are predicted and absorbed.

    Args:
        tracker: of N prompts.
        state: the belief before the first batch.
        batches: from `to_batches`.
        group_size: G of the predicted groups.

    Returns:
        [I, B] P(the group is informative) and [I, B] E[p], both from the batches before it; the
        state after the last batch; Info of every batch, stacked along I.
    """

    def step(state: State, batch: Any) -> tuple[State, Any]:  # one of `batches`, traced
        seen = Observation(batch.prompt_ids, batch.successes, batch.trials)
        whole = tracker.informative(state, group_size), tracker.pass_rate(state)
        prediction = tuple(values.at[seen.prompt_ids].get(mode="clip") for values in whole)
        state, info = tracker.update(state, seen)
        return tracker.predict(state, batch.elapsed), (*prediction, info)

    state, (predictions, pass_rates, infos) = jax.lax.scan(step, state, batches)
    return predictions, pass_rates, state, infos
