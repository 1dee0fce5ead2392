"""Gumbel noise, the same numbers as `jax.random.gumbel`, several times faster on CPUs.

On CPUs JAX runs the generator's rounds as a loop, each of which reads and writes whole arrays;
written out, they are one pass. For a vocabulary of tens of thousands that is felt in every token.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Key, UInt32

ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
"""Bits by which threefry's rounds rotate, four rounds in turn."""
PARITY = np.uint32(0x1BD11BDA)
"""Threefry's constant of the key schedule."""


def threefry(
    key: tuple[UInt32[Array, ""], UInt32[Array, ""]], counts: UInt32[Array, "*S"]
) -> UInt32[Array, "*S"]:
    """Random bits: both halves of threefry-2x32 of the counter (0, counts), combined by xor.

    Args:
        key: its two words.
        counts: of any shape.
    """
    words = (*key, key[0] ^ key[1] ^ PARITY)
    a, b = jnp.broadcast_to(words[0], counts.shape), counts + words[1]
    for turn in range(5):
        for r in ROTATIONS[turn % 2]:
            a = a + b
            b = a ^ ((b << np.uint32(r)) | (b >> np.uint32(32 - r)))
        a = a + words[(turn + 1) % 3]
        b = b + words[(turn + 2) % 3] + np.uint32(turn + 1)
    return a ^ b


def gumbel(key: Key[Array, ""], shape: tuple[int, ...], dtype: DTypeLike) -> Float[Array, "..."]:
    """`jax.random.gumbel(key, shape, dtype)`.

    Args:
        key: consumed; of any generator, though only the default one, in float32, is faster here.
        shape: of the noise.
        dtype: of the noise.
    """
    size = int(np.prod(shape))
    ours = (
        str(jax.random.key_impl(key)) == "threefry2x32"
        and jax.config.jax_threefry_partitionable  # pyright: ignore[reportAttributeAccessIssue]
        and dtype == jnp.float32
        and size <= 2**32
    )
    if not ours:
        return jax.random.gumbel(key, shape, dtype)
    words = jax.random.key_data(key)
    bits = threefry((words[0], words[1]), jnp.arange(size, dtype=jnp.uint32).reshape(shape))
    # The bits are a mantissa: uniform in [1, 2), then in [tiny, 1).
    mantissa = (bits >> np.uint32(9)) | np.uint32(0x3F800000)
    tiny = np.finfo(np.float32).tiny
    uniform = jax.lax.bitcast_convert_type(mantissa, jnp.float32) - np.float32(1)
    uniform = jnp.maximum(tiny, uniform * (np.float32(1) - tiny) + tiny)
    return -jnp.log(-jnp.log(uniform))
