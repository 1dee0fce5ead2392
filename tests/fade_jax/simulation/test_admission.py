"""Which simulated groups are learnt from: the rules, worked by hand."""

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fade_jax import presets
from fade_jax.simulation import admission, closed_loop
from fade_jax.simulation import world as worlds
from fade_jax.types import Admission, Observation

pytestmark = pytest.mark.standard_promotion


def groups(ids, successes, trials=8.0):
    return Observation(
        jnp.asarray(ids, jnp.int32), jnp.asarray(successes, float), jnp.full(len(ids), trials)
    )


def admitted(batch):
    live = np.asarray(batch.trials) > 0
    return np.asarray(batch.prompt_ids)[live].tolist()


def test_dynamic_sampling_collects_informative_groups_until_there_are_enough():
    scheduler = presets.dapo(40, budget=32, group_size=8, train_groups=3, max_iterations=3)
    assert scheduler.admission == Admission("drop_degenerate", 3, 3)
    rule = admission.build(scheduler.admission, 4)
    state, key = rule.init(), jax.random.key(0)
    state, batch, ready = rule.admit(state, groups([1, 2, 3, 4], [0, 5, 8, 0]), key)
    assert not ready and admitted(batch) == [2]
    # Two more fill it; the third is surplus.
    state, batch, ready = rule.admit(state, groups([5, 6, 7, 8], [1, 7, 8, 4]), key)
    assert ready and admitted(batch) == [2, 5, 6] and batch.successes.tolist() == [5.0, 1.0, 7.0]
    # Then it starts anew; the third wait is the last, and what there is is used.
    for _ in range(2):
        state, batch, ready = rule.admit(state, groups([1, 2, 3, 4], [0, 0, 8, 0]), key)
        assert not ready
    state, batch, ready = rule.admit(state, groups([1, 2, 3, 4], [0, 0, 8, 3]), key)
    assert ready and admitted(batch) == [4]
    # With nothing at all it is never ready, and never stuck.
    for _ in range(7):
        state, batch, ready = rule.admit(state, groups([1, 2, 3, 4], [0, 0, 8, 0]), key)
        assert not ready and admitted(batch) == []
    assert int(state.iterations) == 1


def test_best_of_takes_the_most_varied_groups():
    scheduler = presets.lilo(40, budget=64, group_size=8)
    assert scheduler.admission == Admission("best_of", 2, 1)
    rule = admission.build(scheduler.admission, 8)
    seen = groups(range(8), [0, 1, 2, 3, 8, 7, 8, 0])
    _, batch, ready = rule.admit(rule.init(), seen, jax.random.key(0))
    assert ready and admitted(batch) == [3, 2]
    # Equals are drawn: 0/8 among six, over 200 keys each is met.
    equal = groups(range(8), [4, 0, 0, 0, 0, 0, 0, 8])
    keys = jax.random.split(jax.random.key(1), 200)
    met = jax.vmap(lambda key: rule.admit((), equal, key)[1].prompt_ids)(keys)
    assert (met[:, 0] == 0).all() and set(met[:, 1].tolist()) == set(range(1, 8))


def test_defaults_are_the_published_ones_and_bad_sizes_are_named():
    assert presets.dapo(100, budget=240, group_size=8).admission == Admission(
        "drop_degenerate", 10, 10
    )
    assert presets.lilo(100, budget=256, group_size=8).admission == Admission("best_of", 8, 1)
    sizes: dict[str, Any] = {"budget": 64, "group_size": 8}
    with pytest.raises(ValueError, match=r"admission.groups must be whole, in 1..inf, got 0"):
        presets.dapo(40, train_groups=0, **sizes)
    with pytest.raises(ValueError, match=r"admission.groups must be whole, in 1..8, got 9"):
        presets.lilo(40, train_groups=9, **sizes)
    with pytest.raises(ValueError, match=r"admission.max_iterations must be whole, >= 1, got 0"):
        presets.dapo(40, max_iterations=0, **sizes)


def test_admissions_that_no_rule_can_carry_out_are_named():
    bad: list[tuple[Any, str]] = [
        (Admission("best", 2), "admission.rule must be one of"),  # pyright: ignore[reportArgumentType]
        (Admission("all", 2), "has no effect"),
        (Admission("drop_degenerate", 2.5), "must be whole"),  # pyright: ignore[reportArgumentType]
        (Admission("best_of", -1), "must be whole, in 1"),
    ]
    for given, words in bad:
        with pytest.raises(ValueError, match=words):
            inspect.unwrap(admission.build)(given, 8)


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "wanted"), [(presets.dapo, 11), (presets.lilo, 3)])
def test_screening_in_a_closed_loop_learns_from_what_it_admits(preset, wanted):
    world = worlds.draw(jax.random.key(0), 100, 2, learning_rate=0.5, drift=0.0)
    pieces = closed_loop.build(preset(100, budget=96, group_size=8, train_groups=wanted))
    state = closed_loop.init(pieces, world, jax.random.key(1))
    state, (records, scores) = jax.jit(
        lambda world, state: closed_loop.run(pieces, world, state, iterations=12, group_size=8)
    )(world, state)
    # The tracker sees all twelve groups of every iteration, the learner a few.
    assert (np.asarray(records.observation.trials) == 8).all()
    steps = int(state.updates)
    assert steps == 12 if preset is presets.lilo else 4 <= steps < 12
    assert scores.mean_pass_rate[-1] > scores.mean_pass_rate[0] + 0.02
    np.testing.assert_array_equal(records.ready.sum(), steps)
