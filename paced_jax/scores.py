"""Scores of a benchmark from counts of right answers: avg@n and pass@k with intervals.

Shapes: `N` problems, `n` rollouts of each. Host code, numpy.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Num

from paced_jax.evaluation import pass_at_k


class Score(NamedTuple):
    """A line of the table.

    Attributes:
        score: "avg@8", "pass@4", ...
        mean: over the problems, each with the same weight, in 0..1.
        low: lower end of its interval, for problems like these.
        high: upper end.
        rollout_error: standard error of the mean if the same problems were sampled again; None
            for pass@k, and where a problem has one rollout, which says nothing about it.
    """

    score: str
    mean: float
    low: float
    high: float
    rollout_error: float | None


def score_table(
    successes: Sequence[int] | np.ndarray,
    trials: int | Sequence[int] | np.ndarray,
    ks: Sequence[int] = (2, 4, 8, 16, 32, 64),
    *,
    level: float = 0.95,
) -> list[Score]:
    """Scores a policy on a benchmark.

    avg@n is the mean over problems of `successes / trials`; pass@k the mean of the unbiased
    estimate `evaluation.pass_at_k`. Two errors are told apart: the interval covers the choice of
    the problems and the noise of the rollouts, `rollout_error` the latter alone.

    Args:
        successes: [N] right rollouts, in 0..trials.
        trials: n, rollouts with a verdict, at least 1; one for all problems or [N].
        ks: values of k; those above the smallest number of trials are left out.
        level: coverage of the intervals, in 0..1.

    Returns:
        avg@n, then pass@k for every k that is left. Where the trials differ, n is the smallest.

    Raises:
        ValueError: for no problems, and for counts out of range, naming the problem.

    Example:
        >>> for line in score_table([0, 3, 8, 8], 8, [4]):
        ...     print(line.score, *(round(number, 3) for number in line[1:4]))
        avg@8 0.594 0.105 0.948
        pass@4 0.732 0.156 0.976
    """
    right = np.asarray(successes)
    if right.ndim != 1 or right.size == 0 or right.dtype.kind not in "iu":
        raise ValueError(f"successes: needs [N] whole numbers, got {successes!r}")
    total = np.asarray(trials)
    if total.shape not in ((), right.shape) or total.dtype.kind not in "iu":
        raise ValueError(f"trials: needs one whole number or {right.size}, got {trials!r}")
    total = np.broadcast_to(total, right.shape)
    for name, wrong, counts in (
        ("trials", total < 1, total),
        ("successes", (right < 0) | (right > total), right),
    ):
        if wrong.any():
            problem = int(np.argmax(wrong))
            raise ValueError(
                f"{name}: {counts[problem]} of problem {problem} is not in its range, with "
                f"{total[problem]} trials"
            )
    fewest = int(total.min())
    kept = [k for k in ks if k <= fewest]
    rows = [(f"avg@{fewest}", right / total, _rollout_error(right, total))]
    if kept:
        chances = np.asarray(pass_at_k(jnp.asarray(right), jnp.asarray(total), kept), float)
        for k, chance in zip(kept, chances, strict=True):
            rows.append((f"pass@{k}", chance, None))
    return [
        Score(name, float(values.mean()), *wilson_interval(values, int(total.sum()), level), error)
        for name, values, error in rows
    ]


def _rollout_error(right: np.ndarray, total: np.ndarray) -> float | None:
    """Square root of the mean's variance within problems, each estimated without bias."""
    if total.min() < 2:
        return None
    rate = right / total
    return float(np.sqrt(np.sum(rate * (1 - rate) / (total - 1))) / len(rate))


def wilson_interval(
    values: Num[np.ndarray, " N"], rollouts: int | None = None, level: float = 0.95
) -> tuple[float, float]:
    """Wilson's interval of a mean of values in 0..1, at an effective number of trials.

    Rollouts of one problem are dependent, so problems are the unit. m independent trials give a
    mean the variance `mean (1 - mean) / m`; the m that fits the values' own standard error takes
    the place of their number, at least N (the rollouts of a problem may all agree) and at most
    `rollouts` (they may be independent). The quantile is Student's, for N - 1 degrees of freedom.

    With values of 0 and 1 this is Wilson's interval of N trials, so all wrong does not mean
    certainly wrong: 0 of 30 gives 0 to .122. Percentile bootstrap gives 0 to 0 there, and covers
    less than this at 30 and 40 problems in every case tried. Neither holds its level where hardly
    any problem is ever solved.

    Args:
        values: [N] one for each problem, in 0..1.
        rollouts: of all problems together, at least N; N if not given.
        level: coverage, in 0..1.

    Returns:
        Its ends, in 0..1; (0, 1) for one problem.

    Raises:
        ValueError: for values or a level out of range.
    """
    from scipy import stats

    values = np.asarray(values, float)
    if values.ndim != 1 or values.size == 0 or not ((values >= 0) & (values <= 1)).all():
        raise ValueError(f"values: needs [N] in 0..1, got {values}")
    if not 0 < level < 1:
        raise ValueError(f"level: {level} is not in 0..1")
    problems = len(values)
    if problems == 1:
        return 0.0, 1.0
    most = problems if rollouts is None else max(rollouts, problems)
    mean, variance = values.mean(), values.var(ddof=1) / problems
    effective = problems  # where all are right, or all wrong
    if 0 < mean < 1:
        effective = np.clip(mean * (1 - mean) / max(variance, 1e-300), problems, most)
    share = stats.t.ppf((1 + level) / 2, problems - 1) ** 2 / effective
    centre = (mean + share / 2) / (1 + share)
    half = np.sqrt(share * (mean * (1 - mean) + share / 4)) / (1 + share)
    return float(max(centre - half, 0)), float(min(centre + half, 1))
