"""What the FADE filter assumes before it has seen anything, as one differentiable pytree.

Shapes: `K` skills, `D = K + 1` ability dimensions; entry 0 is the constant loading, the ability
that moves every prompt alike.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

ScalarLike = float | Float[Array, ""]
"""A number, or an array or tracer that holds one."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """Priors and drift rates of the filter; every field is a leaf, so tuning may move it.

    Attributes:
        ability_mean: [D] prior mean of the ability, logits.
        ability_cov: [D, D] prior covariance of the ability, positive definite.
        ability_drift: standard deviation an ability gains per step; one for all or [D].
        ability_trend: mean an ability gains per step; one for all or [D].
        intercept_mean: prior mean of every intercept, logits.
        intercept_var: prior variance of every intercept, > 0; ageing never exceeds it.
        intercept_drift: standard deviation an intercept gains per step. A small positive value
            protects against skills the loadings miss.
        loading_scale: multiplies the loadings.
    """

    ability_mean: Float[Array, " D"]
    ability_cov: Float[Array, "D D"]
    ability_drift: ScalarLike | Float[Array, " D"] = 0.05
    ability_trend: ScalarLike | Float[Array, " D"] = 0.0
    intercept_mean: ScalarLike = 0.0
    intercept_var: ScalarLike = 4.0
    intercept_drift: ScalarLike = 0.05
    loading_scale: ScalarLike = 1.0


def default(num_skills: int, **changes) -> Hyperparameters:
    """Unit abilities around zero, wide intercepts, slow drift: sensible where nothing is tuned.

    Args:
        num_skills: K >= 0; the constant loading comes on top.
        **changes: fields to set otherwise.

    Returns:
        Hyperparameters with D = K + 1.

    Example:
        >>> default(2, ability_drift=0.1).ability_mean.shape
        (3,)
    """
    dim = num_skills + 1
    fields = {"ability_mean": jnp.zeros(dim), "ability_cov": jnp.eye(dim)}
    return Hyperparameters(**(fields | changes))


def check_hyperparameters(hyper: Hyperparameters) -> Hyperparameters:
    """Refuses priors and rates that no filter can use; call it where values come from outside.

    Args:
        hyper: concrete (not traced) values.

    Returns:
        The same object.

    Raises:
        ValueError: names the field and the value: a non-finite entry, a covariance that is not
            symmetric positive definite or not [D, D], a variance or rate out of range.
    """
    for field in dataclasses.fields(hyper):
        value = np.asarray(getattr(hyper, field.name))
        if not np.isfinite(value).all():
            raise ValueError(f"{field.name} must be finite, got {value}")
    dim = np.shape(hyper.ability_mean)[0]
    cov = np.asarray(hyper.ability_cov, np.float64)
    if cov.shape != (dim, dim):
        raise ValueError(f"ability_cov must be [{dim}, {dim}] like ability_mean, got {cov.shape}")
    if not np.allclose(cov, cov.T, rtol=1e-5, atol=1e-7):
        raise ValueError(f"ability_cov must be symmetric, got {cov}")
    smallest = np.linalg.eigvalsh(cov)[0]
    if smallest <= 0:
        raise ValueError(
            f"ability_cov must be positive definite, its smallest eigenvalue is {smallest}"
        )
    if np.asarray(hyper.intercept_var) <= 0:
        raise ValueError(f"intercept_var must be > 0, got {hyper.intercept_var}")
    for name in ("ability_drift", "intercept_drift", "loading_scale"):
        value = np.asarray(getattr(hyper, name))
        if (value < 0).any():
            raise ValueError(f"{name} must be >= 0, got {value}")
    for name in ("ability_drift", "ability_trend"):
        if np.shape(getattr(hyper, name)) not in ((), (dim,)):
            raise ValueError(
                f"{name} must be a scalar or [{dim}], got {np.shape(getattr(hyper, name))}"
            )
    return hyper
