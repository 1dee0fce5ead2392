"""The best prompts of a large pool, faster than a full `top_k` on CPU, on any number of devices.

Shapes: `N` scores.
"""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from fade_jax.sharded_pool import AXIS, context_shards


def largest(scores: Float[Array, " N"], count: int, *, depth: int = 16) -> Int[Array, " count"]:
    """Indices of the `count` largest scores, best first; equal scores by index, as `lax.top_k`.

    The pool is cut into runs of `depth` scores. A run whose best score is not among the `count`
    best cannot hold one of the `count` best scores, so only `count * depth` of them are ranked.
    Under a mesh with an axis "prompts" (`jax.set_mesh`) every device ranks its own part of the
    pool, and the parts' best are merged: the same indices, whatever the number of devices.

    Args:
        scores: [N], not NaN.
        count: how many, 1..N.
        depth: scores a run.

    Returns:
        [count] int32 indices.

    Example:
        >>> print(largest(jnp.array([0.1, 0.9, 0.5]), 2))
        [1 2]
    """
    shards = context_shards()
    if shards == 1:
        return _largest(scores, count, depth)
    # Ties keep the lower index: parts are in the order of the pool, and `top_k` is stable.
    size = -(-scores.shape[0] // shards)
    padding = size * shards - scores.shape[0]
    if padding:
        scores = jnp.pad(scores, (0, padding), constant_values=-jnp.inf)

    def best_of_part(part):
        best = _largest(part, min(count, size), depth)
        return part[best], best + size * jax.lax.axis_index(AXIS)

    split = PartitionSpec(AXIS)
    parts = jax.shard_map(best_of_part, in_specs=split, out_specs=(split, split), axis_names={AXIS})
    candidates, indices = jax.lax.with_sharding_constraint(parts(scores), PartitionSpec())
    return indices[jax.lax.top_k(candidates, count)[1]]


def _largest(scores: Float[Array, " N"], count: int, depth: int) -> Int[Array, " count"]:
    size = scores.shape[0]
    num_runs = -(-size // depth)
    if num_runs <= count:
        return jax.lax.top_k(scores, count)[1]
    padding = num_runs * depth - size
    padded = jnp.pad(scores, (0, padding), constant_values=-jnp.inf) if padding else scores
    best = padded[::depth]
    for i in range(1, depth):
        best = jnp.maximum(best, padded[i::depth])
    # In the order of the pool, so that the candidates are too.
    runs = jax.lax.sort(jax.lax.top_k(best, count)[1], is_stable=False)
    steps = jnp.arange(depth, dtype=runs.dtype)
    indices = (depth * runs[:, None] + steps[None, :]).reshape(-1)
    candidates = jnp.where(indices < size, scores.at[indices].get(mode="clip"), -jnp.inf)
    return indices[jax.lax.top_k(candidates, count)[1]]
