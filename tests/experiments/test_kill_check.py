"""Runs that are killed and resumed; the whole check of twenty kills is `experiments.kill_check`."""

import dataclasses
import shutil
import subprocess
import sys

import numpy as np
import pytest

from experiments import kill_check, run_equality, run_folder, run_identity, train
from experiments.run_identity import Watch
from paced_jax.metrics import read_json_lines


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"kills": 1}, "kills must be at least 2, one a scheduler, got 1"),
        ({"schedulers": ()}, "schedulers must be distinct"),
        ({"iterations": 6}, "iterations must be a multiple of 4, got 6"),
        ({"longest": 0.0}, "longest must be positive, got 0"),
    ],
)
def test_a_check_of_nothing_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        kill_check.Config(**changes)


SCRIPT = """
import sys, time
from pathlib import Path

folder, resumes = Path(sys.argv[1]) / "run", sys.argv[2] == "resumes"
(folder / "checkpoints" / "2").mkdir(parents=True, exist_ok=True)
path = folder / "metrics.jsonl"
kept = path.read_bytes().splitlines(keepends=True)[: 2 if resumes else 0] if path.exists() else []
path.write_bytes(b"".join(kept))
while True:
    time.sleep(0.1)
    with path.open("a") as file:
        file.write(f"{time.perf_counter()}\\n")
"""


class Writer(kill_check.Trainer):
    """A process that writes lines for ever, after the first two or from the beginning again."""

    def __init__(self, how):
        self.how = how

    def start(self, out):
        return subprocess.Popen([sys.executable, "-c", SCRIPT, str(out), self.how])


def test_a_run_that_begins_again_is_found_out(tmp_path):
    # Deterministic as runs are, its end would look as if it had gone on.
    for how in ("resumes", "begins again"):
        out = tmp_path / how
        (out / "run").mkdir(parents=True)
        trainer = Writer(how)
        first = kill_check.kill_once(trainer, out, 3, 0.05)
        assert first is not None and first["resumed_at"] == 0 and first["killed_after"] >= 3
        if how == "resumes":
            second = kill_check.kill_once(trainer, out, 2, 0.05)
            assert second is not None and second["resumed_at"] == 2
            assert second["killed_after"] >= 4
        else:
            with pytest.raises(RuntimeError, match="did not go on from its checkpoint of 2"):
                kill_check.kill_once(trainer, out, 2, 0.05)


def test_what_is_no_run_of_this_program_is_not_gone_on_with(tmp_path):
    plan, watch = train.TrainConfig(iterations=20), Watch(checkpoint_every=10)
    (tmp_path / "run").mkdir()
    outer, inner = tmp_path / "config.json", tmp_path / "run" / "config.json"
    run_folder.write_json(outer, {"watch": dataclasses.asdict(watch)})
    content = run_identity.identity(plan, watch)
    run_folder.write_json(inner, content)
    stored = train.stored(tmp_path)
    assert train.training_part(stored) == plan and stored.watch == watch
    for change, message in (
        ({"format": 3}, rf"resume: .*config\.json has format 3, wanted {run_identity.FORMAT}"),
        ({"run": content["run"] | {"colour": 1}}, r"no configuration: .*'colour'"),
        ({"run": content["run"] | {"chunk": 0}}, "chunk must be positive, got 0"),
    ):
        run_folder.write_json(inner, content | change)
        with pytest.raises(ValueError, match=message):
            train.stored(tmp_path)
    run_folder.write_json(inner, content)
    run_folder.write_json(outer, {})
    with pytest.raises(ValueError, match=r"no configuration: 'watch'"):
        train.stored(tmp_path)
    inner.write_text(inner.read_text()[:100])
    with pytest.raises(ValueError, match=r"run/config\.json is no JSON"):
        train.stored(tmp_path)


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
