"""Empirical Bayes: choose priors and drift rates by the score of the tracker's own predictions.

A tracker predicts every batch before it sees it; the sum of its log evidences is the log score of
these predictions, and, since trackers are differentiable, so is its gradient. Parameters are moved
in unconstrained coordinates, so variances stay positive, discounts in (0, 1) and covariances
positive definite whatever the optimiser does.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Constraint(NamedTuple):
    """A reparametrisation of one leaf.

    Attributes:
        free: value -> unconstrained coordinates.
        bind: unconstrained coordinates -> value.
    """

    free: Callable[[Array], Array]
    bind: Callable[[Array], Array]


def real() -> Constraint:
    """Any real number."""
    return Constraint(lambda value: value, lambda raw: raw)


def positive() -> Constraint:
    """Positive, by its logarithm: steps are relative, as rates and variances want."""
    return Constraint(jnp.log, jnp.exp)


def unit_interval() -> Constraint:
    """In (0, 1), by its logit."""
    return Constraint(lambda value: jnp.log(value) - jnp.log1p(-value), jax.nn.sigmoid)


def fixed() -> Constraint:
    """Held where it is."""
    return Constraint(lambda value: value, jax.lax.stop_gradient)


def covariance() -> Constraint:
    """Positive definite, by its Cholesky factor with a log diagonal."""

    def free(value: Float[Array, "D D"]) -> Float[Array, "D D"]:
        root = jnp.linalg.cholesky(value)
        return jnp.tril(root, -1) + jnp.diag(jnp.log(jnp.diagonal(root)))

    def bind(raw: Float[Array, "D D"]) -> Float[Array, "D D"]:
        root = jnp.tril(raw, -1) + jnp.diag(jnp.exp(jnp.diagonal(raw)))
        return root @ root.T

    return Constraint(free, bind)


class Fit(NamedTuple):
    """Outcome of a fit.

    Attributes:
        params: the best parameters met, in their own units.
        score: their score.
        trace: [steps] score before each step.
    """

    params: Any
    score: Float[Array, ""]
    trace: Float[Array, " steps"]


def fit(
    score: Callable[[Any], Float[Array, ""]],
    params: Any,
    constraints: Any,
    *,
    steps: int = 200,
    learning_rate: float = 0.05,
) -> Fit:
    """Climbs a score by Adam in unconstrained coordinates; one scan, so compile it whole.

    Args:
        score: differentiable, of the parameters; take nats per group, so that learning rates mean
            the same for any history.
        params: pytree of floating arrays to start from.
        constraints: pytree like `params` with a Constraint for every leaf.
        steps: gradient steps, >= 1.
        learning_rate: of Adam; about the relative change of a positive parameter per step.

    Returns:
        The best parameters met, never worse than the start. A step with a non-finite score is not
        taken for better.

    Raises:
        ValueError: for steps < 1.

    Example:
        >>> best = fit(lambda p: -((p["rate"] - 3.0) ** 2), {"rate": jnp.ones(())},
        ...            {"rate": positive()})
        >>> round(float(best.params["rate"]), 2)
        3.0
    """
    import optax  # an optional road: the rest of the package needs jax alone

    if steps < 1:
        raise ValueError(f"steps must be >= 1, got {steps}")

    def each(method: str, tree: Any) -> Any:
        return jax.tree.map(
            lambda constraint, leaf: getattr(constraint, method)(leaf),
            constraints,
            tree,
            is_leaf=lambda node: isinstance(node, Constraint),
        )

    # A cosine to zero ends the climb quietly; clipping tames the first steps from a bad start.
    optimiser = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adam(optax.cosine_decay_schedule(learning_rate, steps)),
    )
    loss = jax.value_and_grad(lambda raw: -score(each("bind", raw)))

    def step(carry, _):
        raw, moments, best, best_loss = carry
        value, gradient = loss(raw)
        better = value < best_loss
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), raw, best)
        # A NaN gradient would poison the moments for good.
        sound = jnp.isfinite(optax.tree.norm(gradient))
        gradient = jax.tree.map(lambda g: jnp.where(sound, g, 0.0), gradient)
        updates, moments = optimiser.update(gradient, moments)
        best_loss = jnp.where(better, value, best_loss)
        return (optax.apply_updates(raw, updates), moments, best, best_loss), -value

    raw = each("free", jax.tree.map(jnp.asarray, params))
    start = (raw, optimiser.init(raw), raw, jnp.asarray(math.inf, jnp.result_type(float)))
    (_, _, best, best_loss), trace = jax.lax.scan(step, start, None, length=steps)
    return Fit(each("bind", best), -best_loss, trace)
