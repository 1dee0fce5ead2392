"""The suite: its list of runs, equal budgets, what a crash looks like, and the report's words."""

import dataclasses
import json
from pathlib import Path

import pytest

from experiments import intervals
from experiments.suite import __main__ as suite
from experiments.suite import live, plan, report, store, tables
from experiments.suite.plan import Job
from experiments.suite.tables import live_base

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
    _, rows = tables.states(content["runs"])
    assert any(row[1] == "worse" and row[2].startswith("CRASHED") for row in rows)
    text = "\n".join(report.sections(content))
    assert "CRASHED" in text


def test_a_run_that_was_ended_is_not_taken_for_done(tmp_path):
    job = Job("simulation", "when", "experiments.when_to_factor")
    store.note(tmp_path, job, "running")
    runs = store.digest(tmp_path)["runs"]
    assert runs["simulation"]["when"]["state"] == "ended before it was done"


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


def live_found(method, effective, validation, seeds=(0, 1, 2)):
    figures = {"informative_realised": effective, "validation_mean": validation}
    figures |= {"validation_end": validation, "distinct_prompts": [100.0] * len(seeds)}
    return {
        "method": method,
        "seeds": list(seeds),
        "figures": {name: intervals.of(values) for name, values in figures.items()},
    }


def test_an_ablation_is_held_against_the_method_it_changes():
    assert [live_base(name) for name in ("uniform", "mopps", "paced", "fade_thompson")] == [
        *(None, "uniform", "uniform", "uniform")
    ]
    assert [live_base(name) for name in ("fade_k0", "fade_greedy", "paced_no_replay")] == [
        *("fade_thompson", "fade_thompson", "paced")
    ]
    live = {
        "a": live_found("paced", [0.5, 0.6, 0.7], [0.2, 0.3, 0.4]),
        "b": live_found("paced_no_replay", [0.4, 0.5, 0.6], [0.3, 0.3, 0.3]),
    }
    _, rows = tables.live({"live": live})
    by_method = {row[0]: row for row in rows}
    assert by_method["paced_no_replay"][5:7] == ("paced", "**-0.100 (-0.100 to -0.100)**")
    # 4.303 x 0.1 / 3 ** 0.5
    assert by_method["paced_no_replay"][7].endswith(
        "0.000 (-0.248 to +0.248)"
    )  # 4.303 x 0.1 / 3**.5
    assert by_method["paced"][5:] == ("–", "–", "–")  # uniform is not there


def test_the_best_choice_is_the_least_mean_over_runs():
    def variant(label, dense, sparse, cold):
        gaps = [{"minus_fitted": {"mean": x, "low": x, "high": x}} for x in (dense, sparse, cold)]
        return {"factor": "K", "label": label, "figures": gaps}

    one = {"variants": {"a": variant("4", 0.001, 0.003, -9), "b": variant("16", 0.0, 0.001, 9)}}
    two = {"variants": {"a": variant("4", -0.004, -0.002, 0), "b": variant("16", 0.0, 0.0, 0)}}
    found = tables.best({"histories": {"parts_x": one, "parts_y": two}}, "K")
    assert found is not None
    assert found[0] == "4"
    assert found[1] == pytest.approx({"4": -0.0005, "16": 0.00025})
    assert tables.best({}, "K") is None
