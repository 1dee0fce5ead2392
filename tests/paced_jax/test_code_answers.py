"""Programs as answers, judged in the sandbox."""

import json

import pytest

from paced_jax.verifiers import CodeVerifier, Limits, SandboxError, why_none
from paced_jax.verifiers.code_answers import find_code, read_tests

SUMS = json.dumps({"stdin": ["1 2\n", "30 12\n"], "stdout": ["3\n", "42"]})
ADD = json.dumps({"asserts": "assert add(1, 2) == 3\nassert add(-1, 1) == 0"})


def block(code):
    return f"Here it is.\n```python\n{code}\n```\nDone."


READS = "a, b = map(int, input().split())\n"
DEFINES = "def add(a, b):\n    return "
CASES = [
    (block(READS + "print(a + b)"), SUMS, 1, "passed"),
    (block(READS + "print(a + b, ' ')\nprint()"), SUMS, 1, "passed"),
    (block(READS + "print(a - b)"), SUMS, 0, "failed"),
    (block("print(3)"), SUMS, 0, "failed"),
    (block(READS + "print(a + b)\nexit(1)"), SUMS, 0, "failed"),
    (block("print(1"), SUMS, 0, "failed"),
    ("print(sum(map(int, input().split())))", SUMS, 0, "no code"),
    (block("print(0)") + "\nBetter:\n" + block(READS + "print(a + b)"), SUMS, 1, "passed"),
    (block(READS + "print(a + b)") + "\nBetter:\n" + block("print(0)"), SUMS, 0, "failed"),
    (block("while True: pass"), SUMS, 0, "cpu"),
    (block("x = bytearray(10**10)"), SUMS, 0, "failed"),
    (block(DEFINES + "a + b"), ADD, 1, "passed"),
    (block(DEFINES + "a - b"), ADD, 0, "failed"),
    (block(DEFINES + "a + b\nprint('noise', end='')"), ADD, 1, "passed"),
    # Ending before the assertions, by whatever way, does not pass.
    (block("import sys; sys.exit(0)"), ADD, 0, "failed"),
    (block("import os; os._exit(0)"), ADD, 0, "failed"),
    (block("import os; print('passed'); os._exit(0)"), ADD, 0, "failed"),
    (block(f"x = {'1' * 6_000_000!r}\n" + DEFINES + "a + b"), ADD, 1, "passed"),
    (block("open('/etc/passwd')\n" + DEFINES + "a + b"), ADD, 0, "failed"),
]


def test_verdicts_on_programs():
    try:
        verifier = CodeVerifier(workers=2, limits=Limits(cpu_seconds=1, wall_seconds=60.0))
    except SandboxError as refusal:
        pytest.skip(str(refusal))
    with verifier:
        got = verifier.verify([c[0] for c in CASES], [c[1] for c in CASES])
        with pytest.raises(ValueError, match="gold: not JSON"):
            verifier.verify([block("pass")], ["assert True"])
    rows = zip(CASES, got.verdict.tolist(), got.reason, strict=True)
    assert [(case[0], v, why) for case, v, why in rows if (v, why) != case[2:]] == []


def test_a_sleeper_is_none_and_not_wrong():
    try:
        verifier = CodeVerifier(workers=1, limits=Limits(wall_seconds=2.0))
    except SandboxError as refusal:
        pytest.skip(str(refusal))
    with verifier:
        got = verifier.verify([block("import time; time.sleep(600)")], [SUMS])
    assert (got.verdict.tolist(), why_none(got)) == ([-1], {"timeout": 1})


def test_the_last_block_that_closes_is_the_answer():
    assert find_code("~~~\na\n~~~\n````py\nb\n```\n````\n") == "b\n```\n"
    assert find_code("```python\nopen") is None
    assert find_code("  ```\n  x = 1\n  ```") == "  x = 1\n"


@pytest.mark.parametrize(
    "gold",
    ['{"stdin": [], "stdout": []}', '{"stdin": ["1"], "stdout": []}', '{"asserts": 1}', "[1]"],
)
def test_a_gold_of_neither_form_is_refused(gold):
    with pytest.raises(ValueError, match="gold: must be"):
        read_tests(gold)


def test_bad_settings_are_refused_by_name():
    with pytest.raises(ValueError, match="workers: must be positive, got 0"):
        CodeVerifier(workers=0)
