"""The live experiments: what they compare by hand, and, slow, from end to end."""

import dataclasses
import json
import math
import os
from typing import Any, get_args

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from experiments import (
    intervals,
    live_run,
    quickstart,
    run_folder,
    run_identity,
    run_summary,
    setting_check,
    settings,
    train,
)
from paced_jax import piece_timings
from paced_jax.metrics import read_json_lines
from paced_jax.training import TrainConfig


def summary(scheduler, seed, informative, curve, test=0.5):
    return {
        "scheduler": scheduler,
        "seed": seed,
        "rollouts": 512,
        "tokens": 4000,
        "informative_realised": informative,
        "informative_predicted": 0.5,
        "informative_brier": 0.2,
        "informative_ece": 0.1,
        "informative_ece_floor": 0.01,
        "pass_rate_rmse": 0.3,
        "distinct_prompts": 60,
        "iteration_seconds": 0.1,
        "compile_seconds": 1.0,
        "mean_beta_kl": 0.001,
        "greatest_log_prob_gap": 1e-6,
        "validation": [{"pass_at_1": value} for value in curve],
        "test": {"pass_at_1": test, "pass_at_2": 0.6, "pass_at_2_standard_error": 0.01},
    }


RUNS = {
    "uniform": [summary("uniform", 0, 0.2, [0.3, 0.4]), summary("uniform", 1, 0.4, [0.3, 0.5])],
    "fade": [summary("fade", 0, 0.6, [0.3, 0.7]), summary("fade", 1, 0.6, [0.3, 0.9])],
}


def test_interval_by_hand():
    got = intervals.of([1.0, 2.0, 3.0])
    # Student's t with 2 degrees of freedom at .975 is 4.302653; sd 1, so half = 4.302653 / sqrt 3
    assert got["low"] == pytest.approx(2 - 4.302653 / math.sqrt(3), abs=1e-6)
    assert got["high"] == pytest.approx(2 + 4.302653 / math.sqrt(3), abs=1e-6)
    assert intervals.show(got) == "2.000 (-0.484 to 4.484)"
    assert intervals.of([0.25])["low"] is None and intervals.show(intervals.of([0.25])) == "0.250"


def test_comparison_is_paired_by_seed():
    results = quickstart.compare(RUNS)
    fade, pairs = results["methods"]["fade"], results["minus_uniform"]["fade"]
    assert fade["validation_end"]["mean"] == pytest.approx(0.8)
    assert fade["validation_mean"]["values"] == pytest.approx([0.5, 0.6])
    np.testing.assert_allclose(pairs["informative_realised"]["values"], [0.4, 0.2])
    np.testing.assert_allclose(pairs["validation_end"]["values"], [0.3, 0.4])
    # t at 1 degree of freedom is 12.7062; the differences .4 and .2 have a standard error of .1
    assert pairs["informative_realised"]["low"] == pytest.approx(0.3 - 12.7062 * 0.1, abs=1e-4)
    assert "uniform" not in results["minus_uniform"]
    rows = {row[0]: row for row in quickstart.table(results)}
    assert len(rows["fade"]) == len(quickstart.header(8))
    assert rows["fade"][1:4] == ("0.600", "0.800", "0.550")
    assert "one seed" in quickstart.notes(results, 1)[-1].lower()


def test_tables_show_counts_as_people_write_them():
    table = run_folder.markdown_table(
        ("a", "b"), [(19200.0, 2560), (0.12345, True), (999.6, 7), (None, np.int64(8192))]
    )
    assert table.splitlines()[2:] == [
        "| 19,200 | 2,560 |",
        "| 0.1235 | True |",
        "| 999.6 | 7 |",
        "| – | 8,192 |",
    ]
    counts = {"mean": 5372.4, "low": 900.2, "high": 6000.0}
    assert intervals.show(counts) == "5,372 (900 to 6,000)"
    assert run_folder.counted(1, "seed") == "1 seed" and run_folder.counted(3, "seed") == "3 seeds"
    assert run_folder.shown("pass_at_32") == "pass@32"
    assert run_folder.shown("pass_at_2_standard_error") == "pass@2_standard_error"


def test_only_what_ran_is_explained():
    assert quickstart.replays(("uniform", "fade"), 32) == ""
    both = quickstart.replays(("uniform", "paced", "paced_no_replay"), 32)
    assert both.startswith(" `paced` also replays up to 32") and "`paced_no_replay`" in both
    assert "paced_no_replay" not in quickstart.replays(("paced",), 32)
    assert quickstart.of_seeds((3,)) == "seed 3"
    assert quickstart.of_seeds((0, 1)) == "means of seeds [0, 1]"


def test_setting_check_by_hand():
    runs = {"uniform": RUNS["uniform"], "oracle": RUNS["fade"]}
    assert setting_check.compare(runs)["ratio"] == pytest.approx(0.6 / 0.3)


def test_summary_of_groups_by_hand():
    groups = {
        "prompt_ids": np.array([[3, 1, -1], [3, 0, 2]]),
        "successes": np.array([[2.0, 0.0, 0.0], [4.0, 1.0, 0.0]]),
        "trials": np.array([[4.0, 4.0, 0.0], [4.0, 4.0, 0.0]]),
        "predicted": np.array([[0.5, 0.25, 0.0], [0.5, 0.25, 0.9]]),
        "informative": np.array([[0.9, 0.5, 0.0], [0.9, 0.5, 0.9]]),
        "degenerate": np.array([[False, True, True], [True, False, True]]),
    }
    got = run_summary.of_groups(groups)
    assert got["groups"] == 4  # the empty slot and the group without verdicts don't count
    assert got["informative_realised"] == 0.5
    assert got["informative_predicted"] == pytest.approx(0.7)
    assert got["informative_brier"] == pytest.approx((0.01 + 0.25 + 0.81 + 0.25) / 4)
    assert got["pass_rate_bias"] == pytest.approx(((0.5 + 0.25 + 0.5 + 0.25) - 1.75) / 4)
    # squared errors less y (G - y) / (G^2 (G - 1)): 0 - 4/48, .0625 - 0, .25 - 0, 0 - 3/48
    assert got["pass_rate_rmse"] == pytest.approx(math.sqrt((0.3125 - 7 / 48) / 4))


@pytest.mark.parametrize(
    ("config", "field", "value"),
    [
        (quickstart.Config, "seeds", ()),
        (quickstart.Config, "seeds", (1, 1)),
        (quickstart.Config, "methods", ()),
        (quickstart.Config, "iterations", 15),
        (setting_check.Config, "seeds", ()),
        (live_run.Watch, "eval_every", 0),
        (live_run.Watch, "oracle_rollouts", 12),
    ],
)
def test_bad_configurations_name_the_field(config, field, value):
    with pytest.raises(ValueError, match=field):
        config(**{field: value})


WATCH = live_run.Watch(eval_every=10, eval_group_size=1, test_group_size=2)


@pytest.mark.slow
def test_quickstart_from_end_to_end(tmp_path):
    config = quickstart.Config(
        methods=("uniform", "paced"), seeds=(0, 1), iterations=20, out=tmp_path, watch=WATCH
    )
    results = quickstart.main(config)
    for name, columns in results["methods"].items():
        assert columns["rollouts"]["values"] == [20 * 256] * 2, name
        folder = tmp_path / "runs" / name / "seed_1"
        lines = read_json_lines(folder / "metrics.jsonl")
        assert [line["iteration"] for line in lines] == list(range(20))
        assert lines[-1]["rollouts"] == 20 * 256
        with np.load(folder / "groups.npz") as groups:
            np.testing.assert_allclose(
                (~groups["degenerate"]).mean(axis=1),
                [line["informative_realised"] for line in lines],
            )
            assert groups["prompt_ids"].shape == (20, 32)
        events = EventAccumulator(str(folder / "tensorboard")).Reload()
        np.testing.assert_allclose(
            [event.value for event in events.Scalars("pass_rate")],
            [line["pass_rate"] for line in lines],
            rtol=1e-6,
        )
        looks = read_json_lines(folder / "evaluation" / "metrics.jsonl")
        assert [look["iteration"] for look in looks] == [0, 10, 20]
    for name in ("progress.png", "calibration.png", "chosen.png", "report.md", "results.json"):
        assert (tmp_path / name).stat().st_size > 0

    # A folder of finished runs is read, not run again.
    before = {path: os.stat(path).st_mtime_ns for path in tmp_path.glob("runs/*/*/summary.json")}
    again = quickstart.main(config)
    assert again == results
    assert {path: os.stat(path).st_mtime_ns for path in before} == before
    # and refused when it holds something else
    with pytest.raises(ValueError, match=r"another run \(iterations\)"):
        quickstart.main(
            quickstart.Config(
                methods=("uniform",), seeds=(0,), iterations=10, out=tmp_path, watch=WATCH
            )
        )


@pytest.mark.slow
def test_train_from_end_to_end(tmp_path):
    from paced_jax.policy.base_policies import load_base_policy

    sizes: dict[str, Any] = {"iterations": 4, "chunk": 2, "num_prompts": 8, "num_train": 800}
    config = train.Config(
        scheduler="fade",
        objective="grpo",
        loadings="skill",
        out=tmp_path,
        watch=dataclasses.replace(WATCH, profile=True),
        **sizes,
    )
    result = train.main(config)
    first, *others = read_json_lines(tmp_path / "run" / "metrics.jsonl")
    for piece in piece_timings.PIECES:
        assert first[f"{piece}_seconds"] == pytest.approx(result[f"{piece}_seconds"]) and (
            result[f"{piece}_seconds"] > 0
        )
        assert all(f"{piece}_seconds" not in line for line in others)
    assert result["rollouts"] == 4 * 64
    stored = json.loads((tmp_path / "results.json").read_text())
    assert stored["config"]["loadings"] == "skill" and stored["summary"]["updates"] >= 1
    trained, base = load_base_policy("policy", tmp_path), load_base_policy("tiny")
    assert trained.params["embedding"].dtype == np.float32
    moved = np.abs(np.asarray(trained.params["embedding"]) - np.asarray(base.params["embedding"]))
    assert 0 < moved.max() < 0.1

    estimate = train.main(train.Config(dry_run=True, out=tmp_path / "none", watch=WATCH, **sizes))
    assert estimate["rollouts"] == 4 * 64
    assert 0 < estimate["tokens_expected"] < estimate["tokens_at_most"] == 4 * 64 * 12
    assert not (tmp_path / "none").exists()
    for piece in piece_timings.PIECES:
        assert estimate[f"{piece}_seconds"] > 0


def test_looking_between_chunks_is_refused_before_anything_is_written(tmp_path):
    config = train.Config(out=tmp_path / "none", watch=live_run.Watch(eval_every=15))
    with pytest.raises(
        ValueError, match=r"watch\.eval_every must be a multiple of chunk = 10, got 15"
    ):
        train.main(config)
    assert not (tmp_path / "none").exists()


def test_a_stored_run_of_something_else_is_refused_by_name(tmp_path):
    config, watch = TrainConfig(), live_run.Watch()
    stored = run_identity.identity(config, watch)
    (tmp_path / "config.json").write_text(json.dumps(stored))
    run_identity.check_same(tmp_path, config, watch)
    for other, look, part in (
        (dataclasses.replace(config, seed=1), watch, r"run \(seed\)"),
        (config, dataclasses.replace(watch, eval_every=10), r"watch \(eval_every\)"),
    ):
        with pytest.raises(ValueError, match=f"holds a run of another {part}"):
            run_identity.check_same(tmp_path, other, look)
    (tmp_path / "config.json").write_text(json.dumps(stored | {"format": 1}))
    with pytest.raises(ValueError, match="another format"):
        run_identity.check_same(tmp_path, config, watch)


def test_training_part_keeps_every_field():
    config = train.Config(scheduler="mopps", seed=3, exploration=0.4)
    assert train.training_part(config) == TrainConfig(scheduler="mopps", seed=3, exploration=0.4)


def test_every_method_is_a_training_run():
    assert tuple(settings.METHODS) == get_args(settings.MethodName)
    for name, changes in settings.METHODS.items():
        config = dataclasses.replace(settings.TINY, **changes)
        assert config.scheduler == name.split("_")[0]
