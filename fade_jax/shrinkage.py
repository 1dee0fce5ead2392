"""Intercept rules: how an item's difficulty ages between visits and settles after one.

The FADE summary says the intercept "slowly shrinks"; these are the readings of that. Only `bayes`
and `ridge` have a probabilistic meaning; `robbins_monro` and `staged` are ablations whose variance
is a schedule, not a calibrated belief; `frozen` holds what another run has learnt.

All functions are elementwise over prompts; ageing runs over the whole pool at every score.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Float

from fade_jax.hyperparameters import Hyperparameters, ScalarLike
from fade_jax.types import Estimate


@runtime_checkable
class Age(Protocol):
    """Ages intercepts between visits."""

    def __call__(
        self, hyper: Hyperparameters, intercept: Estimate, elapsed: Float[Array, "*N"]
    ) -> Estimate:
        """Returns the intercepts `elapsed` after they were last visited."""
        ...


@runtime_checkable
class Settle(Protocol):
    """Decides what a visit leaves behind."""

    def __call__(
        self,
        hyper: Hyperparameters,
        prior: Estimate,
        posterior: Estimate,
        surprise: Float[Array, " B"],
        visits: Float[Array, " B"],
    ) -> Estimate:
        """Returns the intercepts to keep.

        `prior` and `posterior` frame the exact step, `surprise` is predicted minus observed pass
        rate, `visits` the number of visits before this one.
        """
        ...


class Shrinkage(NamedTuple):
    """An intercept rule.

    Attributes:
        age: `(hyper, intercept, elapsed) -> Estimate`.
        settle: `(hyper, prior, posterior, surprise, visits) -> Estimate`.
    """

    age: Age
    settle: Settle


def _keep_posterior(hyper, prior, posterior, surprise, visits):
    return posterior


def _diffuse(hyper: Hyperparameters, intercept: Estimate, elapsed: Float[Array, "*N"]) -> Estimate:
    """Random walk, `var + intercept_drift^2 elapsed`, never wider than the prior."""
    var = intercept.var + jnp.square(hyper.intercept_drift) * elapsed
    return Estimate(intercept.mean, jnp.minimum(var, hyper.intercept_var))


def bayes() -> Shrinkage:
    """The variance shrinks by the item's own evidence and grows by a slow random walk. Default."""
    return Shrinkage(_diffuse, _keep_posterior)


def ridge(rate: ScalarLike = 1e-3) -> Shrinkage:
    """As `bayes`, and the mean is pulled to the group: `delta <- mean + (1 - rate)^elapsed (...)`.

    Args:
        rate: share of the deviation from `intercept_mean` lost per step, in [0, 1).

    Returns:
        The rule.
    """

    def age(hyper, intercept, elapsed):
        kept = (1 - jnp.asarray(rate, elapsed.dtype)) ** elapsed
        mean = hyper.intercept_mean + kept * (intercept.mean - hyper.intercept_mean)
        return _diffuse(hyper, Estimate(mean, intercept.var), elapsed)

    return Shrinkage(age, _keep_posterior)


def frozen() -> Shrinkage:
    """Intercepts stay as they are, bit for bit: no ageing, no settling; only the ability is learnt.

    For a `warm_start`. The variances still count: an outcome says less about the ability where the
    intercept is uncertain, at every visit anew.
    """

    def age(hyper, intercept, elapsed):
        return intercept

    def settle(hyper, prior, posterior, surprise, visits):
        return prior

    return Shrinkage(age, settle)


def robbins_monro(first: ScalarLike = 1.0, gain: ScalarLike = 4.0) -> Shrinkage:
    """Stochastic approximation: `delta += gain surprise / (visits + first)`, as CDAS steps.

    The variance follows the same schedule, `intercept_var first / (visits + 1 + first)`, whatever
    was seen.

    Args:
        first: n_0 > 0; larger means smaller first steps.
        gain: logits per unit of pass rate; 4 inverts the slope of the sigmoid at 1/2.

    Returns:
        The rule.
    """

    def age(hyper, intercept, elapsed):
        return intercept

    def settle(hyper, prior, posterior, surprise, visits):
        mean = prior.mean + gain * surprise / (visits + first)
        var = hyper.intercept_var * first / (visits + 1 + first)
        return Estimate(mean, var)

    return Shrinkage(age, settle)


def staged(factor: ScalarLike = 0.7, floor: ScalarLike = 0.01) -> Shrinkage:
    """The exact mean step, with a variance cut by a constant: `var <- max(factor var, floor)`.

    Args:
        factor: in (0, 1).
        floor: smallest variance kept, >= 0.

    Returns:
        The rule.
    """

    def age(hyper, intercept, elapsed):
        return intercept

    def settle(hyper, prior, posterior, surprise, visits):
        return Estimate(posterior.mean, jnp.maximum(factor * prior.var, floor))

    return Shrinkage(age, settle)
