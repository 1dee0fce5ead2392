"""Metrics read back from their files, after crashes and resumed runs."""

import json
import math
import signal
import subprocess
import sys
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from paced_jax.metrics import JsonLines, TensorBoard, Writers, open_writers, read_json_lines


def line(iteration):
    return {"pass_rate": iteration / 8, "skill/add": 1 - iteration / 16}


def write(writer, iterations):
    for iteration in iterations:
        writer.write(iteration, line(iteration))


def curves(folder):
    """{name: [(step, value), ...]} as TensorBoard shows them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def expected(iterations):
    return {name: [(i, line(i)[name]) for i in iterations] for name in line(0)}


def test_lines_read_back_exactly(tmp_path):
    path = tmp_path / "new" / "metrics.jsonl"
    lines = JsonLines(path)
    odd: list[dict[str, Any]] = [
        {"loss": np.float32(0.1), "steps": np.int32(3)},
        {"loss": jnp.float32(1e-30), "steps": jnp.int32(4)},
        {"loss": 0.1, "steps": True},
    ]
    for iteration, scalars in zip([0, np.int32(1), jnp.int32(7)], odd, strict=True):
        lines.write(iteration, scalars)
        # On disk before the next one, without `close`.
        assert len(read_json_lines(path)) == path.read_text().count("\n")
    lines.close()
    assert [list(row) for row in read_json_lines(path)] == [["iteration", "loss", "steps"]] * 3
    assert read_json_lines(path) == [
        {"iteration": 0, "loss": float(np.float32(0.1)), "steps": 3.0},
        {"iteration": 1, "loss": float(np.float32(1e-30)), "steps": 4.0},
        {"iteration": 7, "loss": 0.1, "steps": 1.0},
    ]


def test_what_is_not_finite_is_null_and_a_gap(tmp_path):
    with open_writers(tmp_path) as writers:
        for i, loss in enumerate([1.0, math.nan, math.inf, -math.inf, 2.0]):
            writers.write(i, {"loss": loss, "always": i})

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    text = (tmp_path / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(row, parse_constant=refuse)["loss"] for row in text]
    assert losses == [1.0, None, None, None, 2.0]
    back = [row["loss"] for row in read_json_lines(tmp_path / "metrics.jsonl")]
    np.testing.assert_array_equal(back, [1.0, np.nan, np.nan, np.nan, 2.0])
    shown = curves(tmp_path / "tensorboard")
    assert shown["loss"] == [(0, 1.0), (4, 2.0)]
    assert shown["always"] == [(i, i) for i in range(5)]


def test_a_resumed_run_reads_like_an_uninterrupted_one(tmp_path):
    """Crash in iteration 7 after the checkpoint at 5, resumed; then again from 3, at once: event
    files of the same second."""
    with open_writers(tmp_path / "straight") as writers:
        write(writers, range(9))
    first = open_writers(tmp_path / "crashed")
    write(first, range(7))
    first.close()
    with (tmp_path / "crashed" / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 7, "pass_')
    for resume_at, stop in ((5, 6), (3, 9)):
        with open_writers(tmp_path / "crashed", resume_at=resume_at) as writers:
            write(writers, range(resume_at, stop))
    texts = [(tmp_path / run / "metrics.jsonl").read_bytes() for run in ("straight", "crashed")]
    assert texts[0] == texts[1]
    for run in ("straight", "crashed"):
        assert curves(tmp_path / run / "tensorboard") == expected(range(9))
    assert [p.name for p in (tmp_path / "crashed").iterdir() if p.is_file()] == ["metrics.jsonl"]


def test_events_that_a_killed_process_had_not_written_are_there_once_it_goes_on(tmp_path):
    program = (
        "import os, sys; from paced_jax.metrics import open_writers\n"
        "writers = open_writers(sys.argv[1])\n"
        "for i in range(5):\n"
        "    writers.write(i, {'always': float(i)})\n"
        "os._exit(1)\n"  # before the background thread has written an event
    )
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)]).returncode == 1
    assert len(read_json_lines(tmp_path / "metrics.jsonl")) == 5
    with open_writers(tmp_path, resume_at=4) as writers:
        writers.write(4, {"always": 4.0})
    assert curves(tmp_path / "tensorboard") == {"always": [(i, float(i)) for i in range(5)]}


@pytest.mark.parametrize("iteration", [0, 2, 3, 9])
def test_cut_drops_an_iteration_and_later_ones(tmp_path, iteration):
    lines = JsonLines(tmp_path / "metrics.jsonl")
    write(lines, [0, 2, 4, 6])
    lines.cut(iteration)
    left = [i for i in (0, 2, 4, 6) if i < iteration]
    assert [row["iteration"] for row in read_json_lines(lines.path)] == left
    write(lines, [max(iteration, 7)])
    lines.close()
    want = [{"iteration": i, **line(i)} for i in [*left, max(iteration, 7)]]
    assert read_json_lines(lines.path) == want


def test_a_crash_while_cutting_leaves_the_old_file(tmp_path, monkeypatch):
    lines = JsonLines(tmp_path / "metrics.jsonl")
    write(lines, range(4))
    before = lines.path.read_bytes()

    def crash(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", crash)
        with pytest.raises(KeyboardInterrupt):
            lines.cut(2)
    assert lines.path.read_bytes() == before
    again = JsonLines(lines.path)
    again.cut(2)
    again.close()
    assert [row["iteration"] for row in read_json_lines(lines.path)] == [0, 1]


def test_a_line_cut_short_at_any_byte_costs_that_line_alone(tmp_path):
    whole = JsonLines(tmp_path / "whole.jsonl")
    write(whole, range(3))
    whole.close()
    content = whole.path.read_bytes()
    start = content[:-1].rindex(b"\n") + 1
    for end in range(start, len(content)):
        path = tmp_path / "torn.jsonl"
        path.write_bytes(content[:end])
        assert [row["iteration"] for row in read_json_lines(path)] == [0, 1]
        lines = JsonLines(path)
        write(lines, [2])
        lines.close()
        assert path.read_bytes() == content


def test_a_killed_process_loses_at_most_the_line_it_was_writing(tmp_path):
    """Every line whose `write` has returned must be there."""
    path = tmp_path / "metrics.jsonl"
    program = (
        "import itertools, sys; from paced_jax.metrics import JsonLines\n"
        "lines = JsonLines(sys.argv[1])\n"
        "for i in itertools.count():\n"
        "    lines.write(i, {f'metric_{j}': i + j / 7 for j in range(100)})\n"
        "    print(i, flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        returned = [int(child.stdout.readline()) for _ in range(200)]
        child.send_signal(signal.SIGKILL)
        returned += [int(row) for row in child.stdout.read().split("\n")[:-1]]
    rows = read_json_lines(path)
    assert [row["iteration"] for row in rows] == list(range(len(rows)))
    assert len(rows) - len(returned) in (0, 1) and len(returned) >= 200
    for row in rows:
        assert row == {
            "iteration": row["iteration"],
            **{f"metric_{j}": row["iteration"] + j / 7 for j in range(100)},
        }


@pytest.mark.parametrize("content", ['{"iteration": 0}\n{"iter\n', '{"a": 1}\n', "[1]\n", "7\n"])
def test_a_broken_line_within_the_file_is_named(tmp_path, content):
    path = tmp_path / "metrics.jsonl"
    path.write_text(content)
    number = content.count("\n")
    for read in (read_json_lines, JsonLines):
        with pytest.raises(ValueError, match=f"metrics.jsonl, line {number} "):
            read(path)
    assert path.read_text() == content


def test_no_iteration_is_written_twice(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = JsonLines(path)
    write(lines, range(3))
    lines.close()
    lines = JsonLines(path)
    with pytest.raises(ValueError, match=r"iteration 2 comes after 2 .*: cut\(2\) first"):
        write(lines, [2])
    write(lines, [3])
    lines.close()
    assert [row["iteration"] for row in read_json_lines(path)] == [0, 1, 2, 3]


def test_a_folder_with_metrics_is_only_overwritten_when_asked(tmp_path):
    with open_writers(tmp_path, tensorboard=False) as writers:
        write(writers, range(3))
    assert not (tmp_path / "tensorboard").exists()
    with pytest.raises(ValueError, match="resume_at"):
        open_writers(tmp_path)
    assert len(read_json_lines(tmp_path / "metrics.jsonl")) == 3
    with open_writers(tmp_path, resume_at=0) as writers:
        write(writers, range(2))
    assert len(read_json_lines(tmp_path / "metrics.jsonl")) == 2
    assert curves(tmp_path / "tensorboard") == expected(range(2))


@pytest.mark.parametrize(
    ("scalars", "message"),
    [
        ({"pass@1": 1.0}, "'pass@1'"),
        ({"/loss": 1.0}, "'/loss'"),
        ({"a b": 1.0}, "'a b'"),
        ({"iteration": 1.0}, "'iteration'"),
        ({"loss": np.zeros(2)}, r"'loss' must be a scalar, got shape \(2,\)"),
    ],
)
def test_what_no_writer_could_keep_is_refused(tmp_path, scalars, message):
    with open_writers(tmp_path) as writers:
        with pytest.raises(ValueError, match=message):
            writers.write(0, scalars)
    assert read_json_lines(tmp_path / "metrics.jsonl") == []


def test_every_allowed_character_survives_tensorboard(tmp_path):
    name = "cell/running_sum/10.x-Y_seconds"
    board = TensorBoard(tmp_path)
    board.write(0, {name: 0.5})
    board.close()
    assert curves(tmp_path) == {name: [(0, 0.5)]}


def test_all_writers_are_closed_when_the_run_raises(tmp_path):
    closed = []

    class Recorder:
        def __init__(self, number):
            self.number = number

        def write(self, iteration, scalars):
            raise RuntimeError("disk full")

        def close(self):
            closed.append(self.number)

    with pytest.raises(RuntimeError, match="disk full"), Writers(Recorder(0), Recorder(1)) as both:
        both.write(0, {"loss": 1.0})
    assert closed == [0, 1]
