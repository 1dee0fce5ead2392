"""The Gaussian step of the filter: condition N(mean, cov) on Gaussian sites on linear functions.

A *site* on row b multiplies the prior by `exp(shift_b x - precision_b x^2 / 2)`, x = design_b @ a.
An ordinary observation z of x with noise variance R is the site precision = 1/R, shift = z/R; a
site of precision and shift zero says nothing, so padded rows are free. All forms compute

    cov'  = (cov^-1 + design^T diag(precision) design)^-1
    mean' = mean + cov' design^T (shift - precision * (design @ mean))

and differ in cost and in how far float32 carries them (measured at D = 17, unit-norm rows):

| form       | cost          | sound in float32 for                                             |
|------------|---------------|------------------------------------------------------------------|
| `cholesky` | B D^2 + D^3   | prior variance <= 1e4, site precision <= 64                      |
| `woodbury` | B^2 D + B^3   | prior variance <= 1e2; beyond, it turns indefinite silently      |
| `qr`       | B D^2 + D^3   | prior variance 1e6 with site precision 1e6; carries a factor     |

Shapes: `D` latent dimensions, `B` sites. Nothing here knows about prompts: usable alone. On
accelerators run it under `jax.default_matmul_precision("highest")`, as the filter does: bfloat16
products lose the covariance.
"""

from typing import Literal, NamedTuple

import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from fade_jax.types import Estimate

Form = Literal["cholesky", "woodbury", "qr"]
"""How the step is solved, see the table above."""


class Gaussian(NamedTuple):
    """A multivariate normal.

    Attributes:
        mean: [D].
        cov: [D, D], symmetric positive semi-definite.
    """

    mean: Float[Array, " D"]
    cov: Float[Array, "D D"]


class RootGaussian(NamedTuple):
    """A multivariate normal carried by a square root of its covariance.

    Attributes:
        mean: [D].
        root: [D, D], any matrix with cov = root @ root^T.
    """

    mean: Float[Array, " D"]
    root: Float[Array, "D D"]


def symmetrise(matrix: Float[Array, "D D"]) -> Float[Array, "D D"]:
    """The symmetric part, `(matrix + matrix^T) / 2`."""
    return (matrix + matrix.T) / 2


def condition(
    prior: Gaussian,
    design: Float[Array, "B D"],
    precision: Float[Array, " B"],
    shift: Float[Array, " B"],
    form: Form = "cholesky",
) -> Gaussian:
    """Conditions a Gaussian on sites, by the form asked for.

    Args:
        prior: over the D latents.
        design: [B, D] rows, one a site.
        precision: [B] >= 0.
        shift: [B], natural parameter of each site (precision times target).
        form: see the table of the module.

    Returns:
        The posterior.

    Raises:
        ValueError: for a form that does not exist.

    Example:
        >>> import jax.numpy as jnp
        >>> prior = Gaussian(jnp.zeros(1), jnp.ones((1, 1)))
        >>> print(condition(prior, jnp.ones((1, 1)), jnp.ones(1), jnp.ones(1)).mean.round(3))
        [0.5]
    """
    if form == "cholesky":
        return _condition_cholesky(prior, design, precision, shift)
    if form == "woodbury":
        return _condition_woodbury(prior, design, precision, shift)
    if form == "qr":
        root = RootGaussian(prior.mean, jnp.linalg.cholesky(prior.cov))
        return from_root(condition_root(root, design, precision, shift))
    raise ValueError(f"form must be 'cholesky', 'woodbury' or 'qr', got {form!r}")


def _condition_cholesky(
    prior: Gaussian,
    design: Float[Array, "B D"],
    precision: Float[Array, " B"],
    shift: Float[Array, " B"],
) -> Gaussian:
    """Information form in the coordinates where the prior is white, which never inverts `cov`."""
    root, information = _white_information(prior, design, precision)
    posterior_root = solve_triangular(information, root.T, lower=True)
    cov = symmetrise(posterior_root.T @ posterior_root)
    return Gaussian(_shifted_mean(prior.mean, cov, design, precision, shift), cov)


def _white_information(
    prior: Gaussian, design: Float[Array, "B D"], precision: Float[Array, " B"]
) -> tuple[Float[Array, "D D"], Float[Array, "D D"]]:
    """Cholesky factors of `cov` and of the posterior information seen from the white prior."""
    root = jnp.linalg.cholesky(prior.cov)
    white = design @ root
    identity = jnp.eye(root.shape[0], dtype=root.dtype)
    return root, jnp.linalg.cholesky(identity + white.T @ (precision[:, None] * white))


def _condition_woodbury(
    prior: Gaussian,
    design: Float[Array, "B D"],
    precision: Float[Array, " B"],
    shift: Float[Array, " B"],
) -> Gaussian:
    """Covariance form over the B sites; `sqrt(precision)` keeps silent sites finite."""
    weighted = jnp.sqrt(precision)[:, None] * design
    gain = weighted @ prior.cov
    identity = jnp.eye(design.shape[0], dtype=design.dtype)
    innovation = jnp.linalg.cholesky(identity + gain @ weighted.T)
    reduction = solve_triangular(innovation, gain, lower=True)
    cov = symmetrise(prior.cov - reduction.T @ reduction)
    return Gaussian(_shifted_mean(prior.mean, cov, design, precision, shift), cov)


def _shifted_mean(
    mean: Float[Array, " D"],
    cov: Float[Array, "D D"],
    design: Float[Array, "B D"],
    precision: Float[Array, " B"],
    shift: Float[Array, " B"],
) -> Float[Array, " D"]:
    return mean + cov @ (design.T @ (shift - precision * (design @ mean)))


def condition_root(
    prior: RootGaussian,
    design: Float[Array, "B D"],
    precision: Float[Array, " B"],
    shift: Float[Array, " B"],
) -> RootGaussian:
    """Conditions by one QR factorisation of the stacked square-root information.

    `[root^-1; sqrt(W) design] = Q R`, `root' = R^-1`, and the mean moves by the least-squares
    solution of the same stack. Never forms a covariance, so float32 keeps half its digits more
    than the other forms.

    Args:
        prior: with a root that can be inverted.
        design: [B, D] rows.
        precision: [B] >= 0; a row of precision zero must have shift zero.
        shift: [B].

    Returns:
        The posterior; its root is upper triangular.
    """
    dim = prior.mean.shape[0]
    identity = jnp.eye(dim, dtype=prior.mean.dtype)
    inverse_root = jnp.linalg.solve(prior.root, identity)
    scale = jnp.sqrt(precision)
    residual = (shift - precision * (design @ prior.mean)) / jnp.where(scale > 0, scale, 1.0)
    # Heavy rows first: Householder QR is accurate row by row only when sorted by size.
    stack = jnp.concatenate([scale[:, None] * design, inverse_root])
    target = jnp.concatenate([residual, jnp.zeros((dim,), residual.dtype)])
    order = jnp.argsort(-jnp.abs(stack).max(axis=1))
    q, r = jnp.linalg.qr(stack[order])
    step = solve_triangular(r, q.T @ target[order])
    return RootGaussian(prior.mean + step, solve_triangular(r, identity))


def predict_root(
    prior: RootGaussian, transition: Float[Array, "D D"], noise_root: Float[Array, "D D"]
) -> RootGaussian:
    """Moves a root Gaussian through `x' = transition @ x + noise_root @ white noise`.

    Args:
        prior: before the move.
        transition: [D, D].
        noise_root: [D, D], a square root of the noise covariance.

    Returns:
        The moved Gaussian; its root is lower triangular.
    """
    stack = jnp.concatenate([(transition @ prior.root).T, noise_root.T])
    return RootGaussian(transition @ prior.mean, jnp.linalg.qr(stack, mode="r").T)


def from_root(gaussian: RootGaussian) -> Gaussian:
    """The same distribution with its covariance written out."""
    return Gaussian(gaussian.mean, gaussian.root @ gaussian.root.T)


def marginal(gaussian: Gaussian, design: Float[Array, "B D"]) -> Estimate:
    """Moments of each `design_b @ x`: `design @ mean` and `diag(design cov design^T)`."""
    return Estimate(design @ gaussian.mean, jnp.sum((design @ gaussian.cov) * design, axis=1))


def log_normaliser(
    prior: Gaussian,
    posterior: Gaussian,
    design: Float[Array, "B D"],
    precision: Float[Array, " B"],
    shift: Float[Array, " B"],
) -> Float[Array, ""]:
    """Log of the integral of the prior times all sites.

    `log ∫ N(a; mean, cov) prod_b exp(shift_b x_b - precision_b x_b^2 / 2) da`, x = design @ a.

    Args:
        prior: before the sites.
        posterior: `condition(prior, design, precision, shift)`.
        design: [B, D].
        precision: [B].
        shift: [B].

    Returns:
        A scalar, in nats.
    """
    mean = design @ prior.mean
    gradient = shift - precision * mean
    at_mean = jnp.sum(shift * mean - precision * mean**2 / 2)
    projected = design.T @ gradient
    _, information = _white_information(prior, design, precision)
    half_log_det = jnp.sum(jnp.log(jnp.diagonal(information)))
    return at_mean + projected @ posterior.cov @ projected / 2 - half_log_det
