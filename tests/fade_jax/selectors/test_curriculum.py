"""AdaRFT: three steps by hand, and what counts as difficulty."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from selector_cases import QUICK, known

from fade_jax import Observation
from fade_jax.selectors import curriculum

DIFFICULTY = np.array([90.0, 5.0, 40.0, 60.0, 20.0], np.float32)


def seen(successes, trials=8.0):
    count = len(successes)
    return Observation(
        jnp.arange(count, dtype=jnp.int32), jnp.asarray(successes, float), jnp.full(count, trials)
    )


def made(**changes):
    tracker, belief = known(1 - DIFFICULTY / 100)
    options: dict[str, Any] = {"budget": 16, "exploration": 0.0, **changes}
    selector = curriculum.build(tracker, num_prompts=5, group_size=8, **options)
    select = jax.jit(selector.select, compiler_options=QUICK)
    ids = lambda state: set(select(state, belief, jax.random.key(0))[1].prompt_ids.tolist())  # noqa: E731
    return selector, ids


@pytest.mark.parametrize("given", [False, True])
def test_three_steps_by_hand(given):
    selector, ids = made(**({"difficulty": DIFFICULTY} if given else {}))
    observe = jax.jit(selector.observe, compiler_options=QUICK)
    state = selector.init()
    assert float(state.target) == 0 and ids(state) == {1, 4}
    # R = 14/16 = .875: T = 50 tanh(.75) = 31.757; nearest are 40 (8.2) and 20 (11.8).
    state = observe(state, seen([8.0, 6.0]))
    np.testing.assert_allclose(state.target, 31.7574, atol=1e-3)
    assert ids(state) == {2, 4}
    # R = 11/16 = .6875: 50 tanh(.375) = 17.918 more, 49.675; nearest are 40 and 60.
    state = observe(state, seen([8.0, 3.0]))
    np.testing.assert_allclose(state.target, 49.6752, atol=1e-3)
    assert ids(state) == {2, 3}
    # R = 0: 50 tanh(-1) = -38.080, back to 11.596; nearest are 5 (6.6) and 20 (8.4).
    state = observe(state, seen([0.0, 0.0]))
    np.testing.assert_allclose(state.target, 11.5955, atol=1e-3)
    assert ids(state) == {1, 4}


def test_the_target_is_clipped_and_waits_for_outcomes():
    selector, _ = made(control=curriculum.Control(start=80.0))
    observe = jax.jit(selector.observe, compiler_options=QUICK)
    state = selector.init()
    assert float(observe(state, seen([5.0, 3.0], 0.0)).target) == 80.0
    assert float(observe(state, seen([8.0, 8.0])).target) == 100.0
    for _ in range(3):
        state = observe(state, seen([0.0, 0.0]))
    assert float(state.target) == 0.0


def test_difficulty_may_be_a_function_of_the_belief():
    selector, ids = made(difficulty=lambda belief: 100 * belief.pass_rate)
    assert ids(selector.init()) == {0, 3}


def test_impossible_settings_are_refused():
    outside = np.where(np.arange(5) == 3, 101.0, 50.0).astype(np.float32)
    settings: list[tuple[dict[str, Any], str]] = [
        ({"difficulty": outside}, r"difficulty must be in 0\.\.100, got 101.0 for prompt 3"),
        ({"difficulty": outside[:4]}, r"difficulty must be \[5\], got \(4,\)"),
        ({"control": curriculum.Control(start=-1.0)}, r"start must be in 0\.\.100, got -1.0"),
        ({"control": curriculum.Control(step=-1.0)}, "step must be >= 0, got -1.0"),
        (
            {"control": curriculum.Control(success_rate=2.0)},
            r"success_rate must be in 0\.\.1, got 2.0",
        ),
    ]
    for changes, message in settings:
        with pytest.raises(ValueError, match=message):
            made(**changes)
