"""Sums a finished run up, from what its log holds.

Shapes: `M` chosen prompts of an iteration.
"""

from pathlib import Path
from typing import Any

import numpy as np

from experiments.run_log import read_groups
from fade_jax import calibration
from paced_jax import piece_timings
from paced_jax.metrics import read_json_lines
from paced_jax.training import TrainConfig

LEARNT = ("beta_kl", "log_prob_gap", "entropy", "policy_clipped", "partition_clipped", "replay_age")
"""Figures of a step whose means over the run go into its summary."""


def of_run(
    folder: Path, config: TrainConfig, test: dict[str, float], *, updates: int
) -> dict[str, Any]:
    """The summary of a run.

    Args:
        folder: with its log.
        config: of the run.
        test: pass rates of the last policy on the test prompts.
        updates: batches learnt from.

    Returns:
        JSON values; what depends on the machine has a name ending in `_seconds`.
    """
    lines = read_json_lines(folder / "metrics.jsonl")
    curve = read_json_lines(folder / "evaluation" / "metrics.jsonl")
    pieces = {f"{piece}_seconds" for piece in piece_timings.PIECES}
    return {
        **of_groups(read_groups(folder)),
        "scheduler": config.scheduler,
        "seed": config.seed,
        "rollouts": int(lines[-1]["rollouts"]),
        "tokens": int(lines[-1]["tokens"]),
        "distinct_prompts": int(lines[-1]["distinct_prompts"]),
        "updates": updates,
        "validation": [_without(point, "evaluation_seconds") for point in curve],
        "test": test,
        "iteration_seconds": float(np.median([line["iteration_seconds"] for line in lines])),
        "evaluation_seconds": sum(point["evaluation_seconds"] for point in curve),
        **{name: lines[0][name] for name in lines[0] if name in pieces},
        **{f"mean_{key}": _mean([line.get(key, np.nan) for line in lines]) for key in LEARNT},
        "greatest_log_prob_gap": float(
            np.nanmax([0.0, *(line.get("log_prob_gap", np.nan) for line in lines)])
        ),
    }


def _without(line: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key != name}


def _mean(values: list[float]) -> float | None:
    """Mean of what was measured; None where nothing was."""
    known = [x for x in values if not np.isnan(x)]
    return float(np.mean(known)) if known else None


def of_groups(groups: dict[str, np.ndarray]) -> dict[str, float]:
    """How well a run's choices and predictions did; every group weighs the same.

    Args:
        groups: arrays [iterations, M] by the names of GROUP_ARRAYS.

    Returns:
        Effective-group ratio realised and predicted, Brier and calibration errors of
        P(informative) with the noise floor, the error of p_hat.
    """
    used = groups["trials"] > 0
    flag = (~groups["degenerate"][used]).astype(float)
    informative = np.clip(groups["informative"][used].astype(float), 0, 1)
    rate = groups["successes"][used] / groups["trials"][used]
    predicted = groups["predicted"][used]
    square = calibration.unbiased_squared_error(
        predicted.astype(float), groups["successes"][used], groups["trials"][used]
    )
    return {
        "groups": int(used.sum()),
        "informative_realised": float(flag.mean()),
        "informative_predicted": float(informative.mean()),
        "informative_brier": calibration.brier(informative, flag),
        "informative_ece": calibration.expected_calibration_error(informative, flag),
        "informative_ece_floor": calibration.ece_noise_floor(informative),
        "pass_rate_generated": float(rate.mean()),
        "pass_rate_rmse": float(np.sqrt(max(float(np.mean(square)), 0.0))),
        "pass_rate_bias": float((predicted - rate).mean()),
    }
