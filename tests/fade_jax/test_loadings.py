import doctest

import numpy as np
import pytest

from fade_jax import loadings as module
from fade_jax.loadings import (
    apply_whitening,
    embedding_loadings,
    fingerprint,
    shuffled_loadings,
    tag_loadings,
    text_loadings,
    whiten,
)
from fade_jax.simulated_history import simulate_history


def features(seed=0, rows=400, columns=12):
    rng = np.random.default_rng(seed)
    spectrum = np.diag(np.linspace(2, 0.5, columns))
    return rng.standard_normal((rows, columns)) @ spectrum + rng.standard_normal(columns)


@pytest.mark.parametrize("num_skills", [1, 5, 12])
def test_covariance_is_identity_over_k(num_skills):
    made = embedding_loadings(features(), num_skills, ridge=0.0)
    assert made.dtype == np.float32
    made = made.astype(np.float64)
    np.testing.assert_allclose(made.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(
        np.cov(made.T, bias=True), np.eye(num_skills).squeeze() / num_skills, atol=1e-5
    )
    np.testing.assert_allclose((made**2).sum(1).mean(), 1, rtol=1e-5)


def test_ridge_shrinks_the_tail():
    raw = features()
    unit = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    spectrum = np.linalg.eigvalsh(np.cov(unit.T, bias=True))[::-1][:8]
    made = embedding_loadings(raw, 8, ridge=0.05).astype(np.float64)
    want = np.diag(spectrum / (spectrum + 0.05 * spectrum[0])) / 8
    np.testing.assert_allclose(np.cov(made.T, bias=True), want, atol=1e-6)


def test_against_eigenvectors_of_the_covariance():
    raw = features(1)
    unit = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    values, vectors = np.linalg.eigh(np.cov(unit.T, bias=True))
    leading = vectors[:, ::-1][:, :4] / np.sqrt((values[::-1][:4] + 1e-3 * values[-1]) * 4)
    want = (unit - unit.mean(0)) @ leading
    made = embedding_loadings(raw, 4)
    np.testing.assert_allclose(made @ made.T, want @ want.T, atol=1e-5)


def test_rotation_changes_no_inner_product():
    raw = features(2)
    rotation = np.linalg.qr(np.random.default_rng(3).standard_normal((12, 12)))[0]
    plain, turned = embedding_loadings(raw, 6), embedding_loadings(raw @ rotation, 6)
    np.testing.assert_allclose(plain @ plain.T, turned @ turned.T, atol=1e-5)
    scaled = embedding_loadings(raw * np.linspace(1, 9, 400)[:, None], 6)
    np.testing.assert_allclose(scaled, plain, atol=1e-6)


def test_order_of_rows_only_permutes():
    raw = features(4)
    order = np.random.default_rng(5).permutation(400)
    np.testing.assert_allclose(
        embedding_loadings(raw[order], 6), embedding_loadings(raw, 6)[order], atol=1e-6
    )


def test_fit_on_some_rows_apply_to_others():
    raw = features(6)
    train = np.arange(400) < 300
    fitted = whiten(raw, 5, fit_rows=train)
    alone = whiten(raw[:300], 5)
    for got, want in zip(fitted, alone, strict=True):
        np.testing.assert_array_equal(got, want)
    whole = embedding_loadings(raw, 5, fit_rows=np.flatnonzero(train))
    np.testing.assert_array_equal(whole, apply_whitening(fitted, raw))
    np.testing.assert_allclose(whole[:300].mean(0), 0, atol=1e-6)


def test_more_skills_than_directions():
    raw = np.random.default_rng(7).standard_normal((50, 3)) @ features(8, 3, 9)
    assert embedding_loadings(raw, None).shape == (50, 3)
    assert embedding_loadings(raw, 0).shape == (50, 0)
    with pytest.raises(ValueError, match=r"num_skills: 4 is not in 0\.\.3"):
        embedding_loadings(raw, 4)
    with pytest.raises(ValueError, match=r"num_skills: 1 is not in 0\.\.0"):
        embedding_loadings(np.ones((5, 3)), 1)
    few = features(9, 4, 12)  # four rows span three centred directions
    assert embedding_loadings(few, None).shape == (4, 3)
    # Rows of float32 carry rounding noise, which is no direction.
    assert embedding_loadings(raw.astype(np.float32), None).shape == (50, 3)


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_rows_that_are_not_finite(odd):
    raw = features()
    raw[17, 3] = odd
    for call in (lambda: embedding_loadings(raw, 3), lambda: whiten(raw, 3, fit_rows=[0, 1, 2])):
        with pytest.raises(ValueError, match=f"features: the row of prompt 17 holds {odd}"):
            call()
    with pytest.raises(ValueError, match=r"features: needs shape \[N, F\]"):
        whiten(np.ones((3, 0)), 1)
    with pytest.raises(ValueError, match="fit_rows"):
        whiten(features(), 3, fit_rows=[])


def test_a_row_of_zeros_stays_finite():
    raw = features()
    raw[5] = 0
    fitted = whiten(raw, 4)
    want = -(fitted.components @ fitted.mean) * fitted.scale
    np.testing.assert_allclose(apply_whitening(fitted, raw)[5], want, rtol=1e-6)


def test_two_equal_classes_by_hand():
    # Centred one-hot rows are +-(1/2, -1/2): one direction, of variance 1/2, and coordinates
    # +-1/sqrt(2); so +-1/sqrt(1 + ridge), and no division by the null direction's zero.
    made = tag_loadings(["odd", "odd", "even", "even"], ridge=0.21)
    np.testing.assert_allclose(made, np.array([[-1], [-1], [1], [1]]) / 1.1, rtol=1e-6)
    assert tag_loadings([["odd"], ["odd"], ["even"], ["even"]], 1).shape == (4, 1)
    with pytest.raises(ValueError, match=r"num_skills: 2 is not in 0\.\.1"):
        tag_loadings(["odd", "odd", "even", "even"], 2)


def test_tags_of_subject_and_level():
    tags = [[f"subject {i % 3}", f"level {i % 4}"] for i in range(24)]
    made = tag_loadings(tags, ridge=0.0)
    # 7 tags, less one for the subjects, which sum to one, and one for the levels.
    assert made.shape == (24, 5)
    np.testing.assert_allclose(np.cov(made.T, bias=True), np.eye(5) / 5, atol=1e-5)
    same = made @ made.T
    assert same[0, 12] == pytest.approx(same[0, 0], rel=1e-5)  # equal tags, equal loadings
    assert same[0, 12] > same[0, 3] > same[0, 1]  # both tags, one tag, none in common
    assert tag_loadings([["a"], [], ["a", "b"]]).shape == (3, 2)


@pytest.fixture(scope="module")
def simulated():
    return simulate_history(np.random.default_rng(0), 300, 1, 8, 4)


def test_text_loadings_find_the_skills(simulated):
    history, truth = simulated
    made = text_loadings(history.text, 4, seed=0)
    assert made.shape == (300, 4)
    assert made.dtype == np.float32
    design = np.column_stack([np.ones(300), made])
    residual = truth.loadings - design @ np.linalg.lstsq(design, truth.loadings, rcond=None)[0]
    assert (1 - residual.var(0) / truth.loadings.var(0)).min() > 0.75  # measured .8
    shuffled = np.column_stack([np.ones(300), shuffled_loadings(made, 0)])
    fitted = shuffled @ np.linalg.lstsq(shuffled, truth.loadings, rcond=None)[0]
    assert (fitted.var(0) / truth.loadings.var(0)).max() < 0.1


def test_text_loadings_are_deterministic(simulated):
    texts = simulated[0].text.tolist()
    once = text_loadings(texts, 4, seed=0)
    np.testing.assert_array_equal(text_loadings(texts, 4, seed=1), once)  # all rows are used
    backwards = text_loadings(texts[::-1], 4, seed=0)[::-1]
    np.testing.assert_allclose(backwards, once, atol=1e-4)
    few = [text_loadings(texts, 4, seed=seed, max_svd_rows=100) for seed in (3, 3, 4)]
    np.testing.assert_array_equal(few[0], few[1])
    assert np.abs(few[0] - few[2]).max() > 1e-3
    assert fingerprint(few[0]) == fingerprint(few[1]) != fingerprint(few[2])


def test_text_loadings_fit_on_the_training_rows(simulated):
    texts = simulated[0].text.tolist()
    fitted = text_loadings(texts, 4, seed=0, fit_rows=np.arange(200))
    swapped = [*texts[:200], *texts[:100]]
    other = text_loadings(swapped, 4, seed=0, fit_rows=np.arange(200))
    np.testing.assert_allclose(other[:200], fitted[:200], atol=1e-5)
    np.testing.assert_allclose(other[200:], fitted[:100], atol=1e-5)


def test_text_loadings_refuse():
    with pytest.raises(ValueError, match=r"num_skills: 2 is not in 0\.\.0"):
        text_loadings(["the same"] * 5, 2, seed=0)
    with pytest.raises(ValueError, match="texts: prompt 1 is None"):
        text_loadings(np.array(["a text", None], object), 1, seed=0)


def test_shuffled_loadings_permute_rows():
    made = embedding_loadings(features(), 3)
    control = shuffled_loadings(made, 0)
    assert fingerprint(control) != fingerprint(made)
    np.testing.assert_array_equal(control, shuffled_loadings(made, 0))
    np.testing.assert_array_equal(np.unique(control, axis=0), np.unique(made, axis=0))
    assert (control == made).all(1).mean() < 0.05
    np.testing.assert_allclose(np.cov(control.T), np.cov(made.T), atol=1e-6)


def test_fingerprint_sees_values_shape_and_order():
    made = np.arange(6, dtype=np.float32).reshape(3, 2)
    assert fingerprint(made) == fingerprint(made.copy())
    others = [made.reshape(2, 3), made[::-1], made + np.float32(1e-3)]
    assert len({fingerprint(made), *(fingerprint(other) for other in others)}) == 4


def test_examples():
    assert doctest.testmod(module).failed == 0
