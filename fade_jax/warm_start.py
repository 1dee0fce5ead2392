"""Warm start: another policy on prompts whose intercepts a first run has learnt.

Difficulties belong to the prompts, abilities to the policy. The next run therefore begins with the
intercepts of the last one and the ability of the prior, and has only the ability to learn:

    first = ability_difficulty.intercepts(first_model, first_state)  # aged to the end of that run
    known = warm_start.match(first, first_keys, keys, hyper)  # where the pools differ
    known = warm_start.widen(known, 0.3 * hyper.intercept_var, hyper)  # policies disagree
    state = warm_start.init(model, known)  # instead of ability_difficulty.init(model)

In a live run put it in place of the tracker's state: `run_state._replace(tracker=state)`.

Widen, let the intercepts learn on, and expect little. Between two small policies whose pass rates
correlate at .75 (`experiments.warm_start`), intercepts kept as sure as the first run was of them
predict *worse* than a cold start for several epochs in one direction, and `shrinkage.frozen()` ones
never catch up: they are for policies known to find the same prompts hard. Widened by a tenth to a
third of the prior variance they are about as good as cold, or slightly better.

Shapes: `N` prompts of the next run's pool, `old` those of the first one's.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Shaped

from fade_jax import ability_difficulty
from fade_jax.ability_difficulty import Model, State
from fade_jax.hyperparameters import Hyperparameters, ScalarLike
from fade_jax.types import Estimate

Keys = Sequence[str] | Shaped[np.ndarray, " N"]
"""Content keys [N] of prompts."""


def init(model: Model, intercepts: Estimate) -> State:
    """The prior of a run, with intercepts known from elsewhere: the clock starts again at 0.

    Args:
        model: of the next run; `shrinkage.frozen()` holds the intercepts where they are.
        intercepts: [N] mean and variance of every prompt's, as of now. Under the default rule
            ageing cuts variances at `hyper.intercept_var`.

    Returns:
        State: ability, clocks and counts as in `ability_difficulty.init`.

    Raises:
        ValueError: for another number of intercepts than the model has prompts; for moments that
            are not finite, or a negative variance.

    Example:
        >>> from fade_jax import hyperparameters
        >>> model = ability_difficulty.assemble(jnp.zeros((2, 0)), hyperparameters.default(0))
        >>> known = Estimate(jnp.array([1.0, -2.0]), jnp.array([0.1, 0.3]))
        >>> ability_difficulty.predictive(model, init(model, known)).mean.tolist()
        [-1.0, 2.0]
    """
    num_prompts = model.loadings.num_prompts
    for name, values in zip(Estimate._fields, intercepts, strict=True):
        if values.shape != (num_prompts,):
            raise ValueError(
                f"intercepts.{name}: needs shape ({num_prompts},), one a prompt, got {values.shape}"
            )
    if not isinstance(intercepts.var, Tracer):
        mean, var = np.asarray(intercepts.mean), np.asarray(intercepts.var)
        wrong = ~(np.isfinite(mean) & np.isfinite(var) & (var >= 0))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ValueError(
                f"intercepts: mean {mean[row]} and variance {var[row]} of prompt {row} are no"
                " finite mean and variance >= 0"
            )
    state = ability_difficulty.init(model)

    def put(prior: Float[Array, " P"], known: Float[Array, " N"]) -> Float[Array, " P"]:
        return prior.at[:num_prompts].set(known.astype(prior.dtype))

    return state._replace(intercept=Estimate(*map(put, state.intercept, intercepts)))


def widen(intercepts: Estimate, added_var: ScalarLike, hyper: Hyperparameters) -> Estimate:
    """Allows for what policies disagree on: `var <- min(var + added_var, intercept_var)`.

    A first run knows the difficulty that *its* policy met. Another policy's differs from it by
    `N(0, added_var)`, however often the first one tried.

    Args:
        intercepts: [N] of the first run.
        added_var: squared logits, >= 0; infinity keeps the means alone.
        hyper: of the next run, whose prior variance is never exceeded.

    Returns:
        [N] moments with the same means.

    Raises:
        ValueError: a negative added_var.

    Example:
        >>> from fade_jax import hyperparameters
        >>> first = Estimate(jnp.array([1.0, -2.0]), jnp.array([0.1, 0.3]))
        >>> widen(first, jnp.inf, hyperparameters.default(0)).var.tolist()  # the prior's
        [4.0, 4.0]
    """
    if not isinstance(added_var, Tracer) and not float(added_var) >= 0:
        raise ValueError(f"added_var must be >= 0, got {added_var}")
    var = jnp.minimum(intercepts.var + added_var, hyper.intercept_var)
    return Estimate(intercepts.mean, var.astype(intercepts.var.dtype))


def match(intercepts: Estimate, old_keys: Keys, keys: Keys, hyper: Hyperparameters) -> Estimate:
    """Carries intercepts over to another pool by content key. Host code.

    Args:
        intercepts: [old] of the first run.
        old_keys: [old] content keys of its prompts, all different.
        keys: [N] of the next run's prompts.
        hyper: of the next run; its intercept prior stands in for prompts the first run lacked.

    Returns:
        [N] moments, in the order of `keys`.

    Raises:
        ValueError: for two equal old keys, or a number of intercepts that is not theirs.

    Example:
        >>> from fade_jax import hyperparameters
        >>> first = Estimate(jnp.array([1.0, -2.0]), jnp.array([0.1, 0.3]))
        >>> match(first, ["a", "b"], ["b", "new"], hyperparameters.default(0)).mean.tolist()
        [-2.0, 0.0]
    """
    mean, var = (np.asarray(values) for values in intercepts)
    rows: dict[str, int] = {}
    for row, key in enumerate(map(str, old_keys)):
        if rows.setdefault(key, row) != row:
            raise ValueError(f"old_keys: rows {rows[key]} and {row} are both {key!r}")
    for name, values in (("mean", mean), ("var", var)):
        if values.shape != (len(rows),):
            raise ValueError(f"intercepts.{name}: {values.shape} for {len(rows)} old_keys")
    # Row -1 is the prior.
    found = np.array([rows.get(str(key), -1) for key in keys], np.int64)
    prior = (hyper.intercept_mean, hyper.intercept_var)
    carried = [
        np.append(values, np.asarray(unknown, values.dtype))[found]
        for values, unknown in zip((mean, var), prior, strict=True)
    ]
    return Estimate(*map(jnp.asarray, carried))
