"""Weighted sampling: inclusion probabilities against an enumeration of all sequences."""

from itertools import permutations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from selector_cases import choose_often, is_plausible, known

from fade_jax.selectors import weighted


def inclusion(weights, count):
    """P(prompt among the `count` taken one by one in proportion to weight), by enumeration."""
    probability = np.zeros(len(weights))
    for sequence in permutations(range(len(weights)), count):
        left, chance = weights.sum(), 1.0
        for prompt in sequence:
            chance *= weights[prompt] / left
            left -= weights[prompt]
        probability[list(sequence)] += chance
    return probability


def test_inclusion_probabilities_are_exact():
    scores, times = np.array([0.9, 0.5, 0.4, 0.3, 0.0, 0.7]), 20_000
    tracker, state = known(np.full(6, 0.5))

    @jax.jit
    def sample(temperature, key):
        selector = weighted.build(
            tracker,
            num_prompts=6,
            budget=6,
            group_size=2,
            score=lambda state: jnp.asarray(scores, jnp.float32),
            temperature=temperature,
            floor=0.05,
            exploration=0.0,
        )
        choose = jax.vmap(lambda key: selector.select((), state, key)[1].prompt_ids)
        return choose(jax.random.split(key, times))

    for temperature in (1.0, 0.3, 3.0):
        chosen = np.asarray(sample(temperature, jax.random.key(0)))
        exact = inclusion(np.maximum(scores, 0.05) ** (1 / temperature), 3)
        assert abs(exact.sum() - 3) < 1e-12
        # Within 4.5 binomial standard errors (<= .0035): false-alarm rate 18 x 7e-6 in all.
        got = np.bincount(chosen.ravel(), minlength=6) / times
        assert (np.abs(got - exact) < 4.5 * np.sqrt(exact * (1 - exact) / times)).all()


def test_the_first_pick_is_in_proportion_to_the_informative_probability():
    # U_2 = 2 p (1 - p) in the ratio 9 : 21 : 25 : 16; false-alarm rate 1e-4.
    tracker, state = known([0.1, 0.3, 0.5, 0.2])
    selector = weighted.build(tracker, num_prompts=4, budget=2, group_size=2, exploration=0.0)
    counts = np.bincount(choose_often(selector, state, 7_100)[:, 0], minlength=4)
    assert is_plausible(counts, [900, 2100, 2500, 1600])


def test_hopeless_prompts_keep_the_weight_of_the_floor():
    np.testing.assert_allclose(
        weighted.log_weights(jnp.array([0.0, 1e-4, 0.5]), 0.5, 1e-3),
        2 * np.log([1e-3, 1e-3, 0.5]),
        rtol=1e-6,
    )
    # 1 sure prompt of weight .5 and two at the floor .05: first pick 10 : 1 : 1.
    tracker, state = known([0.5, 0.0, 1.0])
    selector = weighted.build(
        tracker, num_prompts=3, budget=2, group_size=2, floor=0.05, exploration=0.0
    )
    counts = np.bincount(choose_often(selector, state, 6_000)[:, 0], minlength=3)
    assert is_plausible(counts, [5000, 500, 500])


def test_settings_that_would_rule_prompts_out_are_refused():
    tracker, _ = known([0.5, 0.0, 1.0])
    settings: list[tuple[str, Any]] = [("temperature", 0.0), ("temperature", -1.0), ("floor", 0.0)]
    for field, value in settings:
        with pytest.raises(ValueError, match=f"{field} must be > 0, got {value}"):
            weighted.build(tracker, num_prompts=3, budget=2, group_size=2, **{field: value})
