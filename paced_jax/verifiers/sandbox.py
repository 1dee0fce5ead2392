"""Runs a Python program that nobody trusts, in a jail of namespaces, limits and lost privileges.

Threat model: the program was written by a model under training. It may be wrong, wasteful or
hostile: loop for ever, fork, fill memory or disks, read files and environment variables, talk to
the network, tamper with its judge. It must not be able to

* read or change any file but the interpreter, its standard library (both read-only) and a scratch
  directory in memory that ends with it: a mount namespace with a root of its own (`pivot_root`);
* see or signal any other process, or read its environment: a process namespace, no `/proc`;
* open a socket: a network namespace without interfaces, and a seccomp filter;
* gain a privilege: a user id of its own, no capabilities, `no_new_privs`; mounting, namespaces,
  tracing, keys, io_uring and BPF are refused by the filter;
* outlast its clock: when process 1 of its namespace ends, the kernel ends all others;
* take more processor time, memory, processes, open files or file space than `Limits`.

Works as root, and as any user where the kernel allows user namespaces. Where a part is missing,
nothing runs: `SandboxError` names the part.

Not covered: faults of the kernel itself (a virtual machine would be a second wall); timing and
cache channels; the machine's name of kernel and processor, which system calls tell; memory is
limited per process, so all together may take `processes * memory_bytes + scratch_bytes`; processes
share the machine's cores with everybody; third-party packages are not there. Whoever runs as the
same user outside the jail is not kept out of it, and neither is root.
"""

import dataclasses
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from typing import IO, Literal, NamedTuple

from paced_jax.verifiers.bootstrap import command
from paced_jax.verifiers.interpreter import describe


class SandboxError(RuntimeError):
    """The sandbox refuses to run: the machine lacks a part of it, named in the message."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """What one program may use.

    Attributes:
        cpu_seconds: processor time of each of its processes, whole seconds.
        wall_seconds: wall clock of the whole jail.
        memory_bytes: address space of each process.
        processes: processes and threads at once.
        file_bytes: the largest file it may write, standard output and error included.
        scratch_bytes: all files in its scratch directory.
        files: how many files and folders it may make there.
    """

    cpu_seconds: int = 4
    wall_seconds: float = 12.0
    memory_bytes: int = 2**29
    processes: int = 8
    file_bytes: int = 2**20
    scratch_bytes: int = 2**24
    files: int = 256

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if not getattr(self, field.name) > 0:
                raise ValueError(f"{field.name}: must be positive, got {getattr(self, field.name)}")


class Outcome(NamedTuple):
    """How a program ended.

    Attributes:
        ended: "exit"; "signal"; "cpu" or "wall" where that limit ended it.
        exit_code: 0..255; None unless it exited.
        signal: the signal's number; None unless one ended it.
        stdout: what it wrote, at most `file_bytes`.
        stderr: the same for errors.
        cpu_seconds: processor time of the program and the children it waited for.
    """

    ended: Literal["exit", "signal", "cpu", "wall"]
    exit_code: int | None
    signal: int | None
    stdout: str
    stderr: str
    cpu_seconds: float


def run(program: str, stdin: str = "", limits: Limits | None = None) -> Outcome:
    """Runs a program to its end, or to the end of its limits; safe to call from any thread.

    Args:
        program: Python source text; runs as `__main__` in its scratch directory.
        stdin: what it reads.
        limits: what it may use.

    Raises:
        SandboxError: naming what is missing; the program has not run.
    """
    limits = limits or Limits()
    if sys.platform != "linux":
        raise SandboxError(f"sandbox: missing Linux namespaces: this is {platform.system()}")
    try:
        interpreter = describe()
    except OSError as error:
        raise SandboxError(f"sandbox: missing the interpreter: {error}") from error
    with _file(program) as source, _file(stdin) as given, _file() as out, _file() as err:
        lines, words = _launch(source, given, out, err, interpreter, limits)
        report = {key: value for line in lines for key, value in json.loads(line).items()}
        if "missing" in report:
            raise SandboxError(f"sandbox: missing {report['missing']}: {report['error']}")
        if "timed_out" not in report:
            raise SandboxError(f"sandbox: missing its report; the launcher failed: {words}")
        return _outcome(report, limits, _text(out), _text(err))


def _launch(
    source: IO[bytes],
    given: IO[bytes],
    out: IO[bytes],
    err: IO[bytes],
    interpreter: dict,
    limits: Limits,
) -> tuple[list[str], str]:
    """Starts the launcher and waits; returns its report's lines and its last words."""
    ours, theirs = os.pipe()
    with open(ours, encoding="utf-8") as status:
        try:
            setup = {
                **dataclasses.asdict(limits),
                "interpreter": interpreter,
                "program": source.fileno(),
                "status": theirs,
            }
            launcher = subprocess.Popen(
                # The standard library alone: nothing of this process's path is needed.
                command("paced_jax.verifiers.jail.launcher", [json.dumps(setup)]),
                stdin=given,
                stdout=out,
                stderr=err,
                pass_fds=[source.fileno(), theirs],
                start_new_session=True,
                env={},
            )
        finally:
            os.close(theirs)
        try:
            # The launcher keeps the clock; this is for a launcher that is itself stuck.
            launcher.wait(limits.wall_seconds + 60.0)
        except BaseException:
            os.killpg(launcher.pid, signal.SIGKILL)
            launcher.wait()
            raise
        return status.read().splitlines(), _text(err)[-2000:]


def _outcome(report: dict, limits: Limits, stdout: str, stderr: str) -> Outcome:
    number, cpu = report.get("signal"), report.get("cpu_seconds", 0.0)
    if report["timed_out"]:
        ended = "wall"
    elif number == signal.SIGXCPU or (number == signal.SIGKILL and cpu >= limits.cpu_seconds):
        ended = "cpu"
    else:
        ended = "exit" if number is None else "signal"
    return Outcome(ended, report.get("exit_code"), number, stdout, stderr, cpu)


def _file(text: str = "") -> IO[bytes]:
    file = tempfile.TemporaryFile()
    file.write(text.encode("utf-8", errors="surrogatepass"))
    file.seek(0)
    return file


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", errors="replace")
