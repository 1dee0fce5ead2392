"""The prompt pool: identities that survive re-ordering, duplicates and new prompts.

A prompt's id is its place in the pool; its key is a hash of its content, the same in every run.
Shapes: `N` distinct prompts, `rows` of the data set they come from. Host code, numpy only.
"""

import hashlib
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int32, Shaped

SPLITS = ("train", "validation", "test")
"""Names of the parts of a pool, in the order of their shares."""

_KEY_DIGITS = 16  # 64 bits: a clash among 10^6 prompts has probability 3e-8
# Characters whose compatibility folding would change a formula: 10² is not 102, ½ is not 1⁄2.
_KEPT_FORMS = ("<super>", "<sub>", "<fraction>")


class PromptPool(NamedTuple):
    """Distinct prompts in order of first appearance.

    Attributes:
        keys: [N] content keys, 16 hex digits each.
        texts: [N], as first given.
        answers: [N], or None where the data set has none.
        sources: [N] int32, the data set (or skill) each prompt came from.
        split: [N] "train", "validation" or "test".
    """

    keys: Shaped[np.ndarray, " N"]
    texts: tuple[str, ...]
    answers: tuple[str, ...] | None
    sources: Int32[np.ndarray, " N"]
    split: Shaped[np.ndarray, " N"]


def normalise_text(text: str) -> str:
    r"""Folds what does not change a prompt: white space and Unicode's compatibility forms (NFKC).

    Superscripts, subscripts and vulgar fractions stay as they are, since they carry meaning.

    >>> normalise_text(" Compute\n 10²  − ﬁve")
    'Compute 10² − five'
    """
    if not text.isascii():
        kept = (unicodedata.decomposition(character).startswith(_KEPT_FORMS) for character in text)
        text = "".join(
            character if keep else unicodedata.normalize("NFKC", character)
            for character, keep in zip(text, kept, strict=True)
        )
        text = unicodedata.normalize("NFC", text)
    return " ".join(text.split())


def content_key(text: str) -> str:
    """The key of a prompt: 16 hex digits of the SHA-256 of its normalised text."""
    return _digest(text).hex()[:_KEY_DIGITS]


def _digest(text: str) -> bytes:
    return hashlib.sha256(normalise_text(text).encode()).digest()


def build_pool(
    texts: Sequence[str] | np.ndarray,
    answers: Sequence[str] | np.ndarray | None = None,
    sources: Sequence[int] | np.ndarray | None = None,
    *,
    index: Sequence[Any] | np.ndarray | None = None,
    fractions: tuple[float, float, float] = (0.8, 0.1, 0.1),
) -> tuple[PromptPool, Int32[np.ndarray, " rows"]]:
    """Merges rows of equal content into prompts and assigns each prompt to a split.

    The split depends on the content alone, so adding prompts never moves others.

    >>> pool, row_to_prompt = build_pool(["1 + 1", "2 + 2", "1  + 1"], ["2", "4", "2"])
    >>> row_to_prompt
    array([0, 1, 0], dtype=int32)

    Args:
        texts: [rows] prompts, not empty.
        answers: [rows] ground truths; those of one prompt are equal but for white space.
        sources: [rows] integers; 0 by default. A merged prompt keeps its first row's.
        index: [rows] the data set's own ids. Only checked: prompts are known by their content.
        fractions: shares of train, validation and test; they sum to 1.

    Returns:
        The pool, and the prompt id of every row ([rows] int32, in 0..N-1).

    Raises:
        ValueError: for columns of different lengths, an empty text, two answers to one prompt, an
            index that does not tell prompts apart, or fractions that are not shares.
    """
    if min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-9:
        raise ValueError(f"fractions: {fractions} are not shares that sum to 1")
    for name, column in (("answers", answers), ("sources", sources), ("index", index)):
        if column is not None and len(column) != len(texts):
            raise ValueError(f"{name}: {len(column)} values for {len(texts)} texts")
    known: dict[str, int] = {}  # as given; published files repeat a prompt up to a hundred times
    firsts: dict[str, int] = {}
    row_to_prompt = np.zeros(len(texts), np.int32)
    first_rows: list[int] = []
    for row, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"texts: row {row} is {text!r}, not a prompt")
        if text not in known:
            known[text] = firsts.setdefault(normalise_text(text), len(firsts))
            if len(firsts) > len(first_rows):
                first_rows.append(row)
        row_to_prompt[row] = known[text]
    if answers is not None:
        _check_answers(answers, texts, row_to_prompt, first_rows)
    if index is not None:
        _check_index(np.asarray(index).tolist(), row_to_prompt)
    digests = [_digest(content) for content in firsts]
    source_column = np.zeros(len(texts), np.int32) if sources is None else np.asarray(sources)
    if source_column.dtype.kind not in "iu" and source_column.size:
        raise ValueError(f"sources: needs integers, got {source_column[0]!r}")
    pool = PromptPool(
        keys=np.array([digest.hex()[:_KEY_DIGITS] for digest in digests], f"U{_KEY_DIGITS}"),
        texts=tuple(str(texts[row]) for row in first_rows),
        answers=None if answers is None else tuple(str(answers[row]) for row in first_rows),
        sources=source_column[first_rows].astype(np.int32),
        split=np.array([_split(digest, fractions) for digest in digests], "U10"),
    )
    return pool, row_to_prompt


def duplicate_rows(row_to_prompt: Int32[np.ndarray, " rows"]) -> dict[int, list[int]]:
    """The rows of every prompt that has several: {prompt id: rows}, both ascending.

    >>> duplicate_rows(np.array([0, 1, 0, 2, 0], np.int32))
    {0: [0, 2, 4]}
    """
    order = np.argsort(row_to_prompt, kind="stable")
    ids, starts, counts = np.unique(row_to_prompt[order], return_index=True, return_counts=True)
    several = counts > 1
    places = zip(ids[several], starts[several], counts[several], strict=True)
    return {int(i): order[start : start + count].tolist() for i, start, count in places}


def _split(digest: bytes, fractions: tuple[float, float, float]) -> str:
    # Bytes that the key does not show, so a split is no range of keys.
    uniform = int.from_bytes(digest[16:23], "big") / 2**56
    train, validation, _ = fractions
    return (
        SPLITS[0] if uniform < train else SPLITS[1] if uniform < train + validation else SPLITS[2]
    )


def _check_answers(
    answers: Sequence[str] | np.ndarray,
    texts: Sequence[str] | np.ndarray,
    row_to_prompt: np.ndarray,
    first_rows: list[int],
) -> None:
    conflicts: dict[int, tuple[int, int]] = {}
    for row, prompt_id in enumerate(row_to_prompt.tolist()):
        first = first_rows[prompt_id]
        old, new = str(answers[first]), str(answers[row])
        if old != new and old.split() != new.split():
            conflicts.setdefault(prompt_id, (first, row))
    if conflicts:
        prompt_id, (first, row) = next(iter(conflicts.items()))
        raise ValueError(
            f"answers: rows {first} and {row} are one prompt (id {prompt_id}, "
            f"{texts[row][:60]!r}) with two answers, {str(answers[first])!r} and "
            f"{str(answers[row])!r} ({len(conflicts)} such prompts)"
        )


def _check_index(index: list[Any], row_to_prompt: np.ndarray) -> None:
    if len(index) > 1 and all(value == index[0] for value in index):
        raise ValueError(
            f"index: all {len(index)} rows have the value {index[0]!r}, so it identifies no prompt"
        )
    owners: dict[Any, tuple[int, int]] = {}
    for row, (value, prompt_id) in enumerate(zip(index, row_to_prompt.tolist(), strict=True)):
        first, owner = owners.setdefault(value, (row, prompt_id))
        if owner != prompt_id:
            raise ValueError(
                f"index: rows {first} and {row} hold two prompts under the value {value!r}"
            )


def fingerprint(pool: PromptPool) -> str:
    """Names a pool by content and order: 16 hex digits that change with either.

    State fitted on one pool must not be resumed on another; compare fingerprints first. White space
    and the other differences that `normalise_text` folds do not count.
    """
    answers = ("",) * len(pool.keys) if pool.answers is None else pool.answers
    rows = zip(pool.keys, answers, pool.sources, pool.split, strict=True)
    return _hash_fields(str(field) for row in rows for field in row)


def _hash_fields(fields: Iterable[str]) -> str:
    hashed = hashlib.sha256()
    for field in fields:
        encoded = field.encode()
        hashed.update(len(encoded).to_bytes(8, "big") + encoded)  # no two lists run together
    return hashed.hexdigest()[:_KEY_DIGITS]
