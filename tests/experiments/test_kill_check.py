"""Runs that are killed and resumed; the whole check of twenty kills is `experiments.kill_check`."""

import shutil

import numpy as np
import pytest

from experiments import kill_check, run_equality, train
from experiments.run_identity import Watch
from paced_jax.metrics import read_json_lines


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"kills": 0}, "kills must be at least 1, got 0"),
        ({"schedulers": ()}, "schedulers must be distinct"),
        ({"iterations": 6}, "iterations must be a multiple of 4, got 6"),
        ({"longest": 0.0}, "longest must be positive, got 0"),
    ],
)
def test_a_check_of_nothing_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        kill_check.Config(**changes)


@pytest.mark.slow
def test_three_kills_leave_no_trace(tmp_path):
    config = kill_check.Config(
        kills=3, schedulers=("paced",), iterations=40, longest=0.5, out=tmp_path
    )
    results = kill_check.main(config)
    assert len(results["kills"]) == 3
    assert sum(entry["resumes"] for entry in results["compared"]) >= 1
    assert [entry["differences"] for entry in results["compared"]] == [[]] * len(
        results["compared"]
    )
    assert (tmp_path / "report.md").exists()

    # The comparison can fail: one figure, one group, one weight.
    one = tmp_path / "paced_straight" / "run"
    two = tmp_path / "other"
    shutil.copytree(one, two)
    assert run_equality.differences(one, two) == []
    lines = (two / "metrics.jsonl").read_text().splitlines()
    lines[3] = lines[3].replace('"stepped": 1.0', '"stepped": 0.5')
    (two / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    with np.load(two / "groups.npz") as file:
        groups = dict(file)
    groups["successes"][5, 2] += 1
    np.savez_compressed(two / "groups.npz", **groups)
    assert run_equality.differences(one, two) == [
        "groups: successes",
        "metrics.jsonl, iteration 3: stepped",
    ]
    longer = train.stored(tmp_path / "paced_straight")
    with pytest.raises(ValueError, match=r"another run \(scheduler\)"):
        train.main(
            train.Config(
                **{
                    **{k: v for k, v in vars(longer).items() if k != "watch"},
                    "scheduler": "uniform",
                },
                watch=longer.watch,
            )
        )


SIZES = {"num_prompts": 8, "num_train": 800, "chunk": 2, "scheduler": "uniform"}
WATCH = Watch(
    eval_every=4, checkpoint_every=4, eval_group_size=1, test_group_size=1, tensorboard=False
)


@pytest.mark.slow
def test_a_run_is_lengthened_and_refused_by_name(tmp_path):
    long, short = tmp_path / "long", tmp_path / "short"
    train.main(train.Config(**SIZES, watch=WATCH, iterations=12, out=long))
    # Six iterations: the look at their end is none of the longer run's.
    train.main(train.Config(**SIZES, watch=WATCH, iterations=6, out=short))
    looks = read_json_lines(short / "run" / "evaluation" / "metrics.jsonl")
    assert [look["iteration"] for look in looks] == [0, 4, 6]
    with pytest.raises(ValueError, match=r"iterations: .* has 6, got 4; a run can only"):
        train.main(train.parse(["--resume", str(short), "--iterations", "4"]))
    resumed = train.parse(["--resume", str(short), "--iterations", "12"])
    assert resumed.watch == WATCH  # how often it is kept goes on too
    train.main(resumed)
    assert run_equality.differences(long / "run", short / "run") == []

    for options, message in (
        (["--seed", "1"], r"another run \(seed\)"),
        (["--pool-seed", "1"], r"another run \(pool_seed\)"),
        (["--watch.eval-every", "2"], r"another watch \(eval_every\)"),
    ):
        with pytest.raises(ValueError, match=message):
            train.main(train.parse(["--resume", str(short), *options]))
    (short / "run" / "summary.json").unlink()  # as a run that was ended
    with pytest.raises(ValueError, match="holds a run that was ended; --resume"):
        train.main(train.Config(**SIZES, watch=WATCH, iterations=12, out=short))
    with pytest.raises(ValueError, match="resume: there is no run in"):
        train.parse(["--resume", str(tmp_path / "nowhere")])
