"""Curves of runs and their comparison, on logs written by hand."""

import json
import math
import shutil

import numpy as np
import pytest

from experiments import compare, curves
from paced_jax.metrics import open_writers


def write_run(folder, *, rates=(0.2, 0.4, 0.6), tokens=10.0, seconds=(1.0, 5.0), ended=True):
    """Two iterations of 8 rollouts, looked at before, between and after."""
    folder.mkdir(parents=True)
    run = {"seed": 0, "scheduler": "uniform"}
    (folder / "config.json").write_text(json.dumps({"run": run}))
    with open_writers(folder, tensorboard=False) as writer:
        for i in range(2):
            line = {"rollouts": 8.0 * (i + 1), "tokens": tokens * (i + 1) ** 2, "loss": 3.0 - i}
            writer.write(i, line | {"iteration_seconds": seconds[i]})
    with open_writers(folder / "evaluation", tensorboard=False) as writer:
        for i, rate in enumerate(rates):
            writer.write(i, {"pass_at_1": rate, "loss": 7.0})
    if ended:
        (folder / "summary.json").write_text("{}")
    return folder


def test_costs_by_hand(tmp_path):
    logs = curves.read_run(write_run(tmp_path / "a"))
    np.testing.assert_array_equal(curves.costs(logs, "iterations"), [0, 1, 2])
    np.testing.assert_array_equal(curves.costs(logs, "rollouts"), [0, 8, 16])
    np.testing.assert_array_equal(curves.costs(logs, "tokens"), [0, 10, 40])
    np.testing.assert_array_equal(curves.costs(logs, "seconds"), [0, 3, 6])  # the median is 3
    assert logs.finished


def test_series_know_when_their_values_were_taken(tmp_path):
    logs = curves.read_run(write_run(tmp_path / "a"))
    # An evaluation is of the policy before the iteration, a line of what the iteration did.
    x, y = curves.series(logs, "pass_at_1", "tokens")
    np.testing.assert_array_equal(x, [0, 10, 40])
    np.testing.assert_allclose(y, [0.2, 0.4, 0.6])
    x, y = curves.series(logs, "iteration_seconds", "rollouts")
    np.testing.assert_array_equal(x, [8, 16])
    np.testing.assert_array_equal(y, [1, 5])
    _, y = curves.series(logs, "loss", "rollouts")
    np.testing.assert_array_equal(y, [7, 7, 7])  # evaluations first
    with pytest.raises(ValueError, match=r"no 'pass_at_9'; it has .*pass_at_1"):
        curves.series(logs, "pass_at_9", "rollouts")


def test_evaluations_are_not_smoothed(tmp_path):
    logs = curves.read_run(write_run(tmp_path / "a"))
    _, looks = curves.smooth_series(logs, "pass_at_1", "tokens", 2)
    np.testing.assert_allclose(looks, [0.2, 0.4, 0.6])
    x, lines = curves.smooth_series(logs, "iteration_seconds", "rollouts", 2)
    np.testing.assert_array_equal(x, [8, 16])
    np.testing.assert_allclose(lines, [1, 3])


def test_reaching_a_target_by_hand():
    x, y = np.array([0.0, 10.0, 20.0, 30.0]), np.array([0.1, 0.3, 0.2, 0.5])
    assert curves.reaches(x, y, 0.2) == pytest.approx(5.0)
    assert curves.reaches(x, y, 0.4) == pytest.approx(20 + 10 * 2 / 3)
    assert curves.reaches(x, y, 0.1) == 0.0
    assert curves.reaches(x, y, 0.51) == math.inf
    assert curves.reaches(x, np.array([0.1, np.nan, 0.3, 0.4]), 0.4) == 30.0
    # over a gap by a straight line: half way from 0 to 20
    assert curves.reaches(x, np.array([0.1, np.nan, 0.3, 0.4]), 0.2) == pytest.approx(10.0)
    assert curves.reaches(x, np.full(4, np.nan), 0.2) == math.inf


def test_smoothing_by_hand():
    got = curves.smoothed(np.array([1.0, np.nan, 5.0, 7.0]), 2)
    np.testing.assert_allclose(got, [1, 1, 5, 6])
    assert np.isnan(curves.smoothed(np.array([np.nan, 1.0]), 2)[0])


def test_compare_groups_seeds_and_shows_unfinished_runs(tmp_path):
    for seed, top in ((0, 0.6), (1, 0.8)):
        write_run(tmp_path / "fade" / f"seed_{seed}", rates=(0.2, 0.4, top))
    write_run(tmp_path / "one" / "run", ended=False)
    config = compare.Config(
        runs=(tmp_path / "fade", tmp_path / "one"),
        metrics=("pass_at_1", "tokens"),
        against="iterations",
        out=tmp_path / "out",
    )
    rows = compare.main(config)["runs"]
    assert list(rows) == ["fade", "one"]
    assert rows["fade"]["pass_at_1"]["end"]["values"] == pytest.approx([0.6, 0.8])
    assert rows["fade"]["pass_at_1"]["mean"]["mean"] == pytest.approx((0.4 + 1.4 / 3) / 2)
    assert rows["fade"]["iterations"]["mean"] == 2 and rows["fade"]["unfinished"] == 0
    assert rows["one"]["seeds"] == 1 and rows["one"]["unfinished"] == 1
    assert rows["one"]["tokens"]["end"]["mean"] == 40
    text = (tmp_path / "out" / "report.md").read_text()
    assert "1 (1 unfinished)" in text and (tmp_path / "out" / "compare.png").stat().st_size > 0


def test_runs_that_are_being_written_are_shown_as_far_as_they_are(tmp_path, capsys):
    write_run(tmp_path / "good")
    ahead = write_run(tmp_path / "ahead", ended=False)  # its second line came after its last look
    (ahead / "metrics.jsonl").write_text(
        (ahead / "metrics.jsonl").read_text().splitlines(keepends=True)[0]
    )
    begun = write_run(tmp_path / "begun", ended=False)  # compiling
    (begun / "metrics.jsonl").write_text("")
    shutil.rmtree(begun / "evaluation")
    config = compare.Config(
        runs=(tmp_path / "good", ahead, begun),
        metrics=("pass_at_1", "tokens"),
        out=tmp_path / "out",
    )
    rows = compare.main(config)["runs"]
    assert list(rows) == ["good", "ahead"]
    assert rows["ahead"]["pass_at_1"]["end"]["mean"] == 0.4  # of the policy after one iteration
    assert rows["ahead"]["rollouts"]["mean"] == 8
    assert "1 left out, no iteration is done" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(ValueError, match=r"runs: none of .*begun.* has an iteration"):
        compare.read((begun,))


def test_a_comparison_writes_over_no_run(tmp_path):
    run = write_run(tmp_path / "a")
    before = (run / "config.json").read_bytes()
    config = compare.Config(runs=(run,), metrics=("pass_at_1",), out=run)
    with pytest.raises(ValueError, match=r"out: .*a holds something else"):
        compare.main(config)
    assert (run / "config.json").read_bytes() == before and not (run / "report.md").exists()
    again = compare.Config(runs=(run,), metrics=("pass_at_1",), out=tmp_path / "out")
    assert compare.main(again) == compare.main(again)


def test_labels_tell_folders_apart(tmp_path):
    for name in ("a/run_x", "b/run_x"):
        write_run(tmp_path / name)
    runs = compare.read((tmp_path / "a" / "run_x", tmp_path / "b" / "run_x"))
    assert list(runs) == ["a/run_x", "b/run_x"]


def test_a_lone_seed_is_shown_with_its_method(tmp_path):
    seed = write_run(tmp_path / "demo" / "runs" / "uniform" / "seed_0")
    assert list(compare.read((seed,))) == ["uniform/seed_0"]
    other = write_run(tmp_path / "other" / "runs" / "uniform" / "seed_0")
    labels = [f"{name}/runs/uniform/seed_0" for name in ("demo", "other")]
    assert list(compare.read((seed, other))) == labels
    run = write_run(tmp_path / "a" / "run")
    assert list(compare.read((run,))) == ["a/run"]
    assert list(compare.read((tmp_path / "a",))) == ["a"]


def test_all_folders_without_a_run_are_named_and_what_to_give_instead(tmp_path):
    write_run(tmp_path / "demo" / "runs" / "uniform" / "seed_0")
    write_run(tmp_path / "train" / "a" / "run")
    write_run(tmp_path / "headline" / "tiny" / "runs" / "fade" / "seed_0")
    names = ("demo", "demo/runs", "train", "headline", "none")
    with pytest.raises(ValueError, match="is no folder of a run") as refused:
        compare.read((tmp_path / "train" / "a", *(tmp_path / name for name in names)))
    lines = str(refused.value).splitlines()
    assert len(lines) == len(names)
    for line, name in zip(lines, names, strict=True):
        assert line.startswith(f"runs: {tmp_path / name} is no folder of a run")
    ends = [line.rpartition("; ")[2] for line in lines]
    assert ends[:4] == [
        f"it holds some, give {tmp_path / name}"
        for name in ("demo/runs/*", "demo/runs/*", "train/*", "headline/*/runs/*")
    ]
    assert ends[4] == "there is nothing of that name"


def test_what_compare_prints_is_whole_and_honest(tmp_path, capsys):
    for seed in (0, 1):
        write_run(tmp_path / "fade_thompson" / f"seed_{seed}", tokens=3000.0)
    one = write_run(tmp_path / "a_run_with_a_name_of_many_words", tokens=900.0)
    for runs, said in (
        ((one,), "one seed each: no interval, so no claim"),
        ((tmp_path / "fade_thompson",), "means of seeds, with a 95 % t-interval"),
        ((one, tmp_path / "fade_thompson"), "with a 95 % t-interval where there are several"),
    ):
        config = compare.Config(
            runs=runs, metrics=("pass@1", "rollouts"), against="tokens", out=tmp_path / "out"
        )
        compare.main(config)
        out = capsys.readouterr().out
        assert f"pass@1: {said}" in out or said in out.splitlines()[0]
    assert "a_run_with_a_name_of_many_words" in out and "mean of the run" in out
    assert "12,000" in out and "3,600" in out and "e+" not in out
    assert said in (tmp_path / "out" / "report.md").read_text()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"runs": ()}, "runs must be distinct, at least one"),
        ({"metrics": ()}, "metrics must be distinct, at least one"),
        ({"window": 0}, "window must be at least 1, got 0"),
    ],
)
def test_a_comparison_of_nothing_is_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        compare.Config(**{"runs": (tmp_path,), **changes})


def test_what_is_no_run_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match=r"is no folder of a run: no config\.json"):
        compare.main(compare.Config(runs=(tmp_path,), out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()
