import doctest
import re

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fade_jax import door
from fade_jax.outcomes import first_invalid
from fade_jax.types import Observation

GOOD = ([3, 1, -1], [2, 8, 0], [8, 8, 0])


@pytest.mark.parametrize(
    "wrap",
    [list, tuple, np.asarray, lambda column: jnp.asarray(column, jnp.int32)],
    ids=["list", "tuple", "numpy", "jax"],
)
def test_check_observation_accepts(wrap):
    checked = door.check_observation(tuple(wrap(column) for column in GOOD), 4)
    assert isinstance(checked, Observation)
    assert all(isinstance(column, np.ndarray) for column in checked)
    assert [column.dtype.name for column in checked] == ["int32", "float32", "float32"]
    for got, want in zip(checked, GOOD, strict=True):
        np.testing.assert_array_equal(got, want)


def test_check_observation_accepts_edges():
    empty = door.check_observation(([], [], []), 4)
    assert [column.shape for column in empty] == [(0,)] * 3
    inert = door.check_observation(([2**40, 2, -7], [0, 0, 0], [0, 0, 0]), 4)
    assert inert.prompt_ids.tolist() == [-1, 2, -1]
    small = np.array([3], np.uint8), np.array([True]), jnp.asarray([2.0], jnp.bfloat16)
    assert [float(column[0]) for column in door.check_observation(small, 4)] == [3, 1, 2]
    graded = door.check_observation(([0], [2.3], [8]), 1, max_trials=8)
    np.testing.assert_allclose(graded.successes, 2.3, rtol=1e-7)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (([3, 1], [2, 9], [8, 8]), "successes: 9.0 at row 1 (prompt id 1) exceeds the trials (8)"),
        (([3, 1], [-1, 8], [8, 8]), "successes: -1.0 at row 0 (prompt id 3) is negative"),
        (([3, 1], [0, np.nan], [8, 8]), "successes: nan at row 1 (prompt id 1) is not finite"),
        (([3, 1], [0, np.inf], [8, 8]), "successes: inf at row 1 (prompt id 1) is not finite"),
        (([3, 1], [0, 0], [8, np.nan]), "trials: nan at row 1 (prompt id 1) is not finite"),
        (([3, 1], [0, 0], [np.inf, 8]), "trials: inf at row 0 (prompt id 3) is not finite"),
        (([3, 1], [0, 0], [1e39, 8]), "trials: 1e+39 at row 0 (prompt id 3) is not finite"),
        (([3, 1], [0, 0], [8, -2]), "trials: -2.0 at row 1 (prompt id 1) is negative"),
        (([3, 1], [0, 0], [8, 65]), "trials: 65.0 at row 1 (prompt id 1) exceeds max_trials = 64"),
        (([3, 1], [0, 1], [8, 0]), "successes: 1.0 at row 1 (prompt id 1) exceeds the trials (0)"),
        (([3, 4], [0, 0], [8, 8]), "prompt_ids: 4 at row 1 (prompt id 4) is not in 0..3"),
        (([-1, 1], [0, 0], [8, 8]), "prompt_ids: -1 at row 0 (prompt id -1) is not in 0..3"),
        (([3, 2**32], [0, 0], [8, 8]), "prompt_ids: 4294967296 at row 1"),
        ((np.array([2**64 - 1], np.uint64), [0], [8]), "prompt_ids: 9223372036854775807 at row 0"),
        (([3.0, 1.0], [0, 0], [8, 8]), "prompt_ids: needs integers, got float64"),
        (([True, False], [0, 0], [8, 8]), "prompt_ids: needs integers, got bool"),
        ((["3", "1"], [0, 0], [8, 8]), "prompt_ids: needs integers"),
        (([3, 1], [0], [8, 8]), "successes: 1 rows for 2 prompt_ids"),
        (([3, 1], [0, 0], [8]), "trials: 1 rows for 2 prompt_ids"),
        (([3, 1], [[0], [0]], [8, 8]), "successes: needs one axis, got shape (2, 1)"),
        ((3, 1, 8), "prompt_ids: needs one axis, got shape ()"),
        (([3, 1], [0, [0, 1]], [8, 8]), "successes: not a flat column of numbers"),
        (([3, 1], [0, None], [8, 8]), "successes: None at row 1 (prompt id 1) is not a number"),
        (([3, 1], ["0", "1"], [8, 8]), "successes: '0' at row 0 (prompt id 3) is not a number"),
        (([3, 1], [0, 0], [8, 8j]), "trials: (8+0j) at row 0"),
        (([3, 1], [0, 0]), "observation: needs (prompt_ids, successes, trials)"),
    ],
)
def test_check_observation_refuses(rows, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        door.check_observation(rows, 4, max_trials=64)


odd_numbers = st.sampled_from([0.0, 1.0, 3.0, 8.0, -1.0, 9.0, np.nan, np.inf, -np.inf])


@settings(max_examples=200, deadline=None, database=None, derandomize=True)
@given(
    st.lists(st.integers(-2, 6), min_size=4, max_size=4),
    st.lists(odd_numbers, min_size=4, max_size=4),
    st.lists(odd_numbers, min_size=4, max_size=4),
)
def test_the_door_and_the_compiled_flag_agree(ids, successes, trials):
    """Field report 76: what the host refuses is just what `first_invalid` flags, with its id."""
    rows = np.array(ids, np.int32), np.float32(successes), np.float32(trials)
    flag = int(first_invalid(Observation(*(jnp.asarray(column) for column in rows)), 5))
    if flag < 0:
        checked = door.check_observation(rows, 5)
        assert ((checked.prompt_ids >= 0) | (checked.trials == 0)).all()
        assert (checked.successes <= checked.trials).all()
    else:
        with pytest.raises(ValueError, match=r"at row \d \(prompt id (-?\d)\)") as error:
            door.check_observation(rows, 5)
        [(row, prompt_id)] = re.findall(r"row (\d) \(prompt id (-?\d)\)", str(error.value))
        assert ids[int(row)] == int(prompt_id)
        assert int(row) >= flag


def test_pad_observation():
    padded = door.pad_observation(door.check_observation(GOOD, 4), 5)
    assert padded.prompt_ids.tolist() == [3, 1, -1, -1, -1]
    assert padded.successes.tolist() == [2, 8, 0, 0, 0]
    assert padded.trials.tolist() == [8, 8, 0, 0, 0]
    assert [column.dtype.name for column in padded] == ["int32", "float32", "float32"]
    assert len(door.pad_observation(padded, 5).trials) == 5
    with pytest.raises(ValueError, match="size: 4 is less than the 5 rows"):
        door.pad_observation(padded, 4)


def test_missing_verdicts_are_no_failures():
    """Field reports 56 and 57."""
    groups = [[1, None, 0, None], [None] * 4, [True, False, 0.5], []]
    seen, missing = door.observation_from_groups([7, 9, 2, 4], groups)
    assert seen.prompt_ids.tolist() == [7, 9, 2, 4]
    assert seen.successes.tolist() == [1, 0, 1.5, 0]
    assert seen.trials.tolist() == [2, 0, 3, 0]
    assert missing.tolist() == [2, 4, 0, 0]
    checked = door.check_observation(seen, 10)
    np.testing.assert_array_equal(checked.trials, seen.trials)


def test_segments_of_a_trajectory_are_one_outcome():
    """Field report 16."""
    groups = [[[1, 1, 1], [0]], [(None, None, 1), [None], np.array([0.5, 0.5]), 0]]
    seen, missing = door.observation_from_groups([7, 9], groups)
    assert seen.successes.tolist() == [1, 1.5]
    assert seen.trials.tolist() == [2, 3]
    assert missing.tolist() == [0, 1]


def test_groups_may_be_a_matrix():
    seen, missing = door.observation_from_groups(np.array([1, 0]), np.array([[1, 0, 1], [0, 0, 0]]))
    assert seen.successes.tolist() == [2, 0]
    assert missing.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("verdict", "shown"),
    [
        (np.nan, "nan"),
        (np.inf, "inf"),
        (-1, "-1"),
        (1.5, "1.5"),
        ("error", "'error'"),
        (2j, "2j"),
    ],
)
def test_odd_verdicts_name_the_prompt(verdict, shown):
    message = re.escape(f"groups: verdict {shown} of prompt id 9 is not in 0..1")
    with pytest.raises(ValueError, match=message):
        door.observation_from_groups([7, 9], [[1], [0, verdict]])


@pytest.mark.parametrize("trajectory", [[1, 0], [0.5, 1, 1], []])
def test_segments_that_disagree_name_the_prompt(trajectory):
    with pytest.raises(ValueError, match="trajectory of prompt id 9"):
        door.observation_from_groups([7, 9], [[1], [0, trajectory]])


def test_groups_and_ids_must_match():
    with pytest.raises(ValueError, match="groups: 1 groups for 2 prompt_ids"):
        door.observation_from_groups([7, 9], [[1]])
    with pytest.raises(ValueError, match="prompt_ids: needs integers"):
        door.observation_from_groups(np.array([7.0]), [[1]])
    wide, _ = door.observation_from_groups([2**32 + 1], [[1]])
    with pytest.raises(ValueError, match="prompt_ids"):
        door.check_observation(wide, 4)


def test_kept_rows_stay_aligned():
    """Field report 9."""
    rewards = [0.1, 0.2, 0.3, 0.4]
    seen, missing = door.observation_from_rows([7, 7, 9, 9], rewards, keep=[0, 0, 1, 1])
    assert seen.prompt_ids.tolist() == [9]
    np.testing.assert_allclose(seen.successes, [0.7], rtol=1e-6)
    assert seen.trials.tolist() == [2]
    assert missing.tolist() == [0]
    interleaved, _ = door.observation_from_rows(np.array([9, 7, 9, 7]), [1, 0, None, 1])
    assert interleaved.prompt_ids.tolist() == [9, 7]
    assert interleaved.successes.tolist() == [1, 1]
    assert interleaved.trials.tolist() == [1, 2]
    with pytest.raises(ValueError, match="verdicts: 4 prompt_ids, 4 verdicts, 2 keep flags"):
        door.observation_from_rows([7, 7, 9, 9], rewards, keep=[0, 1])


def test_examples():
    assert doctest.testmod(door).failed == 0
