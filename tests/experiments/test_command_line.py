"""What an experiment says as a command when it is refused, ended, or broken."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from experiments import command_line
from paced_jax.verifiers import SandboxError

ROOT = Path(__file__).resolve().parents[2]


def command(module, *options, **environment):
    return subprocess.run(
        [sys.executable, "-m", f"experiments.{module}", *map(str, options)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | environment,
    )


def refuse(config):
    raise ValueError(f"iterations: must be positive, got {config}")


def lack(config):
    raise SandboxError("sandbox: missing Landlock")


def broken_in_numpy(config):
    return np.zeros(3) + np.zeros(4)


def broken_in_jax(config):
    return jnp.zeros(3).reshape(2)


def broken_in_ours(config):
    return int("x")


def ended(config):
    with command_line.goes_on(lambda: f"the same command with --out {config} goes on"):
        raise KeyboardInterrupt


def test_a_refusal_is_its_sentence_alone(capsys, monkeypatch):
    monkeypatch.setattr(command_line, "OURS", (__name__.partition(".")[0],))
    with pytest.raises(SystemExit) as left:
        command_line.run(refuse, lambda: -1)
    assert left.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "iterations: must be positive, got -1\n(FADE_JAX_TRACEBACK=1 shows where)\n"
    monkeypatch.setenv("FADE_JAX_TRACEBACK", "1")
    with pytest.raises(ValueError, match="iterations"):
        command_line.run(refuse, lambda: -1)


@pytest.mark.parametrize("main", [broken_in_numpy, broken_in_jax, broken_in_ours])
def test_a_mistake_in_the_code_keeps_its_traceback(main, monkeypatch):
    monkeypatch.setattr(command_line, "OURS", (__name__.partition(".")[0],))
    with pytest.raises((ValueError, TypeError)):
        command_line.run(main, lambda: 0)


def test_a_machine_that_lacks_a_part_is_a_sentence_too(capsys, monkeypatch):
    monkeypatch.setattr(command_line, "OURS", (__name__.partition(".")[0],))
    with pytest.raises(SystemExit) as left:
        command_line.run(lack, lambda: 0)
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith("sandbox: missing Landlock\n")


def test_a_refusal_of_someone_else_keeps_its_traceback():
    with pytest.raises(ValueError, match="iterations"):  # this file is no part of the project
        command_line.run(refuse, lambda: -1)


ENDED = """
from experiments import command_line

def main(config):
    with command_line.goes_on(lambda: f"the same command with --out {config} goes on"):
        raise KeyboardInterrupt

command_line.run(main, lambda: "runs/a")
"""


def test_ctrl_c_says_how_to_go_on():
    done = subprocess.run([sys.executable, "-c", ENDED], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 130
    assert done.stderr == "ended; the same command with --out runs/a goes on\n"
    with pytest.raises(KeyboardInterrupt):  # from Python it is what it was
        ended("runs/a")


def test_what_main_returns_is_returned():
    assert command_line.run(lambda config: config + 1, lambda: 1) == 2


def test_every_command_goes_by_this_one_way():
    paths = [p for p in ROOT.glob("experiments/**/*.py") if "tyro" in p.read_text()]
    ends = {p.name: p.read_text().partition('if __name__ == "__main__":')[2] for p in paths}
    commands = {name: end for name, end in ends.items() if end}
    assert len(commands) >= 17
    assert [name for name, end in commands.items() if "command_line.run(" not in end] == []


@pytest.mark.slow
def test_commands_refuse_in_one_sentence(tmp_path):
    for module, options, sentence in (
        ("compare", [tmp_path / "none"], r"runs: .*none"),
        ("train", ["--watch.eval-every", 15], r"watch\.eval_every must be a multiple of chunk"),
        ("train", ["--resume", tmp_path], r"resume: there is no run in .*"),
    ):
        done = command(module, *options)
        assert done.returncode == 2, done.stderr
        first, *others = done.stderr.splitlines()
        assert re.match(sentence, first)
        assert others[-1] == "(FADE_JAX_TRACEBACK=1 shows where)" and "Traceback" not in done.stderr
    shown = command("compare", tmp_path / "none", FADE_JAX_TRACEBACK="1")
    assert shown.returncode == 1 and "Traceback" in shown.stderr
    # What a configuration refuses is shown by the reader of the command line.
    done = command("quickstart", "--iterations", 15)
    assert done.returncode == 2 and "iterations must be a multiple of 10" in done.stderr
    assert "Traceback" not in done.stderr


# A shell has its background jobs ignore SIGINT, and their children too.
AS_FROM_A_TERMINAL = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("experiments.train", run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
def test_a_run_ended_by_ctrl_c_says_how_to_go_on(tmp_path):
    sizes = "--iterations 2000 --chunk 2 --num-prompts 8 --num-train 800 --watch.eval-every 4"
    sizes += " --watch.checkpoint-every 4 --watch.eval-group-size 1 --watch.test-group-size 1"
    sizes += " --watch.no-profile"
    process = subprocess.Popen(
        [sys.executable, "-c", AS_FROM_A_TERMINAL, *sizes.split(), "--out", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    log = tmp_path / "run" / "metrics.jsonl"
    try:
        deadline = time.monotonic() + 900  # on a busy machine compiling takes long
        while not (log.exists() and log.read_text().count("\n") >= 10):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == (
        f"ended; python -m experiments.train --resume {tmp_path} goes on"
    )
    assert "Traceback" not in err
