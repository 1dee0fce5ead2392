"""How soon one belief predicts as well as another did later: what a better start is worth.

Both replay the same run and are scored on the same groups. The reference has reached some loss
after `start` batches; the other has caught up at the first batch from which it is there as well.
Losses are means over a moving window, best an epoch long, so that every prompt counts alike.

Shapes: `I` batches in the order of the run, `B` slots of a batch, `N` prompts, `S` samples,
`W = I - window + 1` windows. Host code, numpy.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int


class CatchUp(NamedTuple):
    """When a belief had caught up, with a bootstrap interval over prompts.

    Attributes:
        batches: batches absorbed until then; inf where it never was.
        low: lower end of the interval.
        high: upper end.
        reached: share of the samples in which it ever was.
    """

    batches: float
    low: float
    high: float
    reached: float


def prompt_samples(rng: np.random.Generator, num_samples: int, num_prompts: int) -> np.ndarray:
    """[S + 1, N] how often each prompt is drawn; row 0 holds every prompt once, the data.

    Args:
        rng: consumed.
        num_samples: S, bootstrap samples of N prompts with replacement.
        num_prompts: N.

    Returns:
        [S + 1, N] float64.
    """
    drawn = rng.multinomial(num_prompts, np.full(num_prompts, 1 / num_prompts), num_samples)
    return np.concatenate([np.ones((1, num_prompts)), drawn])


def moving_means(
    values: Float[np.ndarray, "I B"],
    prompt_ids: Int[np.ndarray, "I B"],
    scored: Bool[np.ndarray, "I B"],
    samples: Float[np.ndarray, "S N"],
    window: int,
) -> Float[np.ndarray, "S W"]:
    """Mean of a figure over the scored groups of `window` batches, in every sample.

    Args:
        values: [I, B] a figure of each group, such as the log loss of its prediction.
        prompt_ids: [I, B].
        scored: [I, B] False in padded slots, and wherever a group does not count.
        samples: [S, N] weights of the prompts.
        window: batches, in 1..I.

    Returns:
        [S, W]; window k starts at batch k. NaN where nothing in it counts.

    Raises:
        ValueError: for a window that does not fit.

    Example:
        >>> values, ids = np.array([[1.0, 3.0], [5.0, 7.0]]), np.array([[0, 1], [0, 1]])
        >>> weights = np.array([[1.0, 1.0], [2.0, 0.0]])
        >>> moving_means(values, ids, values > 0, weights, 2).tolist()
        [[4.0], [3.0]]
    """
    if not 1 <= window <= len(values):
        raise ValueError(f"window: {window} is not in 1..{len(values)}")
    sums = np.zeros((len(samples), len(values) + 1))
    counts = np.zeros_like(sums)
    for row in range(len(values)):
        weights = samples[:, prompt_ids[row][scored[row]]]
        sums[:, row + 1] = weights @ values[row][scored[row]]
        counts[:, row + 1] = weights.sum(1)
    sums, counts = np.cumsum(sums, 1), np.cumsum(counts, 1)
    with np.errstate(invalid="ignore"):
        return (sums[:, window:] - sums[:, :-window]) / (counts[:, window:] - counts[:, :-window])


def first_caught_up(
    curve: Float[np.ndarray, "S W"], reference: Float[np.ndarray, "S W"], start: int
) -> Float[np.ndarray, " S"]:
    """The first window from which a loss is, and stays, where the reference was at `start`.

    The bar is the reference's loss in window `start`. After it a loss may exceed the bar as far as
    the reference's own does: the run itself may then be harder to predict.

    Args:
        curve: [S, W] losses.
        reference: [S, W].
        start: a window.

    Returns:
        [S] windows; inf where the loss of the last window is still above the bar.

    Raises:
        ValueError: for a start that is no window.

    Example:
        >>> curve, reference = np.array([[6.0, 4.0, 5.0, 2.0]]), np.array([[9.0, 7.0, 4.0, 3.0]])
        >>> first_caught_up(curve, reference, 2), first_caught_up(curve, reference, 1)
        (array([3.]), array([0.]))
    """
    windows = curve.shape[1]
    if not 0 <= start < windows:
        raise ValueError(f"start: {start} is not in 0..{windows - 1}")
    bar = np.repeat(reference[:, start : start + 1], windows, 1)
    bar[:, start:] = np.maximum(bar[:, start:], reference[:, start:])
    above = ~(curve <= bar)
    last = windows - np.argmax(above[:, ::-1], 1)  # one past the last window above the bar
    first = np.where(above.any(1), last, 0).astype(float)
    return np.where(first == windows, np.inf, first)


def catch_up(
    curve: Float[np.ndarray, "S W"],
    reference: Float[np.ndarray, "S W"],
    start: int,
    level: float = 0.95,
) -> CatchUp:
    """When a belief had caught up, and how sure that is.

    Args:
        curve: [S, W] losses, the data in row 0 and bootstrap samples below.
        reference: [S, W] of the reference, with the same samples.
        start: batches that the reference had absorbed, a window.
        level: coverage of the percentile interval, in 0..1.

    Returns:
        CatchUp.

    Raises:
        ValueError: as `first_caught_up`; a level outside (0, 1); no bootstrap samples.
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be in (0, 1), got {level}")
    if len(curve) < 2:
        raise ValueError("curve: needs bootstrap samples below the data's row, got none")
    first = first_caught_up(curve, reference, start)
    ends = [(1 - level) / 2, (1 + level) / 2]
    low, high = np.quantile(first[1:], ends, method="inverted_cdf")  # inf can't be averaged
    reached = np.isfinite(first[1:]).mean()
    return CatchUp(float(first[0]), float(low), float(high), float(reached))
