"""From a run's records to a history, and back to batches: cases small enough to write out."""

import doctest

import numpy as np
import pytest

from fade_jax import histories, recording
from fade_jax.histories import History
from fade_jax.pool import content_key
from fade_jax.replay import to_batches

TEXT = np.array(["add 1 ; 2 =", "sort 3 1 =", "reverse 4 ="])


def groups(**changes):
    fields = {
        # Iteration 1 leaves its last slot unused; in iteration 2 nobody judged prompt 0.
        "prompt_ids": np.array([[2, 0, 1], [1, 2, -1], [0, 1, 2]], np.int32),
        "successes": np.array([[8, 0, 3], [2, 5, 0], [0, 1, 8]], np.float32),
        "trials": np.array([[8, 8, 8], [8, 6, 0], [0, 7, 8]], np.float32),
        "stepped": np.array([True, False, True]),
    }
    return fields | changes


def record(**changes):
    source = np.array([0, 2, 1], np.int32)
    return recording.from_groups(**groups(**changes), text=TEXT, source=source, meta={"a": 1})


def test_records_by_hand():
    history = record()
    assert history.step.tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert history.prompt_id.tolist() == [2, 0, 1, 1, 2, 1, 2]
    assert history.successes.tolist() == [8, 0, 3, 2, 5, 1, 8]
    assert history.trials.tolist() == [8, 8, 8, 8, 6, 7, 8]
    # The policy of iteration 2 had made one step: iteration 1 learnt nothing.
    assert history.policy_step.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert history.prompt_key.tolist() == [content_key(str(text)) for text in TEXT]
    assert history.text is not None and history.text.tolist() == TEXT.tolist()
    assert history.source.tolist() == [0, 2, 1] and history.meta == {"a": 1}


def test_a_recorded_history_survives_its_file(tmp_path):
    histories.save_history(tmp_path / "history.npz", record())
    loaded = histories.load(tmp_path / "history.npz")
    for name in set(History._fields) - {"meta"}:
        np.testing.assert_array_equal(getattr(loaded, name), getattr(record(), name))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trials": np.zeros((3, 2), np.float32)}, r"trials: needs shape \(3, 3\)"),
        ({"stepped": np.array([True])}, r"stepped: needs shape \(3,\)"),
        ({"successes": np.full((3, 3), 0.5, np.float32)}, "successes: 0.5 is not a count"),
        ({"trials": np.full((3, 3), np.nan, np.float32)}, "trials: nan is not a count"),
        ({"prompt_ids": np.full((3, 3), 3, np.int32)}, "prompt_id: 3 at row 0 is not in 0..2"),
        ({"successes": np.full((3, 3), 9, np.float32)}, "successes: 9 at row 0 .* not in 0..trial"),
    ],
)
def test_bad_records_are_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        record(**change)


def test_visits_by_hand():
    visits = histories.by_visit(record())
    assert visits.step.tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert visits.prompt_id.tolist() == [2, 0, 1, 1, 2, 1, 2]
    # Prompt 1 is met first at iteration 1 here; its first visit still comes to step 0.
    late = record(
        prompt_ids=np.array([[2, 0, -1], [1, 2, -1], [-1, 1, 2]], np.int32),
        trials=np.array([[8, 8, 0], [8, 6, 0], [0, 7, 8]], np.float32),
    )
    visits = histories.by_visit(late)
    assert visits.step.tolist() == [0, 0, 0, 1, 1, 2]
    assert visits.prompt_id.tolist() == [2, 0, 1, 2, 1, 2]
    assert visits.successes.tolist() == [8, 0, 2, 5, 1, 8]
    assert visits.policy_step.tolist() == [0, 0, 1, 1, 1, 1]
    assert visits.meta == {"a": 1, "step": "visit"}
    histories.check_history(visits)
    trials = histories.dense_array(visits)[1]
    assert trials.tolist() == [[8, 8, 8], [0, 7, 6], [0, 0, 8]]


def test_visits_of_nothing():
    nothing = record(trials=np.zeros((3, 3), np.float32))
    assert len(histories.by_visit(nothing).step) == 0


def test_batches_by_hand():
    batches = to_batches(record(), steps_per_unit=2.0)
    assert batches.prompt_ids.tolist() == [[2, 0, 1], [1, 2, 0], [1, 2, 0]]
    assert batches.successes.tolist() == [[8, 0, 3], [2, 5, 0], [1, 8, 0]]
    assert batches.trials.tolist() == [[8, 8, 8], [8, 6, 0], [7, 8, 0]]
    # One optimiser step, half a unit; then none.
    assert batches.elapsed.tolist() == [0.5, 0.0, 0.0]


def test_batches_of_a_policy_that_changed_within_a_step_are_refused():
    history = record()
    with pytest.raises(ValueError, match="policy_step: 5 at row 1"):
        to_batches(history._replace(policy_step=np.array([0, 5, 0, 1, 1, 1, 1], np.int32)))
    with pytest.raises(ValueError, match="policy_step: falls"):
        to_batches(history._replace(policy_step=np.array([3, 3, 3, 1, 1, 1, 1], np.int32)))
    with pytest.raises(ValueError, match="history: has no rows"):
        to_batches(record(trials=np.zeros((3, 3), np.float32)))


def test_examples():
    assert doctest.testmod(recording).failed == 0
