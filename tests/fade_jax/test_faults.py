"""What stops a run: each kind is found, worded, and leaves the last good state."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from driver_world import BUDGET, GROUP_SIZE, MAX_GROUPS, NUM_PROMPTS, make, setup, start

from fade_jax import driver, faults
from fade_jax.types import Selection, Selector

pytestmark = pytest.mark.standard_promotion


def selection(ids, sizes):
    return Selection(jnp.asarray(ids, jnp.int32), jnp.asarray(sizes, jnp.int32))


def selector(group_size=None) -> Selector:
    nothing: Any = lambda *x: ()  # noqa: E731
    return Selector(nothing, nothing, nothing, 12, 3, group_size)


@pytest.mark.parametrize(
    ("ids", "sizes", "group_size", "words"),
    [
        ([0, 4, 9], [4, 4, 4], 4, None),
        ([0, 4, -1], [4, 8, 0], None, None),
        ([7, -1, -1], [12, 0, 0], None, None),
        ([0, 4, 9], [4, 4, 3], None, "group_sizes sum to 11, the budget is 12"),
        ([0, 4, 9], [4, 4, 8], None, "group_sizes sum to 16, the budget is 12"),
        ([0, 4, 9], [8, 8, -4], None, "the group size of prompt 9 is -4; it must be >= 0"),
        ([0, 4, 9], [4, 6, 2], 4, "the group size of prompt 4 is 6; it must be 4"),
        ([0, 10, 9], [4, 4, 4], 4, r"prompt_ids must be in 0\.\.9, got 10"),
        ([-1, 2, 9], [4, 4, 4], 4, r"prompt_ids must be in 0\.\.9, got -1"),
        ([1, 5, 2], [6, 0, 6], None, "prompt 2 comes after an unused slot"),
        ([5, 2, 5], [4, 4, 4], 4, "prompt 5 is in prompt_ids more than once"),
    ],
)
def test_a_selection_is_held_against_its_contract(ids, sizes, group_size, words):
    fault = faults.of_selection(selection(ids, sizes), selector(group_size), 10)
    said = faults.describe(fault, jnp.int32(3))
    if words is None:
        assert said is None and int(fault.kind) == faults.NONE
    else:
        assert said is not None
        assert re.search(words, said)
        assert said.startswith("iteration 3, selector: ")


def test_a_selection_of_another_length_is_refused():
    with pytest.raises(ValueError, match=r"must be \[3\] \(max_groups\), got \(2,\)"):
        faults.of_selection(selection([0, 4], [4, 8]), selector(), 10)


def test_the_first_fault_is_the_one_that_is_kept():
    none, learn = faults.none(), faults.of_learning(jnp.int32(7))
    twice = faults.of_selection(selection([5, 2, 5], [4, 4, 4]), selector(), 10)
    assert int(faults.first(none, none).kind) == faults.NONE
    assert int(faults.first(none, learn, twice).kind) == faults.LEARN
    assert int(faults.first(twice, learn).kind) == faults.TWICE


def broken(iteration, ids, sizes):
    """A make whose selector breaks its contract in that iteration."""
    sound = make()

    def build(constants):
        pieces = sound(constants)
        chooser = pieces.scheduler.selector

        def select(state, tracker_state, key):
            count, inner = state
            inner, chosen, info = chooser.select(inner, tracker_state, key)
            bad = selection(ids, sizes)
            chosen = jax.tree.map(lambda a, b: jnp.where(count == iteration, a, b), bad, chosen)
            return (count + 1, inner), chosen, info

        def observe(state, observation):
            return state[0], chooser.observe(state[1], observation)

        rule = Selector(
            lambda: (jnp.int32(0), chooser.init()), select, observe, BUDGET, MAX_GROUPS, GROUP_SIZE
        )
        return pieces._replace(scheduler=pieces.scheduler._replace(selector=rule))

    return build


@pytest.mark.parametrize(
    ("ids", "sizes", "words"),
    [
        ([0, 1, 2], [4, 4, 0], "iteration 2, selector: group_sizes sum to 8, the budget is 12"),
        ([0, 1, 1], [4, 4, 4], "iteration 2, selector: prompt 1 is in prompt_ids more than once"),
        ([0, 1, 99], [4, 4, 4], r"iteration 2, selector: prompt_ids must be in 0\.\.11, got 99"),
    ],
)
def test_a_broken_selector_stops_the_run_at_the_last_good_state(ids, sizes, words):
    constants, bad = setup(), broken(2, ids, sizes)
    assert NUM_PROMPTS == 12
    with pytest.raises(driver.DriverFault, match=words) as caught:
        step = driver.compile_step(bad, chunk=4)
        driver.run(step, constants, start(bad, constants), iterations=4)
    state = caught.value.state
    assert int(state.iteration) == 2 and int(state.fault.kind) == faults.NONE
    fine = broken(-1, ids, sizes)
    good = driver.run(
        driver.compile_step(fine, chunk=2), constants, start(fine, constants), iterations=2
    )
    for a, b in zip(jax.tree.leaves(state.tracker), jax.tree.leaves(good.tracker), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(state.learner.ability, good.learner.ability)
