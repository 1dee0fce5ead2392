"""Every prompt equally likely: the baseline that any scheduler has to beat.

Either anew every iteration (without replacement within it), or in epochs: the pool is shuffled and
walked, and every prompt is seen once before any is seen twice.

Shapes: `N` prompts in the pool, `C` chosen.
"""

from functools import partial
from typing import NamedTuple, Unpack

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from fade_jax.selectors import equal_groups, sizes
from fade_jax.selectors.memoryless import observe
from fade_jax.types import SelectInfo, Selection, Selector, Tracker
from fade_jax.types import State as TrackerState


class State(NamedTuple):
    """Where the walk through the pool stands; unused, and of no prompts, without epochs.

    Attributes:
        order: [N] int32, this epoch's permutation of the prompts.
        position: int32 in 0..N, how many of them are used up.
    """

    order: Int[Array, " N"]
    position: Int[Array, ""]


def init(plan: sizes.Plan, epochs: bool) -> State:
    """Returns a used-up epoch: the first `select` shuffles with its key."""
    size = plan.num_prompts if epochs else 0
    return State(jnp.arange(size, dtype=jnp.int32), jnp.asarray(size, jnp.int32))


def walk(state: State, count: int, key: Key[Array, ""]) -> tuple[State, Int[Array, " count"]]:
    """Takes the next prompts of the epoch, going on into a new one where it ends.

    The first prompts of a new epoch are drawn from those that the same iteration has not taken from
    the old one, so an iteration never holds a prompt twice.

    Args:
        state: where the walk stands.
        count: how many, in 1..N, static.
        key: consumed; decides the order of a new epoch.

    Returns:
        The state, and [count] distinct ids.
    """
    order, position = state
    size = order.shape[0]
    ends = position + count > size

    def reshuffle() -> Int[Array, " N"]:
        left = size - position
        taken = jnp.zeros(size, bool).at[order].set(jnp.arange(size, dtype=jnp.int32) >= position)
        fresh = jax.random.permutation(key, order)
        allowed = ~taken[fresh]
        # The first count - left allowed ones come first; all others keep their random order.
        first = allowed & (jnp.cumsum(allowed, dtype=jnp.int32) <= count - left)
        return fresh[jnp.argsort(~first, stable=True)]

    following = jax.lax.cond(ends, reshuffle, lambda: order)
    both = jnp.concatenate([order, following])
    prompt_ids = jax.lax.dynamic_slice_in_dim(both, position, count)
    return State(following, position + count - jnp.where(ends, size, 0)), prompt_ids


def select(
    plan: sizes.Plan,
    tracker: Tracker,
    epochs: bool,
    state: State,
    tracker_state: TrackerState,
    key: Key[Array, ""],
) -> tuple[State, Selection, SelectInfo]:
    """Chooses at random, or walks on.

    Args:
        plan: sizes.
        tracker: asked only what to expect of the choice.
        epochs: whether to walk.
        state: where the walk stands.
        tracker_state: the belief.
        key: consumed.

    Returns:
        The state, the Selection and its SelectInfo.
    """
    informative = tracker.informative(tracker_state, plan.group_size)
    if epochs:
        state, prompt_ids = walk(state, plan.groups, key)
    else:
        prompt_ids = equal_groups.best(plan, jnp.zeros_like(informative), key)
    return state, *equal_groups.fill(plan, prompt_ids, informative)


def build(
    tracker: Tracker,
    *,
    num_prompts: int,
    budget: int,
    group_size: int,
    epochs: bool = False,
    exploration: float = 0.0,
    **options: Unpack[sizes.Options],
) -> Selector:
    """Builds uniform choice.

    Args:
        tracker: that will hold the belief; it does not influence the choice.
        num_prompts: N.
        budget: rollouts of an iteration.
        group_size: rollouts of a group.
        epochs: see every prompt once before any twice.
        exploration: changes nothing but how many groups `source_floor` may claim.
        **options: max_groups, sources, source_floor, low_signal; see `sizes.plan`.

    Returns:
        A Selector.

    Raises:
        ValueError: epochs with a source_floor, sizes that do not fit (`sizes.plan`).
    """
    plan = sizes.plan(num_prompts, budget, group_size, exploration=exploration, **options)
    if epochs and plan.source_floor:
        raise ValueError(f"source_floor must be 0 with epochs=True, got {plan.source_floor}")
    rule = partial(select, plan, tracker, epochs)
    return Selector(
        partial(init, plan, epochs), rule, observe, plan.budget, plan.max_groups, plan.group_size
    )
