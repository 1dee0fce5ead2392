"""Fits the constants of `fade_jax/utility.py`, and writes `fade_jax/utility_constants.py`.

The G-th power of a sigmoid is itself a distribution function (the largest of G logistic variables),
so three normal distribution functions stand in for it, and the Gaussian expectation is then closed:

    E[sigmoid(psi)^G] ~ sum_k w_k Phi((mean - m_k) / sqrt(var + s_k^2)),    psi ~ N(mean, var)

For each G in 2..64 the nine constants minimise the largest error of
U_G = 1 - E[sigmoid(psi)^G] - E[sigmoid(-psi)^G] over |mean| <= 12, var <= 16 (beyond |mean| = 12,
U_64 <= 4e-4 at var = 0); for G = 1 they minimise the error of E[sigmoid(psi)], with every m_k = 0.
Minimax by sequential linear programming in a trust region, each G started from its neighbour's
optimum. Deterministic; about a minute.

    python experiments/fit_utility_constants.py --help
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import tyro
from rich.progress import track
from scipy.optimize import linprog
from scipy.special import erf, expit

from experiments import command_line

_MEANING = {
    "WEIGHTS": "[G][k], weight of each normal CDF; those of a row sum to 1.",
    "CENTRES": "[G][k], where each normal CDF is one half, logits.",
    "SCALES": "[G][k], standard deviation of each, logits.",
}

# Where the fit of G = 8 starts.
_START_WEIGHTS = (0.46, 0.41, 0.13)
_START_CENTRES = (2.83, 1.73, 4.38)
_START_SCALES = (0.99, 0.73, 1.57)

# G = 1, the logistic itself, is nearly a mixture of normals that differ in scale only.
_START_LOGISTIC_SCALES = (1.4, 2.1, 1.0)


@dataclass(frozen=True, kw_only=True)
class Config:
    """What to fit.

    Attributes:
        out: the Python file to write.
        max_group_size: largest G.
        max_mean: the fit covers |mean| <= max_mean, logits.
        max_sd: the fit covers standard deviations 0..max_sd, logits.
        num_means: grid points over the mean.
        num_sds: grid points over the standard deviation.
        iterations: linear programs per G, at most.
        tolerance: a fit stops when a step can promise less than this.
    """

    out: Path = Path(__file__).resolve().parents[1] / "fade_jax" / "utility_constants.py"
    max_group_size: int = 64
    max_mean: float = 12.0
    max_sd: float = 4.0
    num_means: int = 145
    num_sds: int = 33
    iterations: int = 200
    tolerance: float = 1e-9

    def __post_init__(self) -> None:
        if self.max_group_size < 8:
            raise ValueError(f"max_group_size must be at least 8, got {self.max_group_size}")
        if min(self.num_means, self.num_sds) < 2:
            raise ValueError(
                f"num_means and num_sds must be at least 2, got {self.num_means}, {self.num_sds}"
            )


def gaussian_expectation(function, mean: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """E[function(psi)], psi ~ N(mean, sd^2), by a trapezoid rule of 201 nodes over +-8 sd."""
    nodes = np.linspace(-8.0, 8.0, 201)
    weights = np.exp(-0.5 * nodes**2)
    return function(mean[:, None] + sd[:, None] * nodes) @ (weights / weights.sum())


def informative(logit: np.ndarray, group_size: int) -> np.ndarray:
    """1 - p^G - (1-p)^G at p = sigmoid(logit)."""
    return (
        1
        - np.exp(-group_size * np.logaddexp(0, -logit))
        - np.exp(-group_size * np.logaddexp(0, logit))
    )


def split(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unconstrained [8] -> weights on the simplex, centres, positive scales, [3] each."""
    odds = np.exp(np.append(x[:2], 0.0))
    return odds / odds.sum(), x[2:5], np.exp(x[5:])


def mixture(x: np.ndarray, mean: np.ndarray, var: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The closed form of U_G [points], and its Jacobian [points, 8]."""
    weights, centres, scales = split(x)
    sd = np.sqrt(var[:, None] + scales**2)
    high, low = (mean[:, None] + centres) / sd, (mean[:, None] - centres) / sd
    parts = 0.5 * (erf(high / np.sqrt(2)) - erf(low / np.sqrt(2)))
    value = parts @ weights
    density_high, density_low = (np.exp(-0.5 * t**2) / np.sqrt(2 * np.pi) for t in (high, low))
    jacobian = np.hstack(
        [
            weights[:2] * (parts[:, :2] - value[:, None]),
            weights * (density_high + density_low) / sd,
            weights * (low * density_low - high * density_high) * (scales / sd) ** 2,
        ]
    )
    return value, jacobian


def scale_mixture(
    x: np.ndarray, mean: np.ndarray, var: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The closed form of E[sigmoid(psi)] [points], and its Jacobian [points, 8]."""
    weights, _, scales = split(x)
    sd = np.sqrt(var[:, None] + scales**2)
    t = mean[:, None] / sd
    parts = 0.5 * (1 + erf(t / np.sqrt(2)))
    value = parts @ weights
    density = np.exp(-0.5 * t**2) / np.sqrt(2 * np.pi)
    jacobian = np.hstack(
        [
            weights[:2] * (parts[:, :2] - value[:, None]),
            np.zeros((len(mean), 3)),
            -weights * t * density * (scales / sd) ** 2,
        ]
    )
    return value, jacobian


def minimax(
    evaluate: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    target: np.ndarray,
    x: np.ndarray,
    iterations: int,
    tolerance: float,
) -> tuple[np.ndarray, float]:
    """Minimises max |evaluate(x) - target| by linear programs over a trust region.

    Returns:
        The minimiser [8], and the largest error there.
    """
    value, jacobian = evaluate(x)
    residual = value - target
    worst, radius = np.abs(residual).max(), 0.1
    for _ in range(iterations):
        # Only points near the maximum can become it within the trust region; the step is checked
        # against all points before it is taken.
        near = np.abs(residual) > 0.3 * worst
        slope, offset = jacobian[near], residual[near]
        level = -np.ones((near.sum(), 1))
        reach = np.where(jacobian.any(axis=0), radius, 0.0)  # what has no effect stays where it is
        program = linprog(
            np.append(np.zeros(8), 1.0),
            A_ub=np.block([[slope, level], [-slope, level]]),
            b_ub=np.concatenate([-offset, offset]),
            bounds=[*zip(-reach, reach, strict=True), (0, None)],
            method="highs",
        )
        if program.status != 0:
            radius /= 4
            continue
        promised = worst - program.x[8]
        value, trial_jacobian = evaluate(x + program.x[:8])
        trial = np.abs(value - target).max()
        if trial >= worst:
            radius /= 4
        else:
            if worst - trial > promised / 2:
                radius = min(2 * radius, 1.0)
            x, jacobian, residual, worst = x + program.x[:8], trial_jacobian, value - target, trial
        if promised < tolerance or radius < 1e-8:
            break
    return x, float(worst)


def fit(config: Config) -> dict[int, tuple[np.ndarray, float]]:
    """Fits every group size; {G: (constants [8], largest error)}."""
    grid = np.meshgrid(
        np.linspace(0, config.max_mean, config.num_means),
        np.linspace(0, config.max_sd, config.num_sds),
    )
    mean, sd = (axis.ravel() for axis in grid)

    def solve(model, start: np.ndarray, function) -> tuple[np.ndarray, float]:
        target = gaussian_expectation(function, mean, sd)
        return minimax(
            lambda x: model(x, mean, sd**2), target, start, config.iterations, config.tolerance
        )

    odds = np.log(np.divide(_START_WEIGHTS[:2], _START_WEIGHTS[2]))
    start = np.concatenate([odds, _START_CENTRES, np.log(_START_SCALES)])
    logistic = np.concatenate([[1.5, 0.0], np.zeros(3), np.log(_START_LOGISTIC_SCALES)])
    fitted = {
        1: solve(scale_mixture, logistic, expit),
        8: solve(mixture, start, partial(informative, group_size=8)),
    }
    sizes = [*range(7, 1, -1), *range(9, config.max_group_size + 1)]
    for size in track(sizes, description="group sizes"):
        neighbour = size + 1 if size < 8 else size - 1
        fitted[size] = solve(mixture, fitted[neighbour][0], partial(informative, group_size=size))
    return dict(sorted(fitted.items()))


def render(fitted: dict[int, tuple[np.ndarray, float]], config: Config) -> str:
    """The generated module as text."""
    worst_size = max((size for size in fitted if size > 1), key=lambda size: fitted[size][1])
    tables: dict[str, list[str]] = {"WEIGHTS": [], "CENTRES": [], "SCALES": []}
    for size in [1, *fitted]:
        parts = split(fitted[size][0])
        order = np.argsort(parts[1] if size > 1 else parts[2])
        for name, part in zip(tables, parts, strict=True):
            numbers = ", ".join(str(np.float32(value)) for value in part[order])
            tables[name].append(f"    ({numbers}),")
    text = f'''"""Constants of the closed-form utility.

Generated by experiments/fit_utility_constants.py; do not edit. Row G belongs to groups of G:
E[sigmoid(psi)^G] ~ sum_k WEIGHTS[G][k] Phi((mean - CENTRES[G][k]) / sqrt(var + SCALES[G][k]^2)),
psi ~ N(mean, var). Row 0 repeats row 1, whose centres are 0, so that U_0 = U_1 = 0.
Largest error of U_G over |mean| <= {config.max_mean:g}, var <= {config.max_sd**2:g}:
{fitted[worst_size][1]:.6f} (at G = {worst_size}); of E[sigmoid(psi)]: {fitted[1][1]:.6f}.
"""
'''
    for name, rows in tables.items():
        head = f"{name}: tuple[tuple[float, float, float], ...] = ("
        text += "\n".join(["", head, *rows, ")", f'"""{_MEANING[name]}"""', ""])
    return text


def main(config: Config) -> dict[int, float]:
    """Fits, writes `config.out`, prints and returns the largest error of each group size."""
    fitted = fit(config)
    config.out.write_text(render(fitted, config))
    errors = {size: error for size, (_, error) in fitted.items()}
    for size, error in errors.items():
        print(f"G = {size:2d}  largest error {error:.6f}")
    worst = max(error for size, error in errors.items() if size > 1)
    print(f"worst over G >= 2: {worst:.6f}; wrote {config.out}")
    return errors


if __name__ == "__main__":
    command_line.run(main, lambda: tyro.cli(Config, description=__doc__))
