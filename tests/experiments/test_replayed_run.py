"""Experiments that go on from a replay: what they refuse, what they keep, and that they run."""

import dataclasses
from pathlib import Path

import pytest

from experiments import history_ablation, run_folder, time_scales
from experiments.replay_table import HISTORIES
from experiments.replayed_run import REPLAYED

pytestmark = pytest.mark.standard_promotion


@pytest.mark.parametrize("experiment", [history_ablation, time_scales])
@pytest.mark.parametrize("field", ["replayed", "history", "prompts"])
def test_paths_that_lead_nowhere_are_refused_by_name(experiment, field):
    with pytest.raises(ValueError, match=f"{field}: no"):
        experiment.Config(**{field: Path("no/such/place")})


def test_fits_of_another_run_are_refused():
    config = time_scales.Config(history=HISTORIES / "base_uniform.npz")
    with pytest.raises(ValueError, match=r"whose source is 'tiny_uniform.npz', this one's is"):
        config.read()


@pytest.mark.slow
def test_the_filters_parts_small_and_going_on(tmp_path):
    config = history_ablation.Config(quick=True, out=tmp_path)
    content = history_ablation.main(config)
    # The dense log loss of the fitted filter, as replay_history had it, is what gaps start from.
    stored = run_folder.read_json(REPLAYED / "results.json")
    dense = next(
        row["log_loss"]
        for row in stored["rows"]
        if (row["protocol"], row["split"], row["tracker"]) == ("dense", "all", "fade")
    )
    for row in content["variants"].values():
        figure = row["figures"][0]
        assert figure["log_loss"] - figure["minus_fitted"]["mean"] == pytest.approx(dense, abs=2e-5)
    assert (
        content["chosen"]["fade"][0]["informative"]["P(informative)"]
        > 2 * (content["informative_share"][0]["share"])
    )
    cells = {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").rglob("*/*.json")}
    assert len(cells) == 5
    assert history_ablation.main(config)["variants"] == content["variants"]
    assert {path: path.stat().st_mtime_ns for path in cells} == cells  # read, not made again
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    with pytest.raises(ValueError, match="holds cells made with another seed; take another"):
        history_ablation.main(dataclasses.replace(config, seed=1))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json")} == before
