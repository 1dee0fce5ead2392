"""The grids against high-precision quadrature, closed forms and each other."""

import mpmath
import numpy as np
import pytest

from fade_jax.reference import grid

PINNED = {
    3.0: (-0.353598, 0.598264, 0.419200, 0.955996),
    0.0: (-1.555428, 0.685518, 0.194429, 0.753146),
}


def walk(seed, steps, prompts, drift, mean=-0.5, var=2.0, trials=8):
    rng = np.random.default_rng(seed)
    moves = rng.standard_normal((steps, prompts)) * drift
    moves[0] = rng.standard_normal(prompts) * np.sqrt(var)
    logits = mean + moves.cumsum(0)
    successes = rng.binomial(trials, 1 / (1 + np.exp(-logits))).astype(float)
    return successes, np.full_like(successes, trials)


@pytest.mark.parametrize("successes", PINNED)
def test_pinned_posteriors(successes):
    found = grid.binomial_logit(0.0, 1.0, successes, 8.0, group_size=8)
    np.testing.assert_allclose(found[:4], PINNED[successes], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("mean", "var", "successes", "trials", "group_size"),
    [
        (0.0, 1.0, 3, 8, 8),
        (-2.0, 9.0, 0, 8, 4),
        (1.5, 0.05, 1, 1, 2),
        (-6.0, 4.0, 8, 8, 16),
        (0.3, 2.0, 2.5, 8, 8),  # graded
    ],
)
def test_one_logit_agrees_with_mpmath(mean, var, successes, trials, group_size):
    mpmath.mp.dps = 30
    sd = mpmath.sqrt(var)

    def density(x):
        p = 1 / (1 + mpmath.exp(-x))
        return mpmath.npdf(x, mean, sd) * p**successes * (1 - p) ** (trials - successes)

    def integrate(f):
        cuts = [mean + k * sd for k in range(-14, 15, 2)]
        return mpmath.mpf(mpmath.quad(lambda x: f(x) * density(x), cuts))

    mass = integrate(lambda x: 1)
    first = integrate(lambda x: x) / mass
    second = integrate(lambda x: (x - first) ** 2) / mass
    rate = integrate(lambda x: 1 / (1 + mpmath.exp(-x))) / mass

    def useful(x):
        p = 1 / (1 + mpmath.exp(-x))
        return 1 - p**group_size - (1 - p) ** group_size

    choose = mpmath.binomial(trials, successes)
    want = (
        first,
        mpmath.sqrt(second),
        rate,
        integrate(useful) / mass,
        mpmath.log(mass * choose),
    )
    found = grid.binomial_logit(mean, var, successes, trials, group_size)
    np.testing.assert_allclose(found, [float(x) for x in want], rtol=1e-10, atol=1e-12)
    score = grid.log_predictive(mean, var, successes, trials)
    np.testing.assert_allclose(score, float(want[-1]), rtol=0, atol=1e-9)


def test_predictive_probabilities_sum_to_one():
    counts = np.arange(9.0)
    for mean, var in ((0.0, 1.0), (-5.0, 7.0), (3.0, 0.01)):
        total = np.exp(grid.log_predictive(mean, var, counts, 8.0)).sum()
        np.testing.assert_allclose(total, 1.0, rtol=0, atol=1e-9)


def test_a_broken_belief_scores_nan_and_spoils_no_other():
    scores = grid.log_predictive(np.array([np.nan, 0.0]), np.ones(2), 3.0, 8.0)
    assert np.isnan(scores[0])
    np.testing.assert_allclose(scores[1], grid.log_predictive(0.0, 1.0, 3.0, 8.0), rtol=1e-14)


def test_scalar_filter_starts_as_one_posterior_and_drifts_without_trials():
    successes = np.array([[3.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    trials = np.array([[8.0, 8.0], [0.0, 0.0], [0.0, 0.0]])
    found = grid.scalar_filter(successes, trials, prior_mean=-0.5, prior_var=2.0, drift=0.4)
    first = grid.binomial_logit(-0.5, 2.0, successes[0], 8.0, group_size=8)
    for step in range(3):
        np.testing.assert_allclose(found.mean[step], first.mean, rtol=0, atol=1e-9)
        want = first.sd**2 + 0.4**2 * step
        np.testing.assert_allclose(found.var[step], want, rtol=0, atol=1e-9)
    np.testing.assert_allclose(found.log_evidence[0], first.log_evidence, rtol=0, atol=1e-9)
    np.testing.assert_allclose(found.log_evidence[1:], 0.0, rtol=0, atol=1e-12)


def test_scalar_filter_without_drift_sees_one_big_count():
    successes, trials = walk(0, 4, 6, drift=0.0)
    found = grid.scalar_filter(successes, trials, prior_mean=-0.5, prior_var=2.0, drift=0.0)
    whole = grid.binomial_logit(-0.5, 2.0, successes.sum(0), 32.0, group_size=8)
    np.testing.assert_allclose(found.mean[-1], whole.mean, rtol=0, atol=1e-9)
    np.testing.assert_allclose(np.sqrt(found.var[-1]), whole.sd, rtol=0, atol=1e-9)


def test_two_steps_of_the_scalar_filter_are_a_double_integral():
    """The same two counts with the latents (psi_1, psi_2) integrated at once."""
    mean, var, drift, counts, trials = -0.5, 2.0, 0.7, (7.0, 1.0), 8.0
    axis = np.linspace(-12, 11, 1151)
    one, two = axis[:, None], axis[None, :]
    log_joint = -((one - mean) ** 2) / (2 * var) - (two - one) ** 2 / (2 * drift**2)
    for x, y in ((one, counts[0]), (two, counts[1])):
        log_joint = log_joint + y * x - trials * np.logaddexp(0, x)
    weight = np.exp(log_joint)
    log_mass = np.log(weight.sum() * (axis[1] - axis[0]) ** 2 / (2 * np.pi * np.sqrt(var) * drift))
    marginal = weight.sum(0) / weight.sum()
    moment = marginal @ axis
    spread = marginal @ (axis - moment) ** 2
    found = grid.scalar_filter(
        np.array(counts)[:, None],
        np.full((2, 1), trials),
        prior_mean=mean,
        prior_var=var,
        drift=drift,
    )
    np.testing.assert_allclose(found.mean[1, 0], moment, rtol=0, atol=1e-9)
    np.testing.assert_allclose(found.var[1, 0], spread, rtol=0, atol=1e-9)
    choose = 2 * np.log(8)  # C(8, 7) = C(8, 1) = 8
    np.testing.assert_allclose(found.log_evidence.sum(), log_mass + choose, rtol=0, atol=1e-9)


def test_ability_filter_along_one_axis_is_the_scalar_filter():
    drift, var = 0.3, 0.8
    successes, trials = walk(1, 5, 1, drift, mean=0.2, var=var)
    design = np.zeros((5, 1, 2))
    design[..., 0] = 1
    found = grid.ability_filter(
        design,
        np.zeros((5, 1)),
        successes,
        trials,
        prior_mean=np.array([0.2, -0.4]),
        prior_cov=np.diag([var, 0.5]),
        drift=drift,
    )
    alone = grid.scalar_filter(successes, trials, prior_mean=0.2, prior_var=var, drift=drift)
    np.testing.assert_allclose(found.mean[:, 0], alone.mean[:, 0], rtol=0, atol=1e-7)
    np.testing.assert_allclose(found.cov[:, 0, 0], alone.var[:, 0], rtol=0, atol=1e-7)
    np.testing.assert_allclose(found.log_evidence, alone.log_evidence[:, 0], rtol=0, atol=1e-7)
    # The other axis only drifts, and stays independent.
    np.testing.assert_allclose(found.mean[:, 1], -0.4, rtol=0, atol=1e-7)
    want = 0.5 + drift**2 * np.arange(5)
    np.testing.assert_allclose(found.cov[:, 1, 1], want, rtol=0, atol=1e-7)
    np.testing.assert_allclose(found.cov[:, 0, 1], 0.0, rtol=0, atol=1e-7)


def test_turning_the_abilities_turns_the_answer():
    rng = np.random.default_rng(2)
    design, difficulty = rng.standard_normal((3, 4, 2)), rng.standard_normal((3, 4))
    successes, trials = rng.binomial(8, 0.4, (3, 4)).astype(float), np.full((3, 4), 8.0)
    turn = np.array([[np.cos(0.7), -np.sin(0.7)], [np.sin(0.7), np.cos(0.7)]])
    plain, turned = (
        grid.ability_filter(
            a,
            difficulty,
            successes,
            trials,
            prior_mean=np.zeros(2),
            prior_cov=np.eye(2),
            drift=0.2,
        )
        for a in (design, design @ turn.T)
    )
    np.testing.assert_allclose(turned.mean, plain.mean @ turn.T, rtol=0, atol=1e-7)
    np.testing.assert_allclose(turned.cov, turn @ plain.cov @ turn.T, rtol=0, atol=1e-7)
    np.testing.assert_allclose(turned.log_evidence, plain.log_evidence, rtol=0, atol=1e-7)


def test_a_grid_that_cannot_resolve_the_drift_is_refused():
    successes, trials = walk(3, 3, 2, drift=0.1)
    with pytest.raises(ValueError, match="num_points is too small"):
        grid.scalar_filter(
            successes, trials, prior_mean=0.0, prior_var=2.0, drift=0.01, num_points=101
        )
    with pytest.raises(ValueError, match="num_points is too small"):
        grid.ability_filter(
            np.ones((3, 2, 2)),
            np.zeros((3, 2)),
            successes,
            trials,
            prior_mean=np.zeros(2),
            prior_cov=np.eye(2),
            drift=0.01,
            num_points=41,
        )
