"""The benchmark of large pools: it runs as it says, and its report says what was found."""

import json

import pytest

from experiments.benchmarks import pool_scale, pool_scale_report
from experiments.benchmarks.pool_scale_job import Job, collectives


def test_communication_is_read_from_the_program():
    hlo = """
  %all-gather.1 = s32[968]{0} all-gather(%a), channel_id=1, dimensions={0}
  %all-reduce.5 = (f32[4,128]{1,0}, f32[128]{0}) all-reduce(%b, %c), to_apply=%add
  %all-gather = f32[51200]{0} all-gather(%d), channel_id=3, dimensions={0}
  ROOT %fusion = f32[7]{0} fusion(%all-gather), kind=kLoop
"""
    assert collectives(hlo) == {"all-gather": 51_200, "all-reduce": 512}


def test_the_last_pool_also_runs_over_devices():
    config = pool_scale.Config(prompts=(1000, 400_000), devices=4, repetitions=100)
    assert pool_scale.jobs(config) == [
        Job(devices=0, num_prompts=1000, skills=16, groups=128, steps=5, repetitions=100),
        Job(devices=0, num_prompts=400_000, skills=16, groups=128, steps=5, repetitions=50),
        Job(devices=4, num_prompts=400_000, skills=16, groups=128, steps=5, repetitions=50),
    ]


@pytest.mark.parametrize(
    ("field", "value"),
    [("prompts", (5000,)), ("prompts", (5000, 1000)), ("groups", 50_000), ("devices", 1)],
)
def test_impossible_settings_are_named(field, value):
    with pytest.raises(ValueError, match=field):
        pool_scale.Config(**{field: value})


@pytest.mark.slow
def test_a_quick_run_writes_its_report(tmp_path):
    results = pool_scale.main(pool_scale.Config(quick=True, out=tmp_path))
    assert results["same_ids"] and results["same_outputs"] and results["same_state"]
    # Candidates and chosen rows cross devices, never an array of the pool (20,001 prompts).
    assert results["largest_communicated"] <= 200
    stored = json.loads((tmp_path / "results.json").read_text())
    assert [row["job"]["devices"] for row in stored["pools"]] == [0, 0, 2]
    assert "bit for bit" in (tmp_path / "report.md").read_text()
    assert (tmp_path / "scale.png").stat().st_size > 10_000
    results["same_ids"] = False
    assert "DIFFERENT" in pool_scale_report.findings(results)
