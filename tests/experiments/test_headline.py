"""The headline comparison: its plan, its arithmetic by hand and, slow, its processes."""

import dataclasses
import json
import math

import numpy as np
import pytest

from experiments import headline, headline_plan, headline_report, headline_results
from experiments.curves import Logs
from experiments.headline_plan import BASE_METHODS, TINY_METHODS
from experiments.run_identity import seed_folder
from experiments.settings import METHODS
from paced_jax.metrics import read_json_lines
from paced_jax.training import TrainConfig

OF_THE_METHOD = (
    *("scheduler", "objective", "policy_learning_rate", "replay"),
    *("loadings", "fade_selector"),
)
RATES = {"paced": 3e-4, "grpo": 1e-4, "dapo": 2e-4}


def test_every_objective_gets_the_same_search_and_its_own_rate():
    search = headline_plan.make("tiny_rates", rates={}, seeds=(0, 1))
    tried = {}
    for config in search.methods.values():
        assert config.scheduler == "uniform" and config.iterations == 100
        tried.setdefault(config.objective, []).append(config.policy_learning_rate)
    assert tried == {name: [1e-4, 2e-4, 4e-4] for name in ("paced", "grpo", "dapo")}
    assert not set(search.seeds) & {0, 1}

    plan = headline_plan.make("tiny", rates=RATES, seeds=(0, 1))
    assert set(plan.methods) == set(TINY_METHODS) and len(plan.methods) == 15
    for config in plan.methods.values():
        assert config.policy_learning_rate == RATES[config.objective]
        assert (config.iterations, config.budget) == (200, 256)
    # What is compared differs in nothing but what the method is.
    same = {
        json.dumps(dataclasses.asdict(config) | {key: None for key in OF_THE_METHOD})
        for config in plan.methods.values()
    }
    assert len(same) == 1
    assert plan.methods["fade_shuffled"].fade_selector == plan.methods["fade"].fade_selector
    assert plan.jobs()[0] == ("uniform", (0, 1))
    base = headline_plan.make("base", rates=RATES, seeds=(0, 1))
    assert list(base.methods) == list(BASE_METHODS)
    # Seed by seed: an unfinished part is a whole comparison of fewer seeds.
    assert [seeds for _, seeds in base.jobs()] == [(0,)] * 5 + [(1,)] * 5


def test_some_methods_search_only_what_they_need():
    search = headline_plan.make("tiny_rates", rates={}, seeds=(0,), methods=("fade", "lilo"))
    assert {config.objective for config in search.methods.values()} == {"paced", "grpo"}
    with pytest.raises(ValueError, match=r"methods: \['nobody'\] are not in base"):
        headline_plan.make("base", rates=RATES, seeds=(0,), methods=("nobody",))


def test_a_method_without_a_rate_is_named():
    message = (
        r"methods: grpo_uniform needs a rate of grpo, tiny_rates has chosen those of \['paced'\]"
    )
    with pytest.raises(ValueError, match=message):
        headline_plan.make("tiny", rates={"paced": 2e-4}, seeds=(0,))


def test_a_plan_survives_its_file(tmp_path):
    plan = headline_plan.make("tiny", rates=RATES, seeds=(0, 1), iterations=20)
    headline_plan.save(tmp_path, plan)
    assert headline_plan.load(tmp_path) == plan


def logs(tmp_path, name, seed, curve, *, informative=0.5, config=None):
    """A run of two iterations with three evaluations."""
    folder = seed_folder(tmp_path, name, seed)
    folder.mkdir(parents=True)
    names = (
        *("informative_predicted", "informative_brier", "informative_ece"),
        *("informative_ece_floor", "pass_rate_rmse", "pass_rate_bias", "pass_rate_generated"),
        *("distinct_prompts", "mean_beta_kl", "mean_entropy", "iteration_seconds"),
    )
    test = {"pass_at_1": curve[-1], "pass_at_8": 0.9, "pass_at_8_standard_error": 0.1}
    summary = dict.fromkeys(names, 0.25) | {
        "informative_realised": informative,
        "updates": 2,
        "rollouts": 512,
        "tokens": 1000,
        "test": test | {"distinct_correct": 1.0},
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    config = dataclasses.asdict(TrainConfig() if config is None else config)
    lines = [
        {
            "iteration": i,
            "rollouts": 256.0 * (i + 1),
            "tokens": 500.0 * (i + 1),
            "chosen_length": 4.0,
            "chosen_base_pass_rate": 0.5,
            "iteration_seconds": 1.0,
        }
        for i in range(2)
    ]
    looks = [
        {"iteration": i, "pass_at_1": rate, "rollouts": 256.0 * i} for i, rate in enumerate(curve)
    ]
    return Logs(folder, config, lines, looks)


@pytest.fixture
def runs(tmp_path):
    return {
        "uniform": [
            logs(tmp_path, "uniform", 0, [0.2, 0.3, 0.4], informative=0.3),
            logs(tmp_path, "uniform", 1, [0.2, 0.4, 0.5], informative=0.2),
        ],
        "fade": [
            logs(tmp_path, "fade", 0, [0.2, 0.6, 0.7], informative=0.6),  # .4 after half
            logs(tmp_path, "fade", 1, [0.2, 0.3, 0.4], informative=0.5),  # never .5
        ],
        "oracle": [
            logs(tmp_path, "oracle", 0, [0.2, 0.5, 0.8], informative=0.8),
            logs(tmp_path, "oracle", 1, [0.2, 0.5, 0.9], informative=0.6),
        ],
    }


def ratios(runs, cost):
    """What fade costs to where uniform ends."""
    return headline_results.compare(runs)["cost_to"]["uniform"][cost]["fade"]["ratio"]["values"]


def test_costs_to_a_target_by_hand(runs):
    got = headline_results.compare(runs)["cost_to"]["uniform"]
    fade = got["rollouts"]["fade"]
    # .4 is half way from .2 to .6 in the first of two iterations: a quarter. The other never.
    assert fade["ratio"]["values"] == pytest.approx([0.25, 1.0]) and fade["reached"] == 1
    assert got["tokens"]["fade"]["ratio"]["values"] == pytest.approx([0.25, 1.0])
    assert got["seconds"]["uniform"]["ratio"]["values"] == pytest.approx([1.0, 1.0])
    # A run that gets there counts with what it cost, and one that doesn't with all it cost: twice
    # and half as dear as uniform's in tokens and seconds.
    dear = [
        logs._replace(lines=[x | {"tokens": 2 * x["tokens"]} for x in logs.lines])
        for logs in runs["fade"]
    ]
    cheap = [
        logs._replace(lines=[x | {"iteration_seconds": 0.5} for x in logs.lines])
        for logs in runs["fade"]
    ]
    assert ratios(runs | {"fade": dear}, "tokens") == pytest.approx([0.5, 2.0])
    assert ratios(runs | {"fade": cheap}, "seconds") == pytest.approx([0.125, 0.5])
    late = [runs["oracle"][0]._replace(looks=runs["uniform"][0].looks, lines=dear[0].lines)] * 2
    two = {"uniform": [runs["uniform"][0]] * 2, "fade": late}
    assert ratios(two, "tokens") == pytest.approx([2.0, 2.0])
    # mean curves: fade .2 .45 .55, aim .45
    assert fade["mean_curve"] == pytest.approx(0.5)
    assert headline_report.soon(headline_results.compare(runs), "uniform")[1][1][1].startswith(
        ">= "
    )


def test_differences_and_shares_are_paired(runs):
    got = headline_results.compare(runs)
    pairs = got["minus_uniform"]["fade"]
    assert pairs["informative_realised"]["values"] == pytest.approx([0.3, 0.3])
    assert pairs["validation_end"]["values"] == pytest.approx([0.3, -0.1])
    share = got["oracle_share"]["fade"]
    assert share["informative_realised"]["share"] == pytest.approx(0.3 / 0.45)
    assert share["validation_end"]["share"] == pytest.approx(0.1 / 0.4)
    assert share["validation_end"]["oracle_gain"]["mean"] == pytest.approx(0.4)
    assert got["methods"]["fade"]["test_pass_at_most"]["mean"] == 0.9
    assert got["curves"]["fade"]["pass_at_1"] == [[0.2, 0.6, 0.7], [0.2, 0.3, 0.4]]
    json.dumps(got, allow_nan=False)
    # No share of an oracle that gains nothing, or loses.
    lost = headline_results.compare(runs | {"oracle": runs["uniform"]})["oracle_share"]["fade"]
    assert lost["validation_end"]["share"] is None
    worse = {"uniform": runs["oracle"], "oracle": runs["uniform"], "fade": runs["fade"]}
    assert (
        headline_results.compare(worse)["oracle_share"]["fade"]["validation_end"]["share"] is None
    )


def test_generated_for_each_trained_by_hand(tmp_path):
    dapo = TrainConfig(scheduler="dapo", objective="dapo")
    lilo = TrainConfig(scheduler="lilo", objective="grpo")
    assert headline_results.trained_groups(TrainConfig()) == 32
    assert headline_results.trained_groups(dapo) == 10  # about what is informative of 32
    assert headline_results.trained_groups(lilo) == 8  # the best quarter
    # two iterations of 32 groups, two steps of 8
    one = headline_results.figures_of(logs(tmp_path, "lilo", 0, [0.1, 0.2, 0.3], config=lilo))
    assert one["generated_per_trained"] == 4.0
    assert one["validation_mean"] == pytest.approx(0.2)


def test_the_rate_of_the_best_mean_end_is_chosen(tmp_path):
    plan = headline_plan.make("tiny_rates", rates={}, seeds=(0,), methods=("uniform",))
    for name, ends in zip(plan.methods, ((0.5, 0.4), (0.5, 0.5), (0.6, 0.3)), strict=True):
        for seed, end in zip(plan.seeds, ends, strict=True):
            folder = seed_folder(tmp_path, name, seed)
            folder.mkdir(parents=True)
            curve = [{"pass_at_1": 0.9}, {"pass_at_1": end}]
            (folder / "summary.json").write_text(json.dumps({"validation": curve}))
    chosen = headline.choose_rates(tmp_path, plan)
    assert chosen["paced"]["rate"] == 2e-4
    sections = headline_report.rates_sections("tiny_rates", chosen)
    assert "0.500" in sections[-1] and "| 0.0002 |" in sections[-1]
    (tmp_path / "out").mkdir()
    with pytest.raises(ValueError, match="parts: tiny needs tiny_rates first"):
        headline.chosen_rates(tmp_path / "out", "tiny")


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"parts": ()}, "parts must be distinct"),
        ({"seeds": (1, 1)}, "seeds must be distinct"),
        ({"workers": 0}, "workers must be at least 1, got 0"),
        ({"iterations": 15}, "iterations must be a multiple of 10, got 15"),
    ],
)
def test_an_empty_comparison_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        headline.Config(**changes)


def test_shared_methods_are_those_of_the_other_experiments():
    for name in ("uniform", "mopps", "fade", "paced", "paced_no_replay", "oracle"):
        assert TINY_METHODS[name] == METHODS[name]


@pytest.mark.slow
def test_processes_run_a_part_and_its_report(tmp_path):
    (tmp_path / "tiny_rates").mkdir()
    (tmp_path / "tiny_rates" / "rates.json").write_text(
        json.dumps({"paced": {"rate": 2e-4, "validation_end": {}}})
    )
    config = headline.Config(
        parts=("tiny",), methods=("uniform", "paced"), seeds=(0, 1), iterations=10, out=tmp_path
    )
    results = headline.main(config)
    columns = results["tiny"]["methods"]
    assert columns["paced"]["rollouts"]["values"] == [2560.0, 2560.0]
    for name in ("uniform", "paced"):
        for seed in (0, 1):
            folder = seed_folder(tmp_path / "tiny", name, seed)
            assert len(read_json_lines(folder / "metrics.jsonl")) == 10
            with np.load(folder / "groups.npz") as groups:
                assert groups["prompt_ids"].shape == (10, 32)
    for name in ("tiny_validation.png", "tiny_effective.png", "tiny_chosen.png", "report.md"):
        assert (tmp_path / name).stat().st_size > 0
    assert math.isfinite(
        results["tiny"]["cost_to"]["uniform"]["rollouts"]["paced"]["ratio"]["mean"]
    )
    # Another comparison in the same folder is refused before a process starts.
    with pytest.raises(ValueError, match=r"another run \(policy_learning_rate\)"):
        (tmp_path / "tiny_rates" / "rates.json").write_text(json.dumps({"paced": {"rate": 1e-4}}))
        headline.main(config)
