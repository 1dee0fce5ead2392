"""Runs commands side by side, one process a core, each with its log.

A small policy or a filter does not fill two cores: two processes of one core each do half as much
again as one process of two.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple


class Command(NamedTuple):
    """A module of this project to run in a process of its own.

    Attributes:
        name: for people, distinct.
        module: as `python -m` takes it.
        arguments: of its command line.
        log: file that its output goes to.
        after: names of commands that must have succeeded before it starts.
    """

    name: str
    module: str
    arguments: tuple[str, ...]
    log: Path
    after: tuple[str, ...] = ()


class Ended(NamedTuple):
    """How a command has ended.

    Attributes:
        code: its exit status; None where it was not started, since one before it failed.
        seconds: that it ran.
    """

    code: int | None
    seconds: float


def run_all(
    commands: Sequence[Command],
    workers: int,
    *,
    environment: dict[str, str] | None = None,
    tick: Callable[[], None] = lambda: None,
    started: Callable[[Command], None] = lambda command: None,
    ended: Callable[[Command, Ended], None] = lambda command, how: None,
) -> dict[str, Ended]:
    """Runs all commands, in their order as far as cores and `after` allow.

    One that fails ends nothing but those that need it. Ctrl-C reaches the processes too, and on
    Linux they end with this one, however it ends.

    Args:
        commands: what to run; `after` may name commands that are not among them, taken as done.
        workers: processes at once; each stays on a core of its own where there are several.
        environment: variables to set beside this process's.
        tick: called every second or so meanwhile.
        started: called, from any thread, before a command starts.
        ended: called, from any thread, once it has.

    Returns:
        How each has ended, by name.

    Raises:
        OSError: a log can't be written; whatever `started` and `ended` raise. No further command
            is started then.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    names = {command.name for command in commands}
    waiting, done = list(commands), dict[str, Ended]()
    errors: list[BaseException] = []
    changed = threading.Condition()

    def next_one() -> Command | None:
        """A command whose turn it is; waits where all depend on running ones."""
        with changed:
            while waiting:
                for command in waiting:
                    needs = [done.get(name) for name in command.after if name in names]
                    if any(how is not None and how.code != 0 for how in needs):
                        waiting.remove(command)
                        finish(command, Ended(None, 0.0))
                        break
                    if all(needs):
                        waiting.remove(command)
                        return command
                else:
                    changed.wait()
            return None

    def finish(command: Command, how: Ended) -> None:
        with changed:
            done[command.name] = how
            ended(command, how)
            changed.notify_all()

    def work(number: int) -> None:
        try:
            work_off(number)
        except BaseException as error:  # no folder, a full disk: the others finish what they do
            with changed:
                errors.append(error)
                waiting.clear()
                changed.notify_all()

    def work_off(number: int) -> None:
        core = [str(cores[number % len(cores)])] if len(cores) > 1 else ["any"]
        while (command := next_one()) is not None:
            command.log.parent.mkdir(parents=True, exist_ok=True)
            line = [sys.executable, "-m", "experiments.on_core", *core, command.module]
            started(command)
            clock = time.monotonic()
            with command.log.open("w") as file:
                ran = subprocess.run(
                    [*line, *command.arguments],
                    stdout=file,
                    stderr=file,
                    env={**(environment or {}), **os.environ},
                )
            finish(command, Ended(ran.returncode, time.monotonic() - clock))

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(workers)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.5)
        tick()
    if errors:
        raise errors[0]
    return done
