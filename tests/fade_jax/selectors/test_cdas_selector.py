"""CDAS: half from each side of the ability, by hand and against sorted numpy."""

from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from selector_cases import QUICK, choose_often, is_plausible, known

from fade_jax.selectors import cdas
from fade_jax.trackers import cdas as tracker_of_cdas


def run(pass_rates, groups, **changes):
    tracker, state = known(pass_rates)
    options: dict[str, Any] = {"exploration": 0.0, **changes}
    selector = cdas.build(
        tracker, num_prompts=len(pass_rates), budget=2 * groups, group_size=2, **options
    )
    _, chosen, info = jax.jit(selector.select, compiler_options=QUICK)(
        selector.init(), state, jax.random.key(0)
    )
    return set(chosen.prompt_ids.tolist()), int(info.planned_rollouts), int(info.shortfall)


def test_half_from_each_side_by_hand():
    rates = [0.9, 0.6, 0.55, 0.51, 0.3, 0.1]
    assert run(rates, 4) == ({2, 3, 4, 5}, 8, 0)
    # The odd place is the nearest left; a side that is used up leaves its places to the other.
    assert run(rates, 3) == ({2, 3, 4}, 6, 0)
    assert run([0.9, 0.6, 0.55, 0.51, 0.7, 0.1], 4) == ({1, 2, 3, 5}, 6, 2)
    assert run(rates, 2, gap=lambda state: state.pass_rate - 0.2) == ({4, 5}, 4, 0)
    assert run(rates, 1) == ({3}, 2, 0)


def test_the_default_is_cdas_own_difference_of_difficulty_and_ability():
    rng = np.random.default_rng(0)
    tracker = tracker_of_cdas.build(400)
    difficulty = rng.normal(0, 0.5, 400).astype(np.float32)
    state = tracker.init()._replace(difficulty=jnp.asarray(difficulty), ability=jnp.asarray(0.3))
    selector = cdas.build(tracker, num_prompts=400, budget=40, group_size=2, exploration=0.0)

    @partial(jax.jit, compiler_options=QUICK)
    def ids(key):
        return selector.select((), state, key)[1].prompt_ids

    order = np.argsort(np.abs(difficulty - 0.3))
    below, above = order[difficulty[order] <= 0.3][:10], order[difficulty[order] > 0.3][:10]
    assert set(ids(jax.random.key(1)).tolist()) == {*below.tolist(), *above.tolist()}


def test_ties_of_a_side_are_broken_uniformly():
    # One of {0, 1, 2} and one of {3, 4}, six equally likely pairs. False-alarm rate 1e-4.
    tracker, state = known([0.6, 0.6, 0.6, 0.4, 0.4, 0.1, 0.9])
    selector = cdas.build(tracker, num_prompts=7, budget=4, group_size=2, exploration=0.0)
    pairs = np.sort(choose_often(selector, state, 3_000), axis=1)
    counts = [(pairs == pair).all(1).sum() for pair in product((0, 1, 2), (3, 4))]
    assert is_plausible(counts, [500] * 6)
