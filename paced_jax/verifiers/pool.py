"""Graders in worker processes, each item under a hard time limit.

A grader may hang in C code, crash or eat memory; only a process can be ended from outside. Workers
are not forked from this process, which holds JAX's threads, but from a small template process
(`worker`). Each worker has a socket of its own: pools with one shared queue (`concurrent.futures`,
pebble 5.2) stall when a process is killed while it holds the queue's lock, and re-import the
caller's main module, JAX included, into every replacement.
"""

import json
import os
import queue
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from paced_jax.verifiers.bootstrap import command
from paced_jax.verifiers.verdicts import NONE, Verdicts, as_verdicts, check_rows

# Importing a grader (sympy) takes seconds on a busy machine.
_START_SECONDS = 120.0


class _Worker(NamedTuple):
    pid: int
    work: socket.socket
    template: "_Template"

    def gone(self) -> bool:
        """Whether an idle worker has ended: nobody else holds the other end of its socket."""
        self.work.settimeout(0)
        try:
            return self.work.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True


class _Template:
    """The process that workers are forked from."""

    def __init__(self, grader: str, memory_bytes: int):
        self._control, theirs = socket.socketpair()
        self._control.settimeout(_START_SECONDS)
        self._lock = threading.Lock()
        with theirs:
            arguments = [grader, str(theirs.fileno()), str(memory_bytes)]
            self._process = subprocess.Popen(
                command("paced_jax.verifiers.worker", arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # an interrupt at the terminal is for the caller
            )
        try:
            error = _receive(self._control, time.monotonic() + _START_SECONDS)["error"]
        except OSError as cut_off:
            error = str(cut_off)
        if error:
            self.close()
            raise ValueError(f"grader: {grader!r} does not load: {error}")

    def alive(self) -> bool:
        return self._process.poll() is None

    def fork(self) -> _Worker:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                with self._lock:
                    socket.send_fds(self._control, [b"fork\n"], [theirs.fileno()])
                    pid = _receive(self._control, time.monotonic() + _START_SECONDS)["pid"]
            except BaseException:
                ours.close()
                raise
        return _Worker(pid, ours, self)

    def kill(self, worker: _Worker) -> None:
        worker.work.close()
        try:
            # At once: the template may have to wait for a core that this very worker keeps busy.
            # It alone reaps its workers, on the order that follows, so the id is still theirs.
            if self.alive():
                os.kill(worker.pid, signal.SIGKILL)
            with self._lock:
                self._control.sendall(b"kill %d\n" % worker.pid)
        except OSError:
            pass  # the template is gone, and its workers with it

    def close(self) -> None:
        self._control.close()
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class WorkerPool:
    """Grades in worker processes; a verifier for any function of a response and a gold.

    `verify` may be called from any thread, also by several at once; they share the workers. A
    worker that exceeds the limit, dies or runs out of memory costs its own item a verdict of none
    and is replaced; the pool keeps its size.

    Args:
        grader: "module:function", importable in a fresh process; `function(response, gold) ->
            (verdict, reason)`, verdict 1, 0 or -1. The module's `load()`, if it has one, runs once.
        workers: number of processes, >= 1.
        limit: seconds of wall clock an item may take, > 0.
        memory_bytes: address space of one worker, > 0.

    Raises:
        ValueError: naming the field; also when the grader does not load.
    """

    def __init__(
        self,
        grader: str,
        *,
        workers: int = 4,
        limit: float = 5.0,
        memory_bytes: int = 2**31,
    ):
        for name, size in (("workers", workers), ("limit", limit), ("memory_bytes", memory_bytes)):
            if not size > 0:
                raise ValueError(f"{name}: must be positive, got {size}")
        self.workers, self.limit = workers, limit
        self._grader, self._memory_bytes = grader, memory_bytes
        self._lock = threading.Lock()
        self._template: _Template | None = _Template(grader, memory_bytes)
        # A slot holds a worker, or None where one has to be started; there are always `workers`.
        self._slots: queue.SimpleQueue[_Worker | None] = queue.SimpleQueue()
        for _ in range(workers):
            self._slots.put(None)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="verifier")

    def verify(self, responses: Sequence[str], golds: Sequence[str]) -> Verdicts:
        """Grades every response against its gold.

        Args:
            responses: [R] texts.
            golds: [R] texts, the form is the grader's.

        Returns:
            Verdicts of [R]; none with the reason "timeout" (over the limit), "died" (the worker
            crashed), "memory", "error: <type>" (the grader raised), or one of the grader's own.
        """
        check_rows(responses, golds)
        return as_verdicts(list(self._threads.map(self._grade, responses, golds)))

    def pids(self) -> list[int]:
        """Process ids of the idle workers that are running; all of them while nothing is graded."""
        slots = [self._slots.get() for _ in range(self._slots.qsize())]
        for slot in slots:
            self._slots.put(slot)
        return [worker.pid for worker in slots if worker is not None]

    def close(self) -> None:
        """Waits for items in progress, then ends all processes."""
        self._threads.shutdown(cancel_futures=True)
        while not self._slots.empty():
            worker = self._slots.get()
            if worker is not None:
                worker.work.close()
        with self._lock:
            if self._template is not None:
                self._template.close()
            self._template = None

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _grade(self, response: str, gold: str) -> tuple[int, str, float]:
        worker, reason = self._slots.get(), "died"
        line = json.dumps([response, gold]).encode() + b"\n"
        started = time.monotonic()
        try:
            if worker is not None and worker.gone():  # while idle: no fault of this item
                worker.template.kill(worker)
                worker = None
            worker = worker or self._start()
            started = time.monotonic()
            worker.work.settimeout(self.limit)
            worker.work.sendall(line)
            answer = _receive(worker.work, started + self.limit)
            verdict, reason = answer["verdict"], answer["reason"]
        except TimeoutError:
            verdict, reason = NONE, "timeout"
        except (OSError, ValueError, KeyError):
            verdict, reason = NONE, "died"
        finally:
            if worker is not None and reason in ("timeout", "died", "memory"):
                worker.template.kill(worker)
                worker = None
            self._slots.put(worker)
        return verdict, reason, time.monotonic() - started

    def _start(self) -> _Worker:
        with self._lock:
            if self._template is None or not self._template.alive():
                if self._template is not None:
                    self._template.close()
                self._template = _Template(self._grader, self._memory_bytes)
            template = self._template
        return template.fork()


def _receive(source: socket.socket, deadline: float) -> dict:
    """Reads one line of JSON; TimeoutError at the deadline, ConnectionError when cut off."""
    line = b""
    while not line.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        source.settimeout(left)
        part = source.recv(4096)
        if not part:
            raise ConnectionError("the process is gone")
        line += part
    return json.loads(line)
