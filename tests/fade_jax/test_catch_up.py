"""Catching up: windows and bars by hand, the bootstrap against a plain one."""

import doctest

import numpy as np
import pytest

from fade_jax import catch_up
from fade_jax.catch_up import first_caught_up, moving_means, prompt_samples


def test_moving_means_equal_a_plain_average():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(7, 4))
    ids = rng.integers(5, size=(7, 4))
    scored = rng.random((7, 4)) < 0.8
    samples = prompt_samples(rng, 3, 5)
    got = moving_means(values, ids, scored, samples, 3)
    assert got.shape == (4, 5)
    for sample in range(4):
        for start in range(5):
            part = slice(start, start + 3)
            weights = samples[sample][ids[part]] * scored[part]
            want = (weights * values[part]).sum() / weights.sum()
            np.testing.assert_allclose(got[sample, start], want, rtol=1e-12)
    # Row 0 is the data.
    np.testing.assert_allclose(got[0, 2], values[2:5][scored[2:5]].mean(), rtol=1e-12)


def test_samples_draw_whole_prompts():
    samples = prompt_samples(np.random.default_rng(1), 2000, 10)
    assert (samples[0] == 1).all() and (samples.sum(1) == 10).all()
    # Counts are multinomial, variance .9; 20,000 of them: standard error of the mean .0067.
    assert abs(samples[1:].mean() - 1) < 1e-12 and abs(samples[1:].var() - 0.9) < 0.05


REFERENCE = np.array([[9.0, 6.0, 3.0, 4.0, 2.0]])


@pytest.mark.parametrize(
    ("curve", "start", "want"),
    [
        ([3, 3, 3, 3, 3], 2, 0),  # the reference falls to 2 at the end; the bar stays at 3
        ([3, 3, 3, 4, 3], 2, 0),  # at the bar from the start; 4 is no more than the reference's
        ([3, 5, 3, 4, 1], 2, 2),  # above it once: it did not stay
        ([2, 2, 2, 4.1, 2], 2, 4),
        ([9, 6, 3, 4, 2], 2, 2),  # the reference itself
        ([9, 6, 3, 4, 2], 0, 0),
        ([1, 1, 1, 1, 3.5], 2, np.inf),
        ([1, 1, 1, 1, np.nan], 2, np.inf),
    ],
)
def test_the_bar_by_hand(curve, start, want):
    got = first_caught_up(np.array([curve], float), REFERENCE, start)
    assert got.tolist() == [want]


def test_interval_over_samples():
    # Row 0 is the data; of four samples one never gets there.
    curve = np.array([[5, 1, 1], [1, 1, 1], [5, 1, 1], [5, 5, 1], [5, 5, 5]], float)
    reference = np.array([[9, 2, 2]] * 5, float)
    got = catch_up.catch_up(curve, reference, 1, level=0.5)
    assert got == (1.0, 0.0, 2.0, 0.75)
    assert catch_up.catch_up(curve, reference, 1, level=0.9).high == np.inf


def test_what_does_not_fit_is_refused_by_name():
    with pytest.raises(ValueError, match=r"start: 5 is not in 0\.\.4"):
        first_caught_up(REFERENCE, REFERENCE, 5)
    zeros = np.zeros((2, 1))
    with pytest.raises(ValueError, match=r"window: 3 is not in 1\.\.2"):
        moving_means(zeros, zeros.astype(int), zeros == 0, np.ones((1, 1)), 3)


def test_examples():
    assert doctest.testmod(catch_up).failed == 0
