"""How the ability drifts between observations: `theta' = F theta + c + noise of covariance Q`.

Drift rates are standard deviations per step. `elapsed` is 1 per optimiser step; for policy-scaled
drift, `predict(state, policy_elapsed(kl, kl_reference))` lets time pass as fast as the policy
moves.

Shapes: `D` ability dimensions, the constant loading first.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from fade_jax.hyperparameters import Hyperparameters, ScalarLike
from fade_jax.linear_gaussian import Gaussian, symmetrise
from fade_jax.types import Elapsed


class Transition(NamedTuple):
    """A linear-Gaussian move.

    Attributes:
        matrix: [D, D], F.
        offset: [D], c.
        noise: [D, D], Q, positive semi-definite.
    """

    matrix: Float[Array, "D D"]
    offset: Float[Array, " D"]
    noise: Float[Array, "D D"]


@runtime_checkable
class Dynamics(Protocol):
    """Says how the ability moves over `elapsed`."""

    def __call__(
        self, hyper: Hyperparameters, ability: Gaussian, elapsed: Elapsed, nis: Float[Array, ""]
    ) -> Transition:
        """Returns the move, from the present belief and the last update's innovation size."""
        ...


def move(ability: Gaussian, transition: Transition) -> Gaussian:
    """Carries a belief through a move: `F mean + c`, `F cov F^T + Q`."""
    matrix, offset, noise = transition
    return Gaussian(
        matrix @ ability.mean + offset, symmetrise(matrix @ ability.cov @ matrix.T + noise)
    )


def random_walk(
    hyper: Hyperparameters, ability: Gaussian, elapsed: Elapsed, nis: Float[Array, ""]
) -> Transition:
    """Random walk with trend: `F = I`, `c = trend elapsed`, `Q = diag(drift^2) elapsed`."""
    ones = jnp.ones_like(ability.mean)
    return Transition(
        jnp.eye(ones.shape[0], dtype=ones.dtype),
        hyper.ability_trend * elapsed * ones,
        jnp.diag(jnp.square(hyper.ability_drift * ones) * elapsed),
    )


def ornstein_uhlenbeck(retention: ScalarLike) -> Dynamics:
    """Pull towards the prior, which is then the stationary law.

    `F = phi I`, `c = (1 - phi) ability_mean`, `Q = (1 - phi^2) ability_cov`,
    `phi = retention^elapsed`.

    Args:
        retention: share of the deviation kept per step, in (0, 1].

    Returns:
        The dynamics; `ability_drift` and `ability_trend` have no part in it.
    """

    def transition(hyper, ability, elapsed, nis):
        kept = jnp.asarray(retention, ability.mean.dtype) ** elapsed
        return Transition(
            kept * jnp.eye(ability.mean.shape[0], dtype=ability.mean.dtype),
            (1 - kept) * hyper.ability_mean,
            (1 - kept**2) * hyper.ability_cov,
        )

    return transition


def discount(factor: ScalarLike) -> Dynamics:
    """Forgetting: each variance grows by `1 / factor` per step, at most back to the prior.

    `F = I`; along every eigenvector of the covariance seen from the prior, the variance share v
    becomes `max(v, min(v / factor^elapsed, 1))`. Without that cap directions never observed would
    grow without bound.

    Args:
        factor: in (0, 1]; .9 to .99 are usual.

    Returns:
        The dynamics; `ability_drift` and `ability_trend` have no part in it.
    """

    def transition(hyper, ability, elapsed, nis):
        root = jnp.linalg.cholesky(hyper.ability_cov)
        half = solve_triangular(root, ability.cov, lower=True)
        seen = symmetrise(solve_triangular(root, half.T, lower=True))
        share, directions = jnp.linalg.eigh(seen)
        growth = jnp.asarray(factor, share.dtype) ** (-elapsed)
        gained = jnp.maximum(jnp.minimum(share * growth, 1.0) - share, 0.0)
        basis = root @ directions
        identity = jnp.eye(share.shape[0], dtype=share.dtype)
        return Transition(identity, jnp.zeros_like(share), (basis * gained[None, :]) @ basis.T)

    return transition


def adaptive(
    base: Dynamics = random_walk,
    *,
    exponent: ScalarLike = 0.5,
    lowest: ScalarLike = 0.1,
    highest: ScalarLike = 10.0,
) -> Dynamics:
    """Innovation-adaptive noise: `Q clip(nis, lowest, highest)^exponent` on top of `base`.

    Args:
        base: dynamics whose noise is scaled.
        exponent: 0 leaves `base` as it is.
        lowest: floor of the normalised innovation squared.
        highest: ceiling of it.

    Returns:
        The dynamics.
    """

    def transition(hyper, ability, elapsed, nis):
        matrix, offset, noise = base(hyper, ability, elapsed, nis)
        return Transition(matrix, offset, noise * jnp.clip(nis, lowest, highest) ** exponent)

    return transition


def policy_elapsed(
    kl: ScalarLike, kl_reference: ScalarLike, *, longest: ScalarLike = 10.0
) -> Float[Array, ""]:
    """Time that passes for the filter when the policy moved by `kl`: `kl / kl_reference`.

    Args:
        kl: KL divergence of the last optimiser step, nats, >= 0.
        kl_reference: the divergence that counts as one step, > 0.
        longest: cap, so that one outlier cannot wipe the belief out.

    Returns:
        `elapsed` for `predict`.
    """
    return jnp.clip(jnp.asarray(kl) / kl_reference, 0.0, longest)
