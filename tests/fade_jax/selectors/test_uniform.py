"""Uniform choice: epochs see every prompt once before any twice, and never one twice at a time."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from selector_cases import QUICK, choose_often, is_plausible, known

from fade_jax.selectors import uniform


def epochs_of(num_prompts, groups, iterations, seed=0):
    """[iterations, groups] ids of a walk, in one scan."""
    tracker, belief = known(np.full(num_prompts, 0.5))
    selector = uniform.build(
        tracker, num_prompts=num_prompts, budget=2 * groups, group_size=2, epochs=True
    )

    def step(state, key):
        state, chosen, _ = selector.select(state, belief, key)
        return state, chosen.prompt_ids

    keys = jax.random.split(jax.random.key(seed), iterations)
    walk = jax.jit(lambda keys: jax.lax.scan(step, selector.init(), keys), compiler_options=QUICK)
    state, ids = walk(keys)
    return np.asarray(ids), state


@pytest.mark.parametrize(("num_prompts", "groups"), [(12, 4), (7, 6), (5, 5), (9, 1)])
def test_every_prompt_is_seen_once_before_any_twice(num_prompts, groups):
    ids, state = epochs_of(num_prompts, groups, 40)
    assert all(len(set(row.tolist())) == groups for row in ids)
    walked = ids.ravel()
    whole = walked[: len(walked) // num_prompts * num_prompts].reshape(-1, num_prompts)
    assert (np.sort(whole, axis=1) == np.arange(num_prompts)).all()
    assert (len(walked) - int(state.position)) % num_prompts == 0
    assert len({tuple(epoch) for epoch in whole}) > 1 or num_prompts == 1  # reshuffled


def test_a_first_epoch_is_a_uniform_permutation():
    # 24 orders of 4 prompts, 100 expected counts each. False-alarm rate 1e-4.
    tracker, belief = known(np.full(4, 0.5))
    selector = uniform.build(tracker, num_prompts=4, budget=8, group_size=2, epochs=True)
    orders = choose_often(selector, belief, 2_400)
    codes = orders @ np.array([64, 16, 4, 1])
    _, counts = np.unique(codes, return_counts=True)
    assert counts.size == 24 and is_plausible(counts, np.full(24, 100))


def test_a_new_epoch_starts_with_a_prompt_not_yet_taken_uniformly():
    # 5 prompts in pairs: the third pair holds the last of the old epoch and one of the other four.
    # False-alarm rate 1e-4.
    tracker, belief = known(np.full(5, 0.5))
    selector = uniform.build(tracker, num_prompts=5, budget=4, group_size=2, epochs=True)
    state = uniform.State(jnp.array([4, 2, 0, 1, 3]), jnp.array(4))

    def boundary(key):
        return selector.select(state, belief, key)[1].prompt_ids

    ids = jax.jit(jax.vmap(boundary), compiler_options=QUICK)(
        jax.random.split(jax.random.key(1), 4_000)
    )
    ids = np.asarray(ids)
    assert (ids[:, 0] == 3).all()
    counts = np.bincount(ids[:, 1], minlength=5)
    assert counts[3] == 0 and is_plausible(counts[[0, 1, 2, 4]], [1000] * 4)


def test_without_epochs_every_set_is_equally_likely():
    # C(6, 3) = 20 sets, 200 expected counts each. False-alarm rate 1e-4.
    tracker, belief = known([0.0, 0.5, 1.0, 0.5, 0.2, 0.0])
    selector = uniform.build(tracker, num_prompts=6, budget=6, group_size=2)
    codes = (1 << choose_often(selector, belief, 4_000)).sum(1)
    _, counts = np.unique(codes, return_counts=True)
    assert counts.size == 20 and is_plausible(counts, np.full(20, 200))


def test_sources_share_a_uniform_choice():
    tracker, belief = known(np.full(10, 0.5))
    sources = (np.arange(10) >= 9).astype(np.int32)
    options: dict[str, Any] = {"num_prompts": 10, "budget": 4, "group_size": 2, "sources": sources}
    selector = uniform.build(tracker, source_floor=1, **options)
    assert ((choose_often(selector, belief, 100) == 9).sum(1) == 1).all()
    with pytest.raises(ValueError, match="source_floor must be 0 with epochs=True, got 1"):
        uniform.build(tracker, source_floor=1, epochs=True, **options)
