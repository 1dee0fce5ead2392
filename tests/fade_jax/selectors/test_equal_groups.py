"""Equal groups: ties, exploration and source floors obey their laws; sizes are refused by name."""

from itertools import combinations
from math import comb
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from selector_cases import QUICK, choose, choose_often, is_plausible, known

from fade_jax.selectors import sizes, thompson, top_m, uniform, weighted
from fade_jax.trackers import discounted_beta

BUILDS = (uniform.build, top_m.build, thompson.build, weighted.build)


def by_score(scores, groups, **changes):
    """A selector of `groups` pairs by the given scores, and the tracker state it ignores."""
    tracker, state = known(np.full(len(scores), 0.5))
    options: dict[str, Any] = {"exploration": 0.0, **changes}
    selector = top_m.build(
        tracker,
        num_prompts=len(scores),
        budget=2 * groups,
        group_size=2,
        score=lambda state: jnp.asarray(scores, jnp.float32),
        **options,
    )
    return selector, state


def test_a_pool_without_signal_is_flagged_and_served():
    # Field report row 1: 64 prompts that never succeed; dynamic sampling would raise here.
    tracker, state = known(np.zeros(64))
    for build in BUILDS:
        selector = build(tracker, num_prompts=64, budget=64, group_size=8)
        _, chosen, info = jax.jit(selector.select, compiler_options=QUICK)(
            selector.init(), state, jax.random.key(3)
        )
        assert len(set(chosen.prompt_ids.tolist())) == 8
        assert chosen.group_sizes.tolist() == [8] * 8
        assert bool(info.low_signal) and float(info.expected_informative) == 0
        assert (int(info.planned_rollouts), int(info.shortfall)) == (64, 0)


def test_what_to_expect_by_hand():
    # U_2(p) = 2 p (1 - p): .5 and .32 are the largest; .82 of 2 groups.
    tracker, state = known([0.1, 0.5, 0.0, 0.2])

    @jax.jit
    def select(low_signal):
        selector = top_m.build(
            tracker,
            num_prompts=4,
            budget=4,
            group_size=2,
            exploration=0.0,
            max_groups=3,
            low_signal=low_signal,
        )
        return selector.select(selector.init(), state, jax.random.key(0))

    for threshold, low in ((0.4, False), (0.42, True)):
        _, chosen, info = select(threshold)
        assert set(chosen.prompt_ids.tolist()[:2]) == {1, 3} and chosen.prompt_ids[2] == -1
        assert chosen.group_sizes.tolist() == [2, 2, 0]
        np.testing.assert_allclose(info.expected_informative, 0.82, rtol=1e-6)
        assert bool(info.low_signal) is low


def test_an_unknown_signal_counts_as_low():
    tracker, state = known([np.nan, 0.5])
    selector = uniform.build(tracker, num_prompts=2, budget=4, group_size=2)
    _, _, info = jax.jit(selector.select, compiler_options=QUICK)(
        selector.init(), state, jax.random.key(0)
    )
    assert bool(info.low_signal)


@pytest.mark.slow
def test_random_sizes_always_spend_the_budget_on_distinct_prompts():
    rng = np.random.default_rng(7)
    for trial in range(8):
        num_prompts = int(rng.integers(4, 400))
        groups = int(rng.integers(4, min(num_prompts, 40) + 1))
        group_size, max_groups = int(rng.integers(2, 65)), groups + int(rng.integers(0, 4))
        build = BUILDS[trial % 4]
        options: dict[str, Any] = {}
        if build is not uniform.build:
            options["candidates"] = int(rng.integers(groups, num_prompts + 1))
        num_sources = int(rng.integers(1, 3))
        sources = np.arange(num_prompts) % num_sources
        # Coarse, so that there are ties; and certain prompts, so that there are zeros.
        tracker, state = known(rng.integers(0, 4, num_prompts) / 3)
        selector = build(
            tracker,
            num_prompts=num_prompts,
            budget=groups * group_size,
            group_size=group_size,
            max_groups=max_groups,
            exploration=float(rng.choice([0.0, 0.05, 0.5])),
            sources=sources,
            source_floor=1,
            **options,
        )
        select = jax.jit(selector.select, compiler_options=QUICK)
        for seed in range(4):
            _, chosen, _ = select(selector.init(), state, jax.random.key(seed))
            ids, group_sizes = np.asarray(chosen.prompt_ids), np.asarray(chosen.group_sizes)
            assert ids.shape == (max_groups,) and ids.dtype == group_sizes.dtype == np.int32
            used = ids[:groups]
            assert len(set(used.tolist())) == groups and 0 <= used.min()
            assert used.max() < num_prompts
            assert (ids[groups:] == -1).all() and (group_sizes[groups:] == 0).all()
            assert group_sizes.sum() == groups * group_size
            assert set(sources[used]) == set(range(num_sources))


@pytest.mark.parametrize(("size", "times"), [(8, 6_000), (50, 20_000)])
def test_ties_are_broken_uniformly(size, times):
    # Every pair of equally good prompts is equally likely; 50 takes the two-stage way through
    # `top.largest`, 8 the short one. False-alarm rate 1e-4, at >= 16 expected counts a pair.
    selector, state = by_score(np.zeros(size), 2)
    pairs = np.sort(choose_often(selector, state, times), axis=1)
    counts = [((pairs == pair).all(1)).sum() for pair in combinations(range(size), 2)]
    assert is_plausible(counts, np.full(len(counts), times / len(counts)))


def test_only_the_last_places_are_drawn_for():
    # 4 is best; 0, 2, 3 tie for two places: three pairs. False-alarm rate 1e-4.
    selector, state = by_score([1.0, 0.0, 1.0, 1.0, 2.0], 3)
    chosen = choose_often(selector, state, 3_000)
    assert ((chosen == 4).sum(1) == 1).all()
    tied = np.sort(chosen[chosen != 4].reshape(-1, 2), axis=1)
    counts = [(tied == pair).all(1).sum() for pair in ((0, 2), (0, 3), (2, 3))]
    assert is_plausible(counts, [1000] * 3)


def test_unusable_scores_come_last():
    scores = [np.nan, 3.0, -np.inf, np.inf, -2.0]
    selector, state = by_score(scores, 3)
    assert set(choose(selector, state)) == {1, 3, 4}
    selector, state = by_score(scores, 5)
    assert set(choose(selector, state)) == {0, 1, 2, 3, 4}


def test_candidates_are_a_uniform_subset():
    # The best of 3 random of 6 is the one of rank r when the other two rank below it:
    # C(5 - r, 2) / C(6, 3). False-alarm rate 1e-4.
    selector, state = by_score([6.0, 5, 4, 3, 2, 1], 1, candidates=3)
    chosen = choose_often(selector, state, 4_000)[:, 0]
    assert chosen.max() == 3
    expected = [4_000 * comb(5 - r, 2) / comb(6, 3) for r in range(4)]
    assert is_plausible(np.bincount(chosen, minlength=4), expected)


def test_exploration_is_uniform_over_those_not_chosen_by_score():
    # 0 and 1 tie for the place by score, the other place is anyone's: six equally likely outcomes.
    # Reusing the tie-break's random numbers would favour 2 and 3. False-alarm rate 1e-4.
    selector, state = by_score([1.0, 1.0, 0.0, 0.0], 2, exploration=0.5)
    chosen = choose_often(selector, state, 6_000)
    outcomes = [(0, 1), (0, 2), (0, 3), (1, 0), (1, 2), (1, 3)]
    assert is_plausible([(chosen == pair).all(1).sum() for pair in outcomes], [1000] * 6)


@pytest.mark.parametrize(
    ("exploration", "groups", "explored"),
    [(0.0, 8, 0), (1e-9, 8, 1), (0.05, 8, 1), (0.07, 100, 7), (0.071, 100, 8), (1.0, 8, 8)],
)
def test_the_explored_share_is_rounded_up(exploration, groups, explored):
    assert sizes.plan(200, 2 * groups, 2, exploration=exploration).explored == explored


def test_a_prompt_believed_hopeless_is_seen_again():
    # Prompt 0 failed 400 times; 20 prompts, 4 groups of which 1 explores 17 prompts: a visit has
    # chance 1/17. Mean of 2,000 choices within 4.5 standard errors (.0053): false-alarm 7e-6.
    tracker = discounted_beta.build(20, discount=1.0)
    state = tracker.init()
    state = state._replace(failures=state.failures.at[0].add(400.0))
    share = {}
    for exploration in (0.0, 0.05):
        selector = top_m.build(
            tracker, num_prompts=20, budget=32, group_size=8, exploration=exploration
        )
        share[exploration] = (choose_often(selector, state, 2_000) == 0).sum() / 2_000
    assert share[0.0] == 0
    assert abs(share[0.05] - 1 / 17) < 4.5 * np.sqrt(1 / 17 * 16 / 17 / 2_000)


def test_every_source_gets_its_best():
    # Sources 0 (good), 1 (bad), 2 (worse); two places each, then the best of the rest.
    scores = np.array([9.0, 8, 7, 6, 0.3, 0.1, 0.2, 0.03, 0.02, 0.01])
    sources = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2, 2], np.int32)
    selector, state = by_score(scores, 7, sources=sources, source_floor=2)
    assert sorted(choose(selector, state)) == [0, 1, 2, 4, 6, 7, 8]
    selector, state = by_score(scores, 7, sources=sources, source_floor=1)
    assert sorted(choose(selector, state)) == [0, 1, 2, 3, 4, 6, 7]
    # The floor looks beyond the candidates, and exploration comes on top of it.
    selector, state = by_score(
        scores, 4, sources=sources, source_floor=1, candidates=4, exploration=0.25
    )
    chosen = choose_often(selector, state, 200)
    assert (np.sort(chosen[:, :3], axis=1) == [0, 4, 7]).all()
    assert set(chosen[:, 3].tolist()) == {1, 2, 3, 5, 6, 8, 9}


def test_ties_within_a_source_are_broken_uniformly():
    # One place each for the equals {0, 2, 4} and {1, 3}. False-alarm rate 1e-4.
    selector, state = by_score(np.ones(5), 2, sources=np.arange(5) % 2, source_floor=1)
    chosen = np.sort(choose_often(selector, state, 6_000), axis=1)
    pairs = [(0, 1), (0, 3), (1, 2), (2, 3), (1, 4), (3, 4)]
    counts = [(chosen == pair).all(1).sum() for pair in pairs]
    assert is_plausible(counts, [1000] * 6)


def test_sources_may_be_traced():
    scores, sources = np.arange(12.0), np.arange(12) % 3

    def run(sources):
        selector, state = by_score(scores, 5, sources=sources, source_floor=1, exploration=0.2)
        return selector.select(selector.init(), state, jax.random.key(5))[1]

    traced = jax.jit(run, compiler_options=QUICK)(jnp.asarray(sources))
    concrete = jax.jit(lambda: run(sources), compiler_options=QUICK)()
    assert traced.prompt_ids.tolist() == concrete.prompt_ids.tolist()
    # Three floors do not fit into two places: no error inside compiled code, and no lost budget.
    tight = jax.jit(lambda s: choose_two(scores, s), compiler_options=QUICK)(jnp.asarray(sources))
    assert set(tight.prompt_ids.tolist()) < {9, 10, 11} and tight.group_sizes.tolist() == [2, 2]


def choose_two(scores, sources):
    selector, state = by_score(scores, 2, sources=sources, source_floor=1)
    return selector.select(selector.init(), state, jax.random.key(5))[1]


def test_scores_of_another_pool_are_refused():
    tracker, state = known(np.full(7, 0.5))
    selector = top_m.build(tracker, num_prompts=8, budget=4, group_size=2)
    with pytest.raises(ValueError, match=r"num_prompts is 8.*\(7,\)"):
        selector.select(selector.init(), state, jax.random.key(0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_prompts": 0}, "num_prompts must be at least 1, got 0"),
        ({"budget": 30}, "budget must be a positive multiple of group_size 8, got 30"),
        ({"budget": 0}, "budget must .* got 0"),
        ({"budget": -8}, "budget must .* got -8"),
        ({"group_size": 1}, r"group_size must be in 2\.\.64, got 1"),
        ({"group_size": 65, "budget": 130}, r"group_size must be in 2\.\.64, got 65"),
        ({"budget": 168}, "budget 168 makes 21 groups of 8, but num_prompts is 20"),
        ({"max_groups": 3}, "max_groups must be at least 4 .* got 3"),
        ({"exploration": -0.1}, r"exploration must be in 0\.\.1, got -0.1"),
        ({"exploration": 1.5}, r"exploration must be in 0\.\.1, got 1.5"),
        ({"exploration": float("nan")}, r"exploration must be in 0\.\.1, got nan"),
        ({"low_signal": 2.0}, r"low_signal must be in 0\.\.1, got 2.0"),
        ({"candidates": 3}, r"candidates must be in 4\.\.20 .* got 3"),
        ({"candidates": 21}, r"candidates must be in 4\.\.20 .* got 21"),
        ({"source_floor": 1}, "source_floor is 1, but sources is None"),
        ({"source_floor": -1}, "source_floor must be >= 0, got -1"),
        ({"sources": np.zeros(19, int)}, r"sources must be \[20\] .* got \(19,\)"),
        ({"sources": np.arange(20) - 1}, "sources must be >= 0, got -1 for prompt 0"),
        ({"sources": np.arange(20) % 2 * 2}, "sources must be .* got no prompt of 1"),
        ({"sources": np.full(20, 1)}, "sources must be .* got no prompt of 0"),
        (
            {"sources": (np.arange(20) == 6).astype(int), "source_floor": 2},
            "source_floor is 2, but sources has 1 prompts of source 1",
        ),
        (
            {"sources": np.arange(20) % 3, "source_floor": 2},
            "source_floor 2 for 3 sources needs 6 groups, but budget and exploration leave 4",
        ),
        (
            {"sources": np.arange(20) % 4, "source_floor": 1, "exploration": 0.05},
            "source_floor 1 for 4 sources needs 4 groups, but budget and exploration leave 3",
        ),
    ],
)
def test_impossible_sizes_are_refused_by_name(changes, message):
    settings: dict[str, Any] = {
        "num_prompts": 20,
        "budget": 32,
        "group_size": 8,
        "exploration": 0.0,
        **changes,
    }
    tracker, _ = known(np.full(20, 0.5))
    with pytest.raises(ValueError, match=message):
        thompson.build(tracker, **settings)
    settings.pop("candidates", None)
    if "candidates" not in changes:
        with pytest.raises(ValueError, match=message):
            uniform.build(tracker, **settings)
