"""Dense-grid truth: posteriors and filters by brute summation, with nothing Gaussian assumed.

The log-concave integrands here are analytic and die off like a normal density, so the trapezoid
rule on an even grid converges faster than any power of the spacing; each function states or checks
the resolution it needs. numpy in, numpy float64 out, whatever JAX's own precision is set to. Slow,
and independent of the filter's code.

Shapes: `T` steps, `N` prompts, `B` rows a step, `G` grid points an axis.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

ArrayLike = Float[np.ndarray, "..."] | float | int
"""Numbers of any shape, in float64 on the host."""


class LogitPosterior(NamedTuple):
    """A logit given one binomial count, elementwise.

    Attributes:
        mean: E[psi], logits.
        sd: standard deviation of psi, logits.
        pass_rate: E[p], p = sigmoid(psi).
        informative: P(the next group has 1..group_size - 1 successes).
        log_evidence: log probability of the count under the prior, nats.
    """

    mean: Float[np.ndarray, "*shape"]
    sd: Float[np.ndarray, "*shape"]
    pass_rate: Float[np.ndarray, "*shape"]
    informative: Float[np.ndarray, "*shape"]
    log_evidence: Float[np.ndarray, "*shape"]


class ScalarFiltered(NamedTuple):
    """What the scalar grid filter believes after each step.

    Attributes:
        mean: [T, N] logits, given the counts up to and including the step.
        var: [T, N] squared logits.
        log_evidence: [T, N] log probability of the step's count given all before it, nats.
    """

    mean: Float[np.ndarray, "T N"]
    var: Float[np.ndarray, "T N"]
    log_evidence: Float[np.ndarray, "T N"]


class AbilityFiltered(NamedTuple):
    """What the two-dimensional grid filter believes after each step.

    Attributes:
        mean: [T, 2].
        cov: [T, 2, 2].
        log_evidence: [T] log probability of the step's counts given all before them, nats.
    """

    mean: Float[np.ndarray, "T 2"]
    cov: Float[np.ndarray, "T 2 2"]
    log_evidence: Float[np.ndarray, " T"]


def binomial_logit(
    prior_mean: ArrayLike,
    prior_var: ArrayLike,
    successes: ArrayLike,
    trials: ArrayLike,
    group_size: int,
    *,
    num_points: int = 4001,
) -> LogitPosterior:
    """Posterior of `psi ~ N(prior_mean, prior_var)` given `Binomial(trials, sigmoid(psi))`.

    Trapezoid rule over the mode +- 9 prior standard deviations: the posterior falls at least as
    fast as the prior on both sides of its mode. The relative error is below 1e-10 while the
    spacing, 18 prior sd / num_points, stays below a third of `(1 / prior_var + trials / 4)^-1/2`.

    Args:
        prior_mean: logits.
        prior_var: squared logits, > 0.
        successes: in 0..trials.
        trials: >= 0.
        group_size: rollouts of the next group.
        num_points: of the grid.

    Returns:
        LogitPosterior, of the arguments' broadcast shape.

    Example:
        >>> seen = binomial_logit(0.0, 1.0, 3, 8, group_size=8)
        >>> round(float(seen.mean), 6), round(float(seen.sd), 6)
        (-0.353598, 0.598264)
    """
    psi, log_weight = _posterior_grid(prior_mean, prior_var, successes, trials, num_points)
    log_evidence = _log_sum(log_weight)
    weight = np.exp(log_weight - log_evidence[..., None])
    mean = (weight * psi).sum(-1)
    sd = np.sqrt((weight * (psi - mean[..., None]) ** 2).sum(-1))
    all_right, all_wrong = (np.exp(-group_size * softplus(x)) for x in (-psi, psi))
    return LogitPosterior(
        mean,
        sd,
        (weight * np.exp(-softplus(-psi))).sum(-1),
        (weight * (1 - all_right - all_wrong)).sum(-1),
        log_evidence + _log_choose(successes, trials),
    )


def log_predictive(
    mean: ArrayLike,
    var: ArrayLike,
    successes: ArrayLike,
    trials: ArrayLike,
    *,
    num_points: int = 241,
) -> Float[np.ndarray, "*shape"]:
    """Log probability of a count under a Gaussian belief about its logit.

    `log ∫ N(psi; mean, var) Binomial(successes | trials, sigmoid(psi)) dpsi`: the one rule by
    which beliefs of different filters are scored, so that none is judged by its own approximation.

    Args:
        mean: logits; NaN scores NaN.
        var: squared logits, > 0.
        successes: in 0..trials.
        trials: >= 0.
        num_points: of the grid; the default is good to 1e-9 for `var * trials <= 64`.

    Returns:
        Nats, of the arguments' broadcast shape.
    """
    arrays = np.broadcast_arrays(*(np.asarray(x, float) for x in (mean, var, successes, trials)))
    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):
        log_mass = np.asarray(_log_mass(*map(jnp.asarray, arrays), num_points))
    return np.asarray(log_mass + _log_choose(successes, trials))


@partial(jax.jit, static_argnums=4)
def _log_mass(mean, var, successes, trials, num_points):
    """Trapezoid rule over the mode +- 9 sd, as `binomial_logit`, but compiled for many beliefs."""

    def log_density(psi: Array, axis: tuple[int, ...] = ()) -> Array:
        m, v, y, n = (jnp.expand_dims(x, axis) for x in (mean, var, successes, trials))
        return -((psi - m) ** 2) / (2 * v) + y * psi - n * jax.nn.softplus(psi)

    def halve(_, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        middle = (low + high) / 2
        slope = mean - middle + var * (successes - trials * jax.nn.sigmoid(middle))
        return jnp.where(slope > 0, middle, low), jnp.where(slope > 0, high, middle)

    bracket = (mean + var * (successes - trials), mean + var * successes)
    mode = jax.lax.fori_loop(0, 60, halve, bracket)[0]
    highest = log_density(mode)
    offsets = jnp.linspace(-9, 9, num_points)
    psi = mode[..., None] + jnp.sqrt(var)[..., None] * offsets
    weight = jnp.exp(log_density(psi, (-1,)) - highest[..., None])
    spacing = 18 / (num_points - 1) / np.sqrt(2 * np.pi)
    return highest + jnp.log(spacing * weight.sum(-1))


def scalar_filter(
    successes: Float[np.ndarray, "T N"],
    trials: Float[np.ndarray, "T N"],
    *,
    prior_mean: float,
    prior_var: float,
    drift: float,
    num_points: int = 2001,
) -> ScalarFiltered:
    """Exact filter of independent random walks on the logit, one a prompt.

    `psi_1 ~ N(prior_mean, prior_var)`, `psi_{t+1} = psi_t + N(0, drift^2)`, binomial counts. The
    density lives on `num_points` points over the prior mean +- 8 standard deviations of the whole
    walk; a step multiplies it by the likelihood and convolves it with the Gaussian kernel.

    Args:
        successes: [T, N] in 0..trials; whole numbers.
        trials: [T, N] >= 0; a step without trials only drifts.
        prior_mean: logits.
        prior_var: squared logits, > 0.
        drift: standard deviation of the walk over one step, logits, >= 0.
        num_points: of the grid.

    Returns:
        ScalarFiltered.

    Raises:
        ValueError: if the grid is too coarse for the drift or for the posteriors that come out.
    """
    steps = successes.shape[0]
    reach = 8 * np.sqrt(prior_var + drift**2 * (steps - 1))
    psi = prior_mean + np.linspace(-reach, reach, num_points)
    spacing = psi[1] - psi[0]
    log_pass, log_fail = -softplus(-psi), -softplus(psi)
    length = 1 << (2 * num_points - 1).bit_length()
    offsets = spacing * (np.arange(length) - length * (np.arange(length) > length // 2))
    kernel = np.fft.rfft(_kernel(offsets, spacing, drift))
    density = _normal_weights(psi, prior_mean, prior_var)[None, :].repeat(successes.shape[1], 0)

    means, variances, scores = [], [], []
    for t in range(steps):
        y, n = successes[t, :, None], trials[t, :, None]
        # Of one kind of count there are many prompts: take the exponentials once a kind.
        kinds, which = np.unique(np.concatenate([y, n], 1), axis=0, return_inverse=True)
        table = np.exp(kinds[:, :1] * log_pass + (kinds[:, 1:] - kinds[:, :1]) * log_fail)
        density = density * table[which.reshape(-1)]
        mass = density.sum(1)
        density /= mass[:, None]
        mean = density @ psi
        means.append(mean)
        variances.append(density @ psi**2 - mean**2)
        scores.append(np.log(mass) + _log_choose(y, n)[:, 0])
        if drift > 0:
            spectrum = np.fft.rfft(density, length) * kernel
            # Rounding of the transform leaves +-1e-17 where the density is zero.
            density = np.maximum(np.fft.irfft(spectrum, length)[:, :num_points], 0.0)
            density /= density.sum(1, keepdims=True)
    variance = np.stack(variances)
    _check_spacing(spacing, drift, np.sqrt(variance.min()))
    return ScalarFiltered(np.stack(means), variance, np.stack(scores))


def ability_filter(
    design: Float[np.ndarray, "T B 2"],
    difficulty: Float[np.ndarray, "T B"],
    successes: Float[np.ndarray, "T B"],
    trials: Float[np.ndarray, "T B"],
    *,
    prior_mean: Float[np.ndarray, " 2"],
    prior_cov: Float[np.ndarray, "2 2"],
    drift: float,
    num_points: int = 201,
) -> AbilityFiltered:
    """Exact filter of a two-dimensional ability whose prompts' difficulties are known.

    `theta_1 ~ N(prior_mean, prior_cov)`, `theta_{t+1} = theta_t + N(0, drift^2 I)`, counts with
    logit `design . theta - difficulty`. One step alone is the exact static posterior; with rows
    `[1, -1]` and difficulty 0 it is that of an ability and one unknown intercept.

    Args:
        design: [T, B, 2].
        difficulty: [T, B] logits.
        successes: [T, B] in 0..trials.
        trials: [T, B] >= 0; rows without trials are inert.
        prior_mean: [2].
        prior_cov: [2, 2].
        drift: standard deviation per step of each ability, >= 0.
        num_points: of the grid, an axis; it spans the prior mean +- 7 standard deviations of the
            whole walk.

    Returns:
        AbilityFiltered.

    Raises:
        ValueError: if the grid is too coarse for the drift or for the posteriors that come out.
    """
    reach = 7 * np.sqrt(np.diag(prior_cov) + drift**2 * (design.shape[0] - 1))
    axes = prior_mean[:, None] + reach[:, None] * np.linspace(-1, 1, num_points)
    spacing = axes[:, 1] - axes[:, 0]
    kernels = np.stack(
        [
            _kernel(x[:, None] - x[None, :], h, drift) if drift > 0 else np.eye(num_points)
            for x, h in zip(axes, spacing, strict=True)
        ]
    )
    deviation = np.stack(np.meshgrid(*axes, indexing="ij"), -1) - prior_mean
    exponent = -(deviation @ np.linalg.inv(prior_cov) * deviation).sum(-1) / 2
    density = np.exp(exponent - exponent.max())
    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):
        arrays = (density / density.sum(), axes, kernels, design, difficulty, successes, trials)
        mean, cov, mass = _ability_filter(*(jnp.asarray(x, jnp.float64) for x in arrays))
        mean, cov, mass = np.asarray(mean), np.asarray(cov), np.asarray(mass)
    narrowest = np.sqrt(np.linalg.eigvalsh(cov)[:, 0].min())
    _check_spacing(spacing.max(), drift, narrowest)
    return AbilityFiltered(mean, cov, mass + _log_choose(successes, trials).sum(-1))


@jax.jit
def _ability_filter(density, axes, kernels, design, difficulty, successes, trials):
    """The scan of `ability_filter`; compiled once a shape."""

    def step(density: Array, row: tuple[Array, ...]) -> tuple[Array, tuple[Array, ...]]:
        # Prompt by prompt: all rows at once would leave the cache and take four times as long.
        def add(total: Array, prompt: tuple[Array, ...]) -> tuple[Array, None]:
            loading, offset, y, n = prompt
            psi = (loading[0] * axes[0] - offset)[:, None] + loading[1] * axes[1]
            soft = jnp.maximum(psi, 0) + jnp.log(1 + jnp.exp(-jnp.abs(psi)))
            return total + y * psi - n * soft, None

        log_likelihood = jax.lax.scan(add, jnp.zeros_like(density), row)[0]
        highest = log_likelihood.max()
        joint = density * jnp.exp(log_likelihood - highest)
        mass = joint.sum()
        joint = joint / mass
        mean = jnp.stack([joint.sum(1) @ axes[0], joint.sum(0) @ axes[1]])
        x, z = axes - mean[:, None]
        cross = x @ joint @ z
        cov = jnp.array([[joint.sum(1) @ x**2, cross], [cross, joint.sum(0) @ z**2]])
        drifted = kernels[0] @ joint @ kernels[1].T
        return drifted, (mean, cov, jnp.log(mass) + highest)

    return jax.lax.scan(step, density, (design, difficulty, successes, trials))[1]


def softplus(x: ArrayLike) -> Float[np.ndarray, "*shape"]:
    """`log(1 + e^x)` without overflow."""
    return np.asarray(np.logaddexp(0.0, x))


def _posterior_grid(prior_mean, prior_var, successes, trials, num_points):
    """Grid around each posterior mode, and the log mass of prior times likelihood it stands for."""
    mean, var, y, n = np.broadcast_arrays(
        *(np.asarray(x, np.float64) for x in (prior_mean, prior_var, successes, trials))
    )
    # Bisection for the root of the decreasing slope of the log density.
    low, high = mean + var * (y - n), mean + var * y
    for _ in range(60):
        middle = (low + high) / 2
        rising = mean - middle + var * (y - n * np.exp(-softplus(-middle))) > 0
        low, high = np.where(rising, middle, low), np.where(rising, high, middle)
    sd = np.sqrt(var)[..., None]
    offsets = np.linspace(-9, 9, num_points)
    psi = ((low + high) / 2)[..., None] + sd * offsets
    z = (psi - mean[..., None]) / sd
    log_prior = np.log(offsets[1] - offsets[0]) - np.log(2 * np.pi) / 2 - z**2 / 2
    return psi, log_prior + y[..., None] * psi - n[..., None] * softplus(psi)


def _log_sum(log_weight: np.ndarray) -> np.ndarray:
    """Log of the sum of exponentials over the last axis."""
    highest = log_weight.max(-1, keepdims=True)
    return np.asarray(np.log(np.exp(log_weight - highest).sum(-1)) + highest[..., 0])


def _log_choose(successes: ArrayLike, trials: ArrayLike) -> np.ndarray:
    """Log of the binomial coefficient."""
    from scipy.special import gammaln

    y, n = np.asarray(successes, np.float64), np.asarray(trials, np.float64)
    return np.asarray(gammaln(n + 1) - gammaln(y + 1) - gammaln(n - y + 1))


def _normal_weights(x: np.ndarray, mean: float, var: float) -> np.ndarray:
    weight = np.exp(-((x - mean) ** 2) / (2 * var))
    return weight / weight.sum()


def _kernel(offsets: np.ndarray, spacing: float, drift: float) -> np.ndarray:
    """Mass a point receives from one `offsets` away."""
    if drift == 0:
        return np.where(offsets == 0, 1.0, 0.0)
    return spacing * np.exp(-((offsets / drift) ** 2) / 2) / (drift * np.sqrt(2 * np.pi))


def _check_spacing(spacing: float, drift: float, narrowest: float) -> None:
    """Refuses a grid that is too coarse.

    The sums are over the density itself, and over kernel times density in a convolution. The
    trapezoid rule for a normal shape errs by `2 exp(-2 (pi sd / spacing)^2)`, 6e-6 at sd = .8
    spacing.
    """
    scale = 1 / np.hypot(1 / drift, 1 / narrowest) if drift > 0 else narrowest
    if scale < 0.8 * spacing:
        raise ValueError(
            f"num_points is too small: a spacing of {spacing:.3g} cannot resolve drift {drift:.3g} "
            f"with a posterior sd of {narrowest:.3g}"
        )
