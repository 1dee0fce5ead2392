"""The per-prompt logit walk: three updates by hand, steady state, the exact grid filter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fade_jax import moments
from fade_jax.moments import MomentRule, Site
from fade_jax.trackers import logit_kalman
from fade_jax.types import Estimate, Observation


def batch(ids, successes, trials):
    """Padded to four rows, so that one compilation serves a file."""
    pad = (0, 4 - len(ids))
    columns = np.pad(successes, pad), np.pad(trials, pad)
    ids = np.pad(ids, pad, constant_values=-1)
    return Observation(jnp.asarray(ids, jnp.int32), *(jnp.asarray(x, float) for x in columns))


def close(left, right, rtol=2e-6):
    np.testing.assert_allclose(left, right, rtol=rtol, atol=1e-6)


def gaussian(passes=1):
    """A linear-Gaussian stand-in with an exact answer: psi + N(0, 1) was read as `successes`."""

    def site(prior, current, successes, trials):
        return Site(jnp.ones_like(successes), successes)

    return MomentRule(site, passes)


ADF = moments.adf()
UPDATE = jax.jit(logit_kalman.update, static_argnames="rule")
ABSORB = jax.jit(logit_kalman.absorb, static_argnames="rule")


def test_three_updates_by_hand():
    # Walk variance .5 a step, reading variance 1.
    tracker = logit_kalman.build(2, drift=0.5**0.5, prior_var=1.0, max_var=9.0, rule=gaussian())
    state, update = tracker.init(), jax.jit(tracker.update)

    # Prior N(0, 1), read 1: mean 1/2, var 1/2.
    state, _ = update(state, batch([0], [1], [8]))
    close((state.mean, state.var), ([0.5, 0], [0.5, 1]))
    # A step later var 1/2 + 1/2 = 1, read 0: mean 1/4, var 1/2.
    state = tracker.predict(state, 1.0)
    state, _ = update(state, batch([0], [0], [8]))
    close((state.mean, state.var), ([0.25, 0], [0.5, 1]))
    # Two steps later var 3/2, read 2 in two rows: gain 3/5, mean 1/4 + 3/5 x 7/4 = 1.3, var 3/5.
    # Prompt 1, first seen at clock 3, has walked three steps: var 5/2, gain 5/7, read 7.
    state = tracker.predict(tracker.predict(state, 1.5), 0.5)
    state, _ = update(state, batch([0, 1, 0], [1, 7, 1], [4, 8, 4]))
    close((state.mean, state.var), ([1.3, 5], [0.6, 5 / 7]))
    close(state.touched, [3, 3])


def test_steady_state_of_a_scalar_walk():
    # q = .01, r = 1: p = (q + sqrt(q^2 + 4 q r)) / 2 predicted, p / (1 + p) after the reading.
    tracker = logit_kalman.build(1, drift=0.1, prior_var=1.0, rule=gaussian())
    update = jax.jit(tracker.update)
    state = tracker.init()
    for _ in range(200):
        state = tracker.predict(update(state, batch([0], [0], [8]))[0], 1.0)
    close(state.var, [0.09512492])
    close(logit_kalman.current(state, 0.1, 1.0).var, [0.10512492])


def test_every_pass_starts_from_the_prior():
    # Using the posterior as the next prior would give 2/3 and 1/3 after two passes.
    prior = Estimate(jnp.zeros(1), jnp.ones(1))
    for passes in (1, 2, 4):
        posterior = ABSORB(prior, gaussian(passes), jnp.ones(1), jnp.ones(1))
        close(posterior, ([0.5], [0.5]))


def test_rules_of_several_passes_by_hand():
    # 8/8, prior N(0, 1), variational Polya-Gamma in two passes: the first at c = sqrt(E psi^2) = 1,
    # omega = 8 tanh(1/2) / 2 = 1.84846863, var = 1 / 2.84846863, mean = 4 var = 1.40426348; the
    # second at c = sqrt(mean^2 + var), omega = 8 tanh(c/2) / (2 c).
    prior = Estimate(jnp.zeros(1), jnp.ones(1))
    c = np.hypot(1.40426348, 2.84846863**-0.5)
    var = 1 / (1 + 4 * np.tanh(c / 2) / c)
    eight = jnp.full(1, 8.0)
    close(ABSORB(prior, moments.pg(2), eight, eight), ([4 * var], [var]))
    # With a last pass for the variance alone: curvature 8 p (1 - p) at that mean.
    p = 1 / (1 + np.exp(-4 * var))
    posterior = ABSORB(prior, moments.pg_laplace(2), eight, eight)
    close(posterior, ([4 * var], [1 / (1 + 8 * p * (1 - p))]))
    # Expectation propagation on a scalar is moment matching, whatever the number of sweeps.
    swept = ABSORB(prior, moments.ep(4), eight, eight)
    close(swept, ABSORB(prior, ADF, eight, eight))


def test_the_delta_method_step_by_hand():
    # 6/8 at p = 1/2: noise 1 / (8/4) = 1/2 around the reading 0 + (6 - 4) / 2 = 1, prior N(0, 1):
    # gain 1 / (1 + 1/2), mean 2/3, var 1/3.
    prior = Estimate(jnp.zeros(1), jnp.ones(1))
    posterior = ABSORB(prior, moments.ekf(), jnp.full(1, 6.0), jnp.full(1, 8.0))
    close(posterior, ([2 / 3], [1 / 3]))


@pytest.mark.parametrize(
    ("wins", "mean", "sd", "rate", "informative"),
    [
        (3.0, -0.353598, 0.598264, 0.419200, 0.955996),
        (0.0, -1.555428, 0.685518, 0.194429, 0.753146),
    ],
)
def test_one_visit_against_quadrature(wins, mean, sd, rate, informative):
    tracker = logit_kalman.build(2, prior_var=1.0)
    state, info = UPDATE(tracker.init(), batch([0], [wins], [8.0]), 0.2, 1.0, ADF)
    close((state.mean[0], jnp.sqrt(state.var[0])), (mean, sd), rtol=1e-5)
    # The belief is now a Gaussian with these moments, not the exact posterior: .001 in the rate,
    # .004 in the probability, and the closed forms add 5e-5 and .0022.
    np.testing.assert_allclose(tracker.pass_rate(state)[0], rate, atol=2e-3)
    np.testing.assert_allclose(tracker.informative(state, 8)[0], informative, atol=6e-3)
    psi = np.linspace(-12, 12, 20001)
    p = 1 / (1 + np.exp(-psi))
    likelihood = np.exp(-(psi**2) / 2) * p**wins * (1 - p) ** (8 - wins) / np.sqrt(2 * np.pi)
    choose = {3.0: 56, 0.0: 1}[wins]
    exact = np.log(choose * likelihood.sum() * (psi[1] - psi[0]))
    close(info.log_evidence, exact, rtol=1e-5)


def test_ageing_depends_on_the_gap_only_and_stops_at_the_cap():
    tracker = logit_kalman.build(2, drift=0.5, prior_var=2.0)
    state, _ = UPDATE(tracker.init(), batch([0], [3], [8]), 0.5, 2.0, ADF)
    once, thrice = tracker.predict(state, 3.0), state
    for _ in range(3):
        thrice = tracker.predict(thrice, 1.0)
    close(tracker.pass_rate(once), tracker.pass_rate(thrice))
    close(logit_kalman.current(once, 0.5, 2.0).var, [state.var[0] + 0.75, 2.0])
    far = tracker.predict(state, 1000.0)
    close(logit_kalman.current(far, 0.5, 2.0).var, [2.0, 2.0])
    # The tracker's own cap is the prior: as uncertain as never seen, about another mean.
    never = logit_kalman.build(2, prior_mean=state.mean[0], prior_var=2.0)
    close(tracker.informative(far, 8)[0], never.informative(never.init(), 8)[0])


def test_a_visit_after_a_long_gap_stays_calibrated():
    # 1,000 steps at sd .2236 without a cap, then 3/8: sd .778 (dense grid).
    tracker = logit_kalman.build(2, prior_var=2.0)
    state = tracker.predict(tracker.init(), 1000.0)
    state, _ = UPDATE(state, batch([0], [3], [8]), 0.2236, jnp.inf, ADF)
    np.testing.assert_allclose(jnp.sqrt(state.var[0]), 0.778, atol=2e-3)


def grid_filter(wins, drift):
    """Log probability of each visit's count: 1-D Bayes on a dense grid, float64."""
    psi = np.linspace(-25, 25, 501)
    p = 1 / (1 + np.exp(-psi))
    choose = np.array([1, 8, 28, 56, 70, 56, 28, 8, 1])
    pmf = choose[:, None] * p ** np.arange(9)[:, None] * (1 - p) ** (8 - np.arange(9))[:, None]
    density = np.exp(-((psi + 0.5) ** 2) / 4)[None].repeat(wins.shape[1], 0)
    density /= density.sum(1, keepdims=True)
    kernel = np.exp(-((psi[:, None] - psi) ** 2) / (2 * drift**2))
    kernel /= kernel.sum(0)
    scores = []
    for row in wins:
        density = density * pmf[row]
        scores.append(np.log(density.sum(1)))
        density = (density / density.sum(1, keepdims=True)) @ kernel.T
    return np.stack(scores)


@jax.jit
def prequential(counts, drift):
    """Info of every visit; all 128 prompts are visited every step."""
    tracker = logit_kalman.build(128, drift=drift, prior_mean=-0.5, prior_var=2.0, max_var=jnp.inf)
    ids, trials = jnp.arange(128, dtype=jnp.int32), jnp.full(128, 8.0)

    def step(state, wins):
        state, info = tracker.update(state, Observation(ids, wins, trials))
        return tracker.predict(state, 1.0), info

    return jax.lax.scan(step, tracker.init(), counts)[1]


@pytest.mark.parametrize("drift", [0.2236, 0.5477, 1.0])
def test_the_score_is_that_of_the_exact_filter(drift):
    # 128 prompts, 60 visits of 8, prior N(-.5, 2), uncapped walk: within .0012 nats a visit.
    rng = np.random.default_rng(0)
    psi = rng.normal(-0.5, 2**0.5, 128)
    wins = []
    for _ in range(60):
        wins.append(rng.binomial(8, 1 / (1 + np.exp(-psi))))
        psi = psi + rng.normal(0, drift, 128)
    exact = grid_filter(np.stack(wins), drift).mean()
    infos = prequential(jnp.asarray(np.stack(wins), float), jnp.asarray(drift, float))
    assert abs(infos.log_evidence.mean() / 128 - exact) < 1.2e-3
    if drift < 1:  # saturated counts make the ratio too heavy-tailed for a mean to settle
        # A calibrated filter is as surprised as it expects; standard error about .02 (7,680 rows).
        np.testing.assert_allclose(infos.nis.mean(), 1, atol=0.1)
