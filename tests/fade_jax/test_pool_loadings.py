import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fade_jax import pool_loadings


@pytest.mark.parametrize("num_skills", [0, 1, 5, 40])
@pytest.mark.parametrize("num_prompts", [1, 128, 300])
def test_layout_and_both_forms_against_dense_algebra(x64, num_prompts, num_skills):
    rng = np.random.default_rng(0)
    loadings = rng.normal(size=(num_prompts, num_skills))
    laid_out = pool_loadings.lay_out(jnp.asarray(loadings))
    assert laid_out.num_prompts == num_prompts
    assert laid_out.features.shape[1] % 128 == 0
    design = np.concatenate([np.ones((num_prompts, 1)), loadings], 1)
    weights = rng.normal(size=num_skills + 1)
    root = np.tril(rng.normal(size=(num_skills + 1, num_skills + 1)))
    linear = pool_loadings.linear(laid_out, jnp.asarray(weights))
    quadratic = pool_loadings.quadratic(laid_out, jnp.asarray(root))
    np.testing.assert_allclose(linear[:num_prompts], design @ weights, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(
        quadratic[:num_prompts], ((design @ root) ** 2).sum(1), rtol=1e-10, atol=1e-12
    )
    ids = jnp.asarray([0, num_prompts - 1])
    np.testing.assert_array_equal(pool_loadings.rows(laid_out, ids), loadings[np.asarray(ids)])


def test_the_pool_size_is_static():
    laid_out = pool_loadings.lay_out(jnp.zeros((5, 2)))
    assert len(jax.tree.leaves(laid_out)) == 1
    assert jax.jit(lambda a: a.num_prompts * jnp.ones(()))(laid_out) == 5
