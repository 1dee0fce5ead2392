"""Rows to compute the balance loss on: random, ragged, some dead; and settings of the loss."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from paced_jax.objectives import (
    TrajectoryBalance,
    flowrl,
    gflowrl,
    paced,
    trajectory_balance,
    vargrad,
)

SETTINGS = {
    "paced": paced(0.3),
    "flowrl": dataclasses.replace(flowrl(0.5), scaled=False),
    "flowrl_tight": dataclasses.replace(flowrl(0.5), importance_low=0.8, importance_high=1.25),
    "vargrad": dataclasses.replace(vargrad(0.3), scaled=False),
    "gflowrl": dataclasses.replace(gflowrl(0.5), gap_low=0.8, gap_high=1.1),
    "cautious": TrajectoryBalance(beta=0.2, importance="sequence_mean", importance_high=2.0),
}


def example(seed=0, rows=12, tokens=4, groups=3):
    """Random rows with ragged masks, one row without an action, one of weight 0."""
    rng = np.random.default_rng(seed)
    length = rng.integers(1, tokens + 1, rows)
    length[3] = 0
    weight = np.ones(rows)
    weight[7] = 0.0
    return {
        "log_probs": -rng.gamma(1.0, 1.0, (rows, tokens)),
        "anchor_log_probs": -rng.gamma(1.0, 1.0, (rows, tokens)),
        "behaviour_log_probs": -rng.gamma(1.0, 1.0, (rows, tokens)),
        "value": rng.uniform(0, 1, rows),
        "rewards": rng.integers(0, 2, rows).astype(float),
        "action_mask": np.arange(tokens) < length[:, None],
        "group": np.arange(rows) % groups,
        "weight": weight,
    }


def call(objective, arrays, partition=None, num_groups=3):
    arrays = {name: jnp.asarray(x) for name, x in arrays.items()}
    positional = [arrays.pop(k) for k in ("log_probs", "anchor_log_probs", "value", "rewards")]
    return trajectory_balance(
        objective, *positional, **arrays, num_groups=num_groups, partition=partition
    )
