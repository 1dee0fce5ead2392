"""Recording: what a finished run's folder turns into, and that it is not run twice."""

import dataclasses
import json
import os
import shlex

import numpy as np
import pytest
import tyro

from experiments import live_run, record_history, run_identity, train
from experiments.replay_table import HISTORIES
from fade_jax import histories
from fade_jax.pool import content_key
from paced_jax.tasks.skill_pool import build_pool
from paced_jax.tasks.tokens import SKILLS
from paced_jax.training import TrainConfig

TRAINING = TrainConfig(scheduler="uniform", epochs=True, num_train=160, num_prompts=2, chunk=1)


def finished_run(folder):
    """A folder as `live_run` leaves it: three iterations of two groups."""
    folder.mkdir()
    stored = run_identity.identity(TRAINING, live_run.Watch())
    (folder / "config.json").write_text(json.dumps(stored))
    np.savez_compressed(
        folder / "groups.npz",
        prompt_ids=np.array([[5, 9], [5, -1], [7, 5]], np.int32),
        successes=np.array([[8, 0], [3, 0], [2, 0]], np.float32),
        trials=np.array([[8, 8], [7, 0], [8, 0]], np.float32),
        stepped=np.array([True, False, True]),
        degenerate=np.zeros((3, 2), bool),
    )
    return folder


def test_a_finished_run_by_hand(tmp_path):
    run = finished_run(tmp_path / "run")
    result = record_history.main(record_history.Config(run=run, out=tmp_path / "out"))
    history = histories.load(tmp_path / "out" / "history.npz")
    assert history.step.tolist() == [0, 0, 1, 2]
    assert history.prompt_id.tolist() == [5, 9, 5, 7]
    assert history.successes.tolist() == [8, 0, 3, 2]
    assert history.trials.tolist() == [8, 8, 7, 8]
    assert history.policy_step.tolist() == [0, 0, 1, 1]
    train = build_pool(0, num_train=160).train
    assert history.text is not None
    np.testing.assert_array_equal(history.text, train.text)
    np.testing.assert_array_equal(history.source, train.skill)
    assert history.prompt_key[9] == content_key(str(train.text[9]))
    assert history.text[9].split()[0] == SKILLS[history.source[9]]
    assert history.meta["policy"] == "tiny" and history.meta["sources"] == list(SKILLS)
    assert result["first_visits"]["pass_rate"] == pytest.approx(10 / 24)
    assert result["first_visits"]["informative"] == pytest.approx(1 / 3)
    assert result["last_visits"]["pass_rate"] == pytest.approx(3 / 7)

    # The command in the file makes the same run.
    python, module, name, *flags = shlex.split(history.meta["command"])
    assert (python, module, name) == ("python", "-m", "experiments.record_history")
    again = tyro.cli(record_history.Config, args=flags)
    assert record_history.training_part(again) == TRAINING


def test_a_run_in_another_format_is_refused(tmp_path):
    run = finished_run(tmp_path / "run")
    stored = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(stored | {"format": 2}))
    with pytest.raises(ValueError, match="holds a run in format 2"):
        record_history.history_of(run)


def test_options_without_effect_are_refused(tmp_path):
    run = finished_run(tmp_path / "run")
    with pytest.raises(ValueError, match="iterations: has no effect with run"):
        record_history.Config(run=run, iterations=20)
    with pytest.raises(ValueError, match="run: no groups"):
        record_history.Config(run=tmp_path)


@pytest.mark.parametrize("name", ["tiny", "base"])
def test_the_shipped_histories_are_what_they_say(name):
    path = HISTORIES / f"{name}_uniform.npz"
    assert path.stat().st_size < 300_000
    history = histories.load(path)
    assert history.meta["policy"] == name
    successes, trials = histories.dense_array(histories.by_visit(history))
    assert trials.shape[1] == 1024 and len(trials) >= 8
    assert (trials == 8).all() and 0 < successes.mean() < 8  # whole epochs
    train = build_pool(0, num_train=1024).train
    np.testing.assert_array_equal(history.text, train.text)  # one pool for both
    flags = shlex.split(history.meta["command"])[3:]
    made = record_history.training_part(tyro.cli(record_history.Config, args=flags))
    wanted = dataclasses.asdict(made)
    # Recorded before schedulers named their rule: "all" is what uniform choice admits.
    assert wanted.pop("admit") == "preset" and history.meta["run"]["admit"] == "all"
    # Options that came later say nothing where they are not used.
    defaults = {field.name: field.default for field in dataclasses.fields(record_history.Config)}
    stored = history.meta["run"]
    assert {key: stored.get(key, defaults[key]) for key in wanted} == wanted
    assert set(stored) <= {*wanted, "admit"}


def test_a_scheduler_that_a_command_line_cannot_hand_over_is_refused():
    for config in (record_history.Config, train.Config):
        with pytest.raises(ValueError, match="scheduler: 'own' is for Python"):
            config(scheduler="own")


@pytest.mark.slow
def test_recording_from_end_to_end(tmp_path):
    watch = live_run.Watch(eval_every=4, eval_group_size=1, test_group_size=1, tensorboard=False)
    config = record_history.Config(
        epochs=True,
        num_train=800,
        num_prompts=8,
        iterations=4,
        chunk=2,
        out=tmp_path,
        watch=watch,
    )
    result = record_history.main(config)
    history = histories.load(tmp_path / "history.npz")
    assert result["groups"] == len(history.step) == 32
    assert len(set(history.prompt_id.tolist())) == 32  # in epochs: none twice
    assert history.policy_step.tolist() == history.step.tolist()
    assert (history.trials == 8).all()
    with np.load(tmp_path / "run" / "groups.npz") as groups:
        np.testing.assert_array_equal(groups["successes"].reshape(-1), history.successes)
    before = os.stat(tmp_path / "run" / "summary.json").st_mtime_ns
    assert record_history.main(config) == result
    assert os.stat(tmp_path / "run" / "summary.json").st_mtime_ns == before
