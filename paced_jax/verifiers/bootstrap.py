"""Starts a module of this package in a fresh interpreter, without importing the package.

`import paced_jax` imports JAX; a grader or a jail needs neither its seconds nor its threads. The
parent packages are therefore empty shells in the child, with their folders as `__path__`.
"""

import json
import sys
from pathlib import Path

_CHILD = """
import json, runpy, sys, types
folders, path, module, sys.argv[1:] = json.loads(sys.argv[1])
sys.path[:] = path
for name, folder in folders.items():
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]
runpy.run_module(module, run_name="__main__")
"""


def command(module: str, arguments: list[str], *, path: list[str] | None = None) -> list[str]:
    """Returns the command line that runs a module of this package as `__main__`.

    Args:
        module: such as "paced_jax.verifiers.worker"; it and what it imports may use this package's
            submodules, not what their `__init__` gathers.
        arguments: `sys.argv[1:]` of the child.
        path: `sys.path` of the child; by default this process's.
    """
    verifiers = Path(__file__).resolve().parent
    folders = {"paced_jax": str(verifiers.parent), "paced_jax.verifiers": str(verifiers)}
    setup = json.dumps([folders, sys.path if path is None else path, module, arguments])
    # Isolated and without site: the environment cannot change what runs, and start-up is short.
    return [sys.executable, "-I", "-S", "-c", _CHILD, setup]
