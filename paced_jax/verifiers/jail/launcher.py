"""Builds the jail around itself and runs one program in it; started by `sandbox`.

Three processes: this one, outside the new process namespace, enforces the wall clock; the
namespace's process 1 builds the file tree and waits; process 2 loses every privilege and becomes
the program. When process 1 ends, the kernel ends everything in the namespace. Any step that fails
is reported by its name before a line of the program has run.
"""

import json
import os
import resource
import secrets
import signal
import sys
from typing import Any

from paced_jax.verifiers.jail import kernel, root, system_calls

_NAMESPACES = {
    "mount namespace": kernel.CLONE_NEWNS,
    "process namespace": kernel.CLONE_NEWPID,
    "network namespace": kernel.CLONE_NEWNET,
    "IPC namespace": kernel.CLONE_NEWIPC,
    "host name namespace": kernel.CLONE_NEWUTS,
    "control group namespace": kernel.CLONE_NEWCGROUP,
}
# Unprivileged inside its user namespace too.
_NOBODY = 65534


class _Steps:
    """The step in progress, so that a failure can name it."""

    def __init__(self, status: int):
        self.status, self.name = status, ""

    def report(self, **words: Any) -> None:
        os.write(self.status, json.dumps(words).encode() + b"\n")

    def refuse(self, error: Exception) -> None:
        self.report(missing=self.name, error=str(error))
        os._exit(1)


def main(setup: dict[str, Any]) -> None:
    """Runs the program; the outcome goes to the status pipe as lines of JSON."""
    steps = _Steps(setup["status"])
    try:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        with open(setup["program"], encoding="utf-8", errors="surrogatepass") as source:
            program = source.read()
        steps.name = "seccomp filter for this machine"
        if not system_calls.known_architecture():
            raise OSError("only x86_64 and aarch64 are known")
        uid, gid = _identity(steps)
        for steps.name, flag in _NAMESPACES.items():
            kernel.unshare(flag)
        steps.name = "process namespace"
        init = os.fork()
        if init == 0:
            _inside(steps, setup, program, uid, gid)
    except Exception as error:
        return steps.refuse(error)
    timed_out = []

    def stop(*_: Any) -> None:
        timed_out.append(True)
        os.kill(init, signal.SIGKILL)

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, setup["wall_seconds"])
    # Process 1 can be reaped only after everything else in its namespace is gone.
    os.waitpid(init, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    steps.report(timed_out=bool(timed_out))


def _identity(steps: _Steps) -> tuple[int, int]:
    """The user and group the program runs as; without privileges, in a user namespace."""
    if os.geteuid() == 0:
        steps.name = "unprivileged user id"
        with open("/proc/self/uid_map") as mapped:
            ranges = [[int(word) for word in line.split()] for line in mapped]
        start, _, count = max(ranges, key=lambda line: line[2])
        # An id of its own: the process limit counts by user, whatever else runs.
        room = min(count // 2, 1 << 24)
        if room < 1:
            raise OSError("no user but root is mapped here")
        highest = min(start + count, 1 << 31) - 1
        chosen = highest - secrets.randbelow(room)
        return chosen, chosen
    steps.name = "user namespace"
    uid, gid = os.geteuid(), os.getegid()
    kernel.unshare(kernel.CLONE_NEWUSER)
    for name, line in (
        ("setgroups", "deny"),
        ("uid_map", f"{_NOBODY} {uid} 1"),
        ("gid_map", f"{_NOBODY} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as out:
            out.write(line)
    return _NOBODY, _NOBODY


def _inside(steps: _Steps, setup: dict[str, Any], program: str, uid: int, gid: int) -> None:
    """Process 1: builds the tree, starts process 2, waits for it, reports; never returns."""
    try:
        steps.name = "process 1"
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # which process 1 ignores, from inside
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        steps.name = "private mounts"
        kernel.mount("", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
        steps.name = "file tree of bind mounts and tmpfs"
        base = os.path.dirname(os.path.abspath(__file__))
        root.build(base, setup, program, uid, gid)
        steps.name = "pivot_root"
        kernel.pivot_root(base)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        child = os.fork()
        if child == 0:
            _become(steps, setup, uid, gid)
        _, status, usage = os.wait4(child, 0)
        steps.report(
            exit_code=os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
            cpu_seconds=usage.ru_utime + usage.ru_stime,
        )
        os._exit(0)
    except Exception as error:
        steps.refuse(error)


def _become(steps: _Steps, setup: dict[str, Any], uid: int, gid: int) -> None:
    """Process 2: gives up everything, then is the program; never returns."""
    try:
        steps.name = "new session"
        os.setsid()
        steps.name = "resource limits"
        for limit, size in (
            (resource.RLIMIT_AS, setup["memory_bytes"]),
            (resource.RLIMIT_FSIZE, setup["file_bytes"]),
            (resource.RLIMIT_NPROC, setup["processes"]),
            (resource.RLIMIT_NOFILE, 64),
            (resource.RLIMIT_CORE, 0),
        ):
            resource.setrlimit(limit, (size, size))
        resource.setrlimit(resource.RLIMIT_CPU, (setup["cpu_seconds"], setup["cpu_seconds"] + 1))
        steps.name = "capability bounding set"
        kernel.drop_bounding_set()
        steps.name = "unprivileged user id"
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
        steps.name = "dropping capabilities"
        kernel.drop_capabilities()
        steps.name = "no_new_privs"
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        os.chdir(root.SCRATCH)
        os.closerange(3, steps.status)
        os.closerange(steps.status + 1, 1024)
        steps.name = "seccomp"
        kernel.install_filter(system_calls.program())
        steps.name = "starting the interpreter"
        python = setup["interpreter"]["python"]
        os.set_inheritable(steps.status, False)
        os.execve(
            python,
            [python, "-I", "-B", "-X", "utf8", root.PROGRAM],
            {
                "HOME": root.SCRATCH,
                "TMPDIR": root.SCRATCH,
                "LANG": "C.UTF-8",
                "PATH": "/",
                "LD_LIBRARY_PATH": setup["interpreter"]["library_path"],
            },
        )
    except Exception as error:
        steps.refuse(error)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
