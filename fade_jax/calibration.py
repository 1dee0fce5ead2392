"""How good predictions were: scores, calibration with its noise floor, rank correlation, bootstrap.

Evaluation on the host, never inside compiled code: numpy float64 in and out (jax arrays are
accepted). Shapes: `n` scored predictions, `V` visits of rollout groups, `N` prompts. Data of the
wrong shape, not finite or out of range raise a ValueError that names the argument, value and row.

Two figures here are never zero or one even for the true probabilities, because outcomes are noisy:
the calibration error (see `ece_noise_floor`) and the rank correlation (see `spearman_ceiling`).
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import ArrayLike, Float, Int


class Reliability(NamedTuple):
    """A reliability diagram.

    Attributes:
        edges: [num_bins + 1] ascending; bin b holds edges[b] <= probability < edges[b + 1], the
            last bin its right edge too.
        predicted: [num_bins] mean probability in the bin, NaN for an empty one.
        observed: [num_bins] mean outcome in the bin, NaN for an empty one.
        count: [num_bins] predictions in the bin.
    """

    edges: Float[np.ndarray, " edges"]
    predicted: Float[np.ndarray, " bins"]
    observed: Float[np.ndarray, " bins"]
    count: Int[np.ndarray, " bins"]


class Interval(NamedTuple):
    """A bootstrap estimate.

    Attributes:
        mean: the statistic of the data themselves.
        low: lower end of the interval.
        high: upper end of the interval.
    """

    mean: float
    low: float
    high: float


def brier(probability: ArrayLike, outcome: ArrayLike) -> float:
    """Mean squared error of probabilities: `mean((probability - outcome)^2)`.

    Args:
        probability: [n] in 0..1.
        outcome: [n] in 0..1, usually 0 or 1.

    Returns:
        In 0..1; lower is better.
    """
    probability, outcome = _scored(probability, outcome)
    return float(np.mean((probability - outcome) ** 2))


def log_loss(probability: ArrayLike, outcome: ArrayLike, clip: float = 1e-6) -> float:
    """Mean negative log probability of the outcomes, in nats.

    `-mean(outcome log p + (1 - outcome) log(1 - p))`, p being probability clipped to
    clip..1 - clip, so that one certain mistake costs 13.8 nats instead of everything.

    Args:
        probability: [n] in 0..1.
        outcome: [n] in 0..1, usually 0 or 1.
        clip: in 0..1/2, exclusive of 0.

    Returns:
        Nats, >= 0; lower is better.
    """
    if not 0 < clip < 0.5:
        raise ValueError(f"clip must be in 0..0.5, got {clip}")
    probability, outcome = _scored(probability, outcome)
    probability = np.clip(probability, clip, 1 - clip)
    losses = outcome * np.log(probability) + (1 - outcome) * np.log1p(-probability)
    return float(-np.mean(losses))


def reliability_bins(
    probability: ArrayLike, outcome: ArrayLike, num_bins: int = 10, equal_mass: bool = False
) -> Reliability:
    """Bins predictions and compares each bin's mean prediction with its mean outcome.

    Args:
        probability: [n] in 0..1.
        outcome: [n] in 0..1, usually 0 or 1.
        num_bins: bins, >= 1.
        equal_mass: edges at quantiles of probability, rather than equally wide over 0..1. Equal
            predictions always share a bin, so with many ties some bins stay empty.

    Returns:
        Reliability.
    """
    probability, outcome = _scored(probability, outcome)
    edges, index = _bins(probability, num_bins, equal_mass)
    count = np.bincount(index, minlength=num_bins)
    with np.errstate(invalid="ignore"):
        predicted = np.bincount(index, probability, num_bins) / count
        observed = np.bincount(index, outcome, num_bins) / count
    return Reliability(edges, predicted, observed, count)


def expected_calibration_error(
    probability: ArrayLike, outcome: ArrayLike, num_bins: int = 10, equal_mass: bool = False
) -> float:
    """Mean over predictions of their bin's |mean prediction - mean outcome|.

    Compare it with `ece_noise_floor`: below about 2,000 predictions it is mostly noise. Bins as in
    `reliability_bins`.

    Args:
        probability: [n] in 0..1.
        outcome: [n] in 0..1, usually 0 or 1.
        num_bins: bins, >= 1.
        equal_mass: quantile bins, rather than equally wide ones.

    Returns:
        In 0..1; lower is better.
    """
    bins = reliability_bins(probability, outcome, num_bins, equal_mass)
    live = bins.count > 0
    gap = np.abs(bins.predicted[live] - bins.observed[live])
    return float(np.average(gap, weights=bins.count[live]))


def ece_noise_floor(probability: ArrayLike, num_bins: int = 10, equal_mass: bool = False) -> float:
    """The calibration error to expect from perfectly calibrated predictions.

    A bin's mean outcome is then off by a nearly normal error of variance
    `mean_b(p (1-p)) / n_b`, whose mean size is `sqrt(2 mean_b(p (1-p)) / (pi n_b))`; averaged over
    predictions. Outcomes are taken to be 0 or 1 and independent.

    Args:
        probability: [n] in 0..1.
        num_bins: bins, >= 1.
        equal_mass: as in `expected_calibration_error`.

    Returns:
        In 0..1; falls like `1 / sqrt(n)`.

    Example:
        >>> round(ece_noise_floor(np.linspace(0, 1, 10_000), 15, equal_mass=True), 3)
        0.012
    """
    probability, _ = _scored(probability, probability)
    _, index = _bins(probability, num_bins, equal_mass)
    count = np.bincount(index, minlength=num_bins)
    variance = np.bincount(index, probability * (1 - probability), num_bins)
    # n_b sqrt(2 (variance / n_b) / (pi n_b)) = sqrt(2 variance / pi).
    return float(np.sqrt(2 * variance / np.pi).sum() / count.sum())


def spearman(pass_rate: ArrayLike, successes: ArrayLike, trials: ArrayLike) -> float:
    """Rank correlation of predicted pass rates with observed ones, `successes / trials`.

    Ties share their mean rank; rows without trials are left out.

    Args:
        pass_rate: [V] predictions.
        successes: [V] in 0..trials.
        trials: [V] >= 0.

    Returns:
        In -1..1; NaN where either side is constant. Even a perfect tracker stays below
        `spearman_ceiling`.
    """
    pass_rate, successes, trials = _groups(pass_rate, successes, trials)
    live = trials > 0
    observed = successes[live] / trials[live]
    ones = np.ones(observed.shape)
    return _correlation(_ranks(pass_rate[live], ones), _ranks(observed, ones), ones)


def spearman_ceiling(pass_rate: ArrayLike, trials: ArrayLike) -> float:
    """The rank correlation that a tracker holding the true pass rates would reach.

    Observed rates are noisy: `successes ~ Binomial(trials, pass_rate)`. This is `spearman` of the
    true rates against all outcomes at once, each weighted by its probability, which is what
    `spearman` tends to over many prompts; nothing is sampled. Pass rates uniform on 0..1 and G
    trials each give `sqrt(G / (G + 2))`: .816, .894, .943 at 4, 8, 16. A pool that a selector has
    narrowed gives less.

    Args:
        pass_rate: [V] the rates taken to be true, in 0..1.
        trials: [V] whole numbers >= 0; rows without trials are left out.

    Returns:
        In 0..1; NaN where all rates are equal.
    """
    from scipy.special import gammaln, xlog1py, xlogy

    rate, _, trials = _groups(pass_rate, np.zeros(np.shape(trials)), trials)
    if np.any((rate < 0) | (rate > 1)):
        raise ValueError(f"pass_rate must be in 0..1, got {_first(rate, (rate < 0) | (rate > 1))}")
    if np.any(trials % 1):
        raise ValueError(f"trials must be whole numbers, got {_first(trials, trials % 1 != 0)}")
    rate, trials = rate[trials > 0], trials[trials > 0]
    # One row for each possible outcome of each visit.
    visit = np.repeat(np.arange(len(trials)), trials.astype(int) + 1)
    n, p = trials[visit], rate[visit]
    first = np.cumsum(trials.astype(int) + 1) - (trials.astype(int) + 1)
    y = np.arange(len(visit)) - first[visit]
    choose = gammaln(n + 1) - gammaln(y + 1) - gammaln(n - y + 1)
    weight = np.exp(choose + xlogy(y, p) + xlog1py(n - y, -p))
    return _correlation(_ranks(p, weight), _ranks(y / n, weight), weight)


def effective_group_ratio(successes: ArrayLike, trials: ArrayLike) -> float:
    """Share of rollout groups that were informative: neither all right nor all wrong.

    Args:
        successes: [V] in 0..trials.
        trials: [V] >= 0; groups without trials are left out.

    Returns:
        In 0..1; NaN without any group.
    """
    _, successes, trials = _groups(successes, successes, trials)
    live = trials > 0
    informative = (successes > 0) & (successes < trials)
    return float(informative[live].mean()) if live.any() else float("nan")


def unbiased_squared_error(
    pass_rate: ArrayLike, successes: ArrayLike, trials: ArrayLike
) -> Float[np.ndarray, " V"]:
    """Squared error of predicted pass rates against the true ones, from one noisy group each.

    `(pass_rate - y/G)^2 - y (G - y) / (G^2 (G - 1))`, with y = successes, G = trials: the second
    term is an unbiased estimate of the noise of y/G, so the expectation is `(pass_rate - p)^2` for
    the true p. One row may well be negative; average many.

    Args:
        pass_rate: [V] predictions made before the group was seen.
        successes: [V] in 0..trials.
        trials: [V] >= 2.

    Returns:
        [V] unbiased estimates of the squared error.
    """
    pass_rate, successes, trials = _groups(pass_rate, successes, trials)
    if np.any(trials < 2):
        raise ValueError(f"trials must be at least 2, got {_first(trials, trials < 2)}")
    noise = successes * (trials - successes) / (trials**2 * (trials - 1))
    return (pass_rate - successes / trials) ** 2 - noise


def sums_by_prompt(
    values: ArrayLike, prompt_ids: ArrayLike, num_prompts: int
) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
    """Sums and counts of scored rows for each prompt, as `paired_bootstrap` takes them.

    Args:
        values: [n] any figure of a prediction, e.g. the difference of two trackers' losses.
        prompt_ids: [n] in 0..N-1.
        num_prompts: N.

    Returns:
        (sums [N], counts [N]).
    """
    values, ids = np.asarray(values, float), np.asarray(prompt_ids, int)
    if values.shape != ids.shape or values.ndim != 1:
        raise ValueError(f"values {values.shape} and prompt_ids {ids.shape} must both be [n]")
    if not np.isfinite(values).all():
        bad = ~np.isfinite(values)
        raise ValueError(f"values of prompt {_first(ids, bad)} must be finite: {values[bad][0]}")
    if np.any((ids < 0) | (ids >= num_prompts)):
        bad = _first(ids, (ids < 0) | (ids >= num_prompts))
        raise ValueError(f"prompt_ids must be in 0..{num_prompts - 1}, got {bad}")
    counts = np.bincount(ids, minlength=num_prompts).astype(float)
    return np.bincount(ids, values, num_prompts), counts


def paired_bootstrap(
    seed: int | np.random.Generator,
    sums: ArrayLike,
    counts: ArrayLike,
    *,
    num_samples: int = 2000,
    level: float = 0.95,
) -> Interval:
    """Percentile interval of a mean difference, resampling whole prompts.

    Rows of one prompt are dependent, so prompts are the unit: each sample draws N prompts with
    replacement, and the statistic is the ratio `sum(sums) / sum(counts)` over those drawn. The
    difference of two methods is 'real' at this level if the interval excludes 0.

    Args:
        seed: an int, or a generator (which is advanced).
        sums: [N] for each prompt, the sum over its rows of (loss of A - loss of B).
        counts: [N] rows of each prompt, >= 0; prompts without rows are left out.
        num_samples: bootstrap samples.
        level: coverage of the interval, in 0..1.

    Returns:
        Interval: the mean difference, and the ends of its interval.
    """
    sums, counts = np.asarray(sums, float), np.asarray(counts, float)
    if sums.shape != counts.shape or sums.ndim != 1:
        raise ValueError(f"sums {sums.shape} and counts {counts.shape} must both be [N]")
    if not np.isfinite(sums).all():
        raise ValueError(f"sums of prompt {np.argmin(np.isfinite(sums))} must be finite")
    if not (np.isfinite(counts).all() and (counts >= 0).all() and counts.any()):
        raise ValueError("counts must be finite, >= 0 and not all 0")
    if not 0 < level < 1:
        raise ValueError(f"level must be in 0..1, got {level}")
    if num_samples < 1:
        raise ValueError(f"num_samples must be at least 1, got {num_samples}")
    rng = np.random.default_rng(seed)
    sums, counts = sums[counts > 0], counts[counts > 0]
    drawn = np.empty(num_samples)
    rows = max(1, 2**20 // len(sums))  # samples at a time, to bound memory
    for start in range(0, num_samples, rows):
        stop = min(start + rows, num_samples)
        index = rng.integers(len(sums), size=(stop - start, len(sums)))
        drawn[start:stop] = sums[index].sum(axis=1) / counts[index].sum(axis=1)
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(sums.sum() / counts.sum()), float(low), float(high))


def _first(values: np.ndarray, bad: np.ndarray):
    """The first offending value, with its row."""
    row = int(np.argmax(bad))
    return f"{values[row]} (row {row})"


def _scored(probability: ArrayLike, outcome: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Checks [n] probabilities and outcomes; float64."""
    probability, outcome = np.asarray(probability, float), np.asarray(outcome, float)
    if probability.shape != outcome.shape or probability.ndim != 1 or not len(probability):
        raise ValueError(
            f"probability {probability.shape} and outcome {outcome.shape} must both be [n], n > 0"
        )
    for name, values in (("probability", probability), ("outcome", outcome)):
        bad = ~((values >= 0) & (values <= 1))  # NaN included
        if bad.any():
            raise ValueError(f"{name} must be in 0..1, got {_first(values, bad)}")
    return probability, outcome


def _groups(
    pass_rate: ArrayLike, successes: ArrayLike, trials: ArrayLike
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Checks [V] rates, successes and trials; float64."""
    rate, right, total = (np.asarray(x, float) for x in (pass_rate, successes, trials))
    if not rate.shape == right.shape == total.shape or rate.ndim != 1:
        raise ValueError(
            f"pass_rate {rate.shape}, successes {right.shape} and trials {total.shape} "
            "must all be [V]"
        )
    for name, values, good in (
        ("pass_rate", rate, np.isfinite(rate)),
        ("trials", total, np.isfinite(total) & (total >= 0)),
        ("successes", right, (right >= 0) & (right <= total)),
    ):
        if not good.all():
            raise ValueError(f"{name} out of range: {_first(values, ~good)}")
    return rate, right, total


def _bins(
    probability: np.ndarray, num_bins: int, equal_mass: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Bin edges [num_bins + 1], and the bin of each prediction [n]."""
    if num_bins < 1:
        raise ValueError(f"num_bins must be at least 1, got {num_bins}")
    edges = np.linspace(0, 1, num_bins + 1)
    if equal_mass:
        edges = np.quantile(probability, edges)
    return edges, np.searchsorted(edges[1:-1], probability, side="right")


def _ranks(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weighted mid-ranks: the weight below each value and half of the weight tied with it."""
    _, index = np.unique(values, return_inverse=True)
    mass = np.bincount(index, weights)
    return (np.cumsum(mass) - mass / 2)[index]


def _correlation(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> float:
    """Weighted Pearson correlation; NaN where either side is constant."""
    if not len(x) or np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    x, y = x - np.average(x, weights=weights), y - np.average(y, weights=weights)
    return float((weights * x * y).sum() / np.sqrt((weights * x**2).sum() * (weights * y**2).sum()))
