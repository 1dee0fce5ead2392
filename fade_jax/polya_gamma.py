"""Pólya-Gamma moments and draws: the augmentation that makes binomial logits Gaussian.

With `omega ~ PG(n, psi)`, a binomial likelihood in the logit `psi` is Gaussian given omega:
`sigmoid(psi)^y sigmoid(-psi)^(n-y) ∝ exp(kappa psi) E_omega[exp(-omega psi^2 / 2)]`,
`kappa = y - n/2` (Polson, Scott & Windle 2013, JASA 108).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

# Below these |tilt| the closed forms cancel (mean to first order, variance to third), so series
# take over: relative error of the series at the switch 2e-16 / 5e-12 (float64) and below 2e-7
# (float32); the closed forms beyond it keep 5e-6 or better in float32.
_MEAN_SWITCH = {jnp.dtype("float32"): 0.1, jnp.dtype("float64"): 1e-2}
_VARIANCE_SWITCH = {jnp.dtype("float32"): 0.5, jnp.dtype("float64"): 0.1}


def mean(trials: Float[Array, "*B"], tilt: Float[Array, "*B"]) -> Float[Array, "*B"]:
    """Mean of the Pólya-Gamma distribution.

    `E[omega | PG(trials, tilt)] = trials tanh(tilt / 2) / (2 tilt)`; trials / 4 at tilt = 0 and
    trials / (2 tilt) for large tilt. Also twice the Jaakkola-Jordan `lambda(tilt)`.

    Args:
        trials: number of binary outcomes, >= 0.
        tilt: logit at which the likelihood is bounded; its sign does not matter.

    Returns:
        The mean, in 0..trials/4.
    """
    c = jnp.abs(tilt)
    small = c < _MEAN_SWITCH[c.dtype]
    # The double `where` keeps the branch not taken from putting NaN into the gradient.
    d = jnp.where(small, 1.0, c)
    closed = jnp.tanh(d / 2) / (2 * d)
    x = jnp.where(small, c * c, 0.0)
    series = 1 / 4 + x * (-1 / 48 + x * (1 / 480 + x * (-17 / 80640 + x * (31 / 1451520))))
    return trials * jnp.where(small, series, closed)


def variance(trials: Float[Array, "*B"], tilt: Float[Array, "*B"]) -> Float[Array, "*B"]:
    """Variance of the Pólya-Gamma distribution.

    `Var[omega | PG(trials, tilt)] = trials (sinh tilt - tilt) sech(tilt / 2)^2 / (4 tilt^3)`,
    written with exponentials of -tilt so that it cannot overflow; trials / 24 at tilt = 0 and
    trials / (2 tilt^3) for large tilt.

    Args:
        trials: number of binary outcomes, >= 0.
        tilt: as in `mean`.

    Returns:
        The variance, in 0..trials/24.
    """
    c = jnp.abs(tilt)
    small = c < _VARIANCE_SWITCH[c.dtype]
    d = jnp.where(small, 1.0, c)
    e = jnp.exp(-d)
    closed = (1 - e * e - 2 * d * e) / (2 * d**3 * (1 + e) ** 2)
    x = jnp.where(small, c * c, 0.0)
    coefficients = (1 / 24, -1 / 120, 17 / 13440, -31 / 181440, 691 / 31933440)
    series = jnp.zeros_like(x)
    for coefficient in reversed(coefficients):
        series = series * x + coefficient
    return trials * jnp.where(small, series, closed)


def sample(
    key: Key[Array, ""],
    trials: Float[Array, "*B"],
    tilt: Float[Array, "*B"],
    *,
    num_terms: int = 200,
) -> Float[Array, "*B"]:
    """Draws `omega ~ PG(trials, tilt)` by its sum of gammas, for reference samplers.

    `omega = sum_k g_k / (2 pi^2 ((k - 1/2)^2 + tilt^2 / (4 pi^2)))`, g_k ~ Gamma(trials, 1)
    (Polson et al. 2013, eq. 2). The series is cut after `num_terms`; what is left is replaced by
    its exact mean, so the draw has the right mean and lacks a share of about
    `2 / (pi^4 num_terms^3)` of variance trials / 24 (3e-9 of it at 200 terms).

    Args:
        key: consumed.
        trials: number of binary outcomes, >= 0; zero gives zero.
        tilt: as in `mean`.
        num_terms: gammas drawn per value.

    Returns:
        One draw per entry, >= 0.
    """
    k = (jnp.arange(num_terms, dtype=tilt.dtype) + 0.5).reshape((1,) * tilt.ndim + (-1,))
    rate = 2 * (jnp.pi**2 * k**2 + (tilt[..., None] / 2) ** 2)
    shape = jnp.broadcast_to(trials[..., None], rate.shape)
    # A gamma of shape zero is the constant zero; draw a legal shape and discard it.
    gammas = jax.random.gamma(key, jnp.where(shape > 0, shape, 1.0), dtype=tilt.dtype)
    head = (jnp.where(shape > 0, gammas, 0.0) / rate).sum(-1)
    tail = mean(trials, tilt) - (shape / rate).sum(-1)
    return head + jnp.maximum(tail, 0.0)
