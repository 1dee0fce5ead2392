"""Whether other processes have ended."""

import time
from collections.abc import Iterable


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has reaped does not."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for_end(pids: Iterable[int], seconds: float = 60.0) -> None:
    """Waits until all of them have ended."""
    pids, deadline = list(pids), time.monotonic() + seconds
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.01)
