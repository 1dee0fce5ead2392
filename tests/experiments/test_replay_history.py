import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from experiments import replay_bench, replay_figures, replay_history, replay_table, run_folder
from fade_jax import histories, replay

pytestmark = pytest.mark.standard_promotion
ROW = {"protocol", "observed", "split", "tracker", "brier", "log_loss", "ece"}


def test_evidence_before_a_visit_by_hand():
    observed = np.array([[1, 0], [0, 0], [1, 1], [1, 0]], bool)
    visits, since = replay_figures.evidence_before(observed)
    assert visits.tolist() == [[0, 0], [1, 0], [1, 0], [2, 1]]
    assert since.tolist() == [[0, 0], [1, 0], [2, 0], [1, 1]]


def table():
    trials = np.full((4, 6), 8.0, np.float32)
    successes = np.array([[0, 8, 4, 8, 1, 7]] * 4, np.float32)
    return replay_table.Table(successes, trials, None, 8, "hand")


def test_crossing_scores_each_half_with_the_fit_of_the_other():
    fits = {"even": {"x": 0.2}, "odd": {"x": 0.7}}

    def call(params, observed):
        said = np.full(observed.shape, params["x"])
        return replay_bench.Said(said, -said)

    got, rate = replay_bench.crossed(call, fits, np.ones((2, 4, 6), bool))
    assert (rate == -got).all()
    assert (got[..., ::2] == 0.7).all()  # even prompts: the odd half's parameters
    assert (got[..., 1::2] == 0.2).all()


def test_rows_by_hand():
    protocol = replay.dense(table().trials, 1, 3)
    predictions = np.full((1, 4, 6), 0.25)
    rows = {r["split"]: r for r in replay_bench.score_rows("x", [protocol], predictions, table())}
    # Informative: prompts 2, 4, 5. Even prompts 0, 2, 4: two of three; odd: one of three.
    assert rows["all"]["count"] == 18
    np.testing.assert_allclose(rows["all"]["brier"], (0.75**2 + 0.25**2) / 2)
    np.testing.assert_allclose(rows["even"]["brier"], (2 * 0.75**2 + 0.25**2) / 3)
    np.testing.assert_allclose(rows["odd"]["ece"], 1 / 3 - 0.25)
    want = -(np.log(0.25) + 2 * np.log(0.75)) / 3
    np.testing.assert_allclose(rows["odd"]["log_loss"], want)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("masks", 0),
        ("history", Path("no/such/file.json")),
        ("sparse_shares", (1.5,)),
        ("trackers", ("fad",)),
        ("prompts", Path(__file__)),
    ],
)
def test_bad_settings_are_refused_by_name(field, value):
    message = "shares" if field == "sparse_shares" else field
    with pytest.raises(ValueError, match=message):
        replay_history.Config(**{field: value})


def test_json_has_no_half_files_and_no_nan(tmp_path):
    path = tmp_path / "x.json"
    run_folder.write_json(path, {"a": np.float32(1.5), "b": float("nan"), "c": [np.arange(2)]})
    assert json.loads(path.read_text()) == {"a": 1.5, "b": None, "c": [[0, 1]]}
    with pytest.raises(TypeError):
        run_folder.write_json(path, {"a": object()})
    assert json.loads(path.read_text())["a"] == 1.5  # the old file is whole
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".json"] == ["x.json"]


def test_without_history_the_shipped_run_is_read_by_visits():
    config = replay_history.Config()
    assert config.path is not None and config.path.name == "tiny_uniform.npz"
    got = replay_table.read_table(config.path, None, seed=0, quick=True)
    assert got.trials.shape == (12, 200) and (got.trials == 8).all() and got.group_size == 8
    history = histories.load(config.path)
    assert history.text is not None and got.tags is not None
    assert got.texts == history.text[:200].tolist()
    for prompt in (0, 199):  # its first twelve groups, in the order they were sampled
        mine = history.successes[history.prompt_id == prompt][:12]
        np.testing.assert_array_equal(got.successes[:, prompt], mine)
    assert replay_history.Config(simulated=True).path is None
    with pytest.raises(ValueError, match="simulated: has no effect with history"):
        replay_history.Config(simulated=True, history=config.path)


def test_loadings_are_those_there_is_something_for():
    assert set(replay_bench.make_loadings(table(), 2, seed=0)) == {"constant"}
    texts = [f"{skill} {digit}" for skill in ("add", "sort") for digit in (1, 2, 3)]
    full = dataclasses.replace(table(), texts=texts, tags=list("aaabbb"))
    kinds = replay_bench.make_loadings(full, 2, seed=0)
    assert {kind: values.shape for kind, values in kinds.items()} == {
        "constant": (6, 0),
        "text": (6, 2),
        "shuffled": (6, 2),
        "tags": (6, 1),
    }
    pool = replay_bench.make_pool(kinds, np.array([1, 5]))
    np.testing.assert_array_equal(pool.loadings["tags"].features[:, :2].T, kinds["tags"][[1, 5]])


@pytest.mark.slow
def test_the_main_job_small_on_the_shipped_run(tmp_path):
    names = ("ema_0.3", "beta_0.9", "fade", "fade_tags")
    content = replay_history.main(
        replay_history.Config(quick=True, out=tmp_path, trackers=names, num_skills=4)
    )
    assert content["history"]["simulated"] is False
    assert content["history"]["source"] == "tiny_uniform.npz"
    assert content["history"]["loadings"] == "text, tags"
    assert {row["tracker"] for row in content["rows"]} == set(names)
    assert "simulated" not in (tmp_path / "report.md").read_text()


@pytest.mark.slow
def test_the_main_job_small(tmp_path):
    config = replay_history.Config(
        simulated=True,
        quick=True,
        out=tmp_path,
        trackers=("ema_0.3", "beta_strong", "fade_k0", "fade"),
    )
    content = replay_history.main(config)
    saved = json.loads((tmp_path / "results.json").read_text())
    assert saved["history"]["simulated"] is True
    assert all(ROW <= set(row) for row in saved["rows"])
    assert {row["protocol"] for row in saved["rows"]} == {"dense", "sparse", "cold"}
    assert {row["split"] for row in saved["rows"]} == {"even", "odd", "all"}
    dense = {
        row["tracker"]: row["log_loss"]
        for row in saved["rows"]
        if row["protocol"] == "dense" and row["split"] == "all"
    }
    # FADE's own generative model: it must beat an average that forgets.
    assert dense["fade"] < dense["ema_0.3"]
    assert "simulated" in (tmp_path / "report.md").read_text()
    assert (tmp_path / "reliability.png").stat().st_size > 10_000
    # A second run in the same folder takes the fits it finds.
    again = replay_history.main(config)
    assert again["fits"] == content["fits"]
    assert again["rows"] == content["rows"]
