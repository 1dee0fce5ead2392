"""GRESO: three steps by hand, the law of the skipped, and the adapter that asks a tracker."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from selector_cases import QUICK, choose_often, known

from fade_jax import Observation
from fade_jax.selectors import skip
from fade_jax.trackers import discounted_beta


def batch(ids, successes, trials: Any = 8.0):
    count = np.broadcast_to(np.asarray(trials, np.float32), len(ids))
    return Observation(jnp.asarray(ids, jnp.int32), jnp.asarray(successes, float), jnp.array(count))


def made(pass_rates, groups, **changes):
    tracker, belief = known(pass_rates)
    options: dict[str, Any] = {"group_size": 8, "exploration": 0.0, **changes}
    selector = skip.build(tracker, num_prompts=len(pass_rates), budget=8 * groups, **options)
    return selector, belief


def test_three_steps_by_hand():
    selector, _ = made(np.full(5, 0.5), 4)
    observe = jax.jit(selector.observe, compiler_options=QUICK)
    keep = jax.jit(skip.keep_probability, compiler_options=QUICK)
    state = selector.init()
    np.testing.assert_allclose(keep(state, 0.01), 1.0)
    # Step 1: 0 and 1 all right, 2 all wrong, 3 mixed: easy 2/4 >= 1/12, hard 1/4 >= 1/6.
    state = observe(state, batch([0, 1, 2, 3], [8, 8, 0, 3]))
    assert state.streak.tolist() == [1, 1, -1, 0, 0]
    np.testing.assert_allclose((state.easy, state.hard), (0.49, 0.49), rtol=1e-6)
    np.testing.assert_allclose(keep(state, 0.01), [0.49, 0.49, 0.49, 1, 1], rtol=1e-6)
    # Step 2: 0 again all right; 1 mixed again; 3 and 4 mixed: easy 1/4 is too much, hard 0 is not.
    state = observe(state, batch([4, 0, 1, 3], [7, 8, 1, 4]))
    assert state.streak.tolist() == [2, 0, -1, 0, 0]
    np.testing.assert_allclose((state.easy, state.hard), (0.48, 0.50), rtol=1e-6)
    np.testing.assert_allclose(keep(state, 0.01), [0.48**2, 1, 0.5, 1, 1], rtol=1e-6)
    # Step 3: 0 now all wrong: still without variance, but hard; 2 a second time. Hard 2/4.
    state = observe(state, batch([0, 2, 3, 4], [0, 0, 4, 4]))
    assert state.streak.tolist() == [-3, 0, -2, 0, 0]
    np.testing.assert_allclose((state.easy, state.hard), (0.49, 0.49), rtol=1e-6)
    np.testing.assert_allclose(keep(state, 0.01), [0.49**3, 1, 0.49**2, 1, 1], rtol=1e-6)
    np.testing.assert_allclose(keep(state, 0.2), [0.2, 1, 0.49**2, 1, 1], rtol=1e-6)


def test_the_probabilities_stay_within_their_bounds():
    selector, _ = made(np.full(4, 0.5), 4)
    observe = jax.jit(selector.observe, compiler_options=QUICK)
    for wins, expected in (([8, 8, 0, 0], 0.05), ([4, 4, 4, 4], 0.95)):
        state = selector.init()
        for _ in range(60):
            state = observe(state, batch([0, 1, 2, 3], wins))
        np.testing.assert_allclose((state.easy, state.hard), expected, rtol=1e-6)
    assert skip.keep_probability(state, 0.01).tolist() == [1.0] * 4


def test_rows_that_are_no_visit_change_nothing():
    selector, _ = made(np.full(4, 0.5), 4)
    state = selector.init()._replace(streak=jnp.array([3, -2, 0, 1], jnp.int32))
    observe = jax.jit(selector.observe, compiler_options=QUICK)
    for seen in (batch([-1, 9, 0], [0, 8, 0], [0, 8, 0]), batch([0, 1, 1], [1, 0, 0], [1, 1, 0])):
        jax.tree.map(np.testing.assert_array_equal, observe(state, seen), state)
    # Two groups of one prompt are one visit, and a mixed one.
    after = observe(state, batch([0, 0, 1], [8, 0, 0], [8, 8, 0]))
    assert after.streak.tolist() == [0, -2, 0, 1]


def test_prompts_survive_as_often_as_they_should():
    # p_easy = .6 after 3 visits: .216; p_hard = .4 after 2: .16; floor after 20. Two prompts always
    # survive. All are chosen if there is room, so count the planned: mean 2 + .216 + .16 + .01.
    selector, belief = made(np.full(5, 0.5), 5)
    state = skip.State(jnp.array([3, -2, 0, 20, 0], jnp.int32), jnp.array(0.6), jnp.array(0.4))

    def one(key):
        _, chosen, info = selector.select(state, belief, key)
        return chosen.prompt_ids, info.planned_rollouts, info.shortfall

    keys = jax.random.split(jax.random.key(0), 4_000)
    ids, planned, shortfall = jax.jit(jax.vmap(one), compiler_options=QUICK)(keys)
    assert (np.asarray(planned + shortfall) == 40).all()
    survivors = np.asarray(planned) / 8
    # Survivors come first, and the two sure ones are always among them.
    rows = zip(np.asarray(ids), survivors.astype(int), strict=True)
    assert all({2, 4} <= set(row[:n].tolist()) for row, n in rows)
    # Standard error sqrt(.216 x .784 + .16 x .84 + .0099) / sqrt(4000) = .0088; 4.5 of them:
    # false-alarm rate 7e-6.
    assert abs(survivors.mean() - 2.386) < 4.5 * 0.0088


def test_survivors_are_a_uniform_subset_and_skipped_ones_fill_up():
    # 4 of 6 always survive and 2 are chosen: each has 1/3 + 1/3 ... = 1/2 of 3,000 choices.
    selector, belief = made(np.full(6, 0.5), 2)
    state = skip.State(jnp.array([0, 0, 0, 0, 99, -99], jnp.int32), jnp.array(0.5), jnp.array(0.5))
    ids = choose_often(selector._replace(init=lambda: state), belief, 3_000)
    share = np.bincount(ids.ravel(), minlength=6) / 3_000
    # A skipped one comes back with chance .01 and is then one of 5: about .01 x 2/5 = .004 each.
    # Within 4.5 standard errors (<= .0092): false-alarm rate 4e-5 in all.
    expected = np.array([0.498] * 4 + [0.004] * 2)
    assert (np.abs(share - expected) < 4.5 * np.sqrt(expected * (1 - expected) / 3_000)).all()
    # Nobody survives with a floor next to 0: the budget goes to those skipped least.
    selector, belief = made(np.full(6, 0.5), 2, floor=1e-9)
    hopeless = jnp.array([50, 20, 20, 50, 50, 50], jnp.int32)
    select = jax.jit(selector.select, compiler_options=QUICK)
    _, chosen, info = select(state._replace(streak=hopeless), belief, jax.random.key(0))
    assert set(chosen.prompt_ids.tolist()) == {1, 2}
    assert (int(info.planned_rollouts), int(info.shortfall)) == (0, 16)


def test_the_adapter_shifts_the_trackers_own_answer():
    rate, informative = jnp.array([0.9, 0.1, 1.0, 0.5]), jnp.array([0.6, 0.6, 0.0, 0.98])
    even = skip.State(jnp.zeros(4, jnp.int32), jnp.array(0.5), jnp.array(0.5))
    got = skip.keep_by_belief(even, rate, informative, 0.01)
    np.testing.assert_allclose(got, [0.6, 0.6, 0.01, 0.98], rtol=1e-6)
    # Odds 1.5 times 1/4 (easy) and 7/3 (hard): .375 / 1.375 and 3.5 / 4.5; 49 / 4 for the last.
    moved = even._replace(easy=jnp.array(0.2), hard=jnp.array(0.7))
    got = skip.keep_by_belief(moved, rate, informative, 0.01)
    np.testing.assert_allclose(got, [0.375 / 1.375, 3.5 / 4.5, 0.01, 12.25 / 13.25], rtol=1e-6)


def test_the_adapter_skips_what_the_tracker_gives_up():
    # Prompt 0 failed 400 times: U is about .02, kept with that probability; all others are new.
    tracker = discounted_beta.build(3, discount=1.0)
    belief = tracker.init()
    belief = belief._replace(failures=belief.failures.at[0].add(400.0))
    chance = float(tracker.informative(belief, 8)[0])
    options: dict[str, Any] = {"num_prompts": 3, "budget": 8, "group_size": 8, "exploration": 0.0}
    asked = skip.build(tracker, rule="tracker", **options)
    share = (choose_often(asked, belief, 3_000) == 0).mean()
    # It is kept with chance .02; then 1 to 3 survive (7/9 each) and one of them is chosen. Both
    # others are skipped with chance 4/81, and then they fill up.
    expected = chance * (49 / 81 / 3 + 28 / 81 / 2 + 4 / 81)
    assert 0.01 < chance < 0.05
    # Standard error below .002: 4.5 of them, false-alarm rate 7e-6.
    assert abs(share - expected) < 4.5 * 0.002


def test_impossible_settings_are_refused():
    tracker, _ = known([0.9, 0.45, 0.2])
    settings: list[tuple[dict[str, Any], str]] = [
        ({"floor": 0.0}, "floor must be > 0, got 0.0"),
        ({"floor": 1.5}, r"floor must be in 0\.\.1, got 1.5"),
        ({"control": skip.Control(step=-0.1)}, r"step must be in 0\.\.1, got -0.1"),
    ]
    for changes, message in settings:
        with pytest.raises(ValueError, match=message):
            skip.build(tracker, num_prompts=3, budget=4, group_size=2, **changes)
