"""The benchmark of the filter's step: it times what it says, and writes what scripts read."""

import json

import jax
import numpy as np
import pytest

from experiments.benchmarks import filter_step, filter_step_report, peers, timing

TINY = filter_step.Config(
    prompts=300,
    skills=2,
    batch=8,
    chosen=16,
    repetitions=20,
    other_prompts=(),
    other_skills=(),
    peer_steps=4,
    peer_repetitions=2,
    seed=3,
)


def test_every_round_runs_every_candidate_once():
    calls = []
    candidates = {name: (lambda name=name: calls.append(name)) for name in "abc"}
    times, first = timing.interleave(candidates, 5, seed=0)
    assert calls[:3] == ["a", "b", "c"]  # the first calls, which compile
    rounds = np.reshape(calls[3:], (2 + 5, 3))  # two of warm-up
    assert all(sorted(row) == ["a", "b", "c"] for row in rounds.tolist())
    assert len({tuple(row) for row in rounds.tolist()}) > 1  # the order changes
    assert {name: len(values) for name, values in times.items()} == dict.fromkeys("abc", 5)
    assert set(first) == set("abc")


def test_summary_of_known_times():
    got = timing.summary(np.arange(101.0)[::-1])
    want = {"median": 50, "q25": 25, "q75": 75, "p99": 99, "min": 0, "repetitions": 101}
    assert got == want


def test_a_step_that_stops_early_is_the_start_of_the_whole_one():
    pool = filter_step.make_pool(TINY)
    early = filter_step.stepper(pool, TINY, last="score")
    whole = filter_step.stepper(pool, TINY, with_info=True)
    for _ in range(3):
        scored, stepped = early(), whole()
        for a, b in zip(jax.tree.leaves(scored.state), jax.tree.leaves(stepped.state), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        scores, chosen = np.asarray(scored.result), np.asarray(stepped.result)
        assert len(set(chosen.tolist())) == TINY.chosen
        np.testing.assert_allclose(
            np.sort(scores[chosen]), np.sort(scores)[-TINY.chosen :], rtol=1e-5, atol=1e-6
        )
        assert scored.info is None
        assert stepped.info is not None and float(stepped.info.log_evidence) < 0
    assert float(stepped.state.clock) == 3  # one predict a step


def ekf_loop(job, visits):
    """Mean and variance [2, N] of every prompt as of its last visit, one visit at a time."""
    mean, var = np.full(job.prompts, job.prior_mean), np.full(job.prompts, job.prior_var)
    last = np.zeros(job.prompts)
    rows = zip(visits.prompt_ids.tolist(), visits.successes.tolist(), strict=True)
    for step, row in enumerate(rows, start=1):
        for i, y in zip(*row, strict=True):
            predicted = var[i] + job.drift_var * (step - last[i])
            p = 1 / (1 + np.exp(-mean[i]))
            slope, noise = job.trials * p * (1 - p), job.trials * p * (1 - p)
            gain = predicted * slope / (slope**2 * predicted + noise)
            mean[i] += gain * (y - job.trials * p)
            var[i] = (1 - gain * slope) * predicted
            last[i] = step
    return np.stack([mean, var])


JOB = peers.PoolJob(prompts=12, batch=4, steps=15)


@pytest.mark.parametrize("build", [peers.fade_tracker, peers.fade_distinct])
def test_our_side_of_the_pool_job_is_the_extended_kalman_filter(build, x64):
    visits = peers.simulate(JOB, seed=5)
    got = jax.jit(build(JOB))(visits)
    np.testing.assert_allclose(np.stack(got), ekf_loop(JOB, visits), rtol=1e-11, atol=1e-12)


@pytest.mark.filterwarnings("ignore")  # of the peers' own dependencies
@pytest.mark.parametrize("name", peers.PEERS)
def test_a_peer_gives_the_same_answers(name, x64):
    if name not in peers.installed():
        pytest.skip(f"{name} comes with the bench extra")
    build, tolerance = peers.PEERS[name]
    visits = peers.simulate(JOB, seed=5)
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        got = peers.at_last_visit(jax.jit(build(JOB))(visits), visits)
    visited = np.unique(visits.prompt_ids)
    np.testing.assert_allclose(got, ekf_loop(JOB, visits)[:, visited], rtol=0, atol=tolerance)


@pytest.mark.slow
def test_main_writes_what_scripts_read(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(peers, "installed", dict)
    results = filter_step.main(filter_step.replace(TINY, out=tmp_path))
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["prompts"] == 300 and written["peers"] == {}
    for key in ("step_ms_median", "product_ms_median", "ratio_to_product", "compile_seconds"):
        assert written[key] > 0
    ratio = written["step_ms_median"] / written["product_ms_median"]
    assert written["ratio_to_product"] == pytest.approx(ratio)
    assert written["step_ms"]["q25"] <= written["step_ms_median"] <= written["step_ms"]["q75"]
    assert written["step_ms"]["repetitions"] == 20
    assert list(written["split_ms"]) == list(filter_step.PARTS)
    assert sum(written["split_ms"].values()) == pytest.approx(written["split_step_ms"])
    assert [row["prompts"] for row in written["sizes"]] == [300]
    assert {"config", "provenance", "load_average", "step_with_info_ms"} <= set(written)
    assert json.loads((tmp_path / "config.json").read_text())["seed"] == 3

    report = (tmp_path / "report.md").read_text()
    assert report.index("Known differences") < report.index("## The step")
    assert peers.INSTALL in report and "Target" not in report  # a target is for its own size only
    assert "update (adf)" in capsys.readouterr().out
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")

    at_size = results | {
        "prompts": 40_315,
        "sizes": [results["sizes"][0] | {"skills": 16}],
        "step_ms_median": 0.61,
        "ratio_to_product": 2.9,
    }
    text = filter_step_report.headline_text(at_size)
    assert "0.6 ms (missed)" in text and "3 products (met)" in text


def test_parity_table_names_peer_job_and_verdict(monkeypatch):
    """With one peer, played by our own filter: same answers, a ratio per job."""
    monkeypatch.setattr(peers, "installed", lambda: {"cuthbert": "0"})
    monkeypatch.setattr(peers, "PEERS", {"cuthbert": (peers.fade_distinct, 1e-8)})
    jobs = [JOB, peers.PoolJob(prompts=20, batch=3, steps=2)]
    compared = peers.compare(jobs, seed=0, repetitions=2)
    peer = compared["cuthbert"]
    assert peer["equal"] and 0 <= peer["difference"] <= 1e-12
    assert peer["ratio"] == pytest.approx(peer["ms_median"] / peer["ours_ms_median"])
    assert [row["job"]["prompts"] for row in peer["jobs"]] == [12, 20]
    table = filter_step_report.peer_table({"peers": compared, "config": {"peers": True}})
    assert table.count("cuthbert 0") == 2 and table.count("yes") == 2
    assert jax.numpy.zeros(()).dtype == np.float32  # float64 stayed inside


def test_config_refuses_what_cannot_be_timed():
    with pytest.raises(ValueError, match="prompts"):
        filter_step.Config(prompts=0)
    with pytest.raises(ValueError, match="group_size"):
        filter_step.Config(group_size=1)
    with pytest.raises(ValueError, match="batch"):
        filter_step.Config(batch=128, other_prompts=(100,))
    with pytest.raises(ValueError, match="chosen"):
        filter_step.Config(chosen=50_000)
    short = filter_step.Config(quick=True).shortened()
    assert short.prompts * short.skills < 20_000 and short.repetitions <= 50
    # A pool 25 times as large gets that many fewer runs, but enough for a median.
    full = filter_step.Config()
    assert filter_step.sized(full).repetitions == full.repetitions // 4
    assert 20 <= filter_step.sized(full, prompts=1_000_000).repetitions < 50
