"""What the runs of the headline comparison came to: paired over seeds, at equal rollouts."""

from pathlib import Path
from typing import Any

import numpy as np

from experiments import curves, intervals
from experiments.curves import Cost, Logs
from experiments.headline_plan import Plan
from experiments.run_folder import read_json
from experiments.run_identity import seed_folder
from fade_jax import presets
from paced_jax.training import TrainConfig

COSTS: tuple[Cost, ...] = ("rollouts", "tokens", "seconds")

TARGETS = ("uniform", "grpo_uniform")
"""Methods whose last validation pass rate the others are to reach."""

COMPARED = (
    *("informative_realised", "validation_end", "validation_mean"),
    *("test_pass_at_1", "test_pass_at_most", "test_distinct_correct"),
)
"""Figures whose differences from uniform choice are told."""

ARMS = ("fade", "fade_thompson", "paced")
"""Whose share of the oracle's gain is told."""


def finished_seeds(folder: Path, plan: Plan) -> tuple[int, ...]:
    """The seeds that every method has finished: comparisons are paired."""
    return tuple(
        seed
        for seed in plan.seeds
        if all((seed_folder(folder, name, seed) / "summary.json").exists() for name in plan.methods)
    )


def read(folder: Path, plan: Plan, seeds: tuple[int, ...]) -> dict[str, list[Logs]]:
    """Logs of every method and seed."""
    return {
        name: [curves.read_run(seed_folder(folder, name, seed)) for seed in seeds]
        for name in plan.methods
    }


def trained_groups(config: TrainConfig) -> int:
    """Groups of a training batch."""
    if config.scheduler in ("dapo", "lilo"):
        build = getattr(presets, config.scheduler)
        scheduler = build(config.num_train, budget=config.budget, group_size=config.group_size)
        return scheduler.admission.groups or config.num_prompts
    return config.num_prompts


def figures_of(logs: Logs) -> dict[str, float]:
    """The figures of one run."""
    summary, config = read_json(logs.folder / "summary.json"), TrainConfig(**logs.config)
    curve = np.array([look["pass_at_1"] for look in logs.looks])
    test = summary["test"]
    most = max(int(k[8:]) for k in test if k.startswith("pass_at_") and k[8:].isdigit())
    generated = len(logs.lines) * config.num_prompts
    figures = {
        "validation_start": curve[0],
        "validation_end": curve[-1],
        "validation_mean": curve.mean(),
        "test_pass_at_1": test["pass_at_1"],
        "test_pass_at_most": test[f"pass_at_{most}"],
        "test_distinct_correct": test["distinct_correct"],
        "generated_per_trained": generated / (max(summary["updates"], 1) * trained_groups(config)),
        "chosen_length": np.mean([line["chosen_length"] for line in logs.lines]),
        "chosen_base_rate": np.mean([line["chosen_base_pass_rate"] for line in logs.lines]),
    }
    names = (
        *("informative_realised", "informative_predicted", "informative_brier"),
        *("informative_ece", "informative_ece_floor", "pass_rate_rmse", "pass_rate_bias"),
        *("pass_rate_generated", "distinct_prompts", "updates", "rollouts", "tokens"),
        *("mean_beta_kl", "mean_entropy", "iteration_seconds"),
    )
    figures |= {name: summary[name] for name in names if summary[name] is not None}
    return {name: float(value) for name, value in figures.items()}


def compare(runs: dict[str, list[Logs]]) -> dict[str, Any]:
    """Everything the report tells.

    Args:
        runs: logs of the same seeds of every method.

    Returns:
        JSON values: `methods`, figures with intervals; `minus_uniform`, paired differences;
        `cost_to`, by target and cost; `oracle_share`, by method.
    """
    columns = {}
    for name, seeds in runs.items():
        rows = [figures_of(logs) for logs in seeds]
        columns[name] = {key: np.array([row[key] for row in rows]) for key in rows[0]}
    results: dict[str, Any] = {
        "methods": {
            name: {key: intervals.of(values) for key, values in column.items()}
            for name, column in columns.items()
        },
        "curves": {
            name: {
                "rollouts": [look["rollouts"] for look in seeds[0].looks],
                "pass_at_1": [[look["pass_at_1"] for look in logs.looks] for logs in seeds],
            }
            for name, seeds in runs.items()
        },
    }
    if "uniform" in columns:
        base = columns["uniform"]
        results["minus_uniform"] = {
            name: {key: intervals.of(column[key] - base[key]) for key in COMPARED}
            for name, column in columns.items()
            if name != "uniform"
        }
    results["cost_to"] = {
        target: {cost: _cost_to(runs, target, cost) for cost in COSTS}
        for target in TARGETS
        if target in runs
    }
    if {"uniform", "oracle"} <= set(columns):
        results["oracle_share"] = {
            name: {
                key: _share(columns, name, key)
                for key in ("informative_realised", "validation_end", "validation_mean")
            }
            for name in ARMS
            if name in columns
        }
    return results


def _cost_to(runs: dict[str, list[Logs]], target: str, cost: Cost) -> dict[str, Any]:
    """What each method costs until it has the target's last pass rate, in units of the target's.

    The unit is what the target's own whole run costs, seed by seed. A run that does not get there
    counts with all it cost and is named, so the mean of such a method is a lower bound; one that
    does may cost more tokens or seconds than the unit. `mean_curve` does the same with the curves
    averaged over seeds, which evaluation noise disturbs less.
    """
    found = {}
    goal = [logs.looks[-1]["pass_at_1"] for logs in runs[target]]
    whole = [curves.costs(logs, cost)[-1] for logs in runs[target]]
    for name, seeds in runs.items():
        pairs = [curves.series(logs, "pass_at_1", cost) for logs in seeds]
        reached = [curves.reaches(*pair, aim) for pair, aim in zip(pairs, goal, strict=True)]
        own = [curves.costs(logs, cost)[-1] for logs in seeds]
        mean = np.mean([value for _, value in pairs], axis=0)
        at = np.mean([x for x, _ in pairs], axis=0)
        average = curves.reaches(at, mean, float(np.mean(goal))) / np.mean(whole)
        found[name] = {
            "reached": int(np.isfinite(reached).sum()),
            "seeds": len(reached),
            "ratio": intervals.of(np.minimum(reached, own) / np.array(whole)),
            "mean_curve": float(average) if np.isfinite(average) else None,
        }
    return found


def _share(columns: dict[str, dict[str, np.ndarray]], name: str, key: str) -> dict[str, Any]:
    """(method - uniform) / (oracle - uniform) of the means; the gains beside it, paired.

    Where the oracle gains nothing there is nothing to have a share of: None.
    """
    gain = columns[name][key] - columns["uniform"][key]
    oracle = columns["oracle"][key] - columns["uniform"][key]
    return {
        "gain": intervals.of(gain),
        "oracle_gain": intervals.of(oracle),
        "share": float(gain.mean() / oracle.mean()) if oracle.mean() > 1e-12 else None,
    }
