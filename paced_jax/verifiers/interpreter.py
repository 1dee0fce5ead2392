"""What the running Python interpreter needs on disk: its library and the shared objects it loads.

A jail that binds these alone shows nothing else of the machine's files.
"""

import functools
import json
import os
import subprocess
import sys
from typing import Any

# Loads every extension module of the standard library and lists the shared objects that took.
_PROBE = """
import ctypes, importlib, json, os, sys, sysconfig
stdlib = {os.path.realpath(sysconfig.get_path(n)) for n in ("stdlib", "platstdlib")}
for folder in stdlib:
    dynload = os.path.join(folder, "lib-dynload")
    for name in sorted(os.listdir(dynload)) if os.path.isdir(dynload) else []:
        name = name.partition(".")[0]
        if not name.startswith(("_tkinter", "_test", "_ctypes_test", "xx")):
            try:
                importlib.import_module(name)
            except Exception:
                pass
try:
    ctypes.CDLL("libgcc_s.so.1")
except OSError:
    pass
class Info(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("name", ctypes.c_char_p)]
files = []
@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Info), ctypes.c_size_t, ctypes.c_void_p)
def note(info, size, data):
    files.append(os.fsdecode(info.contents.name or b""))
    return 0
ctypes.CDLL(None).dl_iterate_phdr(note, None)
files = [f for f in files if f.startswith("/") and os.path.exists(f)]
print(json.dumps([sorted(stdlib), files]))
"""


@functools.cache
def describe() -> dict[str, Any]:
    """Returns the paths to bind into a jail.

    Returns:
        `python`: the interpreter; `folders`: its standard library; `masked`: folders in it that
        stay empty (installed packages); `files`: the interpreter and its shared objects;
        `library_path`: where the loader looks for those.

    Raises:
        OSError: the interpreter does not start.
    """
    python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    done = subprocess.run([python, "-I", "-S", "-c", _PROBE], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{python} does not start: {done.stderr.strip()}")
    folders, files = json.loads(done.stdout)
    masked = [
        path
        for folder in folders
        for name in ("site-packages", "dist-packages")
        if os.path.isdir(path := os.path.join(folder, name))
    ]
    outside = [f for f in files if not any(f.startswith(folder + "/") for folder in folders)]
    return {
        "python": python,
        "folders": folders,
        "masked": masked,
        "files": [python, *outside],
        "library_path": ":".join(sorted({os.path.dirname(f) for f in outside})),
    }
