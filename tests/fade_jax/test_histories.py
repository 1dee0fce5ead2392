import doctest
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fade_jax import histories
from fade_jax.histories import History, check_history, dense_array, load, save_history, thin
from fade_jax.pool import build_pool, content_key

DATA = Path(
    os.environ.get("FADE_JAX_HISTORY_DIR")
    or Path(__file__).resolve().parents[3] / "shared" / "data" / "rlvr_history"
)
recorded = pytest.mark.skipif(
    not (DATA / "acc_step_500.json").exists(),
    reason="acc_step_500.json of One-Shot-RLVR is not here; FADE_JAX_HISTORY_DIR names its folder",
)


def history(**changes):
    fields = {
        "step": np.array([0, 0, 1, 3], np.int32),
        "prompt_id": np.array([2, 0, 1, 2], np.int32),
        "successes": np.array([0, 8, 3, 1], np.int32),
        "trials": np.array([8, 8, 8, 4], np.int32),
        "policy_step": np.array([0, 0, 1, 2], np.int32),
        "prompt_key": np.array(["a", "bb", "ccc"]),
        "text": np.array(["x²", "y\n", ""]),
        "source": np.array([0, 1, 0], np.int32),
        "meta": {"model": "π", "group_size": 8, "nested": [1, None, {"a": 0.1}]},
    }
    return History(**{**fields, **changes})


@pytest.mark.parametrize("with_text", [True, False])
def test_save_and_load_round_trip(tmp_path, with_text):
    saved = history() if with_text else history(text=None)
    save_history(tmp_path / "history.npz", saved)
    loaded = load(tmp_path / "history.npz")
    assert loaded.meta == saved.meta
    for name in set(History._fields) - {"meta"}:
        got, want = getattr(loaded, name), getattr(saved, name)
        if want is None:
            assert got is None
        else:
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got, want)
    assert os.listdir(tmp_path) == ["history.npz"]
    with np.load(tmp_path / "history.npz", allow_pickle=False) as file:
        assert all(file[name].dtype.kind in "iU" for name in file.files)


def test_a_failed_save_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "history.npz"
    save_history(path, history())
    before = path.read_bytes()
    with pytest.raises(TypeError, match="JSON"):
        save_history(path, history(meta={"key": object()}))
    with pytest.raises(ValueError, match="successes"):
        save_history(path, history(successes=[0, 9, 3, 1]))

    def crash(file, **arrays):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez_compressed", crash)
    with pytest.raises(OSError, match="disk full"):
        save_history(path, history())
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["history.npz"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step": [0, 1, 0, 3]}, "step: 0 at row 2 is less than the row before"),
        ({"step": [-1, 0, 1, 3]}, "step: -1 at row 0 is negative"),
        ({"step": np.array([0.0, 0, 1, 3])}, "step: needs one axis of integers, got float64"),
        ({"step": [0, 0, 1, 2**31]}, "step: 2147483648 at row 3 does not fit int32"),
        ({"prompt_id": [2, 0, 1, 3]}, r"prompt_id: 3 at row 3 is not in 0\.\.2"),
        ({"prompt_id": [2, -1, 1, 2]}, r"prompt_id: -1 at row 1 is not in 0\.\.2"),
        ({"trials": [8, 8, 8, -4]}, "trials: -4 at row 3 is negative"),
        ({"successes": [0, 8, 9, 1]}, r"successes: 9 at row 2 \(prompt id 1\) is not in 0..trials"),
        ({"successes": [0, 8, -1, 1]}, r"successes: -1 at row 2 \(prompt id 1\)"),
        ({"successes": [0, 8, 3]}, "successes: 3 rows for the 4 of step"),
        ({"policy_step": np.zeros((4, 1), int)}, r"policy_step: .* shape \(4, 1\)"),
        ({"prompt_key": np.array([1, 2, 3])}, "prompt_key: needs one axis of strings"),
        ({"text": np.array(["a"])}, "text: 1 values for 3 prompts"),
        ({"source": np.array([0])}, "source: 1 values for 3 prompts"),
        ({"meta": None}, "meta: needs a dict"),
    ],
)
def test_check_history_refuses(changes, message):
    with pytest.raises(ValueError, match=message):
        check_history(history(**changes))


def test_files_are_checked_when_loaded(tmp_path):
    path = tmp_path / "history.npz"
    fields: dict[str, Any] = {**history()._asdict(), "meta": np.array("{}")}
    np.savez(path, **{**fields, "successes": np.array([0, 9, 3, 1])})
    with pytest.raises(ValueError, match=r"successes: 9 at row 1 \(prompt id 0\)"):
        load(path)
    np.savez(path, **{**fields, "trials": np.array(["a", 1, None, 2], object)})
    with pytest.raises(ValueError, match="pickle"):
        load(path)
    del fields["trials"]
    np.savez(path, **fields)
    with pytest.raises(ValueError, match=r"trials: not in history\.npz"):
        load(path)


def test_load_dispatches_on_the_suffix(tmp_path):
    with pytest.raises(ValueError, match=r"path: 'history\.csv' ends in neither"):
        load(tmp_path / "history.csv")
    with pytest.raises(ValueError, match=r"prompts: 'history\.npz' holds its own texts"):
        load(tmp_path / "history.npz", tmp_path / "prompts.parquet")
    with pytest.raises(ValueError, match=r"path: 'history\.json' does not end in \.npz"):
        save_history(tmp_path / "history.json", history())


def test_dense_array():
    repeated = history(prompt_id=[2, 2, 1, 2], successes=[0, 8, 3, 1])
    successes, trials = dense_array(repeated)
    assert successes.tolist() == [[0, 0, 8], [0, 3, 0], [0, 0, 0], [0, 0, 1]]
    assert trials.tolist() == [[0, 0, 16], [0, 8, 0], [0, 0, 0], [0, 0, 4]]
    assert successes.dtype == trials.dtype == np.float32


def test_pass_rate_lists(tmp_path):
    path = tmp_path / "rates.json"
    path.write_text(json.dumps({"10": [0.0, 0.25, 1.0], "2": [0.5, 0.75]}))
    loaded = load(path)
    assert loaded.prompt_key.tolist() == ["2", "10"]  # by number, not by spelling
    assert loaded.text is None
    assert loaded.step.tolist() == [0, 0, 1, 1, 2]
    assert loaded.prompt_id.tolist() == [0, 1, 0, 1, 1]
    assert loaded.successes.tolist() == [4, 0, 6, 2, 8]
    assert loaded.trials.tolist() == [8] * 5
    quarters = histories.load_pass_rate_lists(path, group_size=4)
    assert quarters.successes.tolist() == [2, 0, 3, 1, 4]
    path.write_text(json.dumps({"0": [0.5], "7": [0.5, 0.3]}))
    with pytest.raises(
        ValueError, match=r"pass rate: 0.3 of prompt 7, visit 1, .* multiple of 1/8"
    ):
        load(path)
    path.write_text(json.dumps({"0": [1.125]}))
    with pytest.raises(ValueError, match=r"pass rate: 1.125 of prompt 0, visit 0"):
        load(path)


def write_prompts(path, indices):
    import pyarrow
    import pyarrow.parquet as parquet

    rows = [
        {
            "prompt": [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": f"question {row}"},
            ],
            "extra_info": {"index": index},
        }
        for row, index in enumerate(indices)
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def test_texts_are_matched_by_index(tmp_path):
    rates, prompts = tmp_path / "rates.json", tmp_path / "prompts.parquet"
    rates.write_text(json.dumps({"2": [0.5], "10": [0.25]}))
    write_prompts(prompts, [10, 5, 2])
    loaded = load(rates, prompts)
    assert loaded.text is not None
    assert loaded.text.tolist() == ["question 2", "question 0"]
    assert loaded.prompt_key.tolist() == [content_key("question 2"), content_key("question 0")]
    write_prompts(prompts, [10, 5])
    with pytest.raises(ValueError, match=r"prompts: no text for prompt 2 \(1 in all\)"):
        load(rates, prompts)
    write_prompts(prompts, [0, 0, 0])  # field report 23
    with pytest.raises(ValueError, match=r"extra_info\.index: 0 at row 1 identifies no prompt"):
        histories.load_prompt_texts(prompts)


def test_thinning_by_hand():
    thinned = thin(history(), 4, np.random.default_rng(0))
    assert thinned.trials.tolist() == [4, 4, 4, 4]
    assert thinned.successes[[0, 1, 3]].tolist() == [0, 4, 1]  # all wrong, all right, untouched
    assert 0 <= thinned.successes[2] <= 3
    check_history(thinned)
    with pytest.raises(ValueError, match="group_size: 0"):
        thin(history(), 0, np.random.default_rng(0))


def test_thinning_is_hypergeometric():
    # 20,000 groups of 3 of 8, thinned to 4: C(3,k) C(5,4-k) / C(8,4) = 5, 30, 30, 5 of 70. The
    # standard errors are at most .0035; 5 of them, four cells: a false-alarm rate below 3e-6.
    rows = 20_000
    many = History(
        step=np.zeros(rows, np.int32),
        prompt_id=np.zeros(rows, np.int32),
        successes=np.full(rows, 3, np.int32),
        trials=np.full(rows, 8, np.int32),
        policy_step=np.zeros(rows, np.int32),
        prompt_key=np.array(["a"]),
        text=None,
        source=np.zeros(1, np.int32),
        meta={},
    )
    thinned = thin(many, 4, np.random.default_rng(1))
    shares = np.bincount(thinned.successes, minlength=5) / rows
    np.testing.assert_allclose(shares, np.array([5, 30, 30, 5, 0]) / 70, atol=0.0175)


@pytest.fixture(scope="module")
def run():
    return load(DATA / "acc_step_500.json", DATA / "dsr_sub.parquet")


@recorded
def test_the_recorded_run(run):
    successes, trials = dense_array(run)
    visits = (trials > 0).sum(0)
    assert successes.shape == (57, 1209)
    assert len(run.step) == visits.sum() == 64_000
    assert (visits.min(), visits.max()) == (44, 57)
    assert run.successes.sum() == successes.sum() == 216_520
    assert set(run.trials.tolist()) == {8}
    rates = successes[:44] / 8
    informative = (rates > 0) & (rates < 1)
    assert rates[0].mean() == pytest.approx(0.335, abs=5e-4)
    assert rates[43].mean() == pytest.approx(0.470, abs=5e-4)
    assert informative[0].mean() == pytest.approx(0.561, abs=5e-4)
    assert informative[43].mean() == pytest.approx(0.503, abs=5e-4)
    # Field report 13: what uniform choice realises over visits 1 to 43.
    assert informative[1:].mean() == pytest.approx(0.5143, abs=5e-5)


@recorded
def test_the_recorded_prompts(run):
    """Field report 24: 1,207 prompts in 1,209 rows."""
    assert run.text is not None
    pool, row_to_prompt = build_pool(run.text, index=np.arange(1209))
    assert len(pool.keys) == 1207
    assert len(set(row_to_prompt[[136, 780, 899]].tolist())) == 1
    assert len(set(run.prompt_key.tolist())) == 1207
    assert run.prompt_key[136] == run.prompt_key[780] == run.prompt_key[899]
    successes, trials = dense_array(run)
    means = successes[:, [136, 780, 899]].sum(0) / trials[:, [136, 780, 899]].sum(0)
    np.testing.assert_allclose(means, [0.887, 0.906, 0.859], atol=5e-4)


@recorded
def test_the_recorded_run_survives_its_own_format(run, tmp_path):
    save_history(tmp_path / "run.npz", run)
    again = load(tmp_path / "run.npz")
    for name in set(History._fields) - {"meta"}:
        np.testing.assert_array_equal(getattr(again, name), getattr(run, name))


@recorded
def test_the_strong_baseline_on_the_recorded_run(run):
    """Beta(.35, .65), discount .9, absorbed as `a <- .9 a + .1 a0 + y`; visits 1..43, G = 8."""
    successes, trials = dense_array(run)
    right, wrong = np.full(1209, 0.35), np.full(1209, 0.65)
    predicted = np.zeros((44, 1209))
    for visit in range(44):
        degenerate = np.ones((2, 1209))
        for j in range(8):
            degenerate *= np.stack([right + j, wrong + j]) / (right + wrong + j)
        predicted[visit] = 1 - degenerate.sum(0)
        right = 0.9 * right + 0.1 * 0.35 + successes[visit]
        wrong = 0.9 * wrong + 0.1 * 0.65 + trials[visit] - successes[visit]
    predicted, rates = predicted[1:44].ravel(), (successes / 8)[1:44].ravel()
    outcome = (rates > 0) & (rates < 1)
    bins = np.minimum(predicted * 10, 9).astype(int)
    gaps = [np.abs((predicted - outcome)[bins == each].sum()) for each in range(10)]
    assert ((predicted - outcome) ** 2).mean() == pytest.approx(0.1246, abs=5e-5)
    log_loss = -np.log(np.where(outcome, predicted, 1 - predicted)).mean()
    assert log_loss == pytest.approx(0.3934, abs=5e-5)
    assert sum(gaps) / len(predicted) == pytest.approx(0.0189, abs=5e-5)


def test_examples():
    assert doctest.testmod(histories).failed == 0
