"""Two time scales: closed forms, and simulated runs whose truth is known."""

from itertools import pairwise

import numpy as np
import pytest

from fade_jax import time_scales


def outcomes(rng, rates, group_size=8):
    trials = np.full(rates.shape, float(group_size))
    return rng.binomial(group_size, rates).astype(float), trials


def test_an_order_that_never_changes_is_kept_whatever_the_noise():
    rng = np.random.default_rng(0)
    rates = np.broadcast_to(rng.uniform(0.1, 0.9, 400), (12, 400))
    successes, trials = outcomes(rng, rates, 4)
    # Raw correlation of such groups is about .73; over 11 pairs x 400 prompts its error is .02.
    raw = np.mean([np.corrcoef(a, b)[0, 1] for a, b in pairwise(successes)])
    assert raw < 0.8
    assert abs(time_scales.order_kept(successes, trials, 1) - 1) < 0.04
    assert abs(time_scales.order_kept(successes, trials, 9) - 1) < 0.06


def test_nothing_is_kept_of_rates_drawn_anew():
    rng = np.random.default_rng(1)
    successes, trials = outcomes(rng, rng.uniform(0.1, 0.9, (12, 400)))
    assert abs(time_scales.order_kept(successes, trials, 1)) < 0.05  # standard error .017


def test_a_known_correlation_is_found_without_the_unvisited():
    rng = np.random.default_rng(2)
    own = rng.uniform(-0.2, 0.2, 3000)
    steps = [0.5 + own + rng.uniform(-0.2, 0.2, 3000) for _ in range(6)]
    successes, trials = outcomes(rng, np.stack(steps))
    gone = rng.random(trials.shape) < 0.3
    successes[gone], trials[gone] = 0, 0
    # Both parts have the same variance: correlation 1/2 at every lag; standard error about .02.
    for lag in (1, 4):
        assert abs(time_scales.order_kept(successes, trials, lag) - 0.5) < 0.06


def test_level_moves_as_the_mean_does():
    trials = np.array([[4.0, 4.0], [4.0, 4.0], [0.0, 0.0], [8.0, 0.0]])
    successes = np.array([[0.0, 2.0], [2.0, 4.0], [0.0, 0.0], [4.0, 0.0]])
    # Levels 1/4, 3/4, none, 1/2.
    assert time_scales.level_moved(successes, trials, 1) == pytest.approx(0.5)
    assert time_scales.level_moved(successes, trials, 2) == pytest.approx(0.25)
    assert np.isnan(time_scales.level_moved(successes[:3], trials[:3], 2))


def test_churn_is_one_less_the_rank_correlation():
    still = np.array([[0.1, 0.2, 0.3]] * 3)
    assert time_scales.churn(still) == pytest.approx(0)
    assert time_scales.churn(np.array([[0.1, 0.2, 0.3], [0.3, 0.2, 0.1]])) == pytest.approx(2)
    # Ranks 1 2 3 and 2 1 3: correlation 1/2.
    assert time_scales.churn(np.array([[0.1, 0.2, 0.3], [0.2, 0.1, 0.3]])) == pytest.approx(0.5)
    assert np.isnan(time_scales.churn(np.full((3, 4), 0.5)))
    rng = np.random.default_rng(3)
    assert abs(time_scales.churn(rng.random((50, 200))) - 1) < 0.04  # standard error .010


def test_staleness_is_the_error_of_the_mean_and_not_of_prompts():
    observed = np.array([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
    half = np.full((3, 2), 0.5)
    scored = np.array([[True, True], [True, False], [False, False]])
    # Mean errors 0 and -1/2; the last step has none.
    assert time_scales.staleness(half, observed, scored) == pytest.approx((0.25 / 2) ** 0.5)
    assert np.isnan(time_scales.staleness(half, observed, np.zeros((3, 2), bool)))


@pytest.mark.parametrize("lag", [0, 3, -1])
def test_lags_outside_the_run_are_refused(lag):
    table = np.ones((3, 4))
    for measure in (time_scales.order_kept, time_scales.level_moved):
        with pytest.raises(ValueError, match=f"lag must be in 1..2, got {lag}"):
            measure(table, table, lag)
