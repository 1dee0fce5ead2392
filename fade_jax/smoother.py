"""Abilities in hindsight: the backward pass over a run's recorded beliefs.

The filter's ability at step t knows outcomes up to t; the smoother's knows the whole run. Use it to
read off when a skill was learnt, never to score predictions.

Shapes: `S` recorded steps, `D` ability dimensions.
"""

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Array, Float

from fade_jax.dynamics import Transition, move
from fade_jax.linear_gaussian import Gaussian, symmetrise


@jax.default_matmul_precision("highest")
def smooth(
    mean: Float[Array, "S D"], cov: Float[Array, "S D D"], transitions: Transition
) -> tuple[Float[Array, "S D"], Float[Array, "S D D"]]:
    """Rauch-Tung-Striebel smoothing of filtered abilities.

    `gain_t = cov_t F_t^T (F_t cov_t F_t^T + Q_t)^-1`, then, from the last step backwards,
    `mean_t += gain_t (smoothed_{t+1} - predicted_{t+1})` and likewise for the covariance. Exact for
    the filter's own Gaussian sites with known intercepts; with intercepts learnt alongside, what
    the filter forgets between updates (their cross-covariance) stays forgotten.

    Args:
        mean: [S, D] filtered means, after each step's update.
        cov: [S, D, D] their covariances.
        transitions: [S - 1] stacked moves, the t-th leading from step t to t + 1.

    Returns:
        [S, D] smoothed means and [S, D, D] covariances; the last step is unchanged.
    """

    def step(later: Gaussian, at: tuple[Gaussian, Transition]) -> tuple[Gaussian, Gaussian]:
        filtered, transition = at
        predicted = move(filtered, transition)
        factor = cho_factor(predicted.cov, lower=True)
        gain = cho_solve(factor, transition.matrix @ filtered.cov).T
        smoothed = Gaussian(
            filtered.mean + gain @ (later.mean - predicted.mean),
            symmetrise(filtered.cov + gain @ (later.cov - predicted.cov) @ gain.T),
        )
        return smoothed, smoothed

    last = Gaussian(mean[-1], cov[-1])
    earlier = Gaussian(mean[:-1], cov[:-1])
    _, smoothed = jax.lax.scan(step, last, (earlier, transitions), reverse=True)
    return (
        jnp.concatenate([smoothed.mean, mean[-1:]]),
        jnp.concatenate([smoothed.cov, cov[-1:]]),
    )
