"""Commands side by side: order, failure, what is not started, and the core they stay on."""

import os
import signal
import subprocess
import sys
import time

import pytest
from process_ends import wait_for_end

from experiments import processes
from experiments.processes import Command


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module that writes its core and when it ran, and fails when told to."""
    (tmp_path / "told.py").write_text(
        "import os, sys, time, pathlib\n"
        "name, code = sys.argv[1:]\n"
        "start = time.time()\n"
        "time.sleep(0.2)\n"
        "print('core', sorted(os.sched_getaffinity(0)))\n"
        "print('at', start, time.time())\n"
        "sys.exit(int(code))\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.getcwd()}")
    return tmp_path


def command(folder, name, code=0, after=()):
    return Command(name, "told", (name, str(code)), folder / "logs" / f"{name}.txt", after)


def times(folder, name):
    line = (folder / "logs" / f"{name}.txt").read_text().splitlines()[1]
    return tuple(map(float, line.split()[1:]))


def test_what_is_needed_runs_first_and_failure_stops_only_what_needs_it(module):
    commands = [
        command(module, "late", after=("early", "elsewhere")),
        command(module, "lost", after=("broken",)),
        command(module, "lost_too", after=("lost",)),
        command(module, "broken", code=3),
        command(module, "early"),
    ]
    seen = []
    done = processes.run_all(
        commands, 2, ended=lambda command, how: seen.append((command.name, how.code))
    )
    assert {name: how.code for name, how in done.items()} == {
        "late": 0,
        "lost": None,
        "lost_too": None,
        "broken": 3,
        "early": 0,
    }
    assert sorted(seen) == sorted((name, how.code) for name, how in done.items())
    assert times(module, "late")[0] >= times(module, "early")[1]
    assert not (module / "logs" / "lost.txt").exists()
    assert done["early"].seconds >= 0.2


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity on this system")
def test_each_process_stays_on_one_core(module):
    processes.run_all([command(module, name) for name in "abc"], 2)
    allowed = sorted(os.sched_getaffinity(0))
    for name in "abc":
        said = (module / "logs" / f"{name}.txt").read_text().splitlines()[0]
        cores = [int(x) for x in said.removeprefix("core [").removesuffix("]").split(",")]
        assert set(cores) <= set(allowed)
        assert len(cores) == 1 or len(allowed) == 1


def test_a_log_that_cannot_be_written_is_an_error_and_hangs_nobody(module):
    (module / "logs").write_text("a file")
    commands = [command(module, "a"), command(module, "b", after=("a",))]
    for workers in (1, 2):
        with pytest.raises(OSError, match="logs"):
            processes.run_all(commands, workers)


@pytest.mark.skipif(sys.platform != "linux", reason="a signal of Linux")
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_no_process_outlives_the_one_that_started_it(module, sent):
    (module / "waits.py").write_text(
        "import os, pathlib, sys, time\n"
        "pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))\n"
        "time.sleep(300)\n"
    )
    mark = module / "pid"
    (module / "starts.py").write_text(
        "import pathlib\n"
        "from experiments.processes import Command, run_all\n"
        f"one = Command('one', 'waits', ({str(mark)!r},), pathlib.Path({str(module / 'log')!r}))\n"
        "run_all([one], 1)\n"
    )
    starter = subprocess.Popen([sys.executable, "-m", "starts"], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not (mark.exists() and mark.read_text()):
            assert time.monotonic() < deadline and starter.poll() is None
            time.sleep(0.05)
        started = int(mark.read_text())
        os.kill(starter.pid, sent)
        starter.wait(60)
        wait_for_end([started])
    finally:
        starter.kill()
        starter.wait()
