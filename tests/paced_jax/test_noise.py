"""Our Gumbel noise is JAX's, bit by bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paced_jax.policy.noise import gumbel, threefry


@pytest.mark.parametrize("shape", [(1,), (64, 513)])
def test_noise_is_that_of_jax(shape):
    compiled = jax.jit(lambda key: gumbel(key, shape, jnp.float32))
    for seed in range(3):
        key = jax.random.fold_in(jax.random.key(seed), 11)
        np.testing.assert_allclose(compiled(key), jax.random.gumbel(key, shape), rtol=1e-5)


def test_bits_are_those_of_jax_exactly():
    key = jax.random.key(5)
    counts = jnp.arange(1000, dtype=jnp.uint32).reshape(10, 100)
    bits = jax.jit(threefry)(tuple(jax.random.key_data(key)), counts)
    np.testing.assert_array_equal(bits, jax.random.bits(key, (10, 100)))


def test_a_batch_of_keys_gives_each_its_own():
    keys = jax.random.split(jax.random.key(1), 4)
    together = jax.jit(jax.vmap(lambda key: gumbel(key, (50,), jnp.float32)))(keys)
    for key, row in zip(keys, together, strict=True):
        np.testing.assert_allclose(row, jax.random.gumbel(key, (50,)), rtol=1e-5)


def test_other_generators_and_precisions_are_left_to_jax(x64):
    other = jax.random.key(0, impl="rbg")
    for key, dtype in ((other, jnp.float32), (jax.random.key(0), jnp.float64)):
        found = gumbel(key, (20,), dtype)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, jax.random.gumbel(key, (20,), dtype))
