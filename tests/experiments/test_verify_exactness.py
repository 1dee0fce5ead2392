"""The experiment that prints how exact the filter is: it runs, and writes what scripts read."""

import json

import numpy as np
import pytest

from experiments import exactness_checks, saturation_peers, verify_exactness


@pytest.mark.slow
def test_tiny_run_writes_everything(tmp_path):
    config = verify_exactness.Config(
        out=tmp_path,
        sections=("identities", "known_difficulties", "saturation"),
        rules=("pg 4", "adf"),
        runs=2,
        steps=9,
        worlds=1,
        walk_worlds=2,
        walk_prompts=16,
        walk_steps=25,
    )
    results = verify_exactness.main(config)
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["held"] is results["held"] is True
    assert written["config"]["walk_prompts"] == 16
    identities = written["identities"]["rows"]
    assert len(identities) == 12 and all(row["difference"] < 1e-10 for row in identities)
    rules = {row["rule"]: row for row in written["known_difficulties"]["rows"]}
    assert set(rules) == {"pg 4", "adf"}
    assert rules["adf"]["distance_mean"] < rules["pg 4"]["distance_mean"]
    walks = [row for row in written["saturation"]["rows"] if row["method"] == "adf"]
    assert [round(row["drift"] ** 2, 6) for row in walks] == [0.05, 0.3, 1.0]
    for row in walks:
        assert row["nll"] == pytest.approx(np.mean(row["nll_seeds"]))
    report = (tmp_path / "report.md").read_text()
    assert "Every limit was kept." in report and "| adf |" in report
    for name in ("gaps.png", "saturation.png"):
        assert (tmp_path / name).stat().st_size > 10_000 and f"({name})" in report


@pytest.mark.slow
def test_quick_run_keeps_every_limit(tmp_path):
    results = verify_exactness.main(verify_exactness.Config(out=tmp_path, quick=True))
    failed = [
        c["name"]
        for section in verify_exactness.SECTIONS
        for c in results[section]["checks"]
        if not c["held"]
    ]
    assert results["held"] and not failed


def test_a_claim_without_a_number_does_not_hold():
    assert exactness_checks.check("even", 1.0, 1.0)["held"]
    assert not exactness_checks.check("above", 1.1, 1.0)["held"]
    assert not exactness_checks.check("lost", float("nan"), 1.0)["held"]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("rules", ("adf", "adfx"), "adfx"),
        ("rules", ("ep",), "contain adf"),
        ("sections", ("all",), "all"),
        ("runs", 0, "runs must be >= 1"),
        ("steps", 6, "steps must be >= 7"),
        ("first_run", -1, "first_run must be >= 0"),
    ],
)
def test_settings_are_checked_at_the_door(field, value, words):
    with pytest.raises(ValueError, match=words):
        verify_exactness.Config(**{field: value})


def test_peers_that_are_not_installed_are_not_asked(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert saturation_peers.installed() == {}
