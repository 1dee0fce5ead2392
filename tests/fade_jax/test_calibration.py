"""Scores and calibration: values by hand, other libraries, and simulation with stated error."""

import doctest
import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom, norm, rankdata

from fade_jax import calibration
from fade_jax.calibration import (
    brier,
    ece_noise_floor,
    effective_group_ratio,
    expected_calibration_error,
    log_loss,
    paired_bootstrap,
    reliability_bins,
    spearman,
    spearman_ceiling,
    sums_by_prompt,
    unbiased_squared_error,
)


def arrays(*values):
    return tuple(np.array(value, float) for value in values)


# --- scores ------------------------------------------------------------------------------------


def test_brier_and_log_loss_by_hand():
    probability, outcome = arrays([0.8, 0.25, 0.5], [1, 0, 0.5])
    np.testing.assert_allclose(brier(probability, outcome), (0.04 + 0.0625) / 3)
    expected = -(np.log(0.8) + np.log(0.75) + np.log(0.5)) / 3
    np.testing.assert_allclose(log_loss(probability, outcome), expected)
    np.testing.assert_allclose(
        log_loss(jnp.asarray(probability), jnp.asarray(outcome)), expected, rtol=1e-6
    )


def test_log_loss_of_a_certain_mistake_is_clipped_on_both_sides():
    wrong, right = arrays([0.0, 1.0], [1, 0])
    np.testing.assert_allclose(log_loss(wrong, right), -np.log(1e-6))
    np.testing.assert_allclose(log_loss(right, right), -np.log1p(-1e-6))
    np.testing.assert_allclose(log_loss(wrong, right, clip=0.01), -np.log(0.01))


def test_scores_are_proper():
    # Expected scores under outcomes of rate .3, by enumeration: least at the truth.
    truth = 0.3
    candidates = np.linspace(0.01, 0.99, 99)
    for score in (brier, log_loss):
        expected = [
            truth * score(np.array([q]), np.array([1.0]))
            + (1 - truth) * score(np.array([q]), np.array([0.0]))
            for q in candidates
        ]
        np.testing.assert_allclose(candidates[np.argmin(expected)], truth)


# --- calibration -------------------------------------------------------------------------------


def test_reliability_bins_by_hand():
    probability, outcome = arrays([0.0, 0.1, 0.3, 0.5, 0.9, 1.0], [0, 1, 1, 0, 1, 1])
    bins = reliability_bins(probability, outcome, num_bins=4)
    np.testing.assert_allclose(bins.edges, [0, 0.25, 0.5, 0.75, 1])
    np.testing.assert_array_equal(bins.count, [2, 1, 1, 2])
    np.testing.assert_allclose(bins.predicted, [0.05, 0.3, 0.5, 0.95])
    np.testing.assert_allclose(bins.observed, [0.5, 1, 0, 1])
    expected = (2 * 0.45 + 0.7 + 0.5 + 2 * 0.05) / 6
    np.testing.assert_allclose(expected_calibration_error(probability, outcome, 4), expected)


def test_empty_bins_are_nan_and_weigh_nothing():
    probability, outcome = arrays([0.05, 0.95], [0, 1])
    bins = reliability_bins(probability, outcome)
    np.testing.assert_array_equal(bins.count, [1, 0, 0, 0, 0, 0, 0, 0, 0, 1])
    assert np.isnan(bins.predicted[1:9]).all() and np.isnan(bins.observed[1:9]).all()
    np.testing.assert_allclose(expected_calibration_error(probability, outcome), 0.05)


def test_calibration_error_by_a_loop_over_bins():
    rng = np.random.default_rng(3)
    probability = rng.beta(0.7, 1.5, size=500)
    outcome = (rng.random(500) < probability**1.3).astype(float)
    for equal_mass in (False, True):
        edges = np.linspace(0, 1, 8)
        if equal_mass:
            edges = np.quantile(probability, edges)
        total = 0.0
        for low, high in itertools.pairwise(edges):
            inside = (probability >= low) & ((probability < high) | (high == edges[-1]))
            if inside.any():
                total += abs((probability - outcome)[inside].sum()) / 500
        value = expected_calibration_error(probability, outcome, 7, equal_mass)
        np.testing.assert_allclose(value, total, rtol=1e-12)
        bins = reliability_bins(probability, outcome, 7, equal_mass)
        assert bins.count.sum() == 500
        assert not equal_mass or np.ptp(bins.count) <= 2


def test_equal_predictions_share_an_equal_mass_bin():
    probability, outcome = arrays([0.2] * 6 + [0.7] * 2, [1, 0, 0, 0, 0, 0, 1, 1])
    bins = reliability_bins(probability, outcome, num_bins=4, equal_mass=True)
    np.testing.assert_array_equal(np.sort(bins.count), [0, 0, 2, 6])
    expected = (6 * abs(0.2 - 1 / 6) + 2 * 0.3) / 8
    np.testing.assert_allclose(
        expected_calibration_error(probability, outcome, 4, equal_mass=True), expected
    )
    permuted = np.random.default_rng(0).permutation(8)
    np.testing.assert_allclose(
        expected_calibration_error(probability[permuted], outcome[permuted], 4, True), expected
    )


@pytest.mark.parametrize(
    ("size", "published", "repeats"),
    [(500, 0.052, 600), (2000, 0.028, 300), (10_000, 0.012, 150), (50_000, 0.0055, 60)],
)
def test_noise_floor_is_the_error_of_perfect_predictions(size, published, repeats):
    # Simulated ECE of true probabilities, uniform on 0..1, 15 equal-mass bins. Its sd is about 20 %
    # of its mean, so the standard error is .8 % to 2.6 %; 4.5 of them: false alarm 7e-6 a case. The
    # normal approximation of the floor is off by about 1 % more in bins of 33.
    rng = np.random.default_rng(7)
    errors, floors = np.empty(repeats), np.empty(repeats)
    for i in range(repeats):
        probability = rng.random(size)
        outcome = (rng.random(size) < probability).astype(float)
        errors[i] = expected_calibration_error(probability, outcome, 15, equal_mass=True)
        floors[i] = ece_noise_floor(probability, 15, equal_mass=True)
    standard_error = errors.std() / np.sqrt(repeats)
    assert standard_error < 0.03 * floors.mean()
    assert abs(errors.mean() - floors.mean()) < 4.5 * standard_error + 0.01 * floors.mean()
    np.testing.assert_allclose(floors.mean(), published, rtol=0.05)


def test_noise_floor_by_hand():
    # One bin of two predictions: sqrt(2 mean(p (1-p)) / (pi 2)).
    value = ece_noise_floor(np.array([0.5, 0.1]), num_bins=1)
    np.testing.assert_allclose(value, np.sqrt(2 * 0.17 / (np.pi * 2)))
    assert ece_noise_floor(np.array([0.0, 1.0, 1.0])) == 0


# --- ranks -------------------------------------------------------------------------------------


def test_spearman_against_scipy_ranks_with_ties_and_unvisited_rows():
    rng = np.random.default_rng(0)
    rate = np.round(rng.random(300), 2)
    trials = rng.choice([4, 8, 16], 300)
    successes = rng.binomial(trials, rate)
    expected = np.corrcoef(rankdata(rate), rankdata(successes / trials))[0, 1]
    np.testing.assert_allclose(spearman(rate, successes, trials), expected, rtol=1e-12)
    padded = [np.append(x, [fill]) for x, fill in ((rate, 1.0), (successes, 0), (trials, 0))]
    np.testing.assert_allclose(spearman(*padded), expected, rtol=1e-12)
    assert np.isnan(spearman(np.full(3, 0.5), np.arange(3), np.full(3, 8)))


@pytest.mark.parametrize(("trials", "published"), [(4, 0.80), (8, 0.88), (16, 0.935)])
def test_spearman_ceiling_of_uniform_pass_rates(trials, published):
    # Counts are then uniform too, so ranks are linear in them: corr(p, y) = sqrt(G / (G + 2)). The
    # published figures are a little lower (breaking ties at random gives .799, .888, .942).
    rate = (np.arange(2000) + 0.5) / 2000
    value = spearman_ceiling(rate, np.full(2000, trials))
    np.testing.assert_allclose(value, np.sqrt(trials / (trials + 2)), atol=1e-6)
    assert published < value < published + 0.02


def test_spearman_ceiling_is_what_the_truth_reaches():
    # 100 samples of 2,000 visits: sd of one rank correlation about .007, standard error .0007;
    # 4.5 of them, false alarm 7e-6. Mixed group sizes, skewed rates, visits without trials.
    rng = np.random.default_rng(5)
    rate = rng.beta(0.5, 1.0, 2000)
    trials = rng.choice([0, 2, 8], 2000, p=[0.1, 0.3, 0.6])
    reached = [spearman(rate, rng.binomial(trials, rate), trials) for _ in range(100)]
    standard_error = np.std(reached) / 10
    assert standard_error < 0.001
    assert abs(np.mean(reached) - spearman_ceiling(rate, trials)) < 4.5 * standard_error
    assert spearman_ceiling(np.array([0.0, 1.0]), np.array([8, 8])) == pytest.approx(1)


# --- groups ------------------------------------------------------------------------------------


def test_effective_group_ratio_counts_groups_that_disagree():
    successes, trials = arrays([0, 8, 3, 1, 0], [8, 8, 8, 2, 0])
    assert effective_group_ratio(successes, trials) == 0.5
    assert np.isnan(effective_group_ratio(np.zeros(2), np.zeros(2)))


def test_squared_error_is_unbiased_by_enumeration():
    for size in (2, 5, 16):
        counts = np.arange(size + 1)
        for truth in (0.0, 0.13, 0.6, 1.0):
            weight = binom.pmf(counts, size, truth)
            error = unbiased_squared_error(np.full(size + 1, 0.4), counts, np.full(size + 1, size))
            np.testing.assert_allclose(weight @ error, (0.4 - truth) ** 2, atol=1e-13)


# --- bootstrap ---------------------------------------------------------------------------------


def test_sums_by_prompt_add_up():
    values, ids = np.array([0.5, 1.0, -2.0, 4.0]), np.array([2, 0, 2, 2])
    sums, counts = sums_by_prompt(values, ids, 4)
    np.testing.assert_allclose(sums, [1.0, 0, 2.5, 0])
    np.testing.assert_allclose(counts, [1, 0, 3, 0])


def test_bootstrap_resamples_prompts_with_their_rows():
    # Three prompts with 1, 2 and 5 rows: all 27 equally likely draws, enumerated.
    sums, counts = arrays([0.3, -0.4, 2.0, 0.0], [1, 2, 5, 0])
    draws = np.stack(np.meshgrid(*[np.arange(3)] * 3), -1).reshape(-1, 3)
    statistic = np.sort(sums[draws].sum(1) / counts[draws].sum(1))
    interval = paired_bootstrap(0, sums, counts, num_samples=20_000, level=0.8)
    np.testing.assert_allclose(interval.mean, 1.9 / 8)
    # The 10 % and 90 % points of 27 atoms lie inside atoms 3 and 25 (of mass 3.7 %): the quantile
    # of 20,000 samples (se .2 %) hits them exactly.
    np.testing.assert_allclose(interval.low, statistic[2], rtol=1e-12)
    np.testing.assert_allclose(interval.high, statistic[24], rtol=1e-12)


def test_bootstrap_of_many_prompts_is_the_normal_interval():
    rng = np.random.default_rng(11)
    counts = rng.integers(1, 6, 1209).astype(float)
    sums = rng.normal(0.02, 0.3, 1209) * counts
    mean = sums.sum() / counts.sum()
    error = np.sqrt(((sums - mean * counts) ** 2).sum()) / counts.sum()  # of a ratio, linearised
    interval = paired_bootstrap(np.random.default_rng(1), sums, counts, num_samples=4000, level=0.9)
    # se of a 5 % quantile of 4,000: .034 sd; 5 of them.
    half = norm.ppf(0.95) * error
    assert abs(interval.low - (mean - half)) < 0.17 * error
    assert abs(interval.high - (mean + half)) < 0.17 * error
    assert interval == paired_bootstrap(1, sums, counts, num_samples=4000, level=0.9)
    assert interval != paired_bootstrap(2, sums, counts, num_samples=4000, level=0.9)


# --- the door ----------------------------------------------------------------------------------

HALF, ONE = np.array([0.5, 0.5]), np.array([1.0, 1.0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: brier(np.array([0.5, np.nan]), ONE), r"probability.*nan \(row 1\)"),
        (lambda: brier(np.array([0.5, 1.5]), ONE), r"probability.*1.5 \(row 1\)"),
        (lambda: log_loss(HALF, np.array([2.0, 1.0])), r"outcome.*2.0 \(row 0\)"),
        (lambda: log_loss(HALF, ONE, clip=0.0), "clip"),
        (lambda: brier(HALF, np.ones(3)), r"probability \(2,\) and outcome \(3,\)"),
        (lambda: brier(np.zeros(0), np.zeros(0)), "n > 0"),
        (lambda: reliability_bins(HALF, ONE, num_bins=0), "num_bins"),
        (lambda: spearman(HALF, np.array([3.0, 9.0]), 8 * ONE), r"successes.*9.0 \(row 1\)"),
        (lambda: spearman(HALF, ONE, np.array([8.0, np.inf])), "trials"),
        (lambda: spearman(np.array([np.nan, 0.5]), ONE, 8 * ONE), "pass_rate"),
        (lambda: spearman(HALF, ONE, np.ones(3)), "must all be"),
        (lambda: spearman_ceiling(np.array([-0.1, 0.5]), 8 * ONE), "pass_rate"),
        (lambda: spearman_ceiling(HALF, 1.5 * ONE), "trials"),
        (lambda: effective_group_ratio(-ONE, 8 * ONE), "successes"),
        (lambda: unbiased_squared_error(HALF, ONE, np.array([8.0, 1.0])), r"trials.*\(row 1\)"),
        (lambda: sums_by_prompt(HALF, np.array([0, 2]), 2), r"prompt_ids.*2 \(row 1\)"),
        (
            lambda: sums_by_prompt(np.array([0.0, np.nan]), np.array([0, 1]), 2),
            "values of prompt 1",
        ),
        (lambda: sums_by_prompt(HALF, np.zeros(3, int), 2), "prompt_ids"),
        (lambda: paired_bootstrap(0, np.array([0.0, np.nan]), ONE), "sums of prompt 1"),
        (lambda: paired_bootstrap(0, HALF, -ONE), "counts"),
        (lambda: paired_bootstrap(0, HALF, np.zeros(2)), "counts"),
        (lambda: paired_bootstrap(0, HALF, np.ones(3)), "counts"),
        (lambda: paired_bootstrap(0, HALF, ONE, level=95.0), "level"),
        (lambda: paired_bootstrap(0, HALF, ONE, num_samples=0), "num_samples"),
    ],
)
def test_unusable_data_are_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_docstring_examples():
    assert doctest.testmod(calibration).failed == 0
