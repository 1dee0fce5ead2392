"""Log lines from Records worked out by hand."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fade_jax.driver import Record
from fade_jax.run_state import LearnReport
from fade_jax.types import Info, Observation, SelectInfo
from paced_jax.learning import LearnMetrics
from paced_jax.pieces import SampleMetrics
from paced_jax.run_metrics import Tally


def flags(*x) -> Any:
    return np.array(x, bool)


def floats(*x) -> Any:
    return np.array(x, np.float32)


def whole(*x) -> Any:
    return np.array(x, np.int32)


def records(**changes) -> Record:
    """Two iterations of three slots, group size 4; the second has an unused slot and did not learn.

    Iteration 5: prompts 7, 2, 4; successes 1 of 4, 4 of 4, 0 of 3: one verdict is missing.
    Iteration 6: prompts 2, 9; successes 2 of 4, 0 of 4.
    """
    report = LearnReport(
        stepped=flags(True, False),
        elapsed=floats(1, 0),
        bad_prompt=whole(-1, -1),
        metrics=LearnMetrics(*(floats(i / 8, 0) for i in range(len(LearnMetrics._fields)))),
    )
    fields = {
        "iteration": whole(5, 6),
        "live": flags(True, True),
        "observation": Observation(
            whole([7, 2, 4], [2, 9, -1]),
            floats([1, 4, 0], [2, 0, 0]),
            floats([4, 4, 3], [4, 4, 0]),
        ),
        "missing": floats([0, 0, 1], [0, 0, 0]),
        "degenerate": flags([False, True, True], [False, True, True]),
        "predicted": floats([0.5, 0.75, 0.25], [0.5, 0.5, 0]),
        "informative": floats([1, 0.5, 0.5], [0.75, 0.25, 0]),
        "select_info": SelectInfo(
            expected_informative=floats(2, 1),
            planned_rollouts=whole(12, 4),
            shortfall=whole(0, 8),
            low_signal=flags(False, True),
        ),
        "tracker_info": Info(floats(-3.5, -2.25), floats(1.25, 0.5)),
        "ready": flags(True, False),
        "sample_metrics": SampleMetrics(whole(40, 31), floats(0.25, 0.5)),
        "learn": report,
    }
    return Record(**(fields | changes))


BASE = np.arange(10) / 10
LENGTH = np.array([1, 1, 2, 2, 3, 3, 4, 4, 5, 5])


def test_figures_by_hand():
    tally = Tally(10, {"length": LENGTH, "base": BASE})
    (first, one), (second, two) = tally.figures(records())
    assert (first, second) == (5, 6)
    learnt = {name: i / 8 for i, name in enumerate(LearnMetrics._fields)}
    expected = learnt | {
        "rollouts": 12,
        "tokens": 40,
        "stepped": 1,
        "pass_rate": (1 / 4 + 1 + 0) / 3,
        "informative_realised": 1 / 3,
        "informative_predicted": 2 / 3,
        "informative_brier": (0 + 1 / 4 + 1 / 4) / 3,
        "pass_rate_predicted": 1 / 2,
        "pass_rate_absolute_error": (1 / 4 + 1 / 4 + 1 / 4) / 3,
        "pass_rate_bias": (1 / 4 - 1 / 4 + 1 / 4) / 3,
        "tracker_log_evidence": -3.5,
        "tracker_nis": 1.25,
        # Field reports 2 and 13: planned and realised are logged, whatever the scheduler.
        "informative_groups": 1,
        "expected_informative_groups": 2,
        "planned_rollouts": 12,
        "shortfall": 0,
        "low_signal": 0,
        "missing_verdicts": 1,
        "distinct_prompts": 3,
        "sampled_tokens": 40,
        "cut_off": 0.25,
        "chosen_length": (4 + 2 + 3) / 3,
        "chosen_base": (0.7 + 0.2 + 0.4) / 3,
    }
    assert set(one) == set(expected)
    for name, figure in expected.items():
        assert one[name] == pytest.approx(figure, abs=1e-6), name
    expected = {
        "rollouts": 20,
        "tokens": 71,
        "stepped": 0,
        "pass_rate": 1 / 4,
        "informative_realised": 1 / 2,
        "informative_predicted": 1 / 2,
        "informative_brier": (1 / 16 + 1 / 16) / 2,
        "pass_rate_predicted": 1 / 2,
        "pass_rate_absolute_error": 1 / 4,
        "pass_rate_bias": 1 / 4,
        "tracker_log_evidence": -2.25,
        "tracker_nis": 0.5,
        "informative_groups": 1,
        "expected_informative_groups": 1,
        "planned_rollouts": 4,
        "shortfall": 8,
        "low_signal": 1,
        "missing_verdicts": 0,
        "distinct_prompts": 4,
        "sampled_tokens": 31,
        "cut_off": 0.5,
        "chosen_length": (2 + 5) / 2,
        "chosen_base": (0.2 + 0.9) / 2,
    }
    assert set(two) == set(expected)  # nothing of a step that was not taken
    for name, figure in expected.items():
        assert two[name] == pytest.approx(figure, abs=1e-6), name
    assert all(type(x) is float for line in (one, two) for x in line.values())


def test_counts_go_on_over_chunks():
    tally = Tally(10)
    tally.figures(records())
    later = records(iteration=whole(7, 8))
    lines = tally.figures(later)
    assert [line["rollouts"] for _, line in lines] == [32, 40]
    assert [line["tokens"] for _, line in lines] == [111, 142]
    assert [line["distinct_prompts"] for _, line in lines] == [4, 4]
    assert not any(name.startswith("chosen_") for name in lines[0][1])


def test_a_dead_iteration_gives_no_line_and_counts_nothing():
    tally = Tally(10)
    ((iteration, line),) = tally.figures(records(live=flags(True, False)))
    assert iteration == 5 and line["rollouts"] == 12
    assert tally.rollouts == 12 and tally.tokens == 40 and not tally.seen[9]


def test_an_iteration_without_a_verdict_has_no_rates():
    nothing = floats([0, 0, 0], [0, 0, 0])
    ids = records().observation.prompt_ids
    seen = records(
        observation=Observation(ids, nothing, nothing), missing=floats([4, 4, 4], [4, 4, 0])
    )
    lines = [line for _, line in Tally(10).figures(seen)]
    assert [line["rollouts"] for line in lines] == [12, 20]
    assert [line["missing_verdicts"] for line in lines] == [12, 8]
    for name in ("pass_rate", "informative_brier", "pass_rate_bias"):
        assert all(np.isnan(line[name]) for line in lines)


def test_records_from_the_device_read_the_same():
    here = Tally(10, {"length": LENGTH}).figures(records())
    there = jax.device_get(jax.tree.map(jnp.asarray, records()))
    assert Tally(10, {"length": LENGTH}).figures(there) == here
