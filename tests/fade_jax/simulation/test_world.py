"""The simulated world, by hand and in law."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import TypeCheckError

from fade_jax import Observation
from fade_jax.simulation import world as worlds
from fade_jax.simulation.world import World


def small():
    return World(
        loadings=jnp.array([[1.0, 0.0], [0.0, 2.0], [-1.0, 1.0]]),
        difficulty=jnp.array([0.5, -1.0, 0.0]),
        ability=jnp.array([0.1, 0.2, 0.3]),
        learning_rate=jnp.array(0.5),
        drift=jnp.array(0.0),
    )


def test_logits_by_hand():
    world = small()
    expected = [0.1 + 0.2 - 0.5, 0.1 + 0.6 + 1.0, 0.1 - 0.2 + 0.3]
    np.testing.assert_allclose(worlds.logits(world, world.ability), expected, rtol=1e-6)
    np.testing.assert_allclose(
        worlds.pass_rates(world, world.ability), 1 / (1 + np.exp(-np.array(expected))), rtol=1e-6
    )


def test_a_step_by_hand():
    world = small()
    # 2 of 4, then 1 of 4, then an unused slot: pushes 4 * 1/4 / 3 and 4 * 3/16 / 3
    seen = Observation(
        jnp.array([1, 2, -1], jnp.int32), jnp.array([2.0, 1.0, 0.0]), jnp.array([4.0, 4.0, 0.0])
    )
    first, second = 1 / 3, 0.75 / 3
    gain = np.array([first + second, -second, 2 * first + second])
    np.testing.assert_allclose(
        worlds.trained(world, world.ability, seen),
        np.array([0.1, 0.2, 0.3]) + 0.5 * gain,
        rtol=1e-6,
    )


def test_training_lifts_the_prompts_trained_on_and_degenerate_groups_teach_nothing():
    world = small()
    ids, trials = jnp.array([1, 1], jnp.int32), jnp.array([8.0, 8.0])
    lifted = worlds.trained(world, world.ability, Observation(ids, jnp.array([4.0, 3.0]), trials))
    assert worlds.logits(world, lifted)[1] > worlds.logits(world, world.ability)[1]
    flat = worlds.trained(world, world.ability, Observation(ids, jnp.array([8.0, 0.0]), trials))
    np.testing.assert_array_equal(flat, world.ability)


def test_a_drawn_world_has_the_moments_it_says():
    world = worlds.draw(jax.random.key(0), 20_000, 4, difficulty_mean=0.5, difficulty_sd=1.5)
    # standard errors: mean 1.5 / sqrt(20000) = .011, sd .0075; squares .25 sqrt(2 / 80000) = .0013
    assert abs(float(world.difficulty.mean()) - 0.5) < 4 * 0.011
    assert abs(float(world.difficulty.std()) - 1.5) < 4 * 0.0075
    assert abs(float((world.loadings**2).mean()) - 0.25) < 4 * 0.0013
    assert worlds.draw(jax.random.key(0), 5, 0).loadings.shape == (5, 0)


@pytest.mark.parametrize(
    ("kind", "share", "expected"),
    [
        ("informative", 0.5, 1.0),
        ("weak", 0.5, 0.5**0.5),
        ("weak", 0.0, 0.0),
        ("shuffled", 0.5, 0.0),
    ],
)
def test_seen_loadings_correlate_as_said(kind, share, expected):
    world = worlds.draw(jax.random.key(1), 10_000, 4)
    seen = worlds.seen_loadings(jax.random.key(2), world, kind, share=share)
    got = np.corrcoef(np.asarray(seen).ravel(), np.asarray(world.loadings).ravel())[0, 1]
    assert abs(got - expected) < 4 * 40_000**-0.5  # 4 standard errors of a correlation
    assert abs(float((seen**2).mean()) - 0.25) < 0.01
    with pytest.raises((ValueError, TypeCheckError), match="kind"):
        unknown: dict = {"kind": "none"}
        worlds.seen_loadings(jax.random.key(2), world, **unknown)
