import doctest

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import gammaln

from fade_jax import outcomes
from fade_jax.door import pad_observation
from fade_jax.types import Observation


def observation(ids, successes, trials):
    return Observation(
        jnp.asarray(ids, jnp.int32),
        jnp.asarray(successes, jnp.float32),
        jnp.asarray(trials, jnp.float32),
    )


def test_group_outcomes_by_hand():
    verdicts = jnp.asarray([1, -1, 0, -1, 1, 1, 0, -1, 1], jnp.int8)
    group = jnp.asarray([0, 0, 0, 0, 1, 1, 2, 3, -1], jnp.int32)
    counted = outcomes.group_outcomes(verdicts, group, 5)
    # Group 3 has no verdict, group 4 no row, and the last row belongs to no group.
    np.testing.assert_array_equal(counted.successes, [1, 2, 0, 0, 0])
    np.testing.assert_array_equal(counted.trials, [2, 2, 1, 0, 0])
    np.testing.assert_array_equal(counted.missing, [2, 0, 0, 1, 0])
    np.testing.assert_array_equal(counted.degenerate, [False, True, True, True, True])


@pytest.mark.parametrize("graded", [False, True])
def test_group_outcomes_equal_a_loop(graded):
    rng = np.random.default_rng(0)
    verdicts = rng.integers(-1, 2, 300) if not graded else rng.integers(-1, 5, 300) / 4
    verdicts = np.maximum(verdicts, -1).astype(np.float32 if graded else np.int8)
    group = rng.integers(0, 90, 300).astype(np.int32)
    counted = jax.jit(outcomes.group_outcomes, static_argnums=2)(
        jnp.asarray(verdicts), jnp.asarray(group), 90
    )
    counted = jax.tree.map(np.asarray, counted)
    for g in range(90):
        of_group = verdicts[group == g]
        given = of_group[of_group >= 0]
        assert counted.successes[g] == given.sum()
        assert counted.trials[g] == len(given)
        assert counted.missing[g] == len(of_group) - len(given)
        assert counted.degenerate[g] == (len(set(given.tolist())) < 2)
        if not graded:
            assert counted.degenerate[g] == (given.sum() in (0, len(given)))


@pytest.mark.parametrize(
    ("rewards", "is_degenerate"),
    [
        ([0.5] * 8, True),  # field report 6: the mean is in range, the spread is not there
        ([0, 1] * 4, False),
        ([1, 0, 0, 0], False),  # field report 7
        ([1, 1, 1, 0], False),
        ([1, 1, 0, 0], False),
        ([0] * 4, True),
        ([1] * 4, True),
        ([0.95] * 7, True),  # field report 8: its float64 standard deviation is 1.1e-16
        ([0.3], True),
    ],
)
def test_degenerate_by_spread(rewards, is_degenerate, x64):
    assert ([0.95] * 7 != rewards) or np.std(rewards) > 0
    for dtype in (jnp.float32, jnp.float64):
        flags = outcomes.degenerate(
            jnp.asarray(rewards, dtype), jnp.zeros(len(rewards), jnp.int32), 1
        )
        assert flags.tolist() == [is_degenerate]


def test_degenerate_tolerance_and_nan():
    rewards = jnp.asarray([0.5, 0.52, 0.0, 0.4, jnp.nan, 1.0], jnp.float32)
    group = jnp.asarray([0, 0, 1, 1, 2, 2], jnp.int32)
    assert outcomes.degenerate(rewards, group, 4).tolist() == [False, False, True, True]
    wide = outcomes.degenerate(rewards, group, 4, tolerance=0.05)
    assert wide.tolist() == [True, False, True, True]
    # A NaN verdict is no silent zero: its group is flagged at the next door.
    counted = outcomes.group_outcomes(rewards, group, 3)
    seen = Observation(jnp.arange(3), counted.successes, counted.trials)
    assert int(outcomes.first_invalid(seen, 3)) == 2


@pytest.mark.parametrize(
    ("rows", "first"),
    [
        (([0, 4, -1, 99], [0, 8, 0, 0], [8, 8, 0, 0]), -1),
        (([0, 5, 2, 99], [0, 8, 0, 0], [8, 8, 1, 1]), 1),
        (([0, -1, 2, 3], [0, 8, 0, 0], [8, 8, 1, 1]), 1),
        (([0, 1, 2, 3], [0, 8, 2, 0], [8, 8, 1, 1]), 2),
        (([0, 1, 2, 3], [-1, 8, 2, 0], [8, 8, 1, 1]), 0),
        (([0, 1, 2, 3], [0, 0, 0, np.nan], [8, 8, 1, 1]), 3),
        (([0, 1, 2, 3], [0, 0, 0, 0], [8, 8, 1, np.nan]), 3),
        (([0, 1, 2, 3], [0, 0, 0, 0], [8, np.inf, 1, 1]), 1),
        (([0, 1, 2, 3], [0, 0, 0, 0], [8, 8, -1, 1]), 2),
        (([], [], []), -1),
    ],
)
def test_first_invalid(rows, first):
    flag = jax.jit(outcomes.first_invalid, static_argnums=1)(observation(*rows), 5)
    assert flag.dtype == jnp.int32
    assert int(flag) == first


def test_merge_duplicates_equals_a_loop():
    rng = np.random.default_rng(1)
    ids, trials = rng.integers(0, 9, 24), rng.integers(0, 5, 24)
    successes = rng.binomial(trials, 0.4)
    merged = outcomes.merge_duplicates(observation(ids, successes, trials), 9)
    merged = jax.tree.map(np.asarray, merged)
    live = [i for i in range(9) if trials[ids == i].sum() > 0]
    assert merged.prompt_ids.tolist() == live + [9] * (24 - len(live))
    for row, prompt_id in enumerate(live):
        assert merged.successes[row] == successes[ids == prompt_id].sum()
        assert merged.trials[row] == trials[ids == prompt_id].sum()
    assert merged.trials[len(live) :].sum() == 0


def test_batches_of_any_length_compile_once():
    """Field report 71: 128, 57 and 1 outcomes, and again."""
    rng = np.random.default_rng(2)
    once = chex.assert_max_traces(lambda seen: outcomes.merge_duplicates(seen, 300), n=1)
    merge = jax.jit(once)
    each = jax.jit(lambda seen: outcomes.merge_duplicates(seen, 300))
    for rows in (128, 57, 1, 128, 57, 1):
        seen = observation(rng.integers(0, 300, rows), rng.integers(0, 9, rows), [8] * rows)
        padded, alone = merge(pad_observation(seen, 128)), each(seen)
        for long, short in zip(padded, alone, strict=True):
            np.testing.assert_array_equal(long[:rows], short)
        assert padded.trials[rows:].sum() == 0


def test_log_binomial_coefficient():
    for trials, successes in ((8, 3), (1, 0), (0, 0), (64, 32), (8, 2.5)):
        want = gammaln(trials + 1) - gammaln(successes + 1) - gammaln(trials - successes + 1)
        got = outcomes.log_binomial_coefficient(jnp.float32(successes), jnp.float32(trials))
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)


def test_normalised_innovation_is_one_for_its_own_model():
    # y ~ BetaBinomial(8; 2, 3) has just these moments. 40,000 rows: the mean of the squared
    # standardised error has standard error .006 (kurtosis about 2.3), so .03 is 5 standard errors,
    # a false-alarm rate below 1e-6.
    rng = np.random.default_rng(3)
    successes = rng.binomial(8, rng.beta(2, 3, 40_000))
    rates = jnp.full(40_000, 0.4, jnp.float32)
    variance = jnp.full(40_000, 0.04, jnp.float32)  # 2 * 3 / (5^2 * 6)
    counts = jnp.asarray(successes, jnp.float32), jnp.full(40_000, 8.0, jnp.float32)
    nis = outcomes.normalised_innovation(rates, variance, *counts)
    np.testing.assert_allclose(nis, 1.0, atol=0.03)
    none = outcomes.normalised_innovation(rates, variance, counts[0], jnp.zeros_like(counts[1]))
    assert none == 0


def test_examples():
    assert doctest.testmod(outcomes).failed == 0
