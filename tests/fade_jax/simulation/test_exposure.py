"""Runs under uniform choice that are shown to trackers afterwards."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fade_jax import ability_difficulty, hyperparameters
from fade_jax.simulation import exposure
from fade_jax.simulation import world as worlds
from fade_jax.trackers import discounted_beta, oracle
from fade_jax.types import Observation

pytestmark = pytest.mark.standard_promotion

N, K, G, BUDGET = 30, 2, 8, 48


def run(iterations=12, jump=None, jump_at=0, seed=0, **settings):
    world = worlds.draw(jax.random.key(seed), N, K, **settings)
    seen = jax.jit(
        lambda world, key: exposure.expose(
            world,
            key,
            iterations=iterations,
            budget=BUDGET,
            group_size=G,
            jump=jump,
            jump_at=jump_at,
        )
    )(world, jax.random.key(seed + 1))
    return world, seen


def test_visits_and_ages_are_counted_before_each_iteration():
    _, seen = run()
    last, count = np.full(N, -1), np.zeros(N, int)
    for t, ids in enumerate(np.asarray(seen.observation.prompt_ids)):
        np.testing.assert_array_equal(seen.visits[t], count)
        np.testing.assert_array_equal(seen.age[t], np.where(count > 0, t - last, 12))
        assert len(set(ids.tolist())) == BUDGET // G
        count[ids] += 1
        last[ids] = t


def test_the_truth_is_of_the_policy_that_samples():
    world, seen = run(drift=0.1)
    np.testing.assert_allclose(seen.pass_rate[0], worlds.pass_rates(world, world.ability))
    assert not np.allclose(seen.pass_rate[1], seen.pass_rate[0])
    still_world, still = run(drift=0.0, learning_rate=0.0)
    expected = np.broadcast_to(worlds.pass_rates(still_world, still_world.ability), (12, N))
    np.testing.assert_array_equal(still.pass_rate, expected)
    # The leap comes before iteration 5, and stays.
    leap = jnp.array([0.0, 2.0, 0.0])
    world, leapt = run(jump=leap, jump_at=5, drift=0.0, learning_rate=0.0)
    after = worlds.pass_rates(world, world.ability + leap)
    np.testing.assert_array_equal(leapt.pass_rate[:5], still.pass_rate[:5])
    np.testing.assert_allclose(leapt.pass_rate[5:], np.broadcast_to(after, (7, N)), rtol=1e-6)


def test_a_tracker_predicts_then_absorbs_then_ages():
    world, seen = run(drift=0.0, learning_rate=0.0)
    known = oracle.build(worlds.pass_rates(world, world.ability))
    said = exposure.shadow(known, seen, G)
    assert float(exposure.mean_squared_error(said, seen, 0)) < 1e-12
    tracker = discounted_beta.build(N, discount=0.9)
    said, state = exposure.shadow(tracker, seen, G), tracker.init()
    for t in range(12):
        np.testing.assert_allclose(said.pass_rate[t], tracker.pass_rate(state), rtol=1e-6)
        np.testing.assert_allclose(said.informative[t], tracker.informative(state, G), rtol=1e-5)
        state, info = tracker.update(state, Observation(*(x[t] for x in seen.observation)))
        np.testing.assert_allclose(said.log_evidence[t], info.log_evidence, rtol=1e-5)
        state = tracker.predict(state, 1.0)
    error = np.asarray(said.pass_rate - seen.pass_rate)
    mean = float(exposure.mean_squared_error(said, seen, 4))
    np.testing.assert_allclose(mean, np.mean(error[4:] ** 2), rtol=1e-5)
    rmse, count = exposure.rmse_within(error, np.arange(12)[:, None] * np.ones(N) >= 4)
    np.testing.assert_allclose(rmse, mean**0.5, rtol=1e-5)
    assert count == 8 * N
    assert np.isnan(exposure.rmse_within(error, np.zeros((12, N), bool))[0])


@pytest.mark.slow
def test_a_leap_of_one_skill_moves_its_prompts_within_two_iterations_and_no_others():
    """Twelve worlds of 120 prompts, each of one of four skills; skill 0 leaps by two logits."""
    prompts, skills, before = 120, 4, 40

    def one(key):
        world_key, run_key = jax.random.split(key)
        world = worlds.draw(world_key, prompts, skills, learning_rate=0.0, drift=0.0)
        skill = jnp.arange(prompts) % skills
        world = world._replace(loadings=jax.nn.one_hot(skill, skills))
        leap = jnp.zeros(skills + 1).at[1].set(2.0)
        hyper = hyperparameters.default(skills, ability_drift=0.2, intercept_var=2.25)
        trackers = (
            ability_difficulty.build(world.loadings, hyper),
            discounted_beta.build(prompts, discount=0.5),
        )

        def run(jump):
            seen = exposure.expose(
                world,
                run_key,
                iterations=before + 3,
                budget=128,
                group_size=8,
                jump=jump,
                jump_at=before,
            )
            return seen, jnp.stack([exposure.shadow(t, seen, 8).pass_rate[-1] for t in trackers])

        # The same choices and draws with and without: what differs is the leap's doing.
        (seen, leapt), (_, still) = run(leap), run(None)
        unseen = seen.visits[before + 2] == seen.visits[before]
        true = seen.pass_rate[before] - seen.pass_rate[before - 1]
        return leapt - still, unseen, true, skill == 0

    keys = jax.random.split(jax.random.key(7), 12)
    moved, unseen, true, concerned = (np.asarray(x) for x in jax.jit(jax.vmap(one))(keys))
    shared, alone = moved[:, 0], moved[:, 1]
    here, elsewhere = unseen & concerned, ~concerned
    # Prompts of the skill that nobody has visited since follow all the same; a world's share has
    # a standard error of about .1, their mean one of .03.
    share = [shared[s][here[s]].sum() / true[s][here[s]].sum() for s in range(12)]
    assert 0.35 < np.mean(share) < 1.0 and min(share) > 0.1
    # The others stay: the common ability takes a tenth of the leap at most.
    others = [shared[s][elsewhere[s]].mean() / true[s][concerned[s]].mean() for s in range(12)]
    assert abs(np.mean(others)) < 0.1 and max(np.abs(others)) < 0.2
    # Where nothing is shared, they can't.
    np.testing.assert_array_equal(alone[here], 0.0)
