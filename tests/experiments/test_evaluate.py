"""Scores of a language model: counted by hand, and the same after a call that was ended."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from text_world import SameLetter, model, write_prompts

from experiments import evaluate, run_folder
from paced_jax.policy import language_model
from paced_jax.tasks.text_prompts import prompt_ids


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    language_model.save(folder, model())
    return folder


def config(directory, tmp_path, **changes):
    prompts = tmp_path / "sums.jsonl"
    if not prompts.exists():
        write_prompts(prompts, 10)
    plan: dict[str, Any] = dict(
        policy=str(directory), prompts=prompts, rollouts=4, max_tokens=5, batch_size=4
    )
    return evaluate.Config(**(plan | dict(out=tmp_path / "run") | changes))


@pytest.mark.slow
def test_scores_are_those_of_the_kept_samples_and_a_call_that_was_ended_goes_on(
    directory, tmp_path, monkeypatch
):
    monkeypatch.setattr(evaluate, "open_verifier", lambda name, workers: SameLetter())
    plan = config(directory, tmp_path, limit=9)
    got = evaluate.main(plan)
    samples = tmp_path / "run" / "samples"
    batches = [run_folder.read_json(path) for path in sorted(samples.iterdir())]
    assert [len(batch["problems"]) for batch in batches] == [4, 4, 1]
    rates, tokens = [], 0
    for problem in (problem for batch in batches for problem in batch["problems"]):
        assert eval(problem["text"].rstrip("=")) == int(problem["gold"])
        pairs = zip(problem["responses"], problem["verdicts"], problem["reasons"], strict=True)
        for text, verdict, reason in pairs:
            assert reason == ("none" if verdict == -1 else "read")
            assert verdict == (-1 if "\x00" in text else int(problem["gold"] in text))
        judged = [verdict for verdict in problem["verdicts"] if verdict >= 0]
        rates.append(np.mean(judged))
        tokens += sum(problem["tokens"])
        for length, ended in zip(problem["tokens"], problem["ended"], strict=True):
            assert ended or length == 5
    assert got["problems"] == 9 and got["tokens"] == tokens
    assert got["scores"][0]["mean"] == pytest.approx(np.mean(rates))
    (samples / "000001.json").unlink()
    (samples / "000002.json").unlink()
    (tmp_path / "run" / "results.json").unlink()
    assert evaluate.main(plan) == got
    assert [run_folder.read_json(path) for path in sorted(samples.iterdir())] == batches
    with pytest.raises(ValueError, match=r"temperature: .* has 1.0, got 0.5; take another --out"):
        evaluate.main(dataclasses.replace(plan, temperature=0.5))


@pytest.mark.parametrize("changed", ["problems", "policy"])
def test_what_changed_under_the_same_path_is_not_mixed_with_what_was_kept(
    directory, tmp_path, monkeypatch, changed
):
    monkeypatch.setattr(evaluate, "open_verifier", lambda name, workers: SameLetter())
    plan = config(directory, tmp_path, limit=5, policy=str(tmp_path / "tiny"))
    shutil.copytree(directory, tmp_path / "tiny")
    evaluate.main(plan)
    last = tmp_path / "run" / "samples" / "000001.json"
    last.unlink()
    if changed == "problems":
        lines = (tmp_path / "sums.jsonl").read_text().splitlines(keepends=True)
        (tmp_path / "sums.jsonl").write_text("".join([lines[1], lines[0], *lines[2:]]))
    else:
        shutil.rmtree(tmp_path / "tiny")
        other = jax.tree.map(lambda x: x + 1, model().params)
        language_model.save(tmp_path / "tiny", model()._replace(params=other))
    with pytest.raises(ValueError, match=rf"{changed}_fingerprint: .* has '\w+', got '\w+'; take"):
        evaluate.main(plan)
    assert not last.exists()


def test_scores_by_hand():
    problems = [
        {"verdicts": [1, 1, 0, 0], "tokens": [2, 2, 2, 2], "ended": [True] * 4},
        {"verdicts": [1, -1, -1, -1], "tokens": [5, 5, 5, 5], "ended": [False] * 4},
        {"verdicts": [-1, -1, -1, -1], "tokens": [5, 1, 1, 1], "ended": [False, True, True, True]},
    ]
    for problem in problems:
        problem["reasons"] = [("wrong", "equal", "late")[v] for v in problem["verdicts"]]
    got = evaluate.summarise([{"problems": problems[:2]}, {"problems": problems[2:]}])
    assert got["scores"][0]["score"] == "avg@1" and got["scores"][0]["mean"] == 0.75
    assert got["without_a_verdict"] == 1
    assert got["responses_without_a_verdict"] == pytest.approx(7 / 12)
    assert got["cut_off"] == pytest.approx(5 / 12) and got["tokens"] == 36
    assert list(got["reasons"].items()) == [("late", 7), ("equal", 3), ("wrong", 2)]
    with pytest.raises(ValueError, match="verifier: no verdict on any of 4 responses"):
        evaluate.summarise([{"problems": problems[2:]}])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(prompts=None), "benchmark: needs either"),
        (dict(benchmark="gsm8k"), "benchmark: needs either"),
        (dict(prompts=None, benchmark="gsm8k"), "path: is the file of a benchmark, got None"),
        (
            dict(prompts=None, benchmark="gsm8k", path=Path("f"), verifier="code"),
            "verifier: 'code' has no effect with a benchmark",
        ),
        (dict(rollouts=0), "rollouts must be at least 1, got 0"),
        (dict(limit=0), "limit must be at least 1, got 0"),
        (dict(temperature=-1.0), "temperature must be >= 0, got -1"),
    ],
)
def test_bad_configurations_name_the_field(directory, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        config(directory, tmp_path, **changes)


def test_a_prompt_that_is_too_long_is_refused_by_name(directory, tmp_path):
    plan = config(directory, tmp_path, max_prompt_tokens=9)
    with pytest.raises(ValueError, match=r"max_prompt_tokens: prompt 0 has \d+ tokens"):
        evaluate.main(plan)


@pytest.mark.slow
def test_a_benchmark_is_judged_by_the_math_verifier(directory, tmp_path):
    """GSM8K's layout; a tokenizer whose model can't answer, so all are wrong or none."""
    rows = [
        {"question": f"How much is {i} + 1?", "answer": f"It is so.\n#### {i + 1}"}
        for i in range(3)
    ]
    path = tmp_path / "test.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match="3 rows, gsm8k has 1319"):
        evaluate.main(config(directory, tmp_path, prompts=None, benchmark="gsm8k", path=path))
    whole = tmp_path / "whole.jsonl"
    whole.write_text(
        "".join(
            json.dumps({"question": f"How much is {i} + 1?", "answer": f"It is so.\n#### {i + 1}"})
            + "\n"
            for i in range(1319)
        )
    )
    plan = config(directory, tmp_path, prompts=None, benchmark="gsm8k", path=whole, limit=2)
    got = evaluate.main(plan)
    assert got["problems"] == 2 and got["scores"][0]["mean"] == 0.0
    (batch,) = (tmp_path / "run" / "samples").iterdir()
    first = run_folder.read_json(batch)["problems"][0]
    assert first["gold"] == "1" and first["text"] == "How much is 0 + 1?"
    assert "within \\boxed{}." in first["prompt"]
    report = (tmp_path / "run" / "report.md").read_text()
    assert "Nothing was right. The verifier of mathematics reads the last \\boxed{}" in report
    assert "raise --max-tokens" in report and "--instruction" not in report
    assert "the first 2; chat template auto, temperature 1, seed 0" in report


@pytest.mark.parametrize("instruction", [None, "Give a box."])
def test_an_instruction_follows_every_problem(directory, tmp_path, instruction):
    plan = config(directory, tmp_path, instruction=instruction)
    known = language_model.load(plan.policy)
    pool = evaluate.encode(plan, evaluate.read_problems(plan), known)
    for row, text in enumerate(pool.text):
        asked = text if instruction is None else f"{text}\nGive a box."
        ids = pool.prompt_tokens[row][pool.prompt_mask[row]].tolist()
        assert ids == prompt_ids(asked, known.tokenizer)
