"""The best prompts of a large pool, faster than a full `top_k` on CPU.

Shapes: `N` scores.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def largest(scores: Float[Array, " N"], count: int, *, depth: int = 16) -> Int[Array, " count"]:
    """Indices of the `count` largest scores, best first, as `jax.lax.top_k` but for ties.

    The pool is cut into N / depth columns. A column whose best score is not among the `count` best
    columns cannot hold one of the `count` best scores, so only `count * depth` of them are ranked.
    Exact; among equal scores the choice may differ from `jax.lax.top_k`'s.

    Args:
        scores: [N], not NaN.
        count: how many, 1..N.
        depth: scores a column.

    Returns:
        [count] int32 indices.

    Example:
        >>> print(largest(jnp.array([0.1, 0.9, 0.5]), 2))
        [1 2]
    """
    size = scores.shape[0]
    width = -(-size // depth)
    if width <= count:
        return jax.lax.top_k(scores, count)[1]
    best = scores[:width]
    for i in range(1, depth):
        row = scores[i * width : (i + 1) * width]
        missing = width - row.shape[0]
        if missing:
            row = jnp.concatenate([row, jnp.full((missing,), -jnp.inf, row.dtype)])
        best = jnp.maximum(best, row)
    columns = jax.lax.top_k(best, count)[1]
    rows = jnp.arange(depth, dtype=columns.dtype)
    indices = (rows[:, None] * width + columns[None, :]).reshape(-1)
    candidates = jnp.where(indices < size, scores.at[indices].get(mode="clip"), -jnp.inf)
    return indices[jax.lax.top_k(candidates, count)[1]]
