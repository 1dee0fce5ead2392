"""Moment rules: ways to stand in for a binomial likelihood by one Gaussian site a prompt.

A rule maps what is believed about a logit `psi` and the counts to a site
`exp(shift psi - precision psi^2 / 2)`. The update loops over `passes`; every pass starts from the
*predicted* prior, never from the last posterior (that would count the datum once a pass).

| rule         | site                                               | calibrated?             |
|--------------|----------------------------------------------------|-------------------------|
| `adf`        | matches mean and variance of prior x likelihood    | yes: the default        |
| `ep`         | the same against the cavity, several sweeps        | yes, closest to exact   |
| `pg`         | variational Pólya-Gamma, faithful to FADE's digest | no: over-confident      |
| `pg_laplace` | `pg` mean, curvature n p (1 - p) for the covariance | nearly                  |
| `laplace`    | mode and curvature; damped, cannot overshoot       | nearly                  |
| `ekf`        | one Newton step from the prior mean; to compare    | no: can diverge         |

Shapes: `B` prompts of one batch. All functions are elementwise over B.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fade_jax import polya_gamma
from fade_jax.outcomes import log_binomial_coefficient
from fade_jax.types import Estimate


class Site(NamedTuple):
    """One Gaussian factor a prompt, `exp(shift psi - precision psi^2 / 2)`.

    Attributes:
        precision: [B] >= 0.
        shift: [B], precision times target.
    """

    precision: Float[Array, " B"]
    shift: Float[Array, " B"]


@runtime_checkable
class SiteFunction(Protocol):
    """Makes the sites of a batch."""

    def __call__(
        self,
        prior: Estimate,
        current: Estimate,
        successes: Float[Array, " B"],
        trials: Float[Array, " B"],
    ) -> Site:
        """Returns one site a prompt; zero where trials = 0.

        `prior` is the predicted belief about the logits, `current` the belief after the last pass
        (without the prompt's own site where the rule asks for cavities).
        """
        ...


class MomentRule(NamedTuple):
    """How the update turns counts into Gaussian sites.

    Attributes:
        site: the sites of one pass.
        passes: fixed-point passes, each from the predicted prior.
        final_site: if given, sites of one last pass that sets the covariances only.
        cavity: whether `current` is stripped of the prompt's own site first.
    """

    site: SiteFunction
    passes: int = 1
    final_site: SiteFunction | None = None
    cavity: bool = False


def pg(passes: int = 4) -> MomentRule:
    """Variational Pólya-Gamma rule: `precision = E[omega]`, `shift = successes - trials / 2`.

    `omega ~ PG(trials, c)` with `c^2 = E[psi^2]` under the current belief. The mean converges to
    within about .25 posterior sd in well-conditioned problems; the variance stays too small.

    Args:
        passes: fixed-point passes; 1 is the literal single-step reading of the FADE summary.

    Returns:
        The rule.
    """

    def site(prior, current, successes, trials):
        tilt = jnp.sqrt(current.mean**2 + current.var)
        return Site(polya_gamma.mean(trials, tilt), successes - trials / 2)

    return MomentRule(site, passes)


def pg_em(passes: int = 50) -> MomentRule:
    """Pólya-Gamma EM: as `pg` with `c = |E[psi]|`; its fixed point is the exact posterior mode."""

    def site(prior, current, successes, trials):
        return Site(polya_gamma.mean(trials, current.mean), successes - trials / 2)

    return MomentRule(site, passes)


def pg_laplace(passes: int = 4) -> MomentRule:
    """The mean of `pg`, then one pass with `precision = trials p (1 - p)` for the covariances."""
    return pg(passes)._replace(final_site=_curvature_site)


def laplace(passes: int = 4) -> MomentRule:
    """Laplace rule, damped: mode and curvature of each cavity times its likelihood.

    The fixed point is the joint posterior mode, as Newton's; but every pass linearises at the mode
    of a one-dimensional log-concave density, so it cannot overshoot where curvature vanishes.
    """

    def site(prior, current, successes, trials):
        return _curvature_site(
            prior, current._replace(mean=tilted_mode(current, successes, trials)), successes, trials
        )

    return MomentRule(site, passes, cavity=True)


def ekf() -> MomentRule:
    """One Newton step from the prior mean, what extended Kalman filters do; for comparison only.

    Where p saturates the gain tends to the prior variance and one surprising count throws the mean
    by tens of logits.
    """

    def site(prior, current, successes, trials):
        return _curvature_site(prior, prior, successes, trials)

    return MomentRule(site, 1)


def adf(nodes: int = 16) -> MomentRule:
    """Assumed-density filtering: match the moments of each prior times its likelihood.

    `N(psi; mean, var) Bin(successes | trials, sigmoid(psi))` has mean and variance by
    Gauss-Hermite nodes centred at its mode and scaled by its curvature; the site is what turns the
    prior's moments into these. The recommended default.

    Args:
        nodes: Gauss-Hermite nodes a prompt.

    Returns:
        The rule.
    """

    def site(prior, current, successes, trials):
        return _moment_site(prior, successes, trials, nodes)

    return MomentRule(site, 1)


def ep(passes: int = 4, nodes: int = 16) -> MomentRule:
    """Expectation propagation: `adf` against the cavity of the current belief, in parallel sweeps.

    Args:
        passes: sweeps; the first equals `adf`.
        nodes: Gauss-Hermite nodes a prompt.

    Returns:
        The rule.
    """

    def site(prior, current, successes, trials):
        return _moment_site(current, successes, trials, nodes)

    return MomentRule(site, passes, cavity=True)


def cavity(current: Estimate, site: Site) -> Estimate:
    """The belief without the prompt's own site.

    `1 / var_cavity = 1 / var - precision`, `mean_cavity = var_cavity (mean / var - shift)`, in a
    form that is exact for a silent site.

    Args:
        current: [B] belief that contains the site.
        site: [B].

    Returns:
        The cavity moments; the variance is at most 1e4 times the current one.
    """
    # A log-concave likelihood leaves a proper cavity; rounding alone could make it improper.
    share = jnp.maximum(1 - current.var * site.precision, 1e-4)
    mean = current.mean + current.var * (site.precision * current.mean - site.shift) / share
    return Estimate(mean, current.var / share)


def tilted_mode(
    prior: Estimate,
    successes: Float[Array, " B"],
    trials: Float[Array, " B"],
    *,
    steps: int = 12,
) -> Float[Array, " B"]:
    """Mode of `N(psi; mean, var) Bin(successes | trials, sigmoid(psi))`.

    The root of the decreasing `(mean - psi) / var + successes - trials sigmoid(psi)`, by Newton
    steps kept inside the bracket `mean + var [successes - trials, successes]`.

    Args:
        prior: [B] moments of the logit.
        successes: [B].
        trials: [B]; the mode is the prior mean where 0.
        steps: iterations; each is a Newton step or halves the bracket.

    Returns:
        [B] logits.
    """
    return prior.mean + _mode_offset(prior, successes, trials, steps)


def _mode_offset(
    prior: Estimate, successes: Float[Array, " B"], trials: Float[Array, " B"], steps: int = 12
) -> Float[Array, " B"]:
    """Tilted mode minus prior mean, without rounding the difference to the size of the mean."""
    low = prior.var * (successes - trials)
    high = prior.var * successes
    # Start at psi = 0 where the bracket allows: the likelihood is steepest there, Newton safest.
    offset = jnp.clip(-prior.mean, low, high)
    for _ in range(steps):
        p = jax.nn.sigmoid(prior.mean + offset)
        # Multiplied by var: no division, and a vanishing var pins the mode to the mean.
        slack = prior.var * (successes - trials * p) - offset
        low = jnp.where(slack > 0, offset, low)
        high = jnp.where(slack > 0, high, offset)
        newton = offset + slack / (1 + prior.var * trials * p * (1 - p))
        inside = (newton >= low) & (newton <= high)
        offset = jnp.where(inside, newton, (low + high) / 2)
    return jax.lax.stop_gradient(offset)


def log_marginal(
    prior: Estimate,
    successes: Float[Array, " B"],
    trials: Float[Array, " B"],
    *,
    nodes: int = 16,
) -> Float[Array, " B"]:
    """Log probability of the counts, `log ∫ N(psi; mean, var) Bin(successes | trials, p) dpsi`.

    Args:
        prior: [B] predicted moments of the logit.
        successes: [B]; fractional (graded) ones are scored by the continuous extension.
        trials: [B].
        nodes: Gauss-Hermite nodes, centred and scaled as in `adf`.

    Returns:
        [B] nats; 0 where trials = 0.
    """
    *_, log_weight, log_peak = _tilted_nodes(prior, successes, trials, nodes)
    log_mass = log_peak + jax.nn.logsumexp(log_weight, axis=-1)
    return log_mass + log_binomial_coefficient(successes, trials)


def log_site_mass(psi: Estimate, site: Site) -> Float[Array, " B"]:
    """Log mass of a site under a Gaussian logit.

    `log ∫ N(psi; mean, var) exp(shift psi - precision psi^2 / 2) dpsi`

    Args:
        psi: [B] moments of the logit.
        site: [B].

    Returns:
        [B] nats; 0 for a silent site.
    """
    spread = 1 + site.precision * psi.var
    gradient = site.shift - site.precision * psi.mean
    at_mean = site.shift * psi.mean - site.precision * psi.mean**2 / 2
    return at_mean + gradient**2 * psi.var / (2 * spread) - jnp.log(spread) / 2


def _curvature_site(
    prior: Estimate,
    current: Estimate,
    successes: Float[Array, " B"],
    trials: Float[Array, " B"],
) -> Site:
    """Second-order expansion of the log likelihood at `current.mean`."""
    p = jax.nn.sigmoid(current.mean)
    precision = trials * p * (1 - p)
    return Site(precision, precision * current.mean + successes - trials * p)


def _tilted_nodes(
    prior: Estimate, successes: Float[Array, " B"], trials: Float[Array, " B"], nodes: int
) -> tuple[
    Float[Array, " B"], Float[Array, "B nodes"], Float[Array, "B nodes"], Float[Array, " B"]
]:
    """Gauss-Hermite rule for prior x likelihood, around its mode.

    Returns the mode minus the prior mean, the nodes minus the mode, the log mass of each node
    relative to the density at the mode, and the log of that density.
    """
    offsets, weights = np.polynomial.hermite_e.hermegauss(nodes)
    dtype = prior.mean.dtype
    log_rule = jnp.asarray(np.log(weights) + offsets**2 / 2, dtype)
    shift = _mode_offset(prior, successes, trials)
    mode = prior.mean + shift
    p = jax.nn.sigmoid(mode)
    var = jnp.maximum(prior.var, 1e-12)  # a logit known exactly still has nodes
    scale = jax.lax.stop_gradient(jnp.sqrt(var / (1 + var * trials * p * (1 - p))))
    step = scale[:, None] * jnp.asarray(offsets, dtype)[None, :]
    log_mode = jax.nn.softplus(mode)
    prior_change = -step * (shift[:, None] + step / 2) / var[:, None]
    change = jax.nn.softplus(mode[:, None] + step) - log_mode[:, None]
    likelihood_change = successes[:, None] * step - trials[:, None] * change
    log_peak = successes * mode - trials * log_mode - shift**2 / (2 * var)
    log_scale = jnp.log(scale) - jnp.log(2 * jnp.pi * var) / 2
    return shift, step, log_rule[None, :] + prior_change + likelihood_change, log_peak + log_scale


def _moment_site(
    prior: Estimate, successes: Float[Array, " B"], trials: Float[Array, " B"], nodes: int
) -> Site:
    """The site that turns the prior's first two moments into those of prior x likelihood."""
    shift, step, log_weight, _ = _tilted_nodes(prior, successes, trials, nodes)
    # No maximum to subtract first: the density peaks at the mode, so no weight exceeds the rule's.
    weight = jnp.exp(log_weight)
    total = jnp.sum(weight, -1)

    def moments_of(deviation: Float[Array, "B nodes"]) -> Estimate:
        """Mean and variance of what is small near the mode: one sweep, no cancellation."""
        mean = jnp.sum(weight * deviation, -1) / total
        return Estimate(mean, jnp.sum(weight * deviation**2, -1) / total - mean**2)

    var = jnp.maximum(prior.var, 1e-12)
    # Wide prior: moments as they are. `removed` is (1 - var' / var) / var, the curvature gained.
    beyond = moments_of(step)
    mean = prior.mean + shift + beyond.mean
    removed = (1 - beyond.var / var) / var
    # Narrow prior: that difference is lost in rounding. Stein's identities give the change itself,
    # mean' = mean + var slope and var' = var - var^2 bend, but amplify quadrature error by var^2:
    # slope = E[y - n p], bend = E[n p (1 - p)] - Var[n p].
    mode = prior.mean + shift
    centre = jax.nn.sigmoid(mode)
    rate = moments_of(jax.nn.sigmoid(mode[:, None] + step) - centre[:, None])
    rate = rate._replace(mean=centre + rate.mean)
    slope = successes - trials * rate.mean
    bend = trials * rate.mean * (1 - rate.mean) - trials * (trials + 1) * rate.var
    narrow = var < 1
    mean = jnp.where(narrow, prior.mean + var * slope, mean)
    removed = jnp.maximum(jnp.where(narrow, bend, removed), 0.0)
    precision = removed / (1 - var * removed)
    shift = jnp.where(narrow, slope, (mean - prior.mean) / var) + precision * mean
    live = trials > 0
    return Site(jnp.where(live, precision, 0.0), jnp.where(live, shift, 0.0))
