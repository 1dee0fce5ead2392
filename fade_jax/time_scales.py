"""Two time scales in a run's outcomes: how far the level moves, and how long an order lasts.

Shapes: `S` steps, `N` prompts. A scheduler that tracks one number a prompt has one memory for both:
short, and chance reorders its prompts (churn); long, and its pass rates lag the level (staleness).
Host code, numpy.
"""

from itertools import pairwise

import numpy as np
from jaxtyping import ArrayLike, Bool, Float

from fade_jax import calibration


def order_kept(
    successes: Float[np.ndarray, "S N"], trials: Float[np.ndarray, "S N"], lag: int
) -> float:
    """Correlation over prompts of the true pass rates `lag` steps apart, free of sampling noise.

    `sum_t C(t, t + lag) / sum_t sqrt(V(t) V(t + lag))`, with x = successes / trials, C the
    covariance of x(t) and x(t + lag) over the prompts visited in both steps, and V the variance of
    x less its binomial part, the mean of `x (1 - x) / (trials - 1)`. Noise of two groups is
    independent, so C needs no correction. This is the classical correction for attenuation; both
    sums run over the pairs of steps in which V is positive.

    Args:
        successes: [S, N] in 0..trials.
        trials: [S, N]; groups of fewer than two are left out.
        lag: steps, 1..S - 1.

    Returns:
        1 where the order of the prompts never changes, 0 where nothing of it is left after `lag`
        steps; may leave 0..1 by chance. NaN where prompts do not differ by more than noise.

    Raises:
        ValueError: for a lag outside 1..S - 1.
    """
    _check_lag(lag, len(trials))
    above, below = 0.0, 0.0
    for now in range(len(trials) - lag):
        both = (trials[now] >= 2) & (trials[now + lag] >= 2)
        if both.sum() < 3:
            continue
        n = np.stack([trials[now, both], trials[now + lag, both]]).astype(float)
        x = np.stack([successes[now, both], successes[now + lag, both]]) / n
        covariance = np.cov(x)
        true = np.diag(covariance) - (x * (1 - x) / (n - 1)).mean(axis=1)
        if (true > 0).all():
            above += covariance[0, 1]
            below += float(np.sqrt(true.prod()))
    return above / below if below else float("nan")


def level_moved(
    successes: Float[np.ndarray, "S N"], trials: Float[np.ndarray, "S N"], lag: int
) -> float:
    """Root mean square change of the pool's mean pass rate within `lag` steps.

    `sqrt(mean_t (m(t + lag) - m(t))^2)`, with m(t) = sum of successes / sum of trials of step t.

    Args:
        successes: [S, N] in 0..trials.
        trials: [S, N]; steps without any are left out.
        lag: steps, 1..S - 1.

    Returns:
        In 0..1; NaN where no two steps so far apart have trials.

    Raises:
        ValueError: for a lag outside 1..S - 1.
    """
    _check_lag(lag, len(trials))
    total = trials.sum(axis=1)
    level = successes.sum(axis=1) / np.where(total > 0, total, np.nan)
    moves = level[lag:] - level[:-lag]
    moves = moves[np.isfinite(moves)]
    return float(np.sqrt(np.mean(moves**2))) if len(moves) else float("nan")


def churn(pass_rates: Float[np.ndarray, "S N"]) -> float:
    """How much a tracker reorders its prompts from one step to the next.

    `mean_t 1 - spearman(pass_rates[t], pass_rates[t + 1])`; ties share their mean rank, and steps
    in which all estimates are equal are left out.

    Args:
        pass_rates: [S, N] estimates, or true rates: the truth has a churn too.

    Returns:
        0 for an order that never changes, 1 for one drawn anew each step; NaN where no step has an
        order.
    """
    ones = np.ones(pass_rates.shape[1])
    kept = [
        calibration.spearman(a, b, ones)
        for a, b in zip(pass_rates[:-1], pass_rates[1:], strict=True)
    ]
    kept = [value for value in kept if np.isfinite(value)]
    return float(1 - np.mean(kept)) if kept else float("nan")


def staleness(
    pass_rates: Float[np.ndarray, "S N"],
    observed: ArrayLike,
    scored: Bool[np.ndarray, "S N"],
) -> float:
    """How far a tracker's level lags behind: root mean square over steps of its mean error.

    `sqrt(mean_t mean_i(pass_rates - observed)^2)`, the inner mean over the prompts scored in step
    t. Errors of single prompts average out in it; a lag of all of them does not.

    Args:
        pass_rates: [S, N] predictions.
        observed: [S, N] what came of it: shares of successes, or true pass rates.
        scored: [S, N] predictions that count; steps without any are left out.

    Returns:
        >= 0; NaN where nothing is scored.
    """
    count = scored.sum(axis=1)
    error = np.where(scored, pass_rates - np.asarray(observed, float), 0.0).sum(axis=1)
    mean = error[count > 0] / count[count > 0]
    return float(np.sqrt(np.mean(mean**2))) if len(mean) else float("nan")


def _check_lag(lag: int, steps: int) -> None:
    if not 1 <= lag < steps:
        raise ValueError(f"lag must be in 1..{steps - 1}, got {lag}")
