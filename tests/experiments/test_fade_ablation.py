"""The ablation in simulation: its cells, its figures, and that it goes on where it stopped."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import ablation_report, fade_ablation
from experiments.ablation_grid import trackers, variants
from experiments.ablation_world import (
    Setting,
    first_skills,
    make_cases,
    score_loop,
    score_shadow,
    told,
)
from experiments.cells import Cells
from fade_jax.driver import LearnReport, Record
from fade_jax.simulation import exposure
from fade_jax.simulation.closed_loop import Scores
from fade_jax.types import Info, Observation, SelectInfo

SMALL = Setting(num_prompts=40, num_skills=3, groups=4, iterations=8, first_scored=2)


def host(tuple_type: Any) -> Any:
    """A NamedTuple of numpy arrays, as they come from the device."""
    return tuple_type


def test_impossible_configurations_are_refused_by_name():
    for change, words in (
        ({"parts": ("tracking", "filters")}, "parts must be among"),
        ({"seeds": 0}, "seeds must be at least 1, got 0"),
        ({"seeds": 1001}, "seeds must be at most 1000, got 1001"),
        ({"seeds": 7, "quick": True}, "seeds: has no effect with quick"),
        ({"setting": Setting(iterations=10, first_scored=10)}, r"first_scored must be in 0\.\.9"),
    ):
        with pytest.raises(ValueError, match=words):
            fade_ablation.Config(**change)  # pyright: ignore[reportArgumentType]


def test_finished_cells_are_kept_and_other_configurations_refused(tmp_path):
    config, calls = fade_ablation.Config(), []

    def compute():
        calls.append(1)
        return {"rmse": [0.5]}

    for _ in range(2):
        store = Cells(tmp_path, fade_ablation.identity(config))
        assert store.get("tracking", "K = 0", compute) == {"name": "K = 0", "rmse": [0.5]}
    assert len(calls) == 1
    Cells(tmp_path, fade_ablation.identity(fade_ablation.Config(parts=("jump",))))
    with pytest.raises(ValueError, match="holds cells made with another seeds; take another"):
        Cells(tmp_path, fade_ablation.identity(fade_ablation.Config(seeds=3)))
    # Refused before anything is written.
    before = {p: p.read_bytes() for p in tmp_path.rglob("*.json")}
    with pytest.raises(ValueError, match="made with another seeds"):
        fade_ablation.main(fade_ablation.Config(seeds=3, out=tmp_path))
    assert {p: p.read_bytes() for p in tmp_path.rglob("*.json")} == before


@pytest.mark.slow
def test_loadings_told_are_of_one_size_and_as_informative_as_they_say():
    cases = make_cases(SMALL, range(3), num_skills=8)
    true = np.asarray(cases.world.loadings)
    for k in (0, 4, 8, 12):
        given = np.asarray(first_skills(k, cases))
        assert given.shape == (3, 40, k)
        if k:
            assert np.mean((given**2).sum(2)) == pytest.approx(1.0, abs=0.25)
            shared = min(k, 8)
            np.testing.assert_allclose(
                given[..., :shared] * np.sqrt(k), true[..., :shared] * np.sqrt(8), rtol=1e-5
            )
    shuffled = np.asarray(told("shuffled", cases))
    np.testing.assert_allclose(np.sort(shuffled, 1), np.sort(true, 1), rtol=1e-6)
    assert not np.allclose(shuffled, true)


def test_a_perfect_tracker_scores_perfectly():
    cases = make_cases(SMALL, range(2))
    seen: Any = jax.device_get(cases.exposure)
    informative = 1 - seen.pass_rate**8 - (1 - seen.pass_rate) ** 8
    said = host(exposure.Shadow)(seen.pass_rate, informative, np.zeros((2, 8)))
    scores = score_shadow(said, cases, SMALL)
    np.testing.assert_allclose(scores["rmse"], 0.0, atol=1e-7)
    np.testing.assert_allclose(scores["spearman"], 1.0)
    best = np.sort(informative, axis=2)[:, 2:, -4:].mean((1, 2))
    np.testing.assert_allclose(scores["top_informative"], best, rtol=1e-5)
    # An error of .1 everywhere is .1 in every bin that has prompts.
    scores = score_shadow(said._replace(pass_rate=seen.pass_rate + 0.1), cases, SMALL)
    for bins in (scores["by_visits"], scores["by_age"]):
        known = np.array([x for row in bins.values() for x in row])
        np.testing.assert_allclose(known[~np.isnan(known)], 0.1, rtol=1e-5)


def test_a_loop_is_scored_as_by_hand():
    # One seed, three iterations of two groups; the first is not scored. Planned: 1 group, then 2.
    setting = Setting(num_prompts=5, groups=2, group_size=8, iterations=3, first_scored=1)
    record = host(Record)(
        iteration=np.arange(3)[None],
        live=np.ones((1, 3), bool),
        observation=host(Observation)(
            np.array([[[0, 1], [2, 3], [3, 4]]]), np.zeros((1, 3, 2)), np.full((1, 3, 2), 8.0)
        ),
        missing=np.zeros((1, 3, 2)),
        degenerate=np.array([[[True, True], [True, False], [False, False]]]),
        predicted=np.zeros((1, 3, 2)),
        informative=np.array([[[0.9, 0.9], [0.5, 0.25], [0.75, 0.5]]]),
        select_info=host(SelectInfo)(
            np.zeros((1, 3)), np.array([[16, 8, 16]]), np.zeros((1, 3)), np.zeros((1, 3), bool)
        ),
        tracker_info=host(Info)(np.zeros((1, 3)), np.zeros((1, 3))),
        ready=np.ones((1, 3), bool),
        sample_metrics=(),
        learn=host(LearnReport)(np.ones((1, 3), bool), np.ones((1, 3)), np.full((1, 3), -1), ()),
    )
    scores = host(Scores)(*[np.array([[0.1, 0.2, 0.4]])] * len(Scores._fields))
    got = score_loop(record, scores, np.array([0.7]), np.array([3]), setting=setting)
    expected = {
        "effective": 0.75,
        "predicted": 0.5,
        "informative_rollouts": 0.75,
        "true": 0.3,
        "best": 0.3,
        "rmse": 0.3,
        "gain": 0.6,
        "planned_groups": 1.5,
        "planned_expected": (0.5 + 1.25) / 2,
        "planned_realised": (0 + 2) / 2,
        "distinct": 5,
        "updates": 3,
    }
    assert set(got) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], [value], rtol=1e-6, err_msg=name)


def test_every_variant_differs_from_the_tuned_filter_or_says_so():
    start = {name: x + 0.013 for name, x in trackers()["fade"].contender.start.items()}
    same = [n for n, v in variants().items() if v.change(start) == start and v.program == "fade"]
    assert same == ["rule adf", "skill_var 1", "intercept_var 1", "mean 0"]


def test_claims_are_ratios_and_paired_differences():
    cells = {
        "beta_counter": {"rmse": [0.2, 0.4]},
        "kalman_still": {"rmse": [0.3, 0.4]},
        "fade": {"rmse": [0.1, 0.2]},
        "fade_k0": {"rmse": [0.2, 0.3]},
        "fade_shuffled": {"rmse": [0.21, 0.3]},
    }
    said = ablation_report.claims(cells)
    assert said["best_zero_drift"] == "beta_counter"
    assert said["ratios"]["beta_counter"]["of_means"] == pytest.approx(0.5)
    assert said["ratios"]["beta_counter"]["values"] == pytest.approx([0.5, 0.5])
    assert said["ratios"]["fade_k0"]["of_means"] == pytest.approx(0.6)
    assert said["fade_shuffled_minus_k0"]["mean"] == pytest.approx(0.005)


@pytest.mark.slow
def test_the_small_version_runs_and_goes_on(tmp_path):
    first = fade_ablation.main(
        fade_ablation.Config(quick=True, out=tmp_path, parts=("tracking", "loops"))
    )
    for name in ("report.md", "results.json", "evidence.png", "paradigms.png"):
        assert (tmp_path / name).stat().st_size > 500
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "cells").rglob("*x*.json")}
    assert len(before) == 2
    # Another part joins what is there.
    whole = fade_ablation.main(fade_ablation.Config(quick=True, out=tmp_path, parts=("jump",)))
    assert {p: p.stat().st_mtime_ns for p in before} == before
    assert whole["cells"]["tracking"] == first["cells"]["tracking"]
    assert set(whole["cells"]) == set(fade_ablation.PARTS)
    assert (tmp_path / "jump.png").stat().st_size > 500
    assert json.loads((tmp_path / "results.json").read_text())["config"]["seeds"] == 3
    assert jnp.isfinite(jnp.asarray(whole["cells"]["loops"]["fade x threshold"]["effective"])).all()
