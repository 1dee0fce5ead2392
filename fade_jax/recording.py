"""Turns what a live run records of its rollout groups into a history.

Shapes: `I` iterations, `M` slots for chosen prompts, `N` prompts of the pool. Host data, numpy.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from fade_jax.histories import History, check_history
from fade_jax.pool import content_key


def from_groups(
    prompt_ids: Int[np.ndarray, "..."],
    successes: Float[np.ndarray, "..."],
    trials: Float[np.ndarray, "..."],
    stepped: Bool[np.ndarray, "..."],
    *,
    text: Sequence[str] | Shaped[np.ndarray, " N"],
    source: Int[np.ndarray, " N"],
    meta: dict[str, Any],
) -> History:
    """Makes a history of a run's records: a row for every group with a verdict.

    `step` is the iteration; `policy_step` counts the optimiser steps before it, which is fewer
    where an iteration learnt nothing. Unused slots, and groups none of whose rollouts has a
    verdict, say nothing and leave no row; where some lack one, `trials` is smaller.

    Args:
        prompt_ids: [I, M] in 0..N-1; anything in slots without trials.
        successes: [I, M] whole numbers in 0..trials.
        trials: [I, M] whole numbers, rollouts with a verdict; 0 in unused slots.
        stepped: [I] whether the iteration changed the policy.
        text: [N] prompts; their content hashes become the keys.
        source: [N] int, the data set or skill each prompt came from.
        meta: anything JSON can hold.

    Returns:
        The checked history; rows of one iteration in the order of its slots.

    Raises:
        ValueError: arrays of different shapes; graded outcomes, which are no counts; and as
            `check_history`.

    Example:
        >>> run = from_groups(np.array([[1, 0], [1, -1]]), np.array([[2.0, 0.0], [8.0, 0.0]]),
        ...                   np.array([[8.0, 7.0], [8.0, 0.0]]), np.array([True, True]),
        ...                   text=["a", "b"], source=np.zeros(2, int), meta={})
        >>> run.step.tolist(), run.prompt_id.tolist(), run.trials.tolist()
        ([0, 0, 1], [1, 0, 1], [8, 7, 8])
    """
    shape = prompt_ids.shape
    for name, array, want in (
        ("successes", successes, shape),
        ("trials", trials, shape),
        ("stepped", stepped, shape[:1]),
    ):
        if array.shape != want:
            raise ValueError(f"{name}: needs shape {want} like prompt_ids, got {array.shape}")
    for name, array in (("successes", successes), ("trials", trials)):
        if (broken := array != np.round(array)).any():  # NaN included
            raise ValueError(f"{name}: {array[broken][0]} is not a count")
    done = np.cumsum(stepped) - stepped
    step, slot = np.nonzero(trials > 0)
    return check_history(
        History(
            step=step,
            prompt_id=prompt_ids[step, slot],
            successes=successes[step, slot].astype(np.int64),
            trials=trials[step, slot].astype(np.int64),
            policy_step=done[step],
            prompt_key=np.array([content_key(each) for each in text], np.str_),
            text=np.asarray(text, np.str_),
            source=source,
            meta=meta,
        )
    )
