"""Threshold: the smallest prefix that fills the batch, against a loop; random above tau."""

import math
from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from selector_cases import QUICK, choose, choose_often, is_plausible, known

from fade_jax.selectors import threshold


def plan(pass_rates, wanted, seed=0, **changes):
    """(ids, informative probabilities believed of them, info) of one choice in pairs."""
    tracker, state = known(pass_rates)
    options: dict[str, Any] = {"budget": 2 * len(pass_rates), "exploration": 0.0, **changes}
    selector = threshold.build(
        tracker, num_prompts=len(pass_rates), group_size=2, wanted=wanted, **options
    )
    _, chosen, info = jax.jit(selector.select, compiler_options=QUICK)(
        selector.init(), state, jax.random.key(seed)
    )
    believed = np.asarray(tracker.informative(state, 2), np.float64)
    return chosen.prompt_ids.tolist(), believed, info


def test_the_expected_cost_of_a_batch_is_known_before_sampling():
    # Field report row 2: 10 prompts with P(informative) = .5, 4 informative groups wanted: 8.
    ids, _, info = plan([0.5] * 10, 4)
    assert len(set(ids)) == 10
    assert (int(info.planned_rollouts), int(info.shortfall)) == (16, 4)
    # With z = 1 the smallest n with n / 2 - sqrt(n) / 2 >= 2.7 is 9: 4.5 - 1.5 = 3, 4 - 1.41 < 2.7.
    assert int(plan([0.5] * 10, 2.7, z=1.0)[2].planned_rollouts) == 18


def test_the_smallest_prefix_equals_a_loop():
    rng = np.random.default_rng(3)
    needed_by = jax.jit(threshold.groups_needed, compiler_options=QUICK)
    for trial in range(12):
        believed = np.sort(rng.uniform(0, 1, 30))[::-1].astype(np.float32)
        wanted, z = float(rng.uniform(0.5, 18)), float(rng.choice([0.0, 0.5, 1.64]))
        mean = variance = 0.0
        needed = 30
        for n, u in enumerate(believed.astype(np.float64), start=1):
            mean, variance = mean + u, variance + u * (1 - u)
            if mean - z * math.sqrt(variance) >= wanted:
                needed = n
                break
        assert int(needed_by(jnp.asarray(believed), wanted, z)) == needed, trial
    unknown = jnp.asarray([np.nan] + 29 * [0.5], jnp.float32)  # promises nothing
    assert int(needed_by(unknown, 1.0, 0.0)) == 3
    assert int(needed_by(unknown, 0.0, 1.0)) == 0


def test_the_rest_of_the_budget_goes_to_the_next_best():
    # U_2 = 2 p (1 - p): .5, .48, .42, .32, .18, 0; .9 wanted takes the first two of five.
    rates = [0.9, 0.5, 0.0, 0.3, 0.4, 0.2]
    ids, believed, info = plan(rates, 0.9, budget=10)
    assert ids == [1, 4, 3, 5, 0]
    assert (int(info.planned_rollouts), int(info.shortfall)) == (4, 6)
    np.testing.assert_allclose(info.expected_informative, believed[ids].sum(), rtol=1e-6)
    # The budget bounds the plan; that it is not enough shows in what is expected.
    _, _, info = plan(rates, 3.0, budget=10)
    assert (int(info.planned_rollouts), int(info.shortfall)) == (10, 0)
    assert float(info.expected_informative) < 3


def test_explored_prompts_come_after_the_plan():
    rates = [0.9, 0.5, 0.0, 0.3, 0.4, 0.2]
    for seed in range(2):
        ids, _, info = plan(rates, 0.9, seed, budget=8, exploration=0.5)
        assert ids[:2] == [1, 4] and set(ids[2:]) < {0, 2, 3, 5}
        assert int(info.planned_rollouts) == 4


def test_prompts_above_tau_are_taken_in_random_order():
    # U_2 >= .4 for {0, 1, 3, 4}: pairs of them equally likely. False-alarm rate 1e-4.
    tracker, state = known([0.5, 0.4, 0.1, 0.7, 0.3, 0.0])
    options: dict[str, Any] = {"num_prompts": 6, "group_size": 2, "exploration": 0.0, "wanted": 0.8}
    selector = threshold.build(tracker, budget=4, tau=0.4, **options)
    pairs = np.sort(choose_often(selector, state, 6_000), axis=1)
    counts = [(pairs == pair).all(1).sum() for pair in combinations((0, 1, 3, 4), 2)]
    assert is_plausible(counts, [1000] * 6)
    # Those below follow by U: 2 (.18), then 5 (0).
    ids = choose(threshold.build(tracker, budget=10, tau=0.4, **options), state)
    assert set(ids[:4]) == {0, 1, 3, 4} and ids[4] == 2


def test_impossible_settings_are_refused():
    tracker, _ = known([0.9, 0.45, 0.2])
    settings: list[tuple[dict[str, Any], str]] = [
        ({"wanted": 0.0}, "wanted must be > 0, got 0.0"),
        ({"wanted": 2, "z": -1.0}, "z must be >= 0, got -1.0"),
        ({"wanted": 2, "tau": 1.5}, r"tau must be in 0\.\.1, got 1.5"),
    ]
    for changes, message in settings:
        with pytest.raises(ValueError, match=message):
            threshold.build(tracker, num_prompts=3, budget=4, group_size=2, **changes)
