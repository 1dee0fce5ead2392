"""Prioritised replay of successes, with a bound on how stale they may be.

Stored are correct responses, with the version and the log-probabilities of the policy that sampled
them. Their priority is how wrong the prediction was, |N_correct / N - p_hat|, p_hat from before
learning (arXiv 2602.12642): replay revisits surprising prompts.

A success alone says nothing of the failures beside it. Regressing V on fresh rows and k replayed
successes of a prompt pulls it from p towards (n p + k) / (n + k): from 1/8 to .222, .300, .417 for
n = 8 and k = 1, 2, 4. `partition` says what replayed rows teach V:

* "full", the same as fresh rows, as published;
* "off", nothing;
* "group_mean", the pass rate of the group they came from, which removes that bias.

Shapes: `C` capacity, `B` rows of a training batch, `K` rows drawn, `T` response tokens.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from paced_jax.off_policy import Correction
from paced_jax.types import PartitionUpdate, TrainBatch, check_choice, empty_batch, keep_rows


class State(NamedTuple):
    """The buffer.

    Attributes:
        items: C rows; weight 1 where a row is stored, 0 where it is free.
        number: [C] int32, when it was stored: items are numbered as they come; -1 where free.
        count: int32, items stored so far.
        stale: int32, items evicted so far because they were too old.
        displaced: int32, items evicted so far by later or more surprising ones.
    """

    items: TrainBatch
    number: Int[Array, " C"]
    count: Int[Array, ""]
    stale: Int[Array, ""]
    displaced: Int[Array, ""]


class Replay(NamedTuple):
    """A replay buffer as pure functions with static sizes.

    Attributes:
        init: `() -> State`.
        evict: `(state, version) -> State`, drops what is older than the bound.
        draw: `(state, key) -> TrainBatch` of K rows in groups 0..K-1; they stay stored.
        add: `(state, batch, key) -> State`, stores successes of a batch.
        num_drawn: K, static.
        correction: as built, static.
    """

    init: Callable[[], State]
    evict: Callable[[State, Int[Array, ""]], State]
    draw: Callable[[State, Key[Array, ""]], TrainBatch]
    add: Callable[[State, TrainBatch, Key[Array, ""]], State]
    num_drawn: int
    correction: Correction


def init(capacity: int, num_tokens: int) -> State:
    """Returns an empty buffer."""
    zero = jnp.int32(0)
    free = jnp.full(capacity, -1, jnp.int32)
    return State(empty_batch(capacity, num_tokens), free, zero, zero, zero)


def priority(items: TrainBatch) -> Float[Array, " B"]:
    """Returns |N_correct / N - p_hat| of each row, in 0..1; -1 for rows without weight."""
    surprise = jnp.abs(items.group_pass_rate - items.predicted)
    return jnp.where(items.weight > 0, surprise, -1.0)


def evict(state: State, version: Int[Array, ""], max_staleness: int) -> State:
    """Drops and counts the items older than the bound.

    Args:
        state: the buffer.
        version: optimiser steps taken by the current policy.
        max_staleness: largest age kept, in optimiser steps.
    """
    live = state.items.weight > 0
    kept = live & (version - state.items.policy_version <= max_staleness)
    return state._replace(
        items=keep_rows(state.items, kept),
        number=jnp.where(kept, state.number, -1),
        stale=state.stale + (live & ~kept).sum(dtype=jnp.int32),
    )


def draw(
    state: State,
    key: Key[Array, ""],
    num_drawn: int,
    selection: Literal["priority", "uniform"],
    partition: Literal["full", "off", "group_mean"],
) -> TrainBatch:
    """Draws stored rows without removing them.

    Args:
        state: the buffer, after `evict`.
        key: consumed under "uniform".
        num_drawn: K; with fewer items the rest of the rows weighs 0.
        selection: the largest priorities (later items first among equals), or uniformly without
            replacement.
        partition: what the rows teach V.

    Returns:
        K rows, each a group of its own, 0..K-1.
    """
    score = priority(state.items)
    if selection == "uniform":
        score = jnp.where(score < 0, -1.0, jax.random.uniform(key, score.shape))
    chosen = jnp.lexsort((-state.number, -score))[:num_drawn]
    drawn = jax.tree.map(lambda x: x[chosen], state.items)
    once = jnp.ones_like(drawn.weight)
    return drawn._replace(
        group=jnp.arange(num_drawn, dtype=jnp.int32),
        partition=PartitionUpdate(
            residual_weight=once if partition == "full" else 0 * once,
            target=drawn.group_pass_rate,
            target_weight=once if partition == "group_mean" else 0 * once,
        ),
    )


def add(
    state: State,
    batch: TrainBatch,
    key: Key[Array, ""],
    additions: int,
    eviction: Literal["fifo", "priority"],
) -> State:
    """Stores the most surprising successes of a batch; the buffer keeps its best C items.

    Args:
        state: the buffer.
        batch: B rows; only those with weight and reward 1 are stored.
        key: consumed; orders equal priorities at random.
        additions: how many at most.
        eviction: which items are displaced, the first stored or those of the least priority.
    """
    candidates = keep_rows(batch, (batch.weight > 0) & (batch.rewards >= 1))
    shuffled = jax.random.permutation(key, batch.weight.shape[0])
    ranked = shuffled[jnp.argsort(-priority(candidates)[shuffled], stable=True)][:additions]
    new = jax.tree.map(lambda x: x[ranked], candidates)
    live = new.weight > 0
    arrived = live.sum(dtype=jnp.int32)
    # Numbered so that the most surprising of a batch leaves last.
    number = state.count + arrived - 1 - jnp.arange(ranked.shape[0], dtype=jnp.int32)
    number = jnp.where(live, number, -1)

    items = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), new, state.items)
    numbers = jnp.concatenate([number, state.number])
    first = -priority(items) if eviction == "priority" else jnp.zeros_like(items.weight)
    order = jnp.lexsort((-numbers, first))
    kept, lost = order[: state.number.shape[0]], order[state.number.shape[0] :]
    return State(
        items=jax.tree.map(lambda x: x[kept], items),
        number=numbers[kept],
        count=state.count + arrived,
        stale=state.stale,
        displaced=state.displaced + (numbers[lost] >= 0).sum(dtype=jnp.int32),
    )


def build(
    num_tokens: int,
    *,
    capacity: int = 128,
    additions: int = 64,
    num_drawn: int = 64,
    max_staleness: int = 2,
    correction: Correction = "current_anchor",
    partition: Literal["full", "off", "group_mean"] = "full",
    selection: Literal["priority", "uniform"] = "priority",
    eviction: Literal["fifo", "priority"] = "fifo",
) -> Replay:
    """Builds the buffer. The defaults are PACED-RL's for 512 fresh rows; scale them with the batch.

    Args:
        num_tokens: T.
        capacity: C.
        additions: successes stored by one step, at most C.
        num_drawn: K, rows replayed by one step, at most C; an eighth of the fresh rows or less.
        max_staleness: largest age of a drawn row, in optimiser steps.
        correction: what log pi_old is for rows of an older policy; see `off_policy`.
        partition: what replayed rows teach V.
        selection: which rows are drawn.
        eviction: which rows make room.

    Returns:
        A Replay.

    Raises:
        ValueError: a size is out of range, a choice is unknown, or stale rows may be drawn without
            a correction.
    """
    check_choice("correction", correction, get_args(Correction))
    check_choice("partition", partition, ("full", "off", "group_mean"))
    check_choice("selection", selection, ("priority", "uniform"))
    check_choice("eviction", eviction, ("fifo", "priority"))
    for name, size in (("additions", additions), ("num_drawn", num_drawn)):
        if not 1 <= size <= capacity:
            raise ValueError(f"{name} must be in 1..{capacity} (capacity), got {size}")
    if max_staleness < 0:
        raise ValueError(f"max_staleness must be >= 0, got {max_staleness}")
    if max_staleness > 0 and correction == "none":
        raise ValueError(
            f"correction: rows up to {max_staleness} steps old need one, got 'none'; log-probs"
            " recomputed with the current policy are not those of the policy that sampled"
        )
    return Replay(
        init=lambda: init(capacity, num_tokens),
        evict=lambda state, version: evict(state, version, max_staleness),
        draw=lambda state, key: draw(state, key, num_drawn, selection, partition),
        add=lambda state, batch, key: add(state, batch, key, additions, eviction),
        num_drawn=num_drawn,
        correction=correction,
    )
