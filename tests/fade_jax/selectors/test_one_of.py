"""Several rules in one program."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from selector_cases import QUICK, known

from fade_jax.selectors import allocation, one_of, top_m, uniform
from fade_jax.types import Observation

SIZES: dict[str, Any] = {"num_prompts": 12, "budget": 16, "group_size": 4}


def test_each_number_is_its_rule_and_one_program():
    tracker, belief = known(np.linspace(0.05, 0.95, 12))
    rules = [
        uniform.build(tracker, epochs=True, **SIZES),
        top_m.build(tracker, exploration=0.0, **SIZES),
        allocation.build(tracker, exploration=0.0, **SIZES),
    ]
    traces = []

    @jax.jit
    def run(choice, key):
        traces.append(1)
        selector = one_of.build(rules, choice)
        state, chosen, info = selector.select(selector.init(), belief, key)
        seen = Observation(chosen.prompt_ids, jnp.zeros(4), jnp.full(4, 4.0))
        return selector.observe(state, seen), chosen, info

    for i, rule in enumerate(rules):
        key = jax.random.key(i)
        state, chosen, info = run(jnp.int32(i), key)
        alone = jax.jit(rule.select, compiler_options=QUICK)(rule.init(), belief, key)
        jax.tree.map(np.testing.assert_array_equal, (state[i], chosen), alone[:2])
        np.testing.assert_allclose(info.expected_informative, alone[2].expected_informative)
        # Those whose turn it is not stay where they were.
        for j, other in enumerate(rules):
            if j != i:
                jax.tree.map(np.testing.assert_array_equal, state[j], other.init())
    assert len(traces) == 1
    assert one_of.build(rules, jnp.int32(0)).group_size is None
    assert one_of.build(rules[:2], jnp.int32(0)).group_size == 4


def test_rules_of_several_sizes_are_refused_by_name():
    tracker, _ = known(np.full(12, 0.5))
    sizes: list[Any] = [SIZES | {"budget": budget} for budget in (16, 8)]
    rules = [uniform.build(tracker, **each) for each in sizes]
    with pytest.raises(ValueError, match=r"budget must be the same for all selectors, got \[8, 16"):
        one_of.build(rules, jnp.int32(0))
    with pytest.raises(ValueError, match="selectors must be at least one"):
        one_of.build([], jnp.int32(0))
