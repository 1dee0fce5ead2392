"""Standard errors of draws whose effective sample size is known."""

import numpy as np

from fade_jax.reference.monte_carlo import split_r_hat, summarise


def test_independent_normal_draws():
    draws = 2 + 3 * np.random.default_rng(0).standard_normal((8, 4000, 2))
    found = summarise(draws)
    # ESS is estimated to a few per cent here; 15 % is beyond ten of its standard deviations.
    np.testing.assert_allclose(found.mean_error, 3 / np.sqrt(32_000), rtol=0.15)
    np.testing.assert_allclose(found.sd_error, 3 / np.sqrt(2 * 32_000), rtol=0.15)
    # Four standard errors: false alarms at 6e-5 for each of four numbers.
    assert (np.abs(found.mean - 2) < 4 * found.mean_error).all()
    assert (np.abs(found.sd - 3) < 4 * found.sd_error).all()


def test_an_autoregression_is_worth_fewer_draws():
    """AR(1) with correlation r: `ESS = n (1 - r) / (1 + r)`; its square decays as r^2."""
    rng, r, chains, size = np.random.default_rng(1), 0.6, 16, 4000
    shocks = np.sqrt(1 - r**2) * rng.standard_normal((chains, size))
    draws = np.empty((chains, size))
    draws[:, 0] = rng.standard_normal(chains)
    for t in range(1, size):
        draws[:, t] = r * draws[:, t - 1] + shocks[:, t]
    found = summarise(draws)
    n = chains * size
    np.testing.assert_allclose(found.mean_error, np.sqrt((1 + r) / (1 - r) / n), rtol=0.15)
    slower = (1 + r**2) / (1 - r**2)
    np.testing.assert_allclose(found.sd_error, np.sqrt(slower / (2 * n)), rtol=0.15)


def test_r_hat_tells_agreement_from_a_stray_chain():
    draws = np.random.default_rng(2).standard_normal((4, 2000, 1))
    assert split_r_hat(draws)[0] < 1.002
    draws[0] += 1
    # Between-chain variance 1/4 on top of a within variance of 1: R-hat about sqrt(1.25).
    np.testing.assert_allclose(split_r_hat(draws)[0], np.sqrt(1.25), atol=0.05)
