"""Rotary, grouped-query, cached attention; arrays in, arrays out.

Shapes: `L` layers, `B` sequences, `S` tokens of a call, `C` cached tokens, `K` key-value heads, `G`
query heads to each of them, `H` head size.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

PRECISION = jax.lax.Precision.HIGHEST
"""Of every product: by default GPUs and TPUs would round float32 factors to 10 or 7 bits."""


def wide_product(spec: str, a: Array, b: Array) -> Array:
    """Einsum of two arrays, summed in at least float32.

    Accelerators multiply narrow factors and widen the sum; XLA's CPU backend has no such product
    for batches of bfloat16, so there the factors are widened first.
    """
    wide = jnp.promote_types(a.dtype, jnp.float32)
    product = functools.partial(jnp.einsum, spec, precision=PRECISION, preferred_element_type=wide)
    if a.dtype == wide:
        return product(a, b)
    return jax.lax.platform_dependent(
        a, b, cpu=lambda a, b: product(a.astype(wide), b.astype(wide)), default=product
    )


def causal(mask: Bool[Array, "B S"]) -> Bool[Array, "B S S"]:
    """[b, i, j]: whether token i sees token j, that is j <= i and mask[b, j]."""
    return jnp.tri(mask.shape[1], dtype=bool)[None] & mask[:, None]


class KeyValues(NamedTuple):
    """Cached keys (rotated) and values, laid out as attention reads them.

    Attributes:
        keys: [L, B, K, H, C].
        values: [L, B, K, C, H].
    """

    keys: Float[Array, "*L B K H C"]
    values: Float[Array, "*L B K C H"]


class Context(NamedTuple):
    """Tokens that precede all tokens of a call.

    Attributes:
        cache: their keys and values.
        mask: [B, C], which of them exist.
    """

    cache: KeyValues
    mask: Bool[Array, "B C"]


class Blocks(NamedTuple):
    """Rows laid out in blocks, each of which reads one shared sequence, for `attend`.

    A sequence that several rows read is then read once a block, not once a row. There are Q blocks
    of W slots; some slots stay empty.

    Attributes:
        owner: [Q] int32, the sequence a block reads.
        row: [Q, W] int32, the row in a slot; any row in an empty one.
        slot: [B] int32, in 0..Q W - 1, where a row is.
    """

    owner: Int[Array, " Q"]
    row: Int[Array, "Q W"]
    slot: Int[Array, " B"]


def lay_out(group: Int[Array, " B"], num_groups: int) -> Blocks:
    """Lays rows out in blocks of equal owner, for groups of any size and order.

    Args:
        group: [B], in 0..M-1, which sequence a row reads.
        num_groups: M, static.
    """
    rows = group.shape[0]
    width = max(rows // num_groups, 1)
    blocks = rows // width + min(num_groups, rows)
    member = group[:, None] == jnp.arange(num_groups, dtype=group.dtype)[None]
    rank = (jnp.cumsum(member, axis=0, dtype=jnp.int32) - 1)[jnp.arange(rows), group]
    needed = -(-member.sum(axis=0, dtype=jnp.int32) // width)
    block = (jnp.cumsum(needed, dtype=jnp.int32) - needed)[group] + rank // width
    slot = block * width + rank % width
    owner = jnp.zeros(blocks, jnp.int32).at[block].set(group)
    row = jnp.zeros(blocks * width, jnp.int32).at[slot].set(jnp.arange(rows, dtype=jnp.int32))
    return Blocks(owner, row.reshape(blocks, width), slot)


def rotate(
    x: Float[Array, "*B heads H"], cos: Float[Array, "*B half"], sin: Float[Array, "*B half"]
) -> Float[Array, "*B heads H"]:
    """Rotary embedding: turns the pairs (x_i, x_{i + H/2}), in at least float32."""
    cos, sin = cos[..., None, :], sin[..., None, :]
    first, second = jnp.split(x.astype(cos.dtype), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)


def attend(
    queries: Float[Array, "B S K G H"],
    parts: Sequence[tuple[KeyValues, Bool[Array, "_ _ _"]]],
    blocks: Blocks | None = None,
) -> Float[Array, "B S K G H"]:
    """Softmax attention over the union of several cached parts, none of which is copied.

    Args:
        queries: [B, S, K, G, H], G query heads to each of K key-value heads.
        parts: (keys and values without the layer axis, mask [B, S or 1, C]) for each part.
        blocks: with S = 1, how rows read the first part, which has Q sequences instead of B.

    Returns:
        [B, S, K, G, H]; of a query that may see nothing, the plain mean of the values.
    """
    wide = jnp.promote_types(queries.dtype, jnp.float32)
    scale = queries.shape[-1] ** -0.5
    # Batch axes first: the compiler would else transpose the scores, the largest array of all.
    queries = queries.transpose(0, 2, 1, 3, 4)
    layouts = [blocks, *[None] * (len(parts) - 1)]
    scores = [
        jnp.where(
            mask[:, None, :, None],
            _product("bksgh,bkhc->bksgc", queries, cache.keys, layout) * scale,
            _lowest(wide),
        )
        for (cache, mask), layout in zip(parts, layouts, strict=True)
    ]
    weights = jax.nn.softmax(jnp.concatenate(scores, axis=-1), axis=-1).astype(queries.dtype)
    ends = np.cumsum([score.shape[-1] for score in scores])[:-1].tolist()
    pieces = zip(jnp.split(weights, ends, axis=-1), parts, layouts, strict=True)
    mixed = [_product("bksgc,bkch->bksgh", w, kv.values, layout) for w, (kv, _), layout in pieces]
    return functools.reduce(jnp.add, mixed).astype(queries.dtype).transpose(0, 2, 1, 3, 4)


def _product(spec, rows, cached, blocks):
    """The product of each row with its own sequence, or with its block's."""
    if blocks is None:
        return wide_product(spec, rows, cached)
    # Slots take the place of the tokens of a call: [Q, K, W, G, ...].
    out = wide_product(spec, rows[blocks.row, :, 0].swapaxes(1, 2), cached)
    by_slot = out.swapaxes(1, 2).reshape(-1, *out.shape[1:2], *out.shape[3:])
    return by_slot[blocks.slot][:, :, None]


def _lowest(dtype):
    return float(jnp.finfo(dtype).min)
