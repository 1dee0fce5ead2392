"""Benchmark files: the traps by hand, and the published files whole."""

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from fade_jax.pool import content_key
from paced_jax.tasks.benchmarks import ROW_COUNTS, last_boxed, load_benchmark

DATA = Path(
    os.environ.get("PACED_JAX_DATA_DIR") or Path(__file__).resolve().parents[3] / "shared" / "data"
)


def published(name):
    path = DATA / ("gsm8k/test.jsonl" if name == "gsm8k" else f"benchmarks/{name}.test.jsonl")
    if not path.exists():
        pytest.skip(f"{name} is not here; PACED_JAX_DATA_DIR names the folder of benchmarks/")
    return path


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


ROWS = {
    "aime24": {"id": 60, "problem": "p"},
    "aime25": {"problem": "p"},
    "amc23": {"id": 0, "problem": "p"},
    "math500": {"problem": "p", "unique_id": "test/a/1.json", "subject": "Algebra", "level": 3},
    "minerva_math": {"problem": "p", "idx": 4, "type": "Ecology"},
    "olympiadbench": {"question": "p", "id": 9, "subfield": "Geometry"},
    "gsm8k": {"question": "p"},
}


@pytest.mark.parametrize(
    ("name", "given", "answer"),
    [
        ("aime24", {"answer": "025"}, "25"),
        ("aime24", {"answer": "000"}, "0"),
        ("aime25", {"answer": r"336^\circ"}, "336"),
        ("aime25", {"answer": r"336^{\circ}"}, "336"),
        ("amc23", {"answer": 27.0}, "27"),
        ("amc23", {"answer": -1.0}, "-1"),
        ("amc23", {"answer": 0.25}, "0.25"),
        ("math500", {"answer": r"\text{Evelyn}"}, r"\text{Evelyn}"),
        ("math500", {"answer": r"\$18.90"}, r"\$18.90"),
        ("minerva_math", {"solution": r"a $=\boxed{\frac{1}{2}}$ m."}, r"\frac{1}{2}"),
        ("minerva_math", {"solution": "\\boxed{x+$ $y /\n 2}"}, "x+ y / 2"),
        ("minerva_math", {"solution": r"\boxed{\{1,\left\{2}\right\}"}, r"\{1,\left\{2"),
        ("olympiadbench", {"final_answer": ["2"]}, "2"),
        ("olympiadbench", {"final_answer": "['2']"}, "2"),
        ("olympiadbench", {"final_answer": [r"$69$,$84$"]}, "69,84"),
        ("olympiadbench", {"final_answer": ["69", "84"]}, "69,84"),
        ("olympiadbench", {"final_answer": ["$221,$8$"]}, "221,8"),
        (
            "olympiadbench",
            {"final_answer": [r"$(-\infty, 0) \cup\{1\}$."]},
            r"(-\infty, 0) \cup\{1\}",
        ),
        ("gsm8k", {"answer": "1 < 2 #1\n#### 1,450,000"}, "1450000"),
        ("gsm8k", {"answer": "so\n#### -3"}, "-3"),
    ],
)
def test_gold_answers(tmp_path, name, given, answer):
    path = write(tmp_path / "test.jsonl", {**ROWS[name], **given})
    (problem,) = load_benchmark(name, path, any_count=True)
    assert problem.answer == answer
    assert problem.text == "p"


@pytest.mark.parametrize(
    ("name", "given", "complaint"),
    [
        ("aime24", {"answer": "2.5"}, "answer: '2.5' is no whole number in 0..999"),
        ("aime24", {"answer": "-25"}, "answer: '-25' is no whole number"),
        ("aime24", {}, "no field 'answer'"),
        ("aime24", {"answer": "1", "id": None}, "id is null"),
        ("amc23", {"answer": None}, "answer is null"),
        ("amc23", {"answer": [27.0]}, "is no string or number"),
        ("math500", {"answer": " $ $"}, "answer holds no answer"),
        ("math500", {"answer": "1", "problem": " "}, "problem is ' ', not a problem"),
        ("minerva_math", {"solution": "1.6"}, "0 times .boxed"),
        ("minerva_math", {"solution": r"\boxed{1} \boxed{2}"}, "2 times .boxed"),
        ("minerva_math", {"solution": r"\boxed{\frac{1}{2}"}, "needs one that is closed"),
        ("olympiadbench", {"final_answer": "2,3"}, "is no list of strings"),
        ("olympiadbench", {"final_answer": "[2"}, "is no list of strings"),
        ("olympiadbench", {"final_answer": []}, "final_answer holds no answer"),
        ("gsm8k", {"answer": "18"}, "'18' holds no number after ####"),
        ("gsm8k", {"answer": "#### eighteen"}, "holds no number after ####"),
    ],
)
def test_rows_without_an_answer_are_named(tmp_path, name, given, complaint):
    good = {"aime24": "1", "amc23": 1.0, "math500": "1", "gsm8k": "#### 1"}
    first = {**ROWS[name], "answer": good.get(name), "solution": r"\boxed{1}"}
    first |= {"final_answer": ["1"], "id": "another", "idx": 5, "unique_id": "another"}
    path = write(tmp_path / "test.jsonl", first, {**ROWS[name], **given})
    with pytest.raises(ValueError, match=f"test.jsonl, row 1: .*{complaint}"):
        load_benchmark(name, path, any_count=True)


def test_a_file_that_is_not_whole(tmp_path):
    rows = [{"id": i, "problem": f"p {i}", "answer": "1"} for i in range(29)]
    path = write(tmp_path / "aime.jsonl", *rows)
    with pytest.raises(ValueError, match=r"aime.jsonl: 29 rows, aime24 has 30"):
        load_benchmark("aime24", path)
    assert len(load_benchmark("aime24", path, any_count=True)) == 29
    write(path, *rows, rows[0])
    with pytest.raises(ValueError, match=r"aime.jsonl: id repeats"):
        load_benchmark("aime24", path)
    with pytest.raises(ValueError, match="name: 'aime26' is none of aime24, aime25"):
        load_benchmark("aime26", path)


def test_the_last_box():
    assert last_boxed(r"\boxed{4} \boxed{\text{E}}") == r"\text{E}"
    assert last_boxed(r"\boxed{4} \boxed{") is None  # field report 55: not the box before it
    assert last_boxed(r"\boxed{a\}b\\}") == r"a\}b\\"
    assert last_boxed(r"\boxed4, 5") is None
    assert last_boxed(r"\boxed{}") == ""


@pytest.mark.parametrize("name", ROW_COUNTS)
def test_published_files(name):
    counts = dict(aime24=30, aime25=30, amc23=40, math500=500, minerva_math=272)
    counts |= dict(olympiadbench=675, gsm8k=1319)
    problems = load_benchmark(name, published(name))
    assert len(problems) == counts[name]
    assert len({problem.id for problem in problems}) == len(problems)
    assert len({content_key(problem.text) for problem in problems}) == len(problems)
    for problem in problems:
        assert last_boxed(rf"\boxed{{{problem.answer}}}") == problem.answer  # balanced
        assert problem.answer == " ".join(problem.answer.split())
        assert "$" not in problem.answer.replace(r"\$", "")


@pytest.mark.parametrize("name", ["aime24", "aime25", "amc23", "gsm8k"])
def test_whole_numbers_of_published_files(name):
    answers = [problem.answer for problem in load_benchmark(name, published(name))]
    assert answers == [str(int(answer)) for answer in answers]
    traps = {"aime24": {"25", "73", "23", "45", "33", "80", "55"}, "aime25": {"336"}}  # 025, ...
    traps |= {"amc23": {"-1", "27"}, "gsm8k": {"1450000", "-10"}}
    assert traps[name] <= set(answers)


def test_subjects_levels_and_units_of_published_files():
    problems = load_benchmark("math500", published("math500"))
    assert Counter(problem.level for problem in problems) == {5: 134, 4: 128, 3: 105, 2: 90, 1: 43}
    assert len({problem.subject for problem in problems}) == 7
    raw = [json.loads(line)["answer"] for line in published("math500").read_text().splitlines()]
    assert [problem.answer for problem in problems] == raw  # nothing to mend there
    problems = load_benchmark("olympiadbench", published("olympiadbench"))
    assert sum(problem.several for problem in problems) == 94
    units = [problem.unit for problem in problems if problem.unit]
    assert units == [r"^{\circ}", "minute", "km", "cm^2", "km/h", "min", "minutes", "%"]
    assert len({problem.subject for problem in problems}) == 4
    minerva = load_benchmark("minerva_math", published("minerva_math"))
    assert len({problem.subject for problem in minerva}) == 9
    assert minerva[1].answer == "4.5e33"
