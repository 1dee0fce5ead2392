"""The log of a run: what is cut on a resume, what a crash between two moves leaves."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from experiments import run_folder
from experiments.run_identity import Watch
from experiments.run_log import GROUP_ARRAYS, RunLog, read_groups
from paced_jax import run_metrics
from paced_jax.metrics import read_json_lines

WATCH = Watch(eval_every=4, checkpoint_every=2, tensorboard=False)
M = 3


class Tally(run_metrics.Tally):
    """Figures that are easy to check, and what it was told of earlier parts."""

    def __init__(self):
        super().__init__(8)
        self.resumed: list[tuple[np.ndarray, dict]] = []

    def resume(self, prompt_ids, line):
        self.resumed.append((prompt_ids, line))

    def figures(self, record):
        return [(int(i), {"rollouts": 10.0 * (i + 1)}) for i in record.iteration[record.live]]


def records(first, last, live=None):
    """Records of iterations first..last-1, every array telling its iteration."""
    iterations = np.arange(first, last)
    grid = np.repeat(iterations[:, None], M, axis=1).astype(float)
    observation = SimpleNamespace(prompt_ids=grid.astype(int), successes=grid, trials=grid + 1)
    return SimpleNamespace(
        iteration=iterations,
        live=np.ones(len(iterations), bool) if live is None else np.asarray(live),
        observation=observation,
        predicted=grid / 100,
        informative=grid / 100,
        degenerate=grid > 2,
        learn=SimpleNamespace(stepped=iterations % 2 == 0),
    )


def iterations_of(folder):
    groups = read_groups(folder)
    assert set(groups) == {*GROUP_ARRAYS, "stepped"}
    return groups["prompt_ids"][:, 0].tolist()


def test_a_resumed_log_reads_like_one_that_went_on(tmp_path):
    with RunLog(tmp_path, WATCH, Tally(), resume_at=0, iterations=8) as log:
        log.look(0, {"pass_at_1": 0.0})
        for first in (0, 2, 4):
            log.chunk(records(first, first + 2), {"iteration_seconds": 1.0}, {"learn_seconds": 9.0})
        log.look(4, {"pass_at_1": 0.4})
        log.look(6, {"pass_at_1": 0.6})
    assert iterations_of(tmp_path) == [0, 1, 2, 3, 4, 5]
    # Killed after iteration 6; the last whole checkpoint is of 4.
    tally = Tally()
    with RunLog(tmp_path, WATCH, tally, resume_at=4, iterations=8) as log:
        assert iterations_of(tmp_path) == [0, 1, 2, 3]
        ((ids, line),) = tally.resumed
        assert ids.shape == (4, M) and line["rollouts"] == 40.0
        log.chunk(records(4, 6), {"iteration_seconds": 2.0})
        log.chunk(records(6, 8), {"iteration_seconds": 2.0})
        log.finish()
    assert iterations_of(tmp_path) == list(range(8)) and not (tmp_path / "groups").exists()
    lines = read_json_lines(tmp_path / "metrics.jsonl")
    assert [line["iteration"] for line in lines] == list(range(8))
    assert [line["iteration_seconds"] for line in lines] == [1.0] * 4 + [2.0] * 4
    assert [line.get("learn_seconds") for line in lines] == [9.0] + [None] * 7
    # The look at 4 was due and stays; the one at 6 was made after the checkpoint.
    looks = read_json_lines(tmp_path / "evaluation" / "metrics.jsonl")
    assert [look["iteration"] for look in looks] == [0, 4]
    np.testing.assert_array_equal(read_groups(tmp_path)["stepped"], np.arange(8) % 2 == 0)


def test_the_look_at_the_end_of_a_shorter_run_is_not_a_longer_ones(tmp_path):
    with RunLog(tmp_path, WATCH, Tally(), resume_at=0, iterations=8) as log:
        log.look(0, {"pass_at_1": 0.0})
        for first in (0, 2, 4):
            log.chunk(records(first, first + 2), {})
        log.look(4, {"pass_at_1": 0.4})
        log.look(6, {"pass_at_1": 0.6})
        log.finish()
    (tmp_path / "summary.json").write_text("{}")
    with RunLog(tmp_path, WATCH, Tally(), resume_at=6, iterations=8):
        assert not (tmp_path / "summary.json").exists()
    looks = read_json_lines(tmp_path / "evaluation" / "metrics.jsonl")
    assert [look["iteration"] for look in looks] == [0, 4]
    assert iterations_of(tmp_path) == [0, 1, 2, 3, 4, 5]


def test_starting_again_drops_everything(tmp_path):
    with RunLog(tmp_path, WATCH, Tally(), resume_at=0, iterations=8) as log:
        log.look(0, {"pass_at_1": 0.0})
        log.chunk(records(0, 2), {})
        log.finish()
    tally = Tally()
    with RunLog(tmp_path, WATCH, tally, resume_at=0, iterations=8):
        pass
    assert read_groups(tmp_path) == {} and tally.resumed == []
    assert read_json_lines(tmp_path / "evaluation" / "metrics.jsonl") == []


def test_a_crash_while_files_are_joined_loses_and_doubles_nothing(tmp_path):
    with RunLog(tmp_path, WATCH, Tally(), resume_at=0, iterations=8) as log:
        log.look(0, {"pass_at_1": 0.0})
        log.chunk(records(0, 2), {})
        log.chunk(records(2, 4), {})
        parts = {path: path.read_bytes() for path in (tmp_path / "groups").glob("*.npz")}
        log.finish()
    # The joined file was moved to its name, the parts were not yet removed; one is half written.
    (tmp_path / "groups").mkdir()
    for path, content in parts.items():
        path.write_bytes(content)
    (tmp_path / "groups" / "00000004.npz.tmp").write_bytes(b"half")
    assert iterations_of(tmp_path) == [0, 1, 2, 3]
    with RunLog(tmp_path, WATCH, Tally(), resume_at=4, iterations=8) as log:
        log.chunk(records(4, 6), {})
    assert iterations_of(tmp_path) == [0, 1, 2, 3, 4, 5]


def test_two_processes_do_not_share_a_folder(tmp_path):
    pytest.importorskip("fcntl")
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with (
            pytest.raises(ValueError, match=r"another process is writing to .*run"),
            run_folder.alone(tmp_path / "run"),
        ):
            pass
        other.kill()  # which it can't see
        other.wait()
        with run_folder.alone(tmp_path / "run"):
            pass


HOLD = """
import sys, time
from pathlib import Path
from experiments import run_folder

with run_folder.alone(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_iterations_after_a_fault_are_not_logged(tmp_path):
    with RunLog(tmp_path, WATCH, Tally(), resume_at=0, iterations=8) as log:
        log.chunk(records(0, 3, live=[True, True, False]), {})
    assert iterations_of(tmp_path) == [0, 1]
    assert len(read_json_lines(tmp_path / "metrics.jsonl")) == 2


def test_the_look_at_a_runs_end_stays_where_the_run_ends_there(tmp_path):
    # Killed between the last checkpoint and the summary; 4 is due anyway, 6 because it is the end.
    with RunLog(tmp_path, WATCH, Tally(), resume_at=0, iterations=6) as log:
        assert not log.looked
        for first in (0, 2, 4):
            if first != 2:
                log.look(first, {"pass_at_1": first / 10})
            log.chunk(records(first, first + 2), {})
        log.look(6, {"pass_at_1": 0.6})
    with RunLog(tmp_path, WATCH, Tally(), resume_at=6, iterations=6) as log:
        assert log.looked
    looks = read_json_lines(tmp_path / "evaluation" / "metrics.jsonl")
    assert [look["iteration"] for look in looks] == [0, 4, 6]
    # One that is due and missing is told, so that the run can look again.
    with RunLog(tmp_path, WATCH, Tally(), resume_at=6, iterations=8) as log:
        assert not log.looked
    with RunLog(tmp_path, WATCH, Tally(), resume_at=6, iterations=6) as log:
        assert not log.looked


def test_a_log_that_does_not_reach_the_checkpoint_is_refused(tmp_path):
    with RunLog(tmp_path, WATCH, Tally(), resume_at=0, iterations=8) as log:
        log.look(0, {"pass_at_1": 0.0})
        log.chunk(records(0, 2), {})
    message = r"iteration 4; metrics\.jsonl has 2 before it, not 4, groups has 2 before it, not 4$"
    with pytest.raises(ValueError, match=message):
        RunLog(tmp_path, WATCH, Tally(), resume_at=4, iterations=8)
    assert iterations_of(tmp_path) == [0, 1]  # as it was
    assert len(read_json_lines(tmp_path / "metrics.jsonl")) == 2
    (tmp_path / "metrics.jsonl").unlink()
    with pytest.raises(ValueError, match=r"metrics\.jsonl has 0 before it"):
        RunLog(tmp_path, WATCH, Tally(), resume_at=2, iterations=8)
    assert iterations_of(tmp_path) == [0, 1]


def test_a_missing_look_is_refused(tmp_path):
    with RunLog(tmp_path, WATCH, Tally(), resume_at=0, iterations=8) as log:
        log.look(0, {"pass_at_1": 0.0})
        for first in (0, 2, 4):
            log.chunk(records(first, first + 2), {})
    with pytest.raises(ValueError, match=r"6; evaluation/metrics\.jsonl has 1 before it, not 2$"):
        RunLog(tmp_path, WATCH, Tally(), resume_at=6, iterations=8)
