"""Programs as answers: the last fenced block of a response, run against tests in the sandbox.

A gold is a JSON object, in one of two forms:

* `{"stdin": ["1 2", ...], "stdout": ["3", ...]}`: the program runs once for each input, and what it
  prints must be the output, trailing spaces and blank lines apart. The expected outputs never enter
  the jail, so a program cannot find them there.
* `{"asserts": "assert add(1, 2) == 3 ..."}`: statements that run after the program, in its own
  namespace; all must pass. The program shares a process with them: ending early does not pass, but
  a program written to cheat (an object that equals everything, a patched builtin) may. Prefer the
  other form wherever a policy is trained against the tests.

| What happens | Verdict |
|---|---|
| all tests pass | 1 `passed` |
| no fenced block | 0 `no code` |
| a different output; an assertion or exception; a non-zero exit; ended early | 0 `failed` |
| over its processor time, memory or output | 0 `cpu`, or as it ended |
| over the wall clock: asleep, or a busy machine, nobody can tell | -1 `timeout` |
| a gold that is neither form | ValueError |
| the machine lacks a part of the sandbox | `SandboxError`, nothing runs |
"""

import json
import re
import secrets
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from paced_jax.verifiers import sandbox
from paced_jax.verifiers.sandbox import Limits, Outcome
from paced_jax.verifiers.verdicts import NONE, RIGHT, WRONG, Verdicts, as_verdicts, check_rows

_FENCE = re.compile(r"^[ \t]*(```+|~~~+)[^\n`]*\n(.*?)^[ \t]*\1[ \t]*$", re.M | re.S)


def find_code(response: str) -> str | None:
    r"""Returns the last fenced block of a response; None without one that closes.

    >>> find_code("First\n```python\nprint(1)\n```\nbetter:\n```\nprint(2)\n```\n")
    'print(2)\n'
    """
    blocks = _FENCE.findall(response)
    return blocks[-1][1] if blocks else None


def read_tests(gold: str) -> tuple[list[tuple[str, str]], str]:
    """Reads a gold: pairs of input and output, or assertions; the other is empty.

    Raises:
        ValueError: naming what is wrong.
    """
    try:
        tests = json.loads(gold)
    except json.JSONDecodeError as error:
        raise ValueError(f"gold: not JSON: {error}") from error
    if isinstance(tests, dict) and isinstance(tests.get("asserts"), str) and len(tests) == 1:
        return [], tests["asserts"]
    if isinstance(tests, dict) and set(tests) == {"stdin", "stdout"}:
        given, expected = tests["stdin"], tests["stdout"]
        texts = isinstance(given, list) and isinstance(expected, list)
        if texts and all(isinstance(text, str) for text in (*given, *expected)):
            if len(given) == len(expected) > 0:
                return list(zip(given, expected, strict=True)), ""
    raise ValueError(
        'gold: must be {"stdin": [...], "stdout": [...]}, as many of each and at least one, '
        f'or {{"asserts": "..."}}, got {gold[:80]!r}'
    )


def grade(response: str, gold: str, limits: Limits | None = None) -> tuple[int, str]:
    """Runs a response's program against the tests of a gold; (verdict, reason).

    Raises:
        ValueError: the gold is of neither form.
        SandboxError: the machine lacks a part of the sandbox.
    """
    pairs, asserts = read_tests(gold)
    code = find_code(response)
    if code is None:
        return WRONG, "no code"
    for given, expected in pairs:
        outcome = sandbox.run(code, given, limits)
        if (failure := _failure(outcome)) is not None:
            return failure
        if _lines(outcome.stdout) != _lines(expected):
            return WRONG, "failed"
    if not pairs:
        token = secrets.token_hex(16)
        outcome = sandbox.run(_with_asserts(code, asserts), token + "\n", limits)
        if (failure := _failure(outcome)) is not None:
            return failure
        # The last line, which only a run to the end prints.
        if outcome.stdout.rsplit("\n", 2)[-2:] != [token, ""]:
            return WRONG, "failed"
    return RIGHT, "passed"


def _with_asserts(code: str, asserts: str) -> str:
    """A program that prints its first line of input once the code and all assertions ran."""
    return (
        "def _judge(token, space):\n"
        f"    exec(compile({code!r}, 'program.py', 'exec'), space)\n"
        f"    exec(compile({asserts!r}, 'tests.py', 'exec'), space)\n"
        "    print('\\n' + token)\n"
        "_judge(input(), {'__name__': '__main__'})\n"
    )


def _failure(outcome: Outcome) -> tuple[int, str] | None:
    if outcome.ended == "wall":
        return NONE, "timeout"
    if outcome.ended == "cpu":
        return WRONG, "cpu"
    return None if outcome.exit_code == 0 else (WRONG, "failed")


def _lines(text: str) -> list[str]:
    return "\n".join(line.rstrip() for line in text.splitlines()).rstrip().split("\n")


class CodeVerifier:
    """Judges programs; golds are tests as JSON, in the forms of this module.

    Args:
        workers: programs that run at once, >= 1.
        limits: what each run may use.

    Raises:
        SandboxError: the machine lacks a part of the sandbox, named in the message.
        ValueError: naming the field.
    """

    def __init__(self, *, workers: int = 4, limits: Limits | None = None):
        if workers < 1:
            raise ValueError(f"workers: must be positive, got {workers}")
        self.limits = limits or Limits()
        sandbox.run("", limits=self.limits)  # a machine that cannot says so now
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="sandbox")

    def verify(self, responses: Sequence[str], golds: Sequence[str]) -> Verdicts:
        """Returns the verdicts, [R], by the table of this module; from any thread.

        Raises:
            ValueError: a gold is of neither form; nothing has run.
            SandboxError: the machine lost a part of the sandbox.
        """
        check_rows(responses, golds)
        for gold in golds:
            read_tests(gold)
        return as_verdicts(list(self._threads.map(self._grade, responses, golds)))

    def close(self) -> None:
        """Waits for programs in progress; their limits bound the wait."""
        self._threads.shutdown(cancel_futures=True)

    def __enter__(self) -> "CodeVerifier":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _grade(self, response: str, gold: str) -> tuple[int, str, float]:
        started = time.monotonic()
        verdict, reason = grade(response, gold, self.limits)
        return verdict, reason, time.monotonic() - started
