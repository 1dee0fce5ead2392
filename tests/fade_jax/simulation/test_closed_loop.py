"""Closed loops in the simulated world, through the driver."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fade_jax import presets
from fade_jax.selectors import top_m, uniform
from fade_jax.simulation import closed_loop
from fade_jax.simulation import world as worlds
from fade_jax.trackers import oracle
from fade_jax.types import Scheduler

pytestmark = pytest.mark.standard_promotion

N, K, G, BUDGET = 200, 3, 8, 64
SIZES: dict[str, Any] = {"num_prompts": N, "budget": BUDGET, "group_size": G}


def simulate(build_scheduler, seed=0, iterations=30, **settings):
    """(last state, Records, Scores) of one run; the scheduler is built from (world, key)."""

    def whole(key):
        world_key, loadings_key, run_key = jax.random.split(key, 3)
        world = worlds.draw(world_key, N, K, **settings)
        pieces = closed_loop.build(build_scheduler(world, loadings_key))
        state = closed_loop.init(pieces, world, run_key)
        return closed_loop.run(pieces, world, state, iterations=iterations, group_size=G)

    keys = jax.random.split(jax.random.key(seed), 4)
    state, (records, scores) = jax.jit(jax.vmap(whole))(keys)
    return state, records, scores


def uniform_choice(world, key):
    return presets.uniform(N, budget=BUDGET, group_size=G)


def fade(kind):
    def build(world, key):
        loadings = worlds.seen_loadings(key, world, kind)
        return presets.fade(loadings, budget=BUDGET, group_size=G, selector="thompson")

    return build


@pytest.mark.slow
def test_an_oracle_of_a_world_at_rest_chooses_best_and_errs_nowhere():
    def build(world, key):
        tracker = oracle.build(worlds.pass_rates(world, world.ability))
        return Scheduler(tracker, top_m.build(tracker, exploration=0.0, **SIZES))

    _, _, scores = simulate(build, iterations=4, learning_rate=0.0, drift=0.0)
    np.testing.assert_allclose(scores.pass_rate_rmse, 0.0, atol=1e-6)
    np.testing.assert_allclose(scores.informative_true, scores.informative_best, atol=1e-6)


@pytest.mark.slow
def test_uniform_choice_scores_the_pool_average():
    def build(world, key):
        tracker = oracle.build(worlds.pass_rates(world, world.ability))
        return Scheduler(tracker, uniform.build(tracker, **SIZES))

    _, records, scores = simulate(build, iterations=50, learning_rate=0.0, drift=0.0)
    realised = 1 - np.asarray(records.degenerate).mean()
    # 4 worlds x 50 iterations x 8 groups of a 0/1 outcome: standard error at most .0125
    assert abs(realised - float(scores.informative_true.mean())) < 4 * 0.0125


@pytest.mark.slow
def test_training_raises_pass_rates_and_without_learning_nothing_moves():
    state, _, scores = simulate(uniform_choice, learning_rate=0.3, drift=0.0)
    assert (scores.mean_pass_rate[:, -1] > scores.mean_pass_rate[:, 0] + 0.02).all()
    still, _, _ = simulate(uniform_choice, learning_rate=0.0, drift=0.0)
    assert not np.array_equal(state.learner, still.learner)
    worlds_again = jax.vmap(lambda k: worlds.draw(jax.random.split(k, 3)[0], N, K).ability)
    started = worlds_again(jax.random.split(jax.random.key(0), 4))
    np.testing.assert_array_equal(still.learner, started)


@pytest.mark.slow
def test_loadings_that_say_something_help_and_shuffled_ones_do_not():
    skilled: dict[str, Any] = {"ability_sd": 2.0, "difficulty_sd": 0.7}  # most of a logit is skill
    known = {
        kind: float(simulate(fade(kind), **skilled)[2].pass_rate_rmse[:, 10:].mean())
        for kind in ("informative", "shuffled")
    }
    assert known["informative"] < 0.8 * known["shuffled"]


@pytest.mark.slow
def test_a_simulated_run_is_reproducible():
    first, second = simulate(uniform_choice), simulate(uniform_choice)
    for a, b in zip(jax.tree.leaves(first[2]), jax.tree.leaves(second[2]), strict=True):
        np.testing.assert_array_equal(a, b)
    other = simulate(uniform_choice, seed=1)
    assert not jnp.array_equal(first[2].pass_rate_rmse, other[2].pass_rate_rmse)
