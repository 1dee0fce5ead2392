"""Outcomes of rollout groups: merging repeated prompts and scoring counts, inside compiled code.

Shapes: `B` observed rows, `N` prompts in the pool.
"""

import jax.numpy as jnp
from jax.scipy.special import gammaln
from jaxtyping import Array, Float

from fade_jax.types import Observation


def merge_duplicates(observation: Observation, num_prompts: int) -> Observation:
    """Sums the rows of a repeated prompt; every id then appears once.

    Two rows of one prompt share its intercept, so an update must see them as one row. The shape
    stays [B]: freed rows, and rows without trials, get the id `num_prompts` (out of range, dropped
    by `.at[ids].set(..., mode="drop")`) and zero counts.

    Args:
        observation: [B] rows; ids of rows without trials may be anything.
        num_prompts: N.

    Returns:
        Observation of [B] rows with ascending, unique ids below N, then inert rows of id N.
    """
    ids = jnp.where(observation.trials > 0, observation.prompt_ids, num_prompts)
    merged, row = jnp.unique(ids, size=ids.shape[0], fill_value=num_prompts, return_inverse=True)
    live = merged < num_prompts
    successes = jnp.zeros_like(observation.successes).at[row].add(observation.successes)
    trials = jnp.zeros_like(observation.trials).at[row].add(observation.trials)
    return Observation(
        merged, jnp.where(live, successes, 0.0), jnp.where(live, trials, 0.0)
    )


def log_binomial_coefficient(
    successes: Float[Array, "*B"], trials: Float[Array, "*B"]
) -> Float[Array, "*B"]:
    """log C(trials, successes), also for fractional (graded) successes; 0 without trials."""
    return gammaln(trials + 1) - gammaln(successes + 1) - gammaln(trials - successes + 1)


def normalised_innovation(
    pass_rate: Float[Array, " B"],
    variance: Float[Array, " B"],
    successes: Float[Array, " B"],
    trials: Float[Array, " B"],
) -> Float[Array, ""]:
    """Normalised innovation squared of the counts, averaged over the rows with trials.

    `mean_i (y_i - n_i p_i)^2 / S_i` with `S_i = n_i p_i (1 - p_i) + n_i (n_i - 1) var_i`, the
    predictive variance of a binomial count whose rate has mean p_i and variance var_i.

    Args:
        pass_rate: [B] predicted E[p], in 0..1.
        variance: [B] predicted Var[p], >= 0.
        successes: [B], in 0..trials.
        trials: [B] >= 0.

    Returns:
        A scalar, about 1 for a calibrated prediction; 0 where no row has trials.
    """
    spread = trials * pass_rate * (1 - pass_rate) + trials * (trials - 1) * variance
    error = successes - trials * pass_rate
    live = trials > 0
    # The floor keeps a certain prediction (p = 0 or 1) finite; one surprise then counts 1e6 fold.
    squared = jnp.where(live, error**2 / jnp.maximum(spread, 1e-6), 0.0)
    return squared.sum() / jnp.maximum(live.sum(), 1).astype(squared.dtype)
