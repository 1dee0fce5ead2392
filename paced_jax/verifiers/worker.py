"""The processes behind a pool: a template that loads the grader once, and workers forked from it.

Run by `pool` in a fresh interpreter. The template has one thread and never grades, so forking it is
safe, and a replacement is ready in milliseconds, without importing the grader again. Messages are
lines of JSON. The template ends when its control socket closes, and the kernel ends the workers
with it. (Not the template with its own parent: that signal comes when the parent's thread ends.)
"""

import importlib
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable

from paced_jax.verifiers.jail import kernel


def main(grader: str, descriptor: int, memory_bytes: int) -> None:
    """Serves fork and kill orders until the pool closes the control socket."""
    with socket.socket(fileno=descriptor) as control:
        try:
            grade = _load(grader)
        except Exception as error:
            return _say(control, {"error": f"{type(error).__name__}: {error}"})
        _say(control, {"error": None})
        children: set[int] = set()
        unread = b""
        while True:
            orders, descriptors, *_ = socket.recv_fds(control, 4096, 1)
            if not orders:
                break
            *lines, unread = (unread + orders).split(b"\n")
            for line in lines:
                word, _, number = line.partition(b" ")
                if word == b"fork":
                    children.add(_fork(grade, descriptors[0], memory_bytes, control))
                    os.close(descriptors[0])
                else:
                    _end(children, int(number))
        for child in list(children):
            _end(children, child)


def _load(grader: str) -> Callable:
    """Imports the grader; a module's own `load()` imports what it needs before the first fork."""
    name, _, function = grader.partition(":")
    module = importlib.import_module(name)
    getattr(module, "load", lambda: None)()
    return getattr(module, function)


def _end(children: set[int], child: int) -> None:
    """Kills a worker, unless the pool has, and reaps it; till then its id is nobody else's."""
    if child in children:
        children.remove(child)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _fork(grade: Callable, descriptor: int, memory_bytes: int, control: socket.socket) -> int:
    child = os.fork()
    if child:
        _say(control, {"pid": child})
        return child
    try:
        control.close()
        if sys.platform == "linux":  # the kernel ends a worker with its template
            kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _serve(grade, socket.socket(fileno=descriptor))
    finally:
        os._exit(0)


def _serve(grade: Callable, work: socket.socket) -> None:
    for line in work.makefile("rb"):
        response, gold = json.loads(line)
        try:
            verdict, reason = grade(response, gold)
            answer = {"verdict": int(verdict), "reason": str(reason)}
        except MemoryError:
            answer = {"verdict": -1, "reason": "memory"}
        except Exception as error:
            # An error of the grader says nothing about the response.
            answer = {"verdict": -1, "reason": f"error: {type(error).__name__}"}
        _say(work, answer)


def _say(to: socket.socket, message: dict) -> None:
    to.sendall(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
