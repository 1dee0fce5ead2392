"""Skill loadings: which skills a prompt draws on, read off its content before any rollout.

Loadings are a plain [N, K] float32 array, whitened so that abilities with prior covariance I give
success logits of variance about 1 whatever K is. There is no constant column: the filter adds it.
Shapes: `N` prompts, `F` features, `K` skills. Host code, numpy; scikit-learn for text only.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float, Float32, Shaped

Loadings: TypeAlias = Float32[np.ndarray, "N K"]
"""[N, K] skill loadings; `a_i . a_i` is about 1 on average over the rows they were fitted on."""

Rows: TypeAlias = Sequence[int] | np.ndarray | None
"""Rows to fit on: indices, or a mask [N]; None for all. Fit on the training split alone."""

# Singular values below this share of the largest are rounding noise of float32 features.
_RANK_TOLERANCE = 1e-6


class Whitening(NamedTuple):
    """The map from features to loadings, `scale * components (x / |x| - mean)`.

    Attributes:
        mean: [F] mean of the normalised features.
        components: [K, F] orthonormal principal directions, by falling variance.
        scale: [K] factors, `1 / sqrt((lambda_k + eps) K)`.
    """

    mean: Float[np.ndarray, " F"]
    components: Float[np.ndarray, "K F"]
    scale: Float[np.ndarray, " K"]


def whiten(
    features: Shaped[np.ndarray, "N F"],
    num_skills: int | None,
    *,
    fit_rows: Rows = None,
    ridge: float = 1e-3,
) -> Whitening:
    """Fits the whitening: unit rows, centred, K principal components, equal variances.

    Component k is divided by `sqrt(lambda_k + eps)`, `eps = ridge * lambda_1`, which shrinks
    directions of little variance instead of blowing up their noise, and by `sqrt(K)`. The loadings'
    covariance over the fitted rows is `diag(lambda / (lambda + eps)) / K`: I / K where ridge is 0.

    Args:
        features: [N, F] numbers; a row of zeros stays one.
        num_skills: K, in 0..rank of the centred features; None for the rank.
        fit_rows: rows to fit on; all by default.
        ridge: >= 0, relative to the largest variance.

    Returns:
        Whitening, for `apply_whitening`; its signs do not depend on the order of the rows.

    Raises:
        ValueError: naming the prompt row that is not finite; or num_skills, where the features do
            not span that many directions.
    """
    rows = _unit_rows(features)
    rows = rows[_row_indices(fit_rows, len(rows))]
    if len(rows) == 0:
        raise ValueError("fit_rows: no rows to fit on")
    mean = rows.mean(0)
    # QR first: its R has the singular values of the tall matrix, without squaring them.
    triangle = np.linalg.qr(rows - mean, mode="r")
    _, singular, directions = np.linalg.svd(triangle, full_matrices=False)
    # Rows have length 1, so a spread below the tolerance is that of equal rows.
    floor = _RANK_TOLERANCE * max(singular.max(initial=0.0), np.sqrt(len(rows)) * _RANK_TOLERANCE)
    rank = int((singular > floor).sum())
    num_skills = rank if num_skills is None else num_skills
    if not 0 <= num_skills <= rank:
        raise ValueError(
            f"num_skills: {num_skills} is not in 0..{rank}; the centred features of {len(rows)}"
            f" prompts span {rank} directions: take fewer skills, or more prompts"
        )
    variances = singular**2 / len(rows)
    components = directions[:num_skills]
    scale = np.sqrt((variances[:num_skills] + ridge * variances[:1]) * num_skills)
    return Whitening(mean, components * _signs(components)[:, None], 1 / scale)


def apply_whitening(whitening: Whitening, features: Shaped[np.ndarray, "N F"]) -> Loadings:
    """Maps features of any prompts, also later ones, to loadings [N, K].

    Args:
        whitening: of F features.
        features: [N, F].

    Returns:
        Loadings [N, K].

    Raises:
        ValueError: naming the prompt row that is not finite.
    """
    centred = _unit_rows(features) - whitening.mean
    return (centred @ whitening.components.T * whitening.scale).astype(np.float32)


def _unit_rows(features: np.ndarray) -> np.ndarray:
    rows = np.asarray(features, np.float64)
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise ValueError(f"features: needs shape [N, F], got {rows.shape}")
    finite = np.isfinite(rows).all(1)
    if not finite.all():
        row = int(np.argmin(finite))
        value = rows[row][~np.isfinite(rows[row])][0]
        raise ValueError(f"features: the row of prompt {row} holds {value}")
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1.0)


def _row_indices(rows: Rows, num_rows: int) -> np.ndarray:
    if rows is None:
        return np.arange(num_rows)
    chosen = np.asarray(rows)
    if chosen.dtype == bool:
        return np.arange(num_rows)[chosen]
    return np.arange(num_rows)[chosen.astype(np.int64)]


def _signs(components: np.ndarray) -> np.ndarray:
    """Makes the first of each direction's largest entries positive; an SVD leaves signs open."""
    sizes = np.abs(components)
    largest = np.argmax(sizes > (1 - 1e-6) * sizes.max(1, keepdims=True, initial=0.0), axis=1)
    return np.where(np.take_along_axis(components, largest[:, None], 1)[:, 0] < 0, -1.0, 1.0)


def embedding_loadings(
    embeddings: Shaped[np.ndarray, "N F"],
    num_skills: int | None,
    *,
    fit_rows: Rows = None,
    ridge: float = 1e-3,
) -> Loadings:
    """Whitens given embeddings, for example the policy's hidden state at the last prompt token.

    Args:
        embeddings: [N, F].
        num_skills: K; None for as many as the embeddings span.
        fit_rows: as in `whiten`.
        ridge: as in `whiten`.

    Returns:
        Loadings [N, K].

    Raises:
        ValueError: as `whiten`.
    """
    whitening = whiten(embeddings, num_skills, fit_rows=fit_rows, ridge=ridge)
    return apply_whitening(whitening, embeddings)


def text_loadings(
    texts: Sequence[str] | np.ndarray,
    num_skills: int,
    *,
    seed: int,
    num_components: int | None = None,
    max_svd_rows: int = 2048,
    fit_rows: Rows = None,
    ridge: float = 1e-3,
) -> Loadings:
    """Reads loadings off the words: hashed TF-IDF, truncated SVD, whitening. No model needed.

    Words and pairs of words, and character 3- to 5-grams within words, are hashed to 2^16 columns
    each; both blocks have TF-IDF weights with logarithmic counts.

    Args:
        texts: [N] prompts.
        num_skills: K.
        seed: picks the rows the SVD sees where there are more than `max_svd_rows`; fewer are all
            used, and then no seed changes the loadings.
        num_components: SVD directions kept before whitening; max(64, 4 K) by default.
        max_svd_rows: the SVD costs its cube.
        fit_rows: as in `whiten`; the TF-IDF weights and the SVD are fitted on them too.
        ridge: as in `whiten`.

    Returns:
        Loadings [N, K].

    Raises:
        ValueError: as `whiten`; and where a text is not a string.
    """
    from scipy import sparse
    from scipy.linalg import eigh
    from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer

    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"texts: prompt {row} is {text!r}, not a string")
    fitted = _row_indices(fit_rows, len(texts))
    blocks: list[Any] = []
    # Plain counts, which the TF-IDF transformer then weighs and normalises.
    counting: dict[str, Any] = {"n_features": 2**16, "alternate_sign": False, "norm": None}
    words = HashingVectorizer(ngram_range=(1, 2), token_pattern=r"\w+", **counting)
    pieces = HashingVectorizer(analyzer="char_wb", ngram_range=(3, 5), **counting)
    for hashing in (words, pieces):
        counts = hashing.transform(texts)
        blocks.append(TfidfTransformer(sublinear_tf=True).fit(counts[fitted]).transform(counts))
    weights: Any = sparse.hstack(blocks, format="csr")
    weights = weights[:, np.unique(weights.indices)]  # without the columns no text uses
    # Through the Gram matrix of the rows: exact, so neither row order nor seed moves the answer.
    if len(fitted) > max_svd_rows:
        fitted = np.random.default_rng(seed).choice(fitted, max_svd_rows, replace=False)
    sample = weights[fitted]
    last = len(fitted) - 1
    first = max(0, last + 1 - (num_components or max(64, 4 * num_skills)))
    variances, vectors = eigh((sample @ sample.T).toarray(), subset_by_index=[first, last])
    spanned = variances > 1e-10 * variances[-1]
    directions = sample.T @ (vectors[:, spanned] / np.sqrt(variances[spanned]))
    features = weights @ (directions * _signs(directions.T))
    return embedding_loadings(features, num_skills, fit_rows=fit_rows, ridge=ridge)


def tag_loadings(
    tags: Sequence[str] | Sequence[Sequence[str]],
    num_skills: int | None = None,
    *,
    fit_rows: Rows = None,
    ridge: float = 1e-3,
) -> Loadings:
    """Whitens one-hot tags: an interpretable baseline, such as subjects and levels.

    Args:
        tags: [N] one tag, or a list of tags, for each prompt.
        num_skills: K; by default as many as the tags span, one less than the tags where every
            prompt has one.
        fit_rows: as in `whiten`.
        ridge: as in `whiten`.

    Returns:
        Loadings [N, K].

    Raises:
        ValueError: as `whiten`.
    """
    rows = [(row,) if isinstance(row, str) else tuple(row) for row in tags]
    columns = {
        tag: column for column, tag in enumerate(sorted({tag for row in rows for tag in row}))
    }
    one_hot = np.zeros((len(rows), len(columns)))
    for row, row_tags in enumerate(rows):
        one_hot[row, [columns[tag] for tag in row_tags]] = 1
    return embedding_loadings(one_hot, num_skills, fit_rows=fit_rows, ridge=ridge)


def shuffled_loadings(loadings: Loadings, seed: int) -> Loadings:
    """Hands every prompt another's loadings: the control that any claim for loadings must beat.

    Args:
        loadings: [N, K].
        seed: of the permutation of the rows.

    Returns:
        The same rows in random order.
    """
    return np.random.default_rng(seed).permutation(loadings)


def fingerprint(loadings: Loadings) -> str:
    """Names loadings by their values: 16 hex digits, to be compared before a state is resumed."""
    values = np.ascontiguousarray(loadings, "<f4")
    return hashlib.sha256(repr(values.shape).encode() + values.tobytes()).hexdigest()[:16]
