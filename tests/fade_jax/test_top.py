import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fade_jax.top import largest


@pytest.mark.parametrize(
    ("size", "count"), [(3, 2), (100, 100), (1000, 7), (40_315, 128), (513, 32)]
)
def test_equals_a_full_sort(size, count):
    scores = np.random.default_rng(size).normal(size=size).astype(np.float32)
    got = np.asarray(jax.jit(lambda x: largest(x, count))(jnp.asarray(scores)))
    np.testing.assert_array_equal(got, np.argsort(-scores)[:count])


@pytest.mark.parametrize("levels", [1, 2, 5, 400])
@pytest.mark.parametrize(("size", "count"), [(3, 2), (1000, 7), (2000, 50), (40_315, 128)])
def test_equal_scores_come_by_index_as_in_top_k(size, count, levels):
    scores = np.random.default_rng(0).integers(0, levels, size).astype(np.float32)
    got = np.asarray(jax.jit(lambda x: largest(x, count))(jnp.asarray(scores)))
    np.testing.assert_array_equal(got, np.argsort(-scores, stable=True)[:count])
    np.testing.assert_array_equal(got, jax.lax.top_k(jnp.asarray(scores), count)[1])


def test_scores_of_minus_infinity_come_last_and_by_index():
    scores = jnp.full((4000,), -jnp.inf).at[jnp.asarray([5, 3999])].set(1.0)
    assert np.asarray(largest(scores, 4)).tolist() == [5, 3999, 0, 1]
