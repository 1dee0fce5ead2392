"""A contender of the trainer's benchmark: a warm process that does one job at a time when told.

Standard library alone, because it also runs where only a peer is installed. One line of JSON in,
`{"action": name}`, one line out: `{"seconds": ..., "cpu_seconds": ..., "peak_bytes": ...}` and what
the action returned.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from experiments.benchmarks.memory import peak_bytes

ROOT = Path(__file__).parents[2]


def serve(
    prepare: Callable[[Path], Mapping[str, Callable[[], dict[str, Any]]]],
    about: Callable[[], dict[str, Any]],
) -> None:
    """Answers on standard output until standard input ends; everything else printed goes to stderr.

    Args:
        prepare: `(folder of the work) -> actions by name`; an action ends when its result is there.
        about: versions and settings of the contender.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(content: dict[str, Any]) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    baseline = peak_bytes()
    actions = prepare(Path(sys.argv[1]))
    answer({"actions": list(actions), "about": about(), "imported_bytes": baseline})
    for line in sys.stdin:
        run = actions[json.loads(line)["action"]]
        start, cpu = time.perf_counter(), time.process_time()
        found = run()
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
        timed = {"seconds": seconds, "cpu_seconds": cpu_seconds, "peak_bytes": peak_bytes()}
        answer(timed | found)


class Contender:
    """A contender's process, seen from the benchmark; a context manager that ends it.

    Attributes:
        name: of the contender.
        actions: what it can do.
        about: versions and settings.
        imported_bytes: largest resident memory when its libraries were imported.
    """

    def __init__(self, name: str, python: Path | str, module: str, folder: Path):
        self.name = name
        self._log = folder / f"{name}.log"
        environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "JAX_PLATFORMS": "cpu",
            "HF_HUB_OFFLINE": "1",
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [str(python), "-m", module, str(folder.resolve())],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        try:
            ready = self._read()
        except BaseException:
            self.__exit__()
            raise
        self.actions: list[str] = ready["actions"]
        self.about: dict[str, Any] = ready["about"]
        self.imported_bytes: int = ready["imported_bytes"]

    def run(self, action: str) -> dict[str, Any]:
        """Runs one action and returns its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"action": action}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            raise RuntimeError(f"{self.name} ended:\n{self._log.read_text()[-3000:]}")
        return json.loads(line)

    def __enter__(self) -> "Contender":
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._process.stdout:
            self._process.stdin.close()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
