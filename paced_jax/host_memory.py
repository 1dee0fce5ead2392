"""Memory of the process, on Linux."""

import ctypes
import sys

TRIM_THRESHOLD, MMAP_MAX = -1, -4
"""Parameters of glibc's `mallopt`."""


def keep_freed_memory() -> bool:
    """Tells the C library to keep large freed blocks for itself; for a whole process, and for good.

    By default every large array is mapped anew and its pages are cleared when first touched, at 3
    nanoseconds a float32, and given back when it is freed. A program compiled for CPUs does so with
    its temporary arrays at every call, gigabytes of them for a language model. Call it before
    anything large is allocated. Memory then falls no more from its peak.

    Returns:
        Whether it could be done: with glibc alone.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(MMAP_MAX, 0) and mallopt(TRIM_THRESHOLD, -1))
