"""The gaps that are reported: measured right, on runs that are what they say."""

import numpy as np
import pytest

from fade_jax import moments
from fade_jax.reference import comparisons
from fade_jax.reference.comparisons import Moments

ONE_PASS = moments.pg(1)  # one object: what is compiled for a rule is kept by identity
WORLD = {"drift": 0.1, "ability_sd": 0.7, "difficulty_sd": 1.0}


@pytest.fixture(scope="module")
def runs():
    return comparisons.simulate(
        range(3), num_prompts=20, steps=8, batch=6, group_size=8, num_skills=1, **WORLD
    )


def test_gap_by_hand():
    exact = Moments(np.array([1.0, 0.0]), np.diag([4.0, 0.25]))
    found = comparisons.gap(Moments(np.array([3.0, 0.5]), np.diag([2.0, 0.5])), exact)
    np.testing.assert_allclose(found.distance, np.sqrt(1.0 + 1.0), rtol=1e-12)
    np.testing.assert_allclose(found.ratios, [0.5, 2.0], rtol=1e-12)


def test_gap_does_not_depend_on_coordinates():
    rng = np.random.default_rng(0)
    turn = rng.standard_normal((3, 3))
    mean, cov = rng.standard_normal(3), np.diag([1.0, 2.0, 3.0])
    other_mean, other_cov = rng.standard_normal(3), np.diag([2.0, 1.0, 0.5])
    plain = comparisons.gap(Moments(mean, cov), Moments(other_mean, other_cov))
    turned = comparisons.gap(
        Moments(turn @ mean, turn @ cov @ turn.T),
        Moments(turn @ other_mean, turn @ other_cov @ turn.T),
    )
    np.testing.assert_allclose(turned.distance, plain.distance, rtol=1e-9)
    np.testing.assert_allclose(turned.ratios, plain.ratios, rtol=1e-9)


def test_a_run_depends_on_its_own_seed_only(runs):
    again = comparisons.simulate(
        [2], num_prompts=20, steps=8, batch=6, group_size=8, num_skills=1, **WORLD
    )
    for a, b in zip(runs, again, strict=True):
        np.testing.assert_array_equal(a[2], b[0])
    assert all(len(set(row.tolist())) == 6 for row in runs.prompt_ids.reshape(-1, 6))
    assert ((runs.successes >= 0) & (runs.successes <= 8)).all()


@pytest.mark.slow
def test_expectation_propagation_is_near_the_exact_filter_and_one_newton_step_is_not(runs):
    exact = comparisons.exact_ability(runs, drift=0.1, ability_sd=0.7)
    near, far = (
        comparisons.gap(comparisons.follow(rule, runs, "known", **WORLD), exact)
        for rule in (moments.ep(), ONE_PASS)
    )
    # The first batch is one static problem, which expectation propagation solves very nearly.
    assert near.distance[:, 0].max() < 0.01
    assert near.distance.max() < 0.2 and np.abs(near.ratios - 1).max() < 0.1
    assert far.distance.mean() > 3 * near.distance.mean()
    assert far.ratios.mean() < 0.95


def test_nothing_is_forgotten_in_the_first_batch(runs):
    """Eliminating the intercepts is exact; only what is dropped after the update is not."""
    factored, joint = (
        comparisons.follow(moments.ekf(), runs, kind, **WORLD) for kind in ("factored", "joint")
    )
    np.testing.assert_allclose(factored.mean[:, 0], joint.mean[:, 0], rtol=0, atol=1e-10)
    np.testing.assert_allclose(factored.cov[:, 0], joint.cov[:, 0], rtol=0, atol=1e-10)
    narrower = np.trace(factored.cov[:, -1], axis1=1, axis2=2)
    assert (narrower < np.trace(joint.cov[:, -1], axis1=1, axis2=2)).all()


def test_padded_runs_are_filtered_alike(runs):
    plain, padded = (
        comparisons.follow(ONE_PASS, x, "known", **WORLD) for x in (runs, comparisons.pad(runs, 8))
    )
    np.testing.assert_allclose(padded.mean, plain.mean, rtol=0, atol=1e-12)
    np.testing.assert_allclose(padded.cov, plain.cov, rtol=0, atol=1e-12)


def test_walk_predictions_by_hand():
    """One Newton step from the predicted mean, the variance growing without a cap."""
    prior = {"prior_mean": -0.5, "prior_var": 0.3, "drift": 0.6}
    successes, trials = comparisons.simulate_walks(0, num_prompts=3, steps=6, group_size=8, **prior)
    trials = trials * np.array([1.0, 1.0, 0.0])  # the third is never seen
    successes = successes * np.array([1.0, 1.0, 0.0])
    found = comparisons.predict_walks(moments.ekf(), successes, trials, **prior)
    mean, var = np.full(3, -0.5), np.full(3, 0.3)
    for t in range(6):
        np.testing.assert_allclose(found.mean[t], mean, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(found.var[t], var, rtol=1e-10)
        p = 1 / (1 + np.exp(-mean))
        var = 1 / (1 / var + trials[t] * p * (1 - p))
        mean = mean + var * (successes[t] - trials[t] * p)
        var = var + 0.6**2
    assert found.var[-1, 2] == pytest.approx(0.3 + 5 * 0.6**2)
