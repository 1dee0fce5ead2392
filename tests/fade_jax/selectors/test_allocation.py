"""Allocation: as good as every split there is, floors and slots respected."""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from selector_cases import QUICK, known

from fade_jax import utility
from fade_jax.selectors import allocation
from fade_jax.trackers import discounted_beta


@cache
def splits(prompts, budget, largest):
    """[splits, prompts]: every way to split the budget into sizes 0 or 2..largest."""
    if prompts == 0:
        return np.zeros((1 if budget == 0 else 0, 0), int)
    rows = []
    for size in (0, *range(2, min(largest, budget) + 1)):
        rest = splits(prompts - 1, budget - size, largest)
        rows.append(np.concatenate([np.full((len(rest), 1), size), rest], axis=1))
    return np.concatenate(rows)


def value(table, sizes):
    return np.take_along_axis(table, np.asarray(sizes).T, axis=1).sum(0)


@pytest.mark.parametrize(
    ("prompts", "budget", "largest"), [(3, 5, 4), (4, 9, 6), (5, 10, 5), (2, 7, 4), (4, 8, 2)]
)
def test_as_good_as_the_best_of_all_splits(prompts, budget, largest):
    rng = np.random.default_rng(prompts)
    split = jax.jit(jax.vmap(partial(allocation.allocate, budget=budget)), compiler_options=QUICK)
    # Beta beliefs from certain to vague, and an equal pair now and then.
    alpha, beta = rng.gamma(0.7, 4, (2, 150, prompts)).astype(np.float32) + 0.05
    alpha[::5, 1], beta[::5, 1] = alpha[::5, 0], beta[::5, 0]
    read = jax.jit(
        lambda a, b: jnp.stack([utility.informative_beta(a, b, n) for n in range(largest + 1)], -1),
        compiler_options=QUICK,
    )
    tables = np.asarray(read(alpha, beta))
    chosen = np.asarray(split(jnp.asarray(tables)))
    assert (chosen.sum(1) == budget).all() and not (chosen == 1).any()
    assert chosen.min() >= 0 and chosen.max() <= largest
    every = splits(prompts, budget, largest)
    best = np.array([value(table, every).max() for table in tables.astype(np.float64)])
    got = np.array(
        [value(t, c[None])[0] for t, c in zip(tables.astype(float), chosen, strict=True)]
    )
    np.testing.assert_allclose(got, best, atol=3e-6)


def test_half_a_pair_by_hand():
    # Gains .25 .25 .25 .125 at p = .5 and .2 .2 .2 .088.. at 2 p (1 - p) = .4. Of 4 rollouts the
    # greedy three and one are repaired to two pairs, .5 + .4, not to four and none, .875.
    # A chain of states knows no size: all beyond a pair is worth nothing, and is shared.
    @partial(jax.jit, compiler_options=QUICK)
    def cases(rates, flat):
        table = jnp.stack([utility.informative_rate(rates, n) for n in range(5)], 1)
        return (
            allocation.allocate(table, 4),
            allocation.allocate(flat, 5),
            allocation.allocate(flat, 3),
            allocation.allocate(flat, 2, jnp.array([False, True])),
            allocation.allocate(jnp.zeros((4, 9)), 12),
        )

    flat = jnp.array([[0.0, 0, 0.6, 0.6, 0.6], [0, 0, 0.5, 0.5, 0.5]])
    got = cases(jnp.array([0.5, (1 - np.sqrt(0.2)) / 2]), flat)
    assert [x.tolist() for x in got] == [[2, 2], [3, 2], [3, 0], [0, 2], [3] * 4]


def run(tracker, state, seeds=1, **settings):
    selector = allocation.build(tracker, **settings)
    select = jax.jit(jax.vmap(lambda key: selector.select((), state, key)), compiler_options=QUICK)
    _, chosen, info = select(jax.random.split(jax.random.key(0), seeds))
    return np.asarray(chosen.prompt_ids), np.asarray(chosen.group_sizes), info


def test_the_whole_choice():
    tracker, state = known([0.02, 0.5, 0.0, 0.9, 1.0, 0.06])
    settings: dict[str, Any] = {"num_prompts": 6, "budget": 24, "group_size": 8}
    ids, groups, info = run(tracker, state, exploration=0.0, **settings)
    assert set(ids[0].tolist()) == {1, 3, 5}
    assert groups.sum() == 24 and dict(zip(ids[0], groups[0], strict=True))[5] > 8
    expected = utility.informative_rate(state.pass_rate[ids[0]], jnp.asarray(groups[0])).sum()
    np.testing.assert_allclose(info.expected_informative[0], expected, rtol=1e-5)
    assert (int(info.planned_rollouts[0]), int(info.shortfall[0])) == (24, 0)
    # With more slots than prompts are worth, the rest is unused and comes last; a hopeless one
    # that is explored gets a whole group.
    ids, groups, _ = run(tracker, state, 40, exploration=0.3, max_groups=8, **settings)
    assert ids.shape == (40, 8) and (groups.sum(1) == 24).all()
    assert ((ids >= 0) == (groups > 0)).all() and (ids[:, -2:] == -1).all()
    assert (np.diff((groups > 0).astype(int), axis=1) <= 0).all()
    assert all(len(set(row[row >= 0].tolist())) == (row >= 0).sum() for row in ids)
    assert set(groups[(ids == 2) | (ids == 4)].tolist()) == {8}


def test_without_signal_the_budget_is_spread():
    # Field report row 1: nothing to learn anywhere, eight prompts are served all the same.
    tracker, state = known(np.zeros(64))
    ids, groups, info = run(tracker, state, num_prompts=64, budget=64, group_size=8)
    assert len(set(ids[0].tolist())) == 8 and groups[0].tolist() == [8] * 8
    assert bool(info.low_signal[0]) and float(info.expected_informative[0]) == 0


def test_every_source_gets_a_pair():
    rates = np.array([0.5, 0.5, 0.5, 0.4, 0.001, 0.0001])
    tracker, state = known(rates)
    sources = np.array([0, 0, 0, 0, 1, 1])
    settings: dict[str, Any] = {"num_prompts": 6, "budget": 12, "group_size": 4}
    ids, groups, _ = run(
        tracker, state, sources=sources, source_floor=1, exploration=0.0, **settings
    )
    got = dict(zip(ids[0].tolist(), groups[0].tolist(), strict=True))
    assert got[4] == 2 and sum(got.values()) == 12 and len(got) == 3


def test_with_a_slot_for_every_pair_it_is_the_best_split_of_the_whole_pool():
    rng = np.random.default_rng(5)
    tracker = discounted_beta.build(6)
    alpha, beta = rng.gamma(1, 2, (2, 6)).astype(np.float32) + 0.1
    state = discounted_beta.State(jnp.asarray(alpha), jnp.asarray(beta))
    ids, groups, info = run(
        tracker,
        state,
        num_prompts=6,
        budget=10,
        group_size=2,
        max_group_size=8,
        max_groups=5,
        exploration=0.0,
    )
    read = jax.jit(lambda a, b: [utility.informative_beta(a, b, n) for n in range(9)])
    table = np.stack(read(*state), 1)
    best = value(table.astype(np.float64), splits(6, 10, 8)).max()
    np.testing.assert_allclose(info.expected_informative[0], best, rtol=1e-5)
    assert groups.sum() == 10 and len(set(ids[0].tolist())) >= 2


def test_impossible_settings_are_refused():
    tracker, _ = known([0.9, 0.45, 0.2])
    for size in (3, 65):
        with pytest.raises(ValueError, match=rf"max_group_size must be in 4\.\.64 .*got {size}"):
            allocation.build(tracker, num_prompts=3, budget=8, group_size=4, max_group_size=size)
