import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fade_jax import moments
from fade_jax.types import Estimate

RULES = {
    "pg": moments.pg(),
    "pg_em": moments.pg_em(),
    "pg_laplace": moments.pg_laplace(),
    "laplace": moments.laplace(),
    "ekf": moments.ekf(),
    "adf": moments.adf(),
    "ep": moments.ep(),
}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def tilted_by_grid(mean, var, successes, trials):
    """Mode, mean, variance and log mass of N(psi; mean, var) Bin(successes | trials) by grid."""
    sd = np.sqrt(var)
    psi = np.linspace(mean - 14 * sd, mean + 14 * sd, 100_001)
    log = -((psi - mean) ** 2) / (2 * var) + successes * psi - trials * np.logaddexp(0, psi)
    weight = np.exp(log - log.max())
    total = weight.sum()
    centre = (weight * psi).sum() / total
    spread = (weight * (psi - centre) ** 2).sum() / total
    log_mass = np.log(total * (psi[1] - psi[0])) + log.max() - np.log(2 * np.pi * var) / 2
    choose = sum(np.log(np.arange(trials - successes + 1, trials + 1)))
    choose -= sum(np.log(np.arange(1, successes + 1)))
    return psi[log.argmax()], centre, spread, log_mass + choose, psi[1] - psi[0]


CASES = [
    (mean, var, successes, trials)
    for mean in (-8.0, -3.0, 0.0, 0.7, 4.0)
    for var in (1e-3, 0.1, 1.0, 4.0, 9.0)
    for trials in (1, 8, 32)
    for successes in sorted({0, 1, trials // 2, trials})
]


@pytest.fixture(scope="module")
def truth():
    return np.array([tilted_by_grid(*case) for case in CASES])


def batch(dtype):
    columns = [jnp.asarray(c, dtype) for c in np.array(CASES, np.float64).T]
    return Estimate(columns[0], columns[1]), columns[2], columns[3]


def posterior(prior, site):
    var = 1 / (1 / np.asarray(prior.var, np.float64) + np.asarray(site.precision, np.float64))
    return var * (np.asarray(prior.mean) / np.asarray(prior.var) + np.asarray(site.shift)), var


def test_tilted_mode_is_the_mode(x64, truth):
    prior, successes, trials = batch(jnp.float64)
    mode = np.asarray(moments.tilted_mode(prior, successes, trials))
    assert (np.abs(mode - truth[:, 0]) <= truth[:, 4]).all()  # one grid step
    # ... and a stationary point far beyond grid accuracy.
    slope = (prior.mean - mode) / prior.var + successes - trials * sigmoid(mode)
    assert np.abs(slope * np.sqrt(prior.var)).max() < 1e-6


def test_tilted_mode_under_very_wide_priors(x64):
    # Newton alone overshoots here by hundreds of logits; bisection alone is too slow.
    mean = jnp.asarray([-30.0, 0.7, 4.0, 12.0, -200.0])
    var = jnp.asarray([100.0, 50.0, 100.0, 100.0, 1e4])
    successes, trials = jnp.asarray([8.0, 0.0, 0.0, 32.0, 8.0]), jnp.asarray([8.0, 32, 32, 32, 8])
    mode = moments.tilted_mode(Estimate(mean, var), successes, trials)
    slope = mean - mode + var * (successes - trials * jax.nn.sigmoid(mode))
    assert np.abs(slope / (1 + var * trials / 4)).max() < 1e-3


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_adf_matches_the_moments_of_the_tilted_density(x64, truth, dtype):
    prior, successes, trials = batch(dtype)
    site = moments.adf().site(prior, prior, successes, trials)
    assert site.precision.dtype == dtype
    mean, var = posterior(prior, site)
    # 16 nodes; the largest gap sits at prior variance 9, where a tail stretches one way.
    assert (np.abs(mean - truth[:, 1]) / np.sqrt(truth[:, 2])).max() < 2.5e-3
    assert np.abs(var / truth[:, 2] - 1).max() < 6e-3
    narrow = np.array(CASES)[:, 1] <= 1
    assert (np.abs(mean - truth[:, 1]) / np.sqrt(truth[:, 2]))[narrow].max() < 6e-4
    assert np.abs(var / truth[:, 2] - 1)[narrow].max() < 6e-4


def test_adf_needs_nodes_at_the_mode():
    # After 1,000 steps at drift sd .2236 the variance is 50; 3 of 8 then gives sd .778. Nodes
    # spread over the prior collapse onto one of them and give sd .040.
    prior = Estimate(jnp.zeros(1), jnp.asarray([50.0]))
    site = moments.adf().site(prior, prior, jnp.asarray([3.0]), jnp.asarray([8.0]))
    _, var = posterior(prior, site)
    np.testing.assert_allclose(np.sqrt(var), 0.778, atol=1e-3)


def test_adf_in_float32_keeps_small_information():
    # Prior variance 1e-4: 1 / var' - 1 / var would lose the site to rounding (1e4 +- 1e-3).
    prior = Estimate(jnp.asarray([2.0]), jnp.asarray([1e-4]))
    site = moments.adf().site(prior, prior, jnp.asarray([8.0]), jnp.asarray([8.0]))
    np.testing.assert_allclose(site.precision, 8 * sigmoid(2.0) * sigmoid(-2.0), rtol=1e-3)


def test_a_logit_known_exactly_gives_a_finite_site():
    prior = Estimate(jnp.asarray([0.5]), jnp.zeros(1))
    for rule in RULES.values():
        site = rule.site(prior, prior, jnp.asarray([3.0]), jnp.asarray([8.0]))
        assert site.precision[0] > 0
        assert np.isfinite(site.shift[0])
    log = moments.log_marginal(prior, jnp.asarray([3.0]), jnp.asarray([8.0]))
    p = sigmoid(0.5)
    np.testing.assert_allclose(log, np.log(56 * p**3 * (1 - p) ** 5), rtol=1e-5)


def test_log_marginal_by_grid(x64, truth):
    prior, successes, trials = batch(jnp.float64)
    got = np.asarray(moments.log_marginal(prior, successes, trials))
    assert np.abs(got - truth[:, 3]).max() < 1e-3
    got = np.asarray(moments.log_marginal(prior, successes, trials, nodes=64))
    assert np.abs(got - truth[:, 3]).max() < 5e-5


def test_log_marginal_sums_to_one_over_counts(x64):
    prior = Estimate(jnp.full((9,), -0.4), jnp.full((9,), 2.0))
    log = moments.log_marginal(prior, jnp.arange(9.0), jnp.full((9,), 8.0), nodes=64)
    np.testing.assert_allclose(jnp.exp(log).sum(), 1.0, atol=1e-7)


@pytest.mark.parametrize("name", RULES)
def test_no_trials_no_site(name):
    prior = Estimate(jnp.asarray([0.3, -2.0]), jnp.asarray([1.0, 9.0]))
    site = RULES[name].site(prior, prior, jnp.zeros(2), jnp.zeros(2))
    assert site.precision.tolist() == [0.0, 0.0]
    assert site.shift.tolist() == [0.0, 0.0]
    assert moments.log_marginal(prior, jnp.zeros(2), jnp.zeros(2)) == pytest.approx(
        [0, 0], abs=1e-6
    )


@pytest.mark.parametrize("name", RULES)
def test_swapping_right_and_wrong_mirrors_the_site(x64, name):
    prior = Estimate(jnp.asarray([0.8]), jnp.asarray([2.0]))
    mirror = Estimate(-prior.mean, prior.var)
    site = RULES[name].site(prior, prior, jnp.asarray([6.0]), jnp.asarray([8.0]))
    other = RULES[name].site(mirror, mirror, jnp.asarray([2.0]), jnp.asarray([8.0]))
    np.testing.assert_allclose(other.precision, site.precision, rtol=1e-10)
    np.testing.assert_allclose(other.shift, -site.shift, rtol=1e-10)


def test_cavity_undoes_the_site(x64):
    prior = Estimate(jnp.asarray([0.8, -3.0]), jnp.asarray([2.0, 0.1]))
    site = moments.Site(jnp.asarray([0.7, 12.0]), jnp.asarray([-0.4, 3.0]))
    mean, var = posterior(prior, site)
    back = moments.cavity(Estimate(jnp.asarray(mean), jnp.asarray(var)), site)
    np.testing.assert_allclose(back.mean, prior.mean, rtol=1e-12)
    np.testing.assert_allclose(back.var, prior.var, rtol=1e-12)
    silent = moments.cavity(prior, moments.Site(jnp.zeros(2), jnp.zeros(2)))
    assert silent.mean.tolist() == prior.mean.tolist()
    assert silent.var.tolist() == prior.var.tolist()


def test_site_mass_by_grid(x64):
    psi = np.linspace(-30, 30, 60_001)
    for mean, var, precision, shift in [(0.3, 2.0, 0.8, -1.1), (-2.0, 0.5, 0.0, 0.7), (1, 4, 0, 0)]:
        density = np.exp(-((psi - mean) ** 2) / (2 * var)) / np.sqrt(2 * np.pi * var)
        mass = (density * np.exp(shift * psi - precision * psi**2 / 2)).sum() * (psi[1] - psi[0])
        got = moments.log_site_mass(
            Estimate(jnp.asarray([mean], float), jnp.asarray([var], float)),
            moments.Site(jnp.asarray([precision], float), jnp.asarray([shift], float)),
        )
        np.testing.assert_allclose(got[0], np.log(mass), atol=1e-8)


def scalar_posterior(rule, prior, successes, trials):
    """The update of a lone logit, passes and all, with numpy's scalar algebra."""
    site = rule.site(prior, prior, successes, trials)
    for _ in range(rule.passes - 1):
        current = Estimate(*map(jnp.asarray, posterior(prior, site)))
        seen = moments.cavity(current, site) if rule.cavity else current
        site = rule.site(prior, seen, successes, trials)
    return posterior(prior, site)


def test_pg_is_over_confident_and_never_the_other_way(x64, truth):
    # Converged variational variance over the exact one: .055 to .9999 in wide scans, never above 1.
    prior, successes, trials = batch(jnp.float64)
    _, var = scalar_posterior(moments.pg(200), prior, successes, trials)
    ratio = var / truth[:, 2]
    assert ratio.max() < 1.0005
    assert ratio.min() < 0.5


def test_pg_em_and_laplace_meet_at_the_exact_mode(x64, truth):
    prior, successes, trials = batch(jnp.float64)
    mode = np.asarray(moments.tilted_mode(prior, successes, trials, steps=60))
    newton, var = scalar_posterior(moments.laplace(), prior, successes, trials)
    np.testing.assert_allclose(newton, mode, atol=1e-5)
    p = sigmoid(mode)
    np.testing.assert_allclose(1 / var, 1 / np.asarray(prior.var) + trials * p * (1 - p), rtol=1e-4)
    # EM is slow where data and prior disagree; compare where 300 steps suffice.
    mild = (np.asarray(prior.var) <= 1) & (np.abs(np.asarray(prior.mean)) <= 1)
    em, _ = scalar_posterior(moments.pg_em(300), prior, successes, trials)
    slope = (prior.mean - em) / prior.var + successes - trials * sigmoid(em)
    assert np.abs(np.asarray(slope))[mild].max() < 1e-8


def test_first_ep_sweep_is_adf(x64):
    prior, successes, trials = batch(jnp.float64)
    adf = moments.adf().site(prior, prior, successes, trials)
    ep = moments.ep().site(prior, prior, successes, trials)
    np.testing.assert_array_equal(adf.precision, ep.precision)
    # For a lone logit the cavity is the prior, so every further sweep says the same.
    mean, var = scalar_posterior(moments.ep(), prior, successes, trials)
    want_mean, want_var = posterior(prior, adf)
    np.testing.assert_allclose(mean, want_mean, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(var, want_var, rtol=1e-5)


def test_variational_bound_never_falls(x64):
    """Passes of `pg` are coordinate ascent on the evidence lower bound."""
    prior = Estimate(jnp.asarray([1.5]), jnp.asarray([4.0]))
    successes, trials = jnp.asarray([1.0]), jnp.asarray([8.0])
    rule = moments.pg()
    current, bounds = prior, []
    for _ in range(12):
        site = rule.site(prior, current, successes, trials)
        mean, var = (float(x[0]) for x in posterior(prior, site))
        xi = np.sqrt(mean**2 + var)
        # E[log likelihood bound at its optimal xi] - KL(q || prior)
        log_like = -8 * (np.logaddexp(0, xi) - xi / 2) + (1 - 4) * mean
        kl = (np.log(4.0 / var) + (var + (mean - 1.5) ** 2) / 4.0 - 1) / 2
        bounds.append(log_like - kl)
        current = Estimate(jnp.asarray([mean]), jnp.asarray([var]))
    assert (np.diff(bounds) >= -1e-9).all()
    assert bounds[-1] > bounds[0]


@pytest.mark.slow
def test_gradient_of_the_evidence_matches_finite_differences(x64):
    successes, trials = jnp.asarray([2.0, 8.0]), jnp.asarray([8.0, 8.0])

    def score(mean, var):
        prior = Estimate(jnp.stack([mean, mean]), jnp.stack([var, var]))
        return moments.log_marginal(prior, successes, trials, nodes=48).sum()

    at = (jnp.asarray(-0.4), jnp.asarray(1.7))
    got = jax.grad(score, argnums=(0, 1))(*at)
    h = 1e-5
    want = (
        (score(at[0] + h, at[1]) - score(at[0] - h, at[1])) / (2 * h),
        (score(at[0], at[1] + h) - score(at[0], at[1] - h)) / (2 * h),
    )
    np.testing.assert_allclose(got, want, rtol=1e-5)
