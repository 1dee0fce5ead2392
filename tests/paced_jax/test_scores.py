"""Scores against formulas by hand, scipy's Wilson interval, and coverage by simulation."""

from math import comb, sqrt

import numpy as np
import pytest
from scipy import stats

from paced_jax.scores import score_table, wilson_interval


def wilson(mean, trials, quantile):
    """Roots of (mean - p)^2 = quantile^2 p (1 - p) / trials."""
    q = quantile**2 / trials
    low, high = sorted(np.roots([1 + q, -(2 * mean + q), mean**2]).real)
    return low, high


def test_a_table_by_hand():
    successes, n = np.array([0, 1, 4, 8, 8]), 8
    table = score_table(successes, n, ks=(1, 2, 8, 16))
    assert [line.score for line in table] == ["avg@8", "pass@1", "pass@2", "pass@8"]
    chances = [[1 - comb(8 - int(s), k) / comb(8, k) for s in successes] for k in (2, 8)]
    by_hand = [21 / 40, 21 / 40, *(sum(each) / 5 for each in chances)]
    np.testing.assert_allclose([line.mean for line in table], by_hand, rtol=1e-6)
    within = sum(s / 8 * (1 - s / 8) / 7 for s in successes)
    assert table[0].rollout_error == pytest.approx(sqrt(within) / 5)
    assert [line.rollout_error for line in table[1:]] == [None] * 3
    assert all(0 <= line.low < line.mean < line.high <= 1 for line in table)


def test_the_rollout_error_is_the_error_of_a_second_run():
    # 4,000 runs: a standard deviation has a relative standard error of 1.1 %; 4 of them.
    rng = np.random.default_rng(0)
    rates = np.array([0.02, 0.1, 0.4, 0.9])
    runs = rng.binomial(6, rates, (4000, 4))
    variance = np.mean([(score_table(run, 6, ())[0].rollout_error or 0) ** 2 for run in runs])
    assert np.sqrt(variance) == pytest.approx((runs / 6).mean(1).std(), rel=0.045)


def test_one_rollout_each_is_wilsons_interval():
    successes = np.repeat([0, 1], [25, 15])
    (line,) = score_table(successes, 1, level=0.9)
    assert line.score == "avg@1" and line.rollout_error is None
    expected = wilson(15 / 40, 40, stats.t.ppf(0.95, 39))
    np.testing.assert_allclose((line.low, line.high), expected, rtol=1e-12)
    # With many problems Student's quantile is the normal one, as scipy has it.
    many = np.repeat([0.0, 1.0], [60_000, 40_000])
    published = stats.binomtest(40_000, 100_000).proportion_ci(method="wilson")
    np.testing.assert_allclose(wilson_interval(many), published, atol=1e-7)


def test_the_effective_number_of_trials():
    """Between the problems and the rollouts, by how far the rollouts of a problem agree."""
    q = stats.t.ppf(0.975, 29)
    agree = np.repeat([0.0, 1.0], [20, 10])
    np.testing.assert_allclose(wilson_interval(agree, 240), wilson(1 / 3, 30, q), rtol=1e-12)
    np.testing.assert_allclose(wilson_interval(np.full(30, 0.25), 240), wilson(0.25, 240, q))
    some = np.repeat([0.1, 0.3], 15)
    effective = 0.16 / (some.var(ddof=1) / 30)
    assert 30 < effective < 1000
    np.testing.assert_allclose(wilson_interval(some, 1000), wilson(0.2, effective, q))
    low, high = wilson_interval(np.zeros(30), 240)
    assert low == 0 and high == pytest.approx(q**2 / (30 + q**2))
    assert wilson_interval(np.ones(30)) == pytest.approx((1 - high, 1))
    assert wilson_interval(np.array([0.5])) == (0, 1)


@pytest.mark.parametrize("rollouts", [1, 8])
def test_coverage(rollouts):
    """30 problems with rates of Beta(.3, .7). Of 2,000 intervals 95 % should hold .3; standard
    error .005. A normal interval holds .92 at 8 rollouts; the bound is 3 errors below .95."""
    rng = np.random.default_rng(1)
    rates = rng.binomial(rollouts, rng.beta(0.3, 0.7, (2000, 30))) / rollouts
    ends = np.array([wilson_interval(row, 30 * rollouts) for row in rates])
    assert np.mean((ends[:, 0] <= 0.3) & (ends[:, 1] >= 0.3)) > 0.935


def test_trials_that_differ():
    table = score_table([1, 2, 0], np.array([2, 8, 4]), ks=(2, 4))
    assert [line.score for line in table] == ["avg@2", "pass@2"]
    assert table[0].mean == pytest.approx((1 / 2 + 1 / 4 + 0) / 3)
    assert table[1].mean == pytest.approx((1 + 1 - comb(6, 2) / comb(8, 2)) / 3)


@pytest.mark.parametrize(
    ("successes", "trials", "message"),
    [
        ([], 8, "successes: needs .N. whole numbers"),
        ([0.5], 8, "successes: needs .N. whole numbers"),
        ([1, 2], [8, 8, 8], "trials: needs one whole number or 2"),
        ([1, 9], 8, "successes: 9 of problem 1 .* with 8 trials"),
        ([1, -1], 8, "successes: -1 of problem 1"),
        ([1, 0], [1, 0], "trials: 0 of problem 1"),
    ],
)
def test_refusals(successes, trials, message):
    with pytest.raises(ValueError, match=message):
        score_table(np.array(successes), trials)
    with pytest.raises(ValueError, match="level: 1"):
        wilson_interval(np.array([0.0, 1.0]), level=1.0)
    with pytest.raises(ValueError, match=r"values: needs .N. in 0..1"):
        wilson_interval(np.array([0.0, np.nan]))
