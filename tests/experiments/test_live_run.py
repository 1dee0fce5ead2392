"""Live runs on a policy of one layer: what a run that was ended, or goes wrong, leaves behind."""

import dataclasses
import functools
import json
import shutil
from collections.abc import Iterator
from functools import partial

import jax
import pytest
from live_world import config, ground, unoptimised

from experiments import live_run, run_equality, run_folder
from experiments.run_identity import Watch
from paced_jax import evaluation
from paced_jax.metrics import read_json_lines
from paced_jax.tasks.skills import MAX_LENGTH
from paced_jax.tasks.tokens import SKILLS

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
    evaluate = jax.jit(
        partial(evaluation.evaluate, base.graphdef, batch_size=8), static_argnames=("group_size",)
    )
    return live_run.Bench(tiny._replace(base=base), WATCH, evaluate, lambda *_: None)


def execute(folder, plan, **options):
    (summary,) = live_run.execute(
        bench(), "test", [plan], [folder], lambda what, done: None, **options
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
