"""Recorded outcomes of a training run: load, save, tabulate, thin. `fade_jax.replay` runs them.

Shapes: `rows` visited groups, `S` steps, `N` prompts. Host data, numpy throughout; no pickle.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int32, Shaped

from fade_jax.json_files import read_json
from fade_jax.pool import content_key
from fade_jax.prompt_rows import prompt_text, read_field, read_rows

_COLUMNS = ("step", "prompt_id", "successes", "trials", "policy_step")


class History(NamedTuple):
    """Rollout groups in the order they were sampled.

    Attributes:
        step: [rows] int32 >= 0, ascending.
        prompt_id: [rows] int32, in 0..N-1.
        successes: [rows] int32, in 0..trials.
        trials: [rows] int32 >= 0, rollouts with a verdict.
        policy_step: [rows] int32, optimiser steps of the policy that sampled.
        prompt_key: [N] what identifies a prompt across runs; equal keys are equal prompts.
        text: [N] prompts, or None.
        source: [N] int32, the data set each prompt came from.
        meta: anything JSON can hold.
    """

    step: Int32[np.ndarray, " rows"]
    prompt_id: Int32[np.ndarray, " rows"]
    successes: Int32[np.ndarray, " rows"]
    trials: Int32[np.ndarray, " rows"]
    policy_step: Int32[np.ndarray, " rows"]
    prompt_key: Shaped[np.ndarray, " N"]
    text: Shaped[np.ndarray, " N"] | None
    source: Int32[np.ndarray, " N"]
    meta: dict[str, Any]


def check_history(history: History) -> History:
    """Checks a history from outside.

    Args:
        history: its columns may be lists or arrays of any integer type.

    Returns:
        The history with int32 columns and unicode keys.

    Raises:
        ValueError: naming the field, the row and the value that is wrong.
    """
    columns = {name: _integer_column(name, getattr(history, name)) for name in _COLUMNS}
    step, prompt_id, successes, trials, _ = columns.values()
    for name, column in columns.items():
        if len(column) != len(step):
            raise ValueError(f"{name}: {len(column)} rows for the {len(step)} of step")
    keys = _text_column("prompt_key", history.prompt_key)
    source = _integer_column("source", history.source)
    text = None if history.text is None else _text_column("text", history.text)
    for name, column in (("source", source), ("text", text)):
        if column is not None and len(column) != len(keys):
            raise ValueError(f"{name}: {len(column)} values for {len(keys)} prompts")
    _refuse("step", step, step < 0, "is negative")
    _refuse("step", step, np.diff(step, prepend=step[:1]) < 0, "is less than the row before")
    known = (prompt_id >= 0) & (prompt_id < len(keys))
    _refuse("prompt_id", prompt_id, ~known, f"is not in 0..{len(keys) - 1}")
    _refuse("trials", trials, trials < 0, "is negative")
    sound = (successes >= 0) & (successes <= trials)
    _refuse("successes", successes, ~sound, "is not in 0..trials", prompt_id)
    if not isinstance(history.meta, dict):
        raise ValueError(f"meta: needs a dict, got {history.meta!r}")
    return History(**columns, prompt_key=keys, text=text, source=source, meta=history.meta)


def _integer_column(name: str, values: Any) -> np.ndarray:
    column = np.asarray(values)
    if column.ndim != 1 or (column.size and column.dtype.kind not in "iu"):
        raise ValueError(
            f"{name}: needs one axis of integers, got {column.dtype} of shape {column.shape}"
        )
    column = column.astype(np.int64)
    _refuse(name, column, np.abs(column) >= 2**31, "does not fit int32")
    return column.astype(np.int32)


def _text_column(name: str, values: Any) -> np.ndarray:
    column = np.asarray(values)
    if column.ndim != 1 or (column.size and column.dtype.kind != "U"):
        raise ValueError(
            f"{name}: needs one axis of strings, got {column.dtype} of shape {column.shape}"
        )
    return column.astype(np.str_)


def _refuse(
    name: str,
    column: np.ndarray,
    wrong: np.ndarray,
    complaint: str,
    prompt_id: np.ndarray | None = None,
) -> None:
    if wrong.any():
        row = int(np.argmax(wrong))
        prompt = "" if prompt_id is None else f" (prompt id {prompt_id[row]})"
        raise ValueError(f"{name}: {column[row]} at row {row}{prompt} {complaint}")


def save_history(path: str | os.PathLike[str], history: History) -> None:
    """Writes a history as a compressed .npz, without pickle; a crash leaves the old file whole.

    Args:
        path: ends in .npz.
        history: checked before anything is written.

    Raises:
        ValueError: as `check_history`; or for another suffix.
    """
    path = Path(path)
    if path.suffix != ".npz":
        raise ValueError(f"path: {path.name!r} does not end in .npz")
    history = check_history(history)
    arrays = {name: value for name, value in history._asdict().items() if value is not None}
    arrays["meta"] = np.array(json.dumps(history.meta))
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(unfinished, "wb") as file:
            np.savez_compressed(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def load_history(path: str | os.PathLike[str]) -> History:
    """Reads what `save_history` wrote.

    Args:
        path: a .npz file.

    Returns:
        The checked history.

    Raises:
        ValueError: naming the field that is missing; and as `check_history`.
    """
    with np.load(path, allow_pickle=False) as file:
        required = set(History._fields) - {"text"}
        missing = sorted(required - set(file.files))
        if missing:
            raise ValueError(f"{missing[0]}: not in {Path(path).name}")
        fields = {name: file[name] for name in (*sorted(required), "text") if name in file.files}
    fields["meta"] = json.loads(str(fields["meta"]))
    return check_history(History(**{"text": None, **fields}))


def load_prompt_texts(path: str | os.PathLike[str]) -> dict[int, str]:
    """Reads the prompts of a Parquet file in verl's layout.

    Args:
        path: a file with columns `prompt` (a list of messages) and `extra_info.index`.

    Returns:
        The user's messages of each prompt, by index.

    Raises:
        ValueError: where one index names several rows; for a prompt that is malformed.
    """
    texts: dict[int, str] = {}
    for number, row in enumerate(read_rows(path, ["prompt", "extra_info"])):
        index = (row.record["extra_info"] or {}).get("index")
        if index is None or index in texts:
            raise ValueError(f"extra_info.index: {index!r} at row {number} identifies no prompt")
        texts[int(index)] = read_field(row, "prompt", prompt_text)[0]
    return texts


def load_pass_rate_lists(
    path: str | os.PathLike[str],
    group_size: int = 8,
    prompts: str | os.PathLike[str] | None = None,
) -> History:
    """Reads `{index: [pass rate at each visit]}`, the form of One-Shot-RLVR's acc_step_500.json.

    Visit k of every prompt becomes step k, as optimiser steps are not in the file; `policy_step` is
    the step too. Prompt ids are the indices in ascending order.

    Args:
        path: a JSON file.
        group_size: G, rollouts in each group; every rate is a multiple of 1/G.
        prompts: the Parquet file of the prompts, for texts and content keys; without it a prompt's
            key is its index.

    Returns:
        The history; each row has G trials.

    Raises:
        ValueError: naming the prompt index, the visit and the rate that is no multiple of 1/G; or
            the index without a text.
    """
    rates: Mapping[str, list[float]] = read_json(Path(path))
    indices = sorted(rates, key=int)
    lengths = [len(rates[index]) for index in indices]
    prompt_id = np.repeat(np.arange(len(indices)), lengths)
    visit = np.concatenate([np.arange(length) for length in lengths] or [np.zeros(0, int)])
    rate = np.array([value for index in indices for value in rates[index]], np.float64)
    successes = np.round(rate * group_size)
    inexact = ~(np.abs(rate * group_size - successes) <= 1e-6) | (rate < 0) | (rate > 1)
    if inexact.any():
        row = int(np.argmax(inexact))
        raise ValueError(
            f"pass rate: {rate[row]} of prompt {indices[prompt_id[row]]}, visit {visit[row]}, is "
            f"not a multiple of 1/{group_size} in 0..1"
        )
    text = None if prompts is None else _texts_of(indices, load_prompt_texts(prompts))
    keys = indices if text is None else [content_key(each) for each in text]
    order = np.argsort(visit, kind="stable")
    return check_history(
        History(
            step=visit[order],
            prompt_id=prompt_id[order],
            successes=successes[order].astype(np.int32),
            trials=np.full(len(order), group_size),
            policy_step=visit[order],
            prompt_key=np.array(keys, np.str_),
            text=None if text is None else np.array(text, np.str_),
            source=np.zeros(len(indices), np.int32),
            meta={"file": Path(path).name, "group_size": group_size, "step": "visit"},
        )
    )


def _texts_of(indices: list[str], texts: dict[int, str]) -> list[str]:
    unknown = [index for index in indices if int(index) not in texts]
    if unknown:
        raise ValueError(f"prompts: no text for prompt {unknown[0]} ({len(unknown)} in all)")
    return [texts[int(index)] for index in indices]


def load(path: str | os.PathLike[str], prompts: str | os.PathLike[str] | None = None) -> History:
    """Reads a history in either format: .npz, or .json with an optional file of prompts.

    Args:
        path: ends in .npz or .json.
        prompts: the Parquet file of the prompts, for .json only.

    Returns:
        The checked history.

    Raises:
        ValueError: for another suffix, or prompts beside a .npz, which holds its own.
    """
    suffix = Path(path).suffix
    if suffix == ".json":
        return load_pass_rate_lists(path, prompts=prompts)
    if suffix != ".npz":
        raise ValueError(f"path: {Path(path).name!r} ends in neither .npz nor .json")
    if prompts is not None:
        raise ValueError(f"prompts: {Path(path).name!r} holds its own texts")
    return load_history(path)


def dense_array(
    history: History,
) -> tuple[Float[np.ndarray, "S N"], Float[np.ndarray, "S N"]]:
    """Lays a history out as a table of steps by prompts.

    Args:
        history: two groups of a prompt in one step are summed.

    Returns:
        successes and trials, [S, N] float32; both 0 where a prompt was not visited. S is the last
        step + 1.
    """
    shape = (int(history.step.max(initial=-1)) + 1, len(history.prompt_key))
    successes, trials = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    np.add.at(successes, (history.step, history.prompt_id), history.successes)
    np.add.at(trials, (history.step, history.prompt_id), history.trials)
    return successes, trials


def by_visit(history: History) -> History:
    """Numbers each prompt's visits: the k-th row of a prompt, counted from 0, becomes step k.

    So a run that meets few prompts a step becomes a table without holes. Prompts need not be
    visited equally often; within a step rows keep their order.

    Args:
        history: in the order its groups were sampled.

    Returns:
        The same rows, by visit; `policy_step` still says when they were sampled.

    Example:
        >>> import numpy as np
        >>> rows = [np.array(column) for column in ([0, 4, 9], [1, 0, 1], [3, 2, 1], [8, 8, 8])]
        >>> run = History(*rows, np.array([0, 4, 9]), np.array(["a", "b"]), None, np.zeros(2), {})
        >>> by_visit(run).step.tolist(), by_visit(run).prompt_id.tolist()
        ([0, 0, 1], [1, 0, 1])
    """
    together = np.argsort(history.prompt_id, kind="stable")
    grouped = history.prompt_id[together]
    visit = np.empty(len(grouped), np.int32)
    visit[together] = np.arange(len(grouped)) - np.searchsorted(grouped, grouped)
    order = np.argsort(visit, kind="stable")
    columns = {name: getattr(history, name)[order] for name in _COLUMNS} | {"step": visit[order]}
    return history._replace(**columns, meta=history.meta | {"step": "visit"})


def thin(history: History, group_size: int, rng: np.random.Generator) -> History:
    """Sub-samples every group to a smaller one, without replacement (hypergeometric).

    What remains is distributed as if only `group_size` rollouts had been sampled.

    Args:
        history: groups of that size or smaller ones stay as they are.
        group_size: G >= 1, the largest number of trials left.
        rng: consumed.

    Returns:
        The history with the same rows.

    Raises:
        ValueError: for a group size below 1.
    """
    if group_size < 1:
        raise ValueError(f"group_size: {group_size} is less than 1")
    kept = np.minimum(history.trials, group_size)
    failures = history.trials - history.successes
    successes = rng.hypergeometric(history.successes, failures, kept).astype(np.int32)
    return history._replace(successes=successes, trials=kept.astype(np.int32))
