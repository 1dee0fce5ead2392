"""The door for outside data: outcomes are checked here before any tracker sees them.

Everything runs on the host: lists, numpy or jax arrays in, numpy out. `outcomes.first_invalid` is
the same check inside compiled code. Shapes: `R` rollouts, `B` observed rows, `N` prompts.
"""

import numbers
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from fade_jax.types import Observation

Column: TypeAlias = Sequence[Any] | np.ndarray | Array
"""A column of numbers, as whoever observes has it."""


def check_observation(
    observation: Sequence[Any], num_prompts: int, *, max_trials: int | float | None = None
) -> Observation:
    """Checks outcomes from outside, so that a tracker never meets an impossible one.

    >>> check_observation(([3, 1], [2, 8], [8, 8]), num_prompts=4).trials
    array([8., 8.], dtype=float32)

    Args:
        observation: `(prompt_ids, successes, trials)` of equal length B: lists, numpy or jax
            arrays. Rows without trials are inert and may have any id, -1 by custom.
        num_prompts: N.
        max_trials: the largest trials a row may have; unbounded by default.

    Returns:
        Observation of numpy arrays, int32 ids and float32 counts; unknown ids of inert rows are -1.

    Raises:
        ValueError: naming the field, the row, the prompt id and the value that is wrong.
    """
    if len(observation) != 3:
        raise ValueError(f"observation: needs (prompt_ids, successes, trials), got {observation!r}")
    ids = _integers("prompt_ids", observation[0])
    successes = _numbers("successes", observation[1], ids)
    trials = _numbers("trials", observation[2], ids)
    with np.errstate(over="ignore"):
        counts: Any = successes.astype(np.float32), trials.astype(np.float32)
    most = np.inf if max_trials is None else max_trials
    known = (ids >= 0) & (ids < num_prompts)
    _refuse("trials", trials, ~np.isfinite(counts[1]), ids, "is not finite in float32")
    _refuse("trials", trials, trials < 0, ids, "is negative")
    _refuse("trials", trials, trials > most, ids, f"exceeds max_trials = {max_trials}")
    _refuse("prompt_ids", ids, (trials > 0) & ~known, ids, f"is not in 0..{num_prompts - 1}")
    _refuse("successes", successes, ~np.isfinite(counts[0]), ids, "is not finite in float32")
    _refuse("successes", successes, successes < 0, ids, "is negative")
    _refuse("successes", successes, successes > trials, ids, "exceeds the trials", trials)
    inert_ids: Any = np.where(known, ids, -1).astype(np.int32)
    return Observation(inert_ids, *counts)


def pad_observation(observation: Observation, size: int) -> Observation:
    """Appends inert rows (id -1, no trials), so that batches of any length compile once.

    Args:
        observation: [B] rows of numpy arrays, as `check_observation` returns them.
        size: the length to reach, >= B.

    Returns:
        Observation of [size] numpy rows.

    Raises:
        ValueError: if B exceeds `size`.
    """
    rows = len(observation.prompt_ids)
    if rows > size:
        raise ValueError(f"size: {size} is less than the {rows} rows of the observation")
    padded: Any = [
        np.pad(np.asarray(column), (0, size - rows), constant_values=filler)
        for column, filler in zip(observation, (-1, 0, 0), strict=True)
    ]
    return Observation(*padded)


def observation_from_groups(
    prompt_ids: Column, groups: Column
) -> tuple[Observation, Int[np.ndarray, " B"]]:
    """Counts the verdicts of rollout groups given as nested lists, one list a prompt.

    A verdict is True, False or a number in 0..1; None says that there is none (the grader crashed
    or timed out), which is neither a success nor a trial. A list in a verdict's place is one
    trajectory cut into segments, each of which carries the trajectory's verdict or None.

    >>> observation_from_groups([7, 9], [[1, None, 0, None], [[1, 1, 1], [0]]])[0].successes
    array([1., 1.], dtype=float32)

    Args:
        prompt_ids: [B] integers.
        groups: [B] lists of verdicts, of any lengths.

    Returns:
        Observation of [B] numpy rows in the given order, and [B] int32 counts of missing verdicts.

    Raises:
        ValueError: naming the prompt id, for any other verdict (NaN too), segments that disagree,
            or lists of different lengths.
    """
    ids = _integers("prompt_ids", prompt_ids)
    if len(groups) != len(ids):
        raise ValueError(f"groups: {len(groups)} groups for {len(ids)} prompt_ids")
    rows = [
        [_trajectory_verdict(verdict, prompt_id) for verdict in group]
        for prompt_id, group in zip(ids.tolist(), groups, strict=True)
    ]
    given = [[verdict for verdict in row if verdict is not None] for row in rows]
    successes: Any = np.array([sum(row) for row in given], np.float32)
    trials: Any = np.array([len(row) for row in given], np.float32)
    missing = np.array([len(row) for row in rows], np.int32) - trials.astype(np.int32)
    # Clipped, since a wrapped id might seem a known one.
    narrow_ids: Any = np.clip(ids, -(2**31), 2**31 - 1).astype(np.int32)
    return Observation(narrow_ids, successes, trials), missing


def observation_from_rows(
    prompt_ids: Column, verdicts: Column, keep: Column | None = None
) -> tuple[Observation, Int[np.ndarray, " B"]]:
    """Counts verdicts given one rollout a row, as most trainers hold them.

    >>> observation_from_rows([7, 7, 9, 9], [1, 0, 1, 1], keep=[0, 0, 1, 1])[0].prompt_ids
    array([9], dtype=int32)

    Args:
        prompt_ids: [R] integers, the prompt of each rollout.
        verdicts: [R] verdicts, as in `observation_from_groups`.
        keep: [R] rows to count; the others leave no trace. All by default.

    Returns:
        Observation of numpy rows, one for each kept prompt in order of first appearance, and the
        counts of missing verdicts.

    Raises:
        ValueError: as `observation_from_groups`; and where the columns differ in length.
    """
    ids = _integers("prompt_ids", prompt_ids)
    kept = np.ones(len(ids), bool) if keep is None else np.asarray(keep, bool)
    if not len(ids) == len(verdicts) == len(kept):
        raise ValueError(
            f"verdicts: {len(ids)} prompt_ids, {len(verdicts)} verdicts, {len(kept)} keep flags"
        )
    groups: dict[int, list[Any]] = {}
    for row in np.flatnonzero(kept).tolist():
        groups.setdefault(int(ids[row]), []).append(verdicts[row])
    return observation_from_groups(np.array(list(groups), np.int64), list(groups.values()))


def _trajectory_verdict(verdict: Any, prompt_id: int) -> float | None:
    """One trajectory's verdict: a number in 0..1, or None."""
    if verdict is None:
        return None
    if isinstance(verdict, list | tuple) or np.ndim(verdict) > 0:
        segments = {_trajectory_verdict(segment, prompt_id) for segment in verdict} - {None}
        if len(segments) > 1 or len(verdict) == 0:
            raise ValueError(
                f"groups: the segments of a trajectory of prompt id {prompt_id} "
                f"must share one verdict, got {verdict!r}"
            )
        return segments.pop() if segments else None
    value = np.asarray(verdict)
    if value.dtype.kind not in "biuf" or not 0 <= value <= 1:
        raise ValueError(
            f"groups: verdict {verdict!r} of prompt id {prompt_id} is not in 0..1 "
            "(None says that there is no verdict)"
        )
    return float(value)


def _column(field: str, values: Any) -> np.ndarray:
    try:
        column = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{field}: not a flat column of numbers, got {values!r}") from error
    if column.ndim != 1:
        raise ValueError(f"{field}: needs one axis, got shape {column.shape}")
    return column


def _integers(field: str, values: Any) -> np.ndarray:
    column = _column(field, values)
    if column.size and column.dtype.kind not in "iu":
        raise ValueError(f"{field}: needs integers, got {column.dtype} starting with {column[0]!r}")
    if column.dtype.kind == "u":  # a wrapped id might seem a known one
        column = np.minimum(column.astype(np.uint64), np.uint64(2**63 - 1))
    return column.astype(np.int64)


def _numbers(field: str, values: Any, ids: np.ndarray) -> np.ndarray:
    column = _column(field, values)
    if column.shape != ids.shape:
        raise ValueError(f"{field}: {len(column)} rows for {len(ids)} prompt_ids")
    if column.dtype.kind not in "biuf" and not jnp.issubdtype(column.dtype, jnp.floating):
        odd = np.array([not isinstance(value, numbers.Real) for value in column.tolist()], bool)
        _refuse(field, column, odd, ids, "is not a number")
    return column.astype(np.float64)


def _refuse(
    field: str,
    values: np.ndarray,
    wrong: np.ndarray,
    ids: np.ndarray,
    complaint: str,
    beside: np.ndarray | None = None,
) -> None:
    if wrong.any():
        row = int(np.argmax(wrong))
        tail = "" if beside is None else f" ({beside[row]:g})"
        value = values[row : row + 1].tolist()[0]
        raise ValueError(
            f"{field}: {value!r} at row {row} (prompt id {ids[row]}) {complaint}{tail}"
        )
