"""Live runs on a policy of one layer: what a run that was ended, or goes wrong, leaves behind."""

import dataclasses
import functools
import shutil
from collections.abc import Iterator

import jax
import numpy as np
import pytest
from live_world import config, ground, unoptimised

from experiments import live_run, run_equality, run_folder
from experiments.run_identity import Watch
from fade_jax import driver
from paced_jax.checkpoint import steps_of
from paced_jax.metrics import read_json_lines
from paced_jax.tasks.skills import MAX_LENGTH
from paced_jax.tasks.tokens import SKILLS

pytestmark = pytest.mark.slow  # compiling

WATCH = Watch(
    eval_every=2, checkpoint_every=2, eval_group_size=1, test_group_size=1, tensorboard=False
)


@pytest.fixture(scope="module", autouse=True)
def quick_compiler() -> Iterator[None]:
    with unoptimised():
        yield


@pytest.fixture(scope="module", autouse=True)
def one_step() -> Iterator[None]:
    """Compiles the step of a configuration once for all tests."""
    compiled = live_run.compiled_step
    kept = {}

    def once(run, state):
        if run.config not in kept:
            kept[run.config] = compiled(run, state)
        return kept[run.config]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live_run, "compiled_step", once)
        yield


@functools.cache
def bench() -> live_run.Bench:
    tiny = ground()
    rates = {name: [0.0] * MAX_LENGTH for name in SKILLS}
    base = tiny.base._replace(metadata={"pass_rate": rates})
    here = tiny._replace(base=base)
    watch = dataclasses.replace(WATCH, eval_batch=8)
    return live_run.Bench(here, WATCH, live_run.make_evaluate(here, watch), lambda *_: None)


def execute(folder, plan, on=None, **options):
    (summary,) = live_run.execute(
        bench() if on is None else on, "test", [plan], [folder], lambda what, done: None, **options
    )
    return summary


PLAN = config(scheduler="uniform", iterations=3)
"""Its end is no regular look."""


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ended") / "run"
    execute(folder, PLAN)
    return folder


def iterations_of_looks(folder):
    return [x["iteration"] for x in read_json_lines(folder / "evaluation" / "metrics.jsonl")]


def test_a_run_ended_after_its_last_checkpoint_is_the_same_run(ended, tmp_path):
    assert iterations_of_looks(ended) == [0, 2, 3]
    killed = tmp_path / "run"
    shutil.copytree(ended, killed)
    (killed / "summary.json").unlink()  # killed while the test prompts were evaluated
    execute(killed, PLAN)
    assert run_equality.differences(ended, killed) == []
    # and where the machine lost the last look, the run looks again
    lines = (killed / "evaluation" / "metrics.jsonl").read_text().splitlines(keepends=True)
    (killed / "evaluation" / "metrics.jsonl").write_text("".join(lines[:-1]))
    (killed / "summary.json").unlink()
    execute(killed, PLAN)
    assert run_equality.differences(ended, killed) == []


def test_a_fault_where_a_look_is_due_is_told_and_not_hidden_by_the_log(tmp_path):
    good = bench()
    base = good.ground.base
    params = jax.tree.map(lambda x: np.nan * x, base.params)
    broken = dataclasses.replace(
        good, ground=good.ground._replace(base=base._replace(params=params))
    )
    with pytest.raises(driver.DriverFault, match="iteration 0"):
        execute(tmp_path / "run", PLAN, on=broken)
    assert iterations_of_looks(tmp_path / "run") == [0]
    assert steps_of(tmp_path / "run" / "checkpoints") == []


def test_a_run_that_has_ended_is_not_begun_again_for_want_of_a_checkpoint(ended, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(ended, folder)
    shutil.rmtree(folder / "checkpoints")
    longer = dataclasses.replace(PLAN, iterations=4)
    message = r"checkpoints: .*run has ended and has none to go on from"
    with pytest.raises(ValueError, match=message):
        execute(folder, longer, extend=True)
    assert run_equality.logs(folder) == run_equality.logs(ended)
    assert (folder / "summary.json").exists()


def test_a_folder_is_held_until_the_summary_is_written(ended, tmp_path):
    pytest.importorskip("fcntl")
    folder, refused = tmp_path / "run", []
    shutil.copytree(ended, folder)
    (folder / "summary.json").unlink()

    def keep(policy):
        with pytest.raises(ValueError, match="another process is writing to"):
            execute(folder, PLAN)
        refused.append(not (folder / "summary.json").exists())

    execute(folder, PLAN, keep=keep)
    assert refused == [True] and (folder / "summary.json").exists()


def test_a_run_that_goes_on_elsewhere_is_told_so(ended, tmp_path, capsys):
    # Another number of cores adds numbers in another order.
    folder = tmp_path / "run"
    shutil.copytree(ended, folder)
    (folder / "summary.json").unlink()
    execute(folder, PLAN)
    assert "goes on with" not in " ".join(capsys.readouterr().out.split())
    content = run_folder.read_json(folder / "config.json")
    content["machine"]["cpus"] += 1
    run_folder.write_json(folder / "config.json", content)
    (folder / "summary.json").unlink()
    execute(folder, PLAN)
    assert "goes on with" in " ".join(capsys.readouterr().out.split())
