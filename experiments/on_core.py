"""Runs a module as `python -m` does, on one core: `python -m experiments.on_core 0 MODULE ...`."""

import os
import runpy
import signal
import sys


def main() -> None:
    """Stays on the core named first ("any" for none), then becomes the module named second."""
    core, module, *arguments = sys.argv[1:]
    if core != "any":
        os.sched_setaffinity(0, {int(core)})  # before XLA counts its threads
    if sys.platform == "linux":  # the kernel ends it with whoever started it
        from paced_jax.verifiers.jail import kernel  # numpy counts its threads when it is imported

        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGTERM)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
