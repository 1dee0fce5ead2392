"""Which generated groups reach the gradient: all of them, the informative ones, or the best.

Three base rules, `all_groups`, `drop_degenerate` (DAPO) and `best_of` (LILO); `with_replay` adds
replayed successes behind any of them.

Shapes: `R` rollouts of one iteration in `M` groups, `T` response tokens; `B` rows and `G` groups of
a training batch.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Num

from fade_jax import outcomes
from paced_jax.replay import Replay
from paced_jax.types import (
    Admit,
    PartitionUpdate,
    Rollouts,
    TrainBatch,
    empty_batch,
    keep_rows,
    occupied,
)


class Waiting(NamedTuple):
    """State of `drop_degenerate`: informative groups that wait for the batch to fill.

    Attributes:
        batch: B rows, the live ones first.
        num_groups: int32, groups waiting; they are numbered 0..num_groups-1.
        iterations: int32, iterations that filled it so far.
    """

    batch: TrainBatch
    num_groups: Int[Array, ""]
    iterations: Int[Array, ""]


def fresh_batch(
    rollouts: Rollouts, verdicts: Num[Array, " R"], num_groups: int
) -> tuple[TrainBatch, outcomes.GroupOutcomes]:
    """Turns an iteration's rollouts into training rows, one for one.

    Args:
        rollouts: R rows in M groups.
        verdicts: [R], 1 right, 0 wrong, graded in between; negative for none. Such a row weighs 0.
        num_groups: M, static.

    Returns:
        A batch of R rows and M groups, and the counts of its groups.
    """
    counts = outcomes.group_outcomes(verdicts, rollouts.group, num_groups)
    counted = ~(verdicts < 0)  # a NaN verdict counts, and makes the loss NaN
    ones = jnp.ones(rollouts.group.shape[0])
    batch = TrainBatch(
        prompt_ids=rollouts.prompt_ids,
        group=rollouts.group,
        tokens=rollouts.tokens,
        action_mask=rollouts.action_mask,
        log_probs=rollouts.log_probs,
        policy_version=rollouts.policy_version,
        predicted=rollouts.predicted,
        rewards=jnp.where(counted, verdicts, 0).astype(ones.dtype),
        weight=(counted & rollouts.action_mask.any(axis=1)).astype(ones.dtype),
        group_pass_rate=(counts.successes / jnp.maximum(counts.trials, 1))[rollouts.group],
        partition=PartitionUpdate(ones, 0 * ones, 0 * ones),
    )
    return batch, counts


def take_groups(
    batch: TrainBatch, place: Int[Array, " G"], wanted: Bool[Array, " G"], num_rows: int
) -> tuple[TrainBatch, Int[Array, ""], Bool[Array, ""]]:
    """Gathers whole groups, in the order of `place`, while they fit into `num_rows` rows.

    Args:
        batch: its rows of weight 0 that belong to a group are carried along.
        place: [G], 0..G-1, each once; wanted groups come first.
        wanted: [G].
        num_rows: B of the result, static.

    Returns:
        The gathered batch, whose groups are numbered 0, 1, 2, ... by place and whose other rows
        weigh 0; how many groups it holds, int32; and whether a wanted group did not fit.
    """
    num_groups = place.shape[0]
    sizes = jax.ops.segment_sum(jnp.ones_like(batch.group), batch.group, num_groups)
    by_place = jnp.zeros_like(sizes).at[place].set(jnp.where(wanted, sizes, 0))
    fits = wanted & (jnp.cumsum(by_place)[place] <= num_rows)
    row_place = jnp.where(fits, place, num_groups)[batch.group]
    missing = max(num_rows - batch.group.shape[0], 0)
    order = jnp.argsort(row_place, stable=True)[:num_rows]
    taken = jax.tree.map(
        lambda x: jnp.pad(x[order], [(0, missing)] + [(0, 0)] * (x.ndim - 1)), batch
    )
    place_taken = jnp.pad(row_place[order], (0, missing), constant_values=num_groups)
    taken = taken._replace(group=place_taken.astype(jnp.int32))
    return (
        keep_rows(taken, place_taken < num_groups),
        fits.sum(dtype=jnp.int32),
        (wanted & ~fits).any(),
    )


def all_groups(num_rows: int, num_groups: int) -> Admit:
    """Admits every row with a verdict; ready when there is one. Stateless.

    Args:
        num_rows: R.
        num_groups: M.
    """

    def admit(state, rollouts, verdicts, key):
        del key
        batch, _ = fresh_batch(rollouts, verdicts, num_groups)
        return state, batch, (batch.weight > 0).any()

    return Admit(lambda: (), admit, num_rows, num_groups, 0)


def drop_degenerate(
    num_rows: int, num_groups: int, num_tokens: int, *, max_iterations: int = 10
) -> Admit:
    """DAPO's dynamic sampling (arXiv 2503.14476): informative groups, until a batch is full.

    Groups whose verdicts all agree are dropped. The others wait, over several iterations of the
    same policy, until they fill num_rows or the next one does not fit; the surplus is cut. After
    max_iterations what there is is used; with nothing at all, waiting starts anew: it never raises
    and never blocks.

    Args:
        num_rows: B of the training batch; may be less or more than the rollouts of one iteration.
        num_groups: M, groups of one iteration.
        num_tokens: T.
        max_iterations: the longest wait.
    """
    most = num_rows // 2  # an informative group has two rows at least

    def init():
        return Waiting(empty_batch(num_rows, num_tokens), jnp.int32(0), jnp.int32(0))

    def admit(state, rollouts, verdicts, key):
        del key
        fresh, counts = fresh_batch(rollouts, verdicts, num_groups)
        informative = ~counts.degenerate | jnp.isnan(counts.successes)
        # Waiting groups are 0..most-1 and new ones follow; one batch, of which whole groups are
        # taken in that order. Padding of the waiting rows goes to a last group nobody wants.
        padding = most + num_groups
        waiting_group = jnp.where(occupied(state.batch), state.batch.group, padding)
        both = jax.tree.map(
            lambda a, b: jnp.concatenate([a, b]),
            state.batch._replace(group=waiting_group),
            fresh._replace(group=fresh.group + most),
        )
        wanted = jnp.concatenate(
            [jnp.arange(most) < state.num_groups, informative, jnp.zeros(1, bool)]
        )
        batch, filled, overflow = take_groups(both, _first(wanted), wanted, num_rows)
        iterations = state.iterations + 1
        full = overflow | occupied(batch).all()
        ready = full | ((iterations >= max_iterations) & (filled > 0))
        start = ready | (iterations >= max_iterations)
        waiting = Waiting(batch, filled, iterations)
        state = jax.tree.map(lambda new, old: jnp.where(start, new, old), init(), waiting)
        return state, keep_rows(batch, occupied(batch) & ready), ready

    return Admit(init, admit, num_rows, most, 0)


def best_of(num_rows: int, num_groups: int) -> Admit:
    """LILO (arXiv 2502.12272): trains on the generated groups of the largest p (1 - p). Stateless.

    Generate a multiple of num_rows, four times in the paper; p is the group's own successes /
    trials, and ties are broken at random.

    Args:
        num_rows: B of the training batch; whole groups are taken while they fit.
        num_groups: M, groups of one iteration.
    """

    def admit(state, rollouts, verdicts, key):
        fresh, counts = fresh_batch(rollouts, verdicts, num_groups)
        p = counts.successes / jnp.maximum(counts.trials, 1)
        wanted = counts.trials > 0
        shuffled = jax.random.permutation(key, num_groups)
        score = jnp.where(wanted, p * (1 - p), -1.0)[shuffled]
        ranked = shuffled[jnp.argsort(-score, stable=True)]
        place = jnp.zeros_like(ranked).at[ranked].set(jnp.arange(num_groups, dtype=ranked.dtype))
        batch, _, _ = take_groups(fresh, place, wanted, num_rows)
        return state, batch, (batch.weight > 0).any()

    return Admit(lambda: (), admit, num_rows, num_groups, 0)


def with_replay(base: Admit, replay: Replay) -> Admit:
    """Appends replayed rows to the batches of another rule, each as a group of its own.

    When the base is ready: items too stale are evicted, the rows are drawn from what earlier steps
    stored, and then this batch's successes are stored; a row is never drawn by the step that stores
    it. The replayed rows are the last `num_replayed`.

    Args:
        base: rule for the fresh rows.
        replay: the buffer (`replay.build`).
    """

    def admit(state, rollouts, verdicts, key):
        base_state, stored = state
        base_key, draw_key, add_key = jax.random.split(key, 3)
        base_state, fresh, ready = base.admit(base_state, rollouts, verdicts, base_key)
        version = rollouts.policy_version.max()
        evicted = replay.evict(stored, version)
        drawn = replay.draw(evicted, draw_key)
        drawn = keep_rows(drawn, occupied(drawn) & ready)
        drawn = drawn._replace(group=drawn.group + base.num_groups)
        after = replay.add(evicted, fresh, add_key)
        stored = jax.tree.map(lambda new, old: jnp.where(ready, new, old), after, stored)
        batch = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), fresh, drawn)
        return (base_state, stored), batch, ready

    return Admit(
        lambda: (base.init(), replay.init()),
        admit,
        base.num_rows + replay.num_drawn,
        base.num_groups + replay.num_drawn,
        replay.num_drawn,
    )


def _first(wanted: Bool[Array, " G"]) -> Int[Array, " G"]:
    """Places [G] that put the wanted groups first, each side in its old order."""
    order = jnp.argsort(~wanted, stable=True)
    return jnp.zeros_like(order).at[order].set(jnp.arange(order.shape[0], dtype=order.dtype))
