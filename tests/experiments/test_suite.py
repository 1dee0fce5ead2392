"""The suite: its list of runs, equal budgets, what a crash looks like, and the report's words."""

import dataclasses
import json
from pathlib import Path

import pytest

from experiments import command_line, intervals, run_folder
from experiments.processes import Ended
from experiments.suite import __main__ as suite
from experiments.suite import live, live_tables, plan, report, store, tables
from experiments.suite.plan import Job

pytestmark = pytest.mark.standard_promotion


def test_every_job_has_a_configuration_that_its_command_line_gives():
    import importlib

    import tyro

    folder = Path("runs/x")
    jobs = suite.jobs_of(suite.Config(out=folder), folder)
    names = [(job.part, job.name) for each in jobs.values() for job in each]
    assert len(set(names)) == len(names)
    for job in (job for each in jobs.values() for job in each):
        experiment = importlib.import_module(job.module)
        if job.module.endswith(("time_scales", "history_ablation")):
            continue  # they read the results of another run, which is not there
        parsed = tyro.cli(experiment.Config, args=list(job.arguments(folder)))
        assert parsed == experiment.Config(**job.options, out=job.folder(folder))


def test_what_is_compared_at_equal_rollouts_has_equal_ones():
    jobs = plan.live_jobs("tiny", (0, 1), quick=False)
    plan.check_budgets(jobs)
    assert {job.rollouts for job in jobs} == {25_600}
    odd = dataclasses.replace(jobs[1], rollouts=25_599)
    with pytest.raises(ValueError, match=f"rollouts: {jobs[0].name} .* {odd.name} 25,599"):
        plan.check_budgets([jobs[0], odd])


@pytest.mark.parametrize("policy", ["tiny", "base", "smollm2"])
def test_every_live_method_is_a_valid_configuration(policy):
    for method in live.methods(policy):
        setting = live.Config(policy=policy, method=method).setting
        assert setting.policy == policy
    with pytest.raises(ValueError, match="method: must be one of"):
        live.Config(policy=policy, method="luck")


@pytest.mark.parametrize(
    ("field", "value"),
    [("parts", ()), ("seeds", (1, 1)), ("workers", 0), ("history", Path("no/file.json"))],
)
def test_bad_settings_are_refused_by_name(field, value):
    with pytest.raises(ValueError, match=field):
        suite.Config(**{field: value})


def test_results_of_another_configuration_are_refused(tmp_path):
    job = Job("simulation", "when", "experiments.when_to_factor", {"seeds": 3})
    folder = job.folder(tmp_path)
    assert not job.finished(tmp_path)
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps({"config": job.config(tmp_path)}))
    assert job.finished(tmp_path)
    other = dataclasses.replace(job, options={"seeds": 4})
    with pytest.raises(ValueError, match=r"holds results of another seeds"):
        other.finished(tmp_path)


def test_a_crash_is_shown_as_one_and_stops_no_other(tmp_path):
    bad = Job("overhead", "worse", "experiments.benchmarks.tracker_step", {"batch": -1})
    lost = Job("overhead", "lost", "experiments.benchmarks.tracker_step", {}, ("worse",))
    suite.run_part("overhead", [bad, lost], tmp_path, 1)
    content = store.digest(tmp_path)
    runs = content["runs"]["overhead"]
    assert runs["worse"]["state"] == "crashed"
    assert "batch" in (bad.folder(tmp_path) / "log.txt").read_text()
    assert runs["lost"]["state"] == "not started"
    assert content["figures"] == {}
    assert runs["worse"]["last_line"] == ("Error parsing Config: batch must be at least 1, got -1")
    _, rows = tables.states(content["runs"])
    assert any(row[1] == "worse" and row[2].startswith("CRASHED") for row in rows)
    text = "\n".join(report.sections(content))
    assert "CRASHED" in text


def test_a_run_that_was_ended_is_not_taken_for_done(tmp_path):
    job = Job("simulation", "when", "experiments.when_to_factor")
    store.note(tmp_path, job, "running")
    runs = store.digest(tmp_path)["runs"]
    assert runs["simulation"]["when"]["state"] == "ended before it was done"


WHEN = Job("simulation", "when", "experiments.when_to_factor", {"seeds": 3})


def finish(store_folder, job=WHEN):
    """Results of a run, as its process leaves them."""
    folder = job.folder(store_folder)
    folder.mkdir(parents=True, exist_ok=True)
    content = {"config": job.config(store_folder), "provenance": {"commit": "abc1234"}, "cells": []}
    (folder / "results.json").write_text(json.dumps(content))


def test_results_that_came_after_the_suite_was_killed_count(tmp_path):
    store.note(tmp_path, WHEN, "running")
    finish(tmp_path)
    assert WHEN.finished(tmp_path)
    content = store.digest(tmp_path)
    assert content["runs"]["simulation"]["when"]["state"] == "done"
    assert content["figures"]["simulation"]["when"] == {"cells": [], "seeds": 3}


def test_what_crashed_after_its_results_is_tried_again(tmp_path):
    finish(tmp_path)
    log = f"Traceback ...\nOSError: no space\n{command_line.HINT}\n"
    (WHEN.folder(tmp_path) / "log.txt").write_text(log)
    store.note(tmp_path, WHEN, "crashed", Ended(1, 2.0))
    assert not WHEN.finished(tmp_path)
    content = store.digest(tmp_path)
    assert content["runs"]["simulation"]["when"]["last_line"] == "OSError: no space"
    assert content["figures"] == {}


def test_a_second_suite_is_refused_and_writes_nothing(tmp_path):
    (tmp_path / "runs").mkdir()
    with run_folder.alone(tmp_path):
        for report_only in (False, True):
            with pytest.raises(ValueError, match="another process is writing to"):
                suite.main(suite.Config(out=tmp_path, parts=("overhead",), report_only=report_only))
    assert {path.name for path in tmp_path.iterdir()} == {"lock", "runs"}


def test_what_is_published_is_drawn_from_its_numbers(tmp_path):
    """Every figure of the committed report, from the committed results alone."""
    committed = Path("experiments/results/suite")
    stored = (committed / "results.json").read_bytes()
    (tmp_path / "results.json").write_bytes(stored)
    suite.main(suite.Config(out=tmp_path, report_only=True))
    assert (tmp_path / "results.json").read_bytes() == stored
    assert (tmp_path / "report.md").read_text() == (committed / "report.md").read_text()
    drawn = {path.name for path in tmp_path.glob("*.png")}
    assert drawn == {path.name for path in committed.glob("*.png")}
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match=r"out: .* holds neither runs nor results\.json"):
        suite.main(suite.Config(out=tmp_path / "none", report_only=True))


def gain(mean, low, high, protocol="dense", observed=1.0):
    return {
        "protocol": protocol,
        "observed": observed,
        "tracker": "fade_k0",
        "rival": "logit_kalman",
        "log_loss_difference": mean,
        "low": low,
        "high": high,
    }


def test_words_follow_the_intervals():
    comparisons = [
        gain(-0.005, -0.006, -0.004),
        gain(0.002, 0.001, 0.003, "sparse", 0.1),
        gain(0.001, -0.001, 0.003, "cold", 0.5),
    ]
    replay = {"comparisons": comparisons, "rows": [], "labels": {}, "fits": {}}
    replay["history"] = {"source": "tiny_uniform.npz"}
    lines = report.when_it_pays({"histories": {"replay_tiny": replay}})
    assert lines == [
        "* **A common ability: K = 0 over a logit Kalman filter a prompt** pays in 1 of 3 (5.0);"
        " costs: tiny (ours) sparse 10 % (2.0); nothing shown: tiny (ours) cold 50 %."
    ]
    header, rows = tables.gain_rows({"histories": {"replay_tiny": replay}})
    assert header == ("what", "run", "dense", "sparse 10 %", "cold 50 %")
    assert rows[0][2:] == (
        "**-5.0 (-6.0 to -4.0)**",
        "*+2.0 (+1.0 to +3.0)*",
        "+1.0 (-1.0 to +3.0)",
    )


def test_a_run_of_ones_own_is_called_by_its_file():
    history = {"source": "mine.json"}
    own = {"comparisons": [gain(-0.005, -0.006, -0.004)], "history": history}
    figures = {"histories": {"replay_real": own}}
    assert tables.run_names(figures) == {"real": "mine.json"}
    assert tables.gain_rows(figures)[1][0][1] == "mine.json"
    assert tables.chosen(figures, "P(informative)")[1] == []  # not a table of nobody


def live_found(method, effective, validation, seeds=(0, 1, 2), policy="tiny", rollouts=640.0):
    figures = {"informative_realised": effective, "validation_mean": validation}
    figures |= {"validation_end": validation, "distinct_prompts": [100.0] * len(seeds)}
    figures |= {"rollouts": [rollouts] * len(seeds)}
    return {
        "method": method,
        "policy": policy,
        "seeds": list(seeds),
        "figures": {name: intervals.of(values) for name, values in figures.items()},
    }


def test_an_ablation_is_held_against_the_method_it_changes():
    assert [
        live_tables.base_of(name) for name in ("uniform", "mopps", "paced", "fade_thompson")
    ] == [*(None, "uniform", "uniform", "uniform")]
    assert [
        live_tables.base_of(name) for name in ("fade_k0", "fade_greedy", "paced_no_replay")
    ] == [*("fade_thompson", "fade_thompson", "paced")]
    live = {
        "a": live_found("paced", [0.5, 0.6, 0.7], [0.2, 0.3, 0.4]),
        "b": live_found("paced_no_replay", [0.4, 0.5, 0.6], [0.3, 0.3, 0.3]),
    }
    _, rows = live_tables.rows(live_tables.by_policy({"live": live})["tiny"])
    by_method = {row[0]: row for row in rows}
    assert by_method["paced_no_replay"][5:7] == ("paced", "**-0.100 (-0.100 to -0.100)**")
    # 4.303 x 0.1 / 3 ** 0.5
    assert by_method["paced_no_replay"][7].endswith(
        "0.000 (-0.248 to +0.248)"
    )  # 4.303 x 0.1 / 3**.5
    assert by_method["paced"][5:] == ("–", "–", "–")  # uniform is not there


def test_policies_are_apart_and_unequal_rollouts_are_not_compared():
    live = {
        "tiny_paced": live_found("paced", [0.5, 0.6, 0.7], [0.2, 0.3, 0.4]),
        "base_paced": live_found("paced", [0.1, 0.1, 0.1], [0.1, 0.1, 0.1], policy="base"),
        "base_uniform": live_found("uniform", [0.1] * 3, [0.1] * 3, policy="base", rollouts=641.0),
    }
    found = live_tables.by_policy({"live": live})
    assert {policy: set(each) for policy, each in found.items()} == {
        "tiny": {"paced"},
        "base": {"paced", "uniform"},
    }
    assert found["tiny"]["paced"]["figures"]["informative_realised"]["mean"] == 0.6
    assert live_tables.gaps(found["base"], "paced", "uniform", ("validation_mean",)) is None
    state = {"state": "done", "rollouts_realised": [640.0, 640.0, 641.0]}
    assert "UNEQUAL: 640, 640, 641" in tables.states({"live": {"tiny_paced": state}})[1][0]


def test_what_training_answers_follows_the_intervals():
    live = {
        "a": live_found("fade_thompson", [0.5, 0.6, 0.7], [0.2, 0.3, 0.4]),
        "b": live_found("fade_k0", [0.4, 0.5, 0.6], [0.3, 0.3, 0.3]),
    }
    assert live_tables.answers({"live": live}) == [
        "* In training (`tiny`, 3 seeds), text loadings (over K = 0): **more** effective groups"
        " (+0.100 (+0.100 to +0.100)); nothing shown in validation pass rate (+0.000 (-0.248 to"
        " +0.248))."
    ]


def test_the_best_choice_is_the_least_mean_over_runs():
    def variant(label, dense, sparse, cold):
        gaps = [
            {"protocol": protocol, "minus_fitted": {"mean": x, "low": x, "high": x}}
            for protocol, x in (("dense", dense), ("sparse", sparse), ("cold", cold))
        ]
        return {"factor": "K", "label": label, "figures": gaps}

    one = {"variants": {"a": variant("4", 0.001, 0.003, -9), "b": variant("16", 0.0, 0.001, 9)}}
    two = {"variants": {"a": variant("4", -0.004, -0.002, 0), "b": variant("16", 0.0, 0.0, 0)}}
    found = tables.best({"histories": {"parts_x": one, "parts_y": two}}, "K")
    assert found is not None
    assert found[0] == "4"
    assert found[1] == pytest.approx({"4": -0.0005, "16": 0.00025})
    figures = {"histories": {"parts_x": one, "parts_y": two}}
    assert tables.best(figures, "K", ("cold",)) == ("4", {"4": -4.5, "16": 4.5})
    assert tables.best({}, "K") is None


def test_the_simulated_parts_are_all_told_with_a_star_where_the_interval_excludes_0():
    def variant(label, low, high):
        gap = {"mean": (low + high) / 2, "low": low, "high": high}
        return {"factor": "ridge", "label": label, "minus_tuned": gap, "ece": 0.0}

    ablation = {
        "variants": {"a": variant("1", 0.001, 0.003), "b": variant("2", -0.003, 0.001)},
        "skills": {"K = 4": {"rmse": {"mean": 0.1, "low": 0.09, "high": 0.11, "values": [0.1]}}},
    }
    _, rows = tables.simulated({"simulation": {"ablation": ablation}})
    assert rows == [
        ("K, tuned anew", "4", "–", "0.100 (0.090 to 0.110)"),
        ("ridge", "1", "+2.0*", "–"),
        ("ridge", "2", "-1.0", "–"),
    ]


def test_the_same_file_from_another_folder_is_the_same_history(tmp_path, monkeypatch):
    for name in ("mine.json", "yours.json"):
        (tmp_path / name).write_text("{}")
    job = Job("histories", "replay_real", "experiments.replay_history")
    here = dataclasses.replace(job, options={"history": tmp_path / "mine.json"})
    finish(tmp_path, here)
    monkeypatch.chdir(tmp_path)
    there = dataclasses.replace(job, options={"history": Path("mine.json")})
    assert here.finished(tmp_path) and there.finished(tmp_path)
    other = dataclasses.replace(job, options={"history": Path("yours.json")})
    with pytest.raises(ValueError, match="holds results of another history"):
        other.finished(tmp_path)


def test_what_holds_no_results_is_refused_by_name(tmp_path):
    finish(tmp_path)
    (WHEN.folder(tmp_path) / "results.json").write_text("{}")
    with pytest.raises(ValueError, match=r"out: .*results\.json holds no results of a run"):
        WHEN.finished(tmp_path)
    (tmp_path / "runs" / "live" / "notes").mkdir(parents=True)
    (WHEN.folder(tmp_path) / "results.json").unlink()
    assert store.digest(tmp_path) == {"runs": {}, "figures": {}}
    with pytest.raises(ValueError, match=r"out: .*a_file is a file, not a folder"):
        (tmp_path / "a_file").write_text("")
        suite.main(suite.Config(out=tmp_path / "a_file"))


def test_a_crash_decides_the_exit_status(tmp_path):
    assert not suite.crashed({"runs": {"live": {"a": {"state": "done"}}}})
    assert suite.crashed({"runs": {"live": {"a": {"state": "done"}, "b": {"state": "crashed"}}}})
