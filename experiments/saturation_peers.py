"""Other libraries on the saturating scalar job: their beliefs before each step's counts.

Only what is installed runs (`pip install 'fade-jax[bench]'`). Nothing here scores: all methods are
scored by one function, elsewhere.

Shapes: `T` steps, `N` prompts.
"""

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fade_jax.reference.comparisons import Predicted

Walk: TypeAlias = Callable[[Float[Array, " T"], Float[Array, " T"]], tuple[Array, Array]]
"""Filters one prompt: successes and trials in, filtered means and variances out."""


def installed() -> dict[str, Callable[..., Predicted]]:
    """Filters that can be run here, by the name they go by in the table."""
    found: dict[str, Callable[..., Predicted]] = {}
    if importlib.util.find_spec("dynamax"):
        found |= {
            f"dynamax {kind}": partial(_predictions, partial(_dynamax, kind))
            for kind in ("Gauss-Hermite(10)", "UKF", "EKF")
        }
    if importlib.util.find_spec("cuthbert"):
        found["cuthbert taylor"] = partial(_predictions, _cuthbert)
    return found


def _predictions(
    make: Callable[[float, float, float], Walk],
    successes: Float[np.ndarray, "T N"],
    trials: Float[np.ndarray, "T N"],
    *,
    prior_mean: float,
    prior_var: float,
    drift: float,
) -> Predicted:
    """Beliefs [T, N] before each step's counts, as numpy; NaN where a filter breaks down."""
    with jax.enable_x64(True):
        run = jax.jit(jax.vmap(make(prior_mean, prior_var, drift**2), in_axes=1, out_axes=1))
        filtered = run(jnp.asarray(successes), jnp.asarray(trials))
        mean, var = map(np.asarray, filtered)
    first = np.ones((1, successes.shape[1]))
    return Predicted(
        np.concatenate([prior_mean * first, mean[:-1]]),
        np.concatenate([prior_var * first, var[:-1] + drift**2]),
    )


def _dynamax(kind: str, prior_mean: float, prior_var: float, drift_var: float) -> Walk:
    """Conditional-moments Gaussian filter of dynamax 1.0.3; it conditions, then predicts."""
    from dynamax import generalized_gaussian_ssm as ggssm  # pyright: ignore[reportMissingImports]

    integrals = {
        "EKF": ggssm.EKFIntegrals,
        "UKF": ggssm.UKFIntegrals,
        "Gauss-Hermite(10)": partial(ggssm.GHKFIntegrals, order=10),
    }[kind]()
    params = ggssm.ParamsGGSSM(
        initial_mean=jnp.array([prior_mean]),
        initial_covariance=jnp.array([[prior_var]]),
        dynamics_function=lambda x, trials: x,
        dynamics_covariance=jnp.array([[drift_var]]),
        emission_mean_function=lambda x, trials: trials * jax.nn.sigmoid(x),
        emission_cov_function=lambda x, trials: jnp.diag(
            trials * jax.nn.sigmoid(x) * jax.nn.sigmoid(-x)
        ),
    )

    def walk(successes: Float[Array, " T"], trials: Float[Array, " T"]) -> tuple[Array, Array]:
        filtered = ggssm.conditional_moments_gaussian_filter(
            params, integrals, successes[:, None], inputs=trials[:, None]
        )
        return filtered.filtered_means[:, 0], filtered.filtered_covariances[:, 0, 0]

    return walk


def _cuthbert(prior_mean: float, prior_var: float, drift_var: float) -> Walk:
    """Taylor filter of cuthbert 0.1.1; it predicts, then conditions: one drift less to start."""
    from cuthbert import filter as run_filter  # pyright: ignore[reportMissingImports]
    from cuthbert.gaussian import taylor  # pyright: ignore[reportMissingImports]

    log_normal = jax.scipy.stats.norm.logpdf

    def prior(x: Array) -> Array:
        return log_normal(x, prior_mean, jnp.sqrt(prior_var - drift_var)).sum()

    def dynamics(state: Any, row: Array) -> tuple[Callable, Array, Array]:
        def log_density(before: Array, after: Array) -> Array:
            return log_normal(after, before, jnp.sqrt(drift_var)).sum()

        return log_density, state.mean, state.mean

    def counts(state: Any, row: Array) -> tuple[Callable, Array]:
        y, n = row

        def log_likelihood(x: Array) -> Array:
            return (y * jax.nn.log_sigmoid(x) + (n - y) * jax.nn.log_sigmoid(-x)).sum()

        return log_likelihood, state.mean

    def walk(successes: Float[Array, " T"], trials: Float[Array, " T"]) -> tuple[Array, Array]:
        built = taylor.build_filter(prior, jnp.array([prior_mean]), dynamics, counts)
        states = run_filter(built, jnp.stack([successes, trials], 1), built.init_prepare())
        return states.mean[1:, 0], states.chol_cov[1:, 0, 0] ** 2

    return walk
