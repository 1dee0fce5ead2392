"""A prompt pool from your own files: JSON Lines, Parquet, Hugging Face `datasets` on disk.

Shapes: `N` distinct prompts, `rows` of the data set. `prompt_rows` reads the files, `pool` merges.
"""

import os
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int32

from fade_jax.pool import PromptPool, build_pool, duplicate_rows
from fade_jax.prompt_rows import plain_answer, prompt_text, read_field, read_rows


class LoadedPool(NamedTuple):
    """A pool and how the rows of its data set map to it.

    Attributes:
        pool: the distinct prompts; their sources index `source_names`.
        row_to_prompt: [rows] int32, prompt id of every row.
        source_names: in alphabetical order; empty where no column names them.
        system: the system message that all chats share, or None.
        index_to_prompt: prompt id by the data set's own id, or None where no column holds one.
    """

    pool: PromptPool
    row_to_prompt: Int32[np.ndarray, " rows"]
    source_names: tuple[str, ...]
    system: str | None
    index_to_prompt: dict[Any, int] | None


def load_pool(
    path: str | os.PathLike[str],
    *,
    prompt: str = "prompt",
    answer: str | None = "answer",
    source: str | None = None,
    index: str | None = None,
    split: str | None = None,
    fractions: tuple[float, float, float] = (0.8, 0.1, 0.1),
) -> LoadedPool:
    """Reads prompts and merges rows of equal content, as `pool.build_pool` does.

    Fields are named by column, nested ones by a dotted path; verl's files need
    `answer="reward_model.ground_truth"`, and `index="extra_info.index"` if ids matter. Two rows are
    one prompt if their texts are equal after `pool.normalise_text`; the answers of one prompt must
    then be equal but for white space (`1/2` and `0.5` are two answers). Keys, ids and fingerprint
    of the pool depend on the rows and their order, not on the kind of file.

    Args:
        path: as `prompt_rows.read_rows`.
        prompt: column of the prompts; text, or a chat of a user with at most a system message,
            whose text is what the user says.
        answer: column of the ground truths, strings or numbers; None if there is none. An empty
            string is kept (published files hold some) and shown by `describe`; null is refused.
        source: column of the sources, strings or numbers; one source if not given.
        index: column of the data set's own ids, checked and mapped; prompts are known by content.
        split: of the data set on disk, for folders that hold several.
        fractions: shares of train, validation and test in the pool, by content; (1.0, 0.0, 0.0)
            trains on every prompt.

    Returns:
        The pool and its maps.

    Raises:
        ValueError: naming file, row and field for what is missing, null or malformed; two answers
            to one prompt; an index with one value for all rows, or for two prompts; chats whose
            system messages differ; and as `read_rows`.
    """
    columns = [each for each in (prompt, answer, source, index) if each is not None]
    texts: list[str] = []
    answers: list[str] = []
    sources: list[str] = []
    indices: list[Any] = []
    system: str | None = None
    kept: dict[str, str] = {}  # one copy of each string, however often a file repeats it
    for row in read_rows(path, columns, split=split):
        text, message = read_field(row, prompt, prompt_text)
        if texts and message != system:
            raise ValueError(
                f"{row.place}: {prompt} has the system message {message!r}, the rows before it "
                f"{system!r}; a pool has one"
            )
        system = message
        texts.append(kept.setdefault(text, text))
        if answer is not None:
            truth = read_field(row, answer, plain_answer)
            answers.append(kept.setdefault(truth, truth))
        if source is not None:
            name = read_field(row, source, plain_answer)
            sources.append(kept.setdefault(name, name))
        if index is not None:
            indices.append(read_field(row, index, _plain_index))
    names = tuple(sorted(set(sources)))
    number = {name: i for i, name in enumerate(names)}
    try:
        pool, row_to_prompt = build_pool(
            texts,
            None if answer is None else answers,
            None if source is None else [number[name] for name in sources],
            index=None if index is None else indices,
            fractions=fractions,
        )
    except ValueError as error:
        field, _, complaint = str(error).partition(":")
        column = {"texts": prompt, "answers": answer, "index": index}.get(field) or field
        raise ValueError(f"{os.path.basename(os.fspath(path))}: {column}:{complaint}") from error
    by_index = None if index is None else dict(zip(indices, row_to_prompt.tolist(), strict=True))
    return LoadedPool(pool, row_to_prompt, names, system, by_index)


def describe(loaded: LoadedPool) -> str:
    """What was read and what was merged, in a few lines."""
    rows, prompts = len(loaded.row_to_prompt), len(loaded.pool.keys)
    several = duplicate_rows(loaded.row_to_prompt)
    lines = [f"{rows:,} rows, {prompts:,} prompts, {len(several):,} of them in several rows"]
    most = sorted(several.items(), key=lambda item: -len(item[1]))[:5]
    for prompt_id, places in most:
        lines.append(f"prompt {prompt_id}: {len(places)} rows, {_first(places)}")
    unanswered = [i for i, text in enumerate(loaded.pool.answers or ()) if not text.strip()]
    if unanswered:
        lines.append(f"{len(unanswered):,} prompts have an empty answer: {_first(unanswered)}")
    counts = np.bincount(loaded.pool.sources, minlength=len(loaded.source_names))
    for name, count in zip(loaded.source_names, counts, strict=False):
        lines.append(f"source {name}: {count:,} prompts")
    return "\n".join(lines)


def _first(numbers: list[int]) -> str:
    return ", ".join(str(each) for each in numbers[:5]) + (", ..." if len(numbers) > 5 else "")


def _plain_index(value: Any) -> Any:
    plain_answer(value)  # refuses what is no string or number
    return value
