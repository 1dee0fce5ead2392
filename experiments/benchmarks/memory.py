"""Peak memory of this process. Standard library alone: peers' processes read it too."""

import resource
from pathlib import Path


def peak_bytes() -> int:
    """Largest resident memory so far.

    Linux counts `ru_maxrss` from the process that forked this one, so a small child of a large
    parent would show its parent's; the high-water mark in /proc begins at exec.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
