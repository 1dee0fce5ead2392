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


def test_ties_keep_the_values_and_never_repeat_an_index():
    scores = np.random.default_rng(0).integers(0, 5, 2000).astype(np.float32)
    got = np.asarray(largest(jnp.asarray(scores), 50))
    assert len(set(got.tolist())) == 50
    np.testing.assert_array_equal(scores[got], np.sort(scores)[::-1][:50])


def test_scores_of_minus_infinity_come_last():
    scores = jnp.full((4000,), -jnp.inf).at[jnp.asarray([5, 3999])].set(1.0)
    assert set(np.asarray(largest(scores, 2)).tolist()) == {5, 3999}
