"""Mathematics answers: the rules, the field's reports, and every benchmark's own golds."""

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paced_jax.verifiers import MathVerifier, WorkerPool, math_text
from paced_jax.verifiers.math_answers import READ_AS_TEXT_ONLY

pytest.importorskip("math_verify", reason="math-verify comes with the verifiers extra")
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
BENCHMARKS = Path(os.environ.get("FADE_JAX_BENCHMARKS_DIR") or SHARED / "benchmarks")
GSM8K = Path(os.environ.get("FADE_JAX_GSM8K_DIR") or SHARED / "gsm8k")
ROWS = {
    "aime24": 30,
    "aime25": 30,
    "amc23": 40,
    "math500": 500,
    "minerva_math": 272,
    "olympiadbench": 675,
    "gsm8k": 1319,
}


@pytest.fixture(scope="module")
def verifier():
    # The limit is for a busy machine; only what must time out takes it.
    with MathVerifier(workers=2, limit=10.0) as verifier:
        yield verifier


def test_a_hostile_power_is_none_and_not_wrong():
    """Field reports 45 and 46, from a thread that is not the main one."""
    with MathVerifier(workers=1, limit=1.0) as verifier, ThreadPoolExecutor(1) as thread:
        rows = [r"\boxed{2003^{2002^{2001}}}", r"\boxed{5}"], ["9", "5"]
        got = thread.submit(verifier.verify, *rows).result()
    assert got.verdict.tolist() == [-1, 1]
    assert got.reason == ("timeout", "same text")
    assert got.seconds[0] <= 2.0


@pytest.mark.slow
def test_fifty_hostile_powers_at_once_come_back_in_time():
    """Field report 46 with the real grader."""
    limit, workers = 1.0, 2
    with MathVerifier(workers=workers, limit=limit) as verifier:
        started = time.monotonic()
        got = verifier.verify([r"\boxed{2003^{2002^{2001}}}"] * 50, ["9"] * 50)
        total = time.monotonic() - started
        assert got.reason == ("timeout",) * 50
        assert got.seconds.max() <= limit + 1
        assert total <= 25 * (limit + 1)
        assert verifier.verify([r"\boxed{9}"] * 50, ["9"] * 50).verdict.tolist() == [1] * 50


CASES = [
    # Field reports 47, 48, 51 and 55.
    (r"\boxed{004}", "4", 1),
    (r"\boxed{004} and again \boxed{004}", "4", 1),
    ("pi/2", r"\frac{\pi}{2}", 1),
    (r"\boxed{pi/2}", r"\frac{\pi}{2}", 1),
    ("-2*pi", r"-2\pi", 1),
    ("-1+exp(16)", "-1+e^{16}", 1),
    ("-1+exp(16)", "e^{15}-1", 0),
    (r"\boxed{1728}", "1331 and 1728", 0),
    (r"\boxed{1728}", "$1331,1728$", 0),
    (r"\boxed{1728, 1331}", "1331 and 1728", 1),
    (r"\boxed{1331, 1728, 1}", "1331 and 1728", 0),
    (r"\boxed{4} so it is \boxed{", "4", 0),
    (r"\boxed{4} so it is \boxed", "4", 0),
    (r"\boxed{4} so it is \boxed{5", "5", 0),
    (r"\boxed{\text{E}}", "E", 1),
    (r"\boxed{5} no: \boxed{4}", "4", 1),
    (r"\boxed{4} no: \boxed{5}", "4", 0),
    # Where an answer is.
    ("Let me think.\nIt is 4, I believe\nor not", "4", 0),
    (r"\boxed{}", "4", 0),
    (r"\boxed 4", "4", 1),
    (r"\fbox{\frac{1}{\sqrt{2}}}", r"\frac{\sqrt{2}}{2}", 1),
    ("Well.\n#### 1,000", "1000", 1),
    ("So\nthe answer is **12**.", "12", 1),
    # Numbers.
    (r"\boxed{27}", "27.0", 1),
    (r"\boxed{-1}", "-1.0", 1),
    (r"\boxed{25}", "025", 1),
    (r"\boxed{1000}", "1,000", 1),
    (r"\boxed{1{,}000{,}000}", "1000000", 1),
    (r"\boxed{0.333333}", r"\frac13", 1),
    (r"\boxed{0.33}", r"\frac13", 0),
    (r"\boxed{3\frac12}", "3.5", 1),
    (r"\boxed{-1./3}", r"-\frac{1}{3}", 1),
    (r"\boxed{4.5e33}", r"4.5 \times 10^{33}", 1),
    (r"\boxed{2^10}", "1024", 1),
    (r"\boxed{2*x^2 + 1}", "1+2x^2", 1),
    (r"\boxed{2x^2 - 1}", "1+2x^2", 0),
    # Units and percent.
    (r"\boxed{5.4}", r"5.4 \text{ cents}", 1),
    (r"\boxed{5.4 \text{ cents}}", "5.4", 1),
    (r"\boxed{5.4 \text{ dollars}}", r"5.4 \text{ cents}", 0),
    (r"\boxed{5 \text{ m}}", r"5 \text{ cm}", 0),
    (r"\boxed{5 \text{ centimeters}}", r"5 \text{ cm}", 1),
    (r"\boxed{5 \text{ cm}^2}", r"5 \text{ cm}", 0),
    (r"\boxed{336}", r"336^\circ", 1),
    (r"\boxed{336 \text{ degrees}}", r"336^\circ", 1),
    (r"\boxed{\$18}", "18", 1),
    (r"\boxed{50}", r"50\%", 1),
    (r"\boxed{0.5}", r"50\%", 1),
    (r"\boxed{50\%}", "0.5", 1),
    (r"\boxed{0.5}", "50", 0),
    (r"\boxed{5m}", "5m", 1),
    (r"\boxed{5}", "5m", 1),
    (r"\boxed{5 m}", r"5 \text{ cm}", 0),
    (r"\boxed{x m}", "x", 0),
    (r"\boxed{2 k h}", "2k", 0),
    (r"\boxed{2 h k}", "2kh", 1),
    # Sets, pairs, intervals.
    (r"\boxed{2, 1}", r"\{1,2\}", 1),
    (r"\boxed{\{1, 2, 2\}}", "1,2", 1),
    (r"\boxed{3, -3}", r"\pm 3", 1),
    (r"\boxed{1 - \sqrt{2}, 1 + \sqrt 2}", r"1 \pm \sqrt{2}", 1),
    (r"\boxed{(1,2)}", "(2,1)", 0),
    (r"\boxed{[1,2]}", "(1,2)", 0),
    (r"\boxed{(3, pi/2)}", r"\left( 3, \frac{\pi}{2} \right)", 1),
    (r"\boxed{(2,1), (1,2)}", "(1,2), (2,1)", 1),
    (r"\boxed{(3,\infty) \cup (-\infty,2)}", r"(-\infty, 2) \cup (3, \infty)", 1),
    # Names and words.
    (r"\boxed{x = 3}", "3", 1),
    (r"\boxed{3}", "x=3", 1),
    (r"\boxed{c}", r"\text{(C)}", 1),
    (r"\boxed{\text{David}}", r"\text{Evelyn}", 0),
    (r"\boxed{\text{evelyn}}", r"\text{Evelyn}", 1),
    (r"\boxed{I don't know}", "4", 0),
    # What no parser reads is none.
    (r"\boxed{\frac{1}{}}", "3", -1),
    (r"\boxed{3}", r"\frac{1}{}", -1),
    (r"\boxed{???}", "3", 0),
]


def test_the_rules(verifier):
    responses, golds = [case[0] for case in CASES], [case[1] for case in CASES]
    got = verifier.verify(responses, golds)
    found = zip(CASES, got.verdict.tolist(), got.reason, strict=True)
    assert [(case, v, why) for case, v, why in found if v != case[2]] == []


def test_model_text_is_never_evaluated(verifier, tmp_path):
    touched = tmp_path / "touched"
    code = f"__import__('pathlib').Path('{touched}').touch()"
    responses = [rf"\boxed{{{code}}}", rf"\boxed{{exp({code})}}", code]
    assert 1 not in verifier.verify(responses, ["4"] * 3).verdict
    assert not touched.exists()


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def golds(name):
    """Golds of a benchmark as (id, text)."""
    if name == "gsm8k":
        rows = read(GSM8K / "test.jsonl")
        return [(i, row["answer"].rpartition("####")[2].strip()) for i, row in enumerate(rows)]
    rows = read(BENCHMARKS / f"{name}.test.jsonl")
    match name:
        case "minerva_math":
            return [(row["idx"], math_text.find_answer(row["solution"]) or "") for row in rows]
        case "olympiadbench":
            return [(row["id"], ", ".join(row["final_answer"])) for row in rows]
        case "math500":
            return [(row["unique_id"], row["answer"]) for row in rows]
        case _:
            return [(i, str(row["answer"])) for i, row in enumerate(rows)]


def benchmark(name):
    path = GSM8K / "test.jsonl" if name == "gsm8k" else BENCHMARKS / f"{name}.test.jsonl"
    if not path.exists():
        pytest.skip(f"{path.name} is not here; FADE_JAX_BENCHMARKS_DIR and FADE_JAX_GSM8K_DIR")
    found = golds(name)
    assert len(found) == ROWS[name]
    return found


def boxed(found):
    return [rf"Some thought $x^2$. So the answer is $\boxed{{{gold}}}$." for _, gold in found]


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_every_gold_of_a_benchmark_verifies_against_itself(verifier, name):
    found = benchmark(name)
    got = verifier.verify(boxed(found), [gold for _, gold in found])
    assert [f for f, v in zip(found, got.verdict, strict=True) if v != 1] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_golds_are_read_as_mathematics_but_for_the_listed_ones(name):
    """Without the shortcut for equal text, which makes the test above pass by itself."""
    found = benchmark(name)
    # Some, such as minerva_math's 112, take seconds on a quiet machine.
    with WorkerPool("gold_grader:grade", workers=2, limit=60.0) as pool:
        got = pool.verify(boxed(found), [""] * len(found))
    missed = {i for (i, _), v in zip(found, got.verdict, strict=True) if v != 1}
    assert missed == set(READ_AS_TEXT_ONLY.get(name, {}))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["aime24", "amc23", "math500", "gsm8k"])
def test_the_next_prompts_gold_is_not_taken_for_this_ones(verifier, name):
    found = benchmark(name)
    texts = [gold for _, gold in found]
    shifted = texts[1:] + texts[:1]
    got = verifier.verify(boxed(found), shifted)
    wrongly = [
        (a, b)
        for a, b, v in zip(texts, shifted, got.verdict, strict=True)
        if v == 1 and math_text.words(math_text.tidy(a)) != math_text.words(math_text.tidy(b))
    ]
    # math500 holds these two beside each other, rightly equal.
    assert wrongly == ([("5", "x=5")] if name == "math500" else [])
    assert (got.verdict == 0).mean() > 0.9
