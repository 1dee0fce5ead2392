"""How far Monte Carlo draws can be trusted: standard errors from effective sample sizes.

Shapes: `C` chains, `S` draws a chain, `*shape` any quantities, each treated alone.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float


class Summary(NamedTuple):
    """Moments of draws, with their Monte Carlo standard errors.

    Attributes:
        mean: of the draws.
        sd: of the draws.
        mean_error: standard error (MCSE) of `mean`.
        sd_error: standard error (MCSE) of `sd`.
    """

    mean: Float[np.ndarray, "*shape"]
    sd: Float[np.ndarray, "*shape"]
    mean_error: Float[np.ndarray, "*shape"]
    sd_error: Float[np.ndarray, "*shape"]


def summarise(draws: Float[Array, "C S *shape"] | Float[np.ndarray, "C S *shape"]) -> Summary:
    """Moments of correlated draws and what Monte Carlo leaves uncertain about them.

    `mean_error = sd / sqrt(ESS)`; the sd is a mean of squared deviations, so by the delta method
    `sd_error = mean_error((x - mean)^2) / (2 sd)`. ESS as in Stan (Geyer's initial monotone
    sequence over all chains).

    Args:
        draws: [C, S, ...], at least two draws a chain.

    Returns:
        Summary of [...] arrays.
    """
    draws = np.asarray(draws, np.float64)
    mean, sd = draws.mean((0, 1)), draws.std((0, 1))
    squares = (draws - mean) ** 2
    sd_error = squares.std((0, 1)) / np.sqrt(_effective(squares)) / (2 * sd)
    return Summary(mean, sd, sd / np.sqrt(_effective(draws)), sd_error)


def split_r_hat(
    draws: Float[Array, "C S *shape"] | Float[np.ndarray, "C S *shape"],
) -> Float[np.ndarray, "*shape"]:
    """Gelman-Rubin statistic over the halves of all chains; 1 where they agree.

    Args:
        draws: [C, S, ...], at least four draws a chain.

    Returns:
        [...], one for each quantity.
    """
    from numpyro.diagnostics import split_gelman_rubin

    return np.asarray(split_gelman_rubin(np.asarray(draws, np.float64)))


def _effective(draws: np.ndarray) -> np.ndarray:
    from numpyro.diagnostics import effective_sample_size

    return np.asarray(effective_sample_size(draws))
