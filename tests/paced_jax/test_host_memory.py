"""Freed memory stays with the process once it is told to keep it."""

import subprocess
import sys

import pytest

COUNT = """
import ctypes, resource, sys
from paced_jax.host_memory import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
def once():
    block = ctypes.c_void_p(libc.malloc(64 * 2**20))
    ctypes.memset(block, 1, 64 * 2**20)
    libc.free(block)
once()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    once()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc is on Linux alone")
def test_pages_are_touched_once():
    faults = {}
    for how in ("keep", "return"):
        found = subprocess.run(
            [sys.executable, "-c", COUNT, how], capture_output=True, text=True, check=True
        )
        faults[how] = int(found.stdout)
    # Four times 64 MiB in pages of 4 KiB are 65,536 faults.
    assert faults["keep"] < 100 < 10_000 < faults["return"], faults
