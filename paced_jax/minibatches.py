"""A training batch dealt out in parts: mini-batches, a step each, or micro-batches of one gradient.

Rollout groups stay whole, so that baselines and means of a group are those of the whole batch.
They are dealt like cards, one to each part in turn: every part gets the same mix of what the
selector ranked first and last, of replayed rows, and of a batch that is not full.

Shapes: `B` rows of a training batch, `n` parts of `b` rows.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from paced_jax.types import TrainBatch


class Deal(NamedTuple):
    """Which part gets which rows; numpy, static.

    Attributes:
        rows: [n, b] of the batch; B where a part has no row for the place.
        group: [b], the group of each place in its part, the same in every part.
        num_groups: of a part.
        num_rows: B.
    """

    rows: Int[np.ndarray, "n b"]
    group: Int[np.ndarray, " b"]
    num_groups: int
    num_rows: int


def deal(num_rows: int, num_replayed: int, group_size: int | None, parts: int) -> Deal:
    """Deals whole groups out in equal parts.

    Args:
        num_rows: B of the batch, whose groups follow each other row by row, then the replayed rows.
        num_replayed: the last rows, each a group of its own; where they do not go up, parts are
            filled with rows of weight 0.
        group_size: rows of every other group; None where groups differ.
        parts: n.

    Returns:
        A Deal.

    Raises:
        ValueError: groups of several sizes, or of a number that is no multiple of n.

    >>> deal(5, 1, 2, 2).rows.tolist()
    [[0, 1, 4], [2, 3, 5]]
    """
    if group_size is None:
        raise ValueError(
            f"minibatches x accumulate = {parts} parts need groups of one size, but the scheduler's"
            " groups differ"
        )
    groups, odd = divmod(num_rows - num_replayed, group_size)
    if odd or groups % parts:
        raise ValueError(
            f"minibatches x accumulate must divide the {groups} groups of a training batch, got"
            f" {parts}"
        )
    dealt = np.arange(groups).reshape(-1, parts).T
    fresh = (dealt[:, :, None] * group_size + np.arange(group_size)).reshape(parts, -1)
    each = -(-num_replayed // parts)
    replayed = num_rows - num_replayed + np.arange(each * parts)
    replayed = np.minimum(replayed, num_rows).reshape(each, parts).T
    own = groups // parts
    group = np.concatenate([np.repeat(np.arange(own), group_size), own + np.arange(each)])
    return Deal(
        np.concatenate([fresh, replayed], axis=1).astype(np.int32),
        group.astype(np.int32),
        own + each,
        num_rows,
    )


def take(batch: TrainBatch, dealt: Deal) -> TrainBatch:
    """The parts of a batch, with a leading axis [n]; places without a row are padding."""
    parts: TrainBatch = jax.tree.map(
        lambda x: jnp.take(x, dealt.rows, axis=0, mode="fill", fill_value=0), batch
    )
    group = jnp.broadcast_to(jnp.asarray(dealt.group), dealt.rows.shape)
    return parts._replace(group=group)


def put_back(parts: Any, dealt: Deal) -> Any:
    """Rows of parts in the order of the batch: [n, b, ...] to [B, ...], for any pytree."""

    def put(x):
        flat = x.reshape(-1, *x.shape[2:])
        rows = jnp.zeros((dealt.num_rows, *flat.shape[1:]), x.dtype)
        return rows.at[dealt.rows.reshape(-1)].set(flat, mode="drop")

    return jax.tree.map(put, parts)
