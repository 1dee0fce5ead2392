"""A line in a table gives a part of one's own a name: in a configuration and on a command line."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from live_world import NUM_PROMPTS, POOL, config, ground, play, unoptimised

from experiments import train
from fade_jax import driver, presets
from paced_jax import training
from paced_jax.ground import load_task
from paced_jax.objectives import OBJECTIVES, RowLoss
from paced_jax.schedulers import PRESETS, Preset, of_pool
from paced_jax.tasks import tokens
from paced_jax.tasks.named import TASKS
from paced_jax.tasks.skill_pool import Problem, pools_of
from paced_jax.tasks.task import Task
from paced_jax.training import TrainConfig, prepare


@pytest.fixture(scope="module", autouse=True)
def quick_compiler() -> Iterator[None]:
    with unoptimised():
        yield


def least_squares(rows):
    return (rows.value - rows.rewards) ** 2


def one_digit(settings, model):
    """Repeats a digit: ten prompts."""
    digits = [tokens.DIGIT_0 + i for i in range(10)]
    problems = [
        Problem([tokens.BOS, digit, tokens.EQUALS], [digit, tokens.EOS], text=str(digit))
        for digit in digits
    ]
    pools = pools_of(problems, settings.pool_seed, num_train=settings.num_train)
    return Task("repeat", ("repeat",), 1, tokens.EOS), pools


def test_a_scheduler_of_ones_own_has_a_name(monkeypatch):
    with pytest.raises(ValueError, match=r"scheduler: must be one of .*'uniform'.*, got 'mine'"):
        config(scheduler="mine")
    monkeypatch.setitem(PRESETS, "mine", Preset(of_pool(presets.uniform), ("epochs",)))
    run = prepare(config(scheduler="mine", epochs=True), ground())
    step = driver.compile_step(run.make, chunk=1)
    played = play(step, run.setup, run.init(run.setup, jax.random.key(0)), POOL // NUM_PROMPTS)
    ids = played.records.observation.prompt_ids.reshape(-1)
    assert sorted(ids.tolist()) == list(range(POOL))  # an epoch, as only `epochs` gives
    with pytest.raises(ValueError, match=r"exploration: 0\.5 has no effect"):
        config(scheduler="mine", exploration=0.5)
    with pytest.raises(ValueError, match="fade_selector: 'weighted' has no effect"):
        config(scheduler="mine", fade_selector="weighted")
    assert run.setup.loadings == ()
    monkeypatch.setitem(PRESETS, "mine", Preset(of_pool(presets.uniform), reads_loadings=True))
    assert prepare(config(scheduler="mine", num_skills=3), ground()).setup.loadings.shape == (
        POOL,
        3,
    )


def test_a_preset_that_reads_v_needs_a_loss_that_teaches_it(monkeypatch):
    monkeypatch.setitem(PRESETS, "mine", PRESETS["paced"])
    with pytest.raises(ValueError, match="scheduler: 'mine' reads V as the pass rate"):
        config(scheduler="mine", objective="grpo")
    made = RowLoss(loss=least_squares, by_group=False, teaches_pass_rate=True)
    monkeypatch.setitem(OBJECTIVES, "squares", lambda options: made)
    assert config(scheduler="paced", objective="squares").uses_replay
    with pytest.raises(ValueError, match=r"overlong_buffer: .*the objective 'squares' teaches V"):
        config(scheduler="uniform", objective="squares", overlong_buffer=2)
    with pytest.raises(ValueError, match=r"beta: 0\.3 has no effect"):
        config(scheduler="uniform", objective="squares", beta=0.3)


def test_an_objective_of_ones_own_trains(monkeypatch):
    made = RowLoss(loss=least_squares, by_group=False, teaches_pass_rate=True)
    monkeypatch.setitem(OBJECTIVES, "squares", lambda options: made)
    changes = {"scheduler": "uniform", "objective": "squares", "partition_learning_rate": 1e-2}
    run = prepare(config(**changes), ground())
    step = driver.compile_step(run.make, chunk=4)
    played = play(step, run.setup, run.init(run.setup, jax.random.key(0)), 4)
    before, after = (played.states[i].learner.params for i in (0, -1))
    # It has no gradient for the policy. V starts at 1/2, a quarter off any reward of 0 or 1.
    jax.tree.map(np.testing.assert_array_equal, before.policy, after.policy)
    assert not np.array_equal(before.partition.kernel, after.partition.kernel)
    assert played.records.learn.metrics.loss[0] == 0.25
    assert int(played.states[-1].learner.version) == 4


@pytest.mark.slow
def test_micro_batches_of_a_loss_of_ones_own_sum_to_the_whole(monkeypatch):
    made = RowLoss(loss=lambda rows: -rows.rewards * rows.log_probs.sum(axis=1), by_group=False)
    monkeypatch.setitem(OBJECTIVES, "imitate", lambda options: made)
    states = []
    for parts in ({}, {"accumulate": 2}):
        run = prepare(config(scheduler="uniform", objective="imitate", **parts), ground())
        state = run.init(run.setup, jax.random.key(0))
        step = driver.compile_step(
            lambda setup, run=run: run.make(setup)._replace(verify=lenient), chunk=1
        )
        states.append(step(run.setup, state)[0].learner)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *states)
    start = run.init(run.setup, jax.random.key(0)).learner.params.policy
    moved = jax.tree.map(lambda a, b: jnp.abs(a - b).max(), start, states[0].params.policy)
    assert max(map(float, jax.tree.leaves(moved))) > 1e-3


def lenient(setup, rollouts):
    return (rollouts.tokens[:, 0] < tokens.DIGIT_0 + 8).astype(jnp.int8)


@pytest.mark.slow
def test_a_task_of_ones_own_has_a_name_and_no_rates_of_the_digit_skills(monkeypatch):
    monkeypatch.setitem(TASKS, "repeat", one_digit)
    given = TrainConfig(task="repeat", scheduler="uniform", num_prompts=4, num_train=16)
    run = prepare(given)
    assert run.task.name == "repeat" and run.max_tokens == 2
    assert [len(pool.text) for pool in run.pools] == [6, 2, 2]
    assert training.base_rates(run) is None and "decoder" in run.base.metadata
    step = driver.compile_step(run.make, chunk=1)
    state, record = step(run.setup, run.init(run.setup, jax.random.key(0)))
    assert int(state.iteration) == 1 and record.observation.trials.sum() == 4 * 8
    with pytest.raises(ValueError, match="num_prompts must be at most the 6 training prompts"):
        load_task(TrainConfig(task="repeat", scheduler="uniform", num_prompts=8))
    with pytest.raises(ValueError, match="'oracle' is told the true rates of digit skills alone"):
        TrainConfig(task="repeat", scheduler="oracle")
    for name in ("arithmetic", "prompts"):
        with pytest.raises(
            ValueError, match=f"task: '{name}' is for language models, not for 'tiny'"
        ):
            load_task(TrainConfig(task=name, scheduler="uniform"))
    with pytest.raises(ValueError, match="task: the ground has 'repeat', the config 'auto'"):
        prepare(TrainConfig(num_train=16, num_prompts=4), training.prepare_ground(given))


def test_problems_are_split_once_and_the_same_way_every_time():
    problems = [Problem([1, 5 + i], [5 + i, 2], text=str(i), length=i + 1) for i in range(9)]
    pools, again = (pools_of(problems, 3, num_train=100) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, pools, again)
    texts = [pool.text.tolist() for pool in pools]
    assert sorted(text for part in texts for text in part) == sorted(map(str, range(9)))
    assert list(map(len, texts)) == [7, 1, 1]
    row = 0
    digit = int(pools.train.text[row])
    np.testing.assert_array_equal(pools.train.prompt_tokens[row], [1, 5 + digit])
    np.testing.assert_array_equal(pools.train.answer_tokens[row], [5 + digit, 2])
    assert pools.train.answer_lengths[row] == 2 and pools.train.length[row] == digit + 1
    assert len(pools_of(problems, 3, num_train=2).train.text) == 2
    with pytest.raises(ValueError, match="problems: two have the text '0'"):
        pools_of([*problems, problems[0]], 0, num_train=5)
    with pytest.raises(ValueError, match="problems: at least 3 are needed, got 2"):
        pools_of(problems[:2], 0, num_train=5)


def test_the_command_line_offers_what_the_tables_hold(monkeypatch, capsys):
    mine = ["--scheduler", "mine", "--objective", "squares", "--task", "repeat"]
    with pytest.raises(SystemExit):
        train.parse(mine)
    assert "invalid choice" in capsys.readouterr().err
    monkeypatch.setitem(PRESETS, "mine", Preset(of_pool(presets.uniform)))
    monkeypatch.setitem(OBJECTIVES, "squares", lambda options: RowLoss(loss=least_squares))
    monkeypatch.setitem(TASKS, "repeat", one_digit)
    got = train.parse(mine)
    assert (got.scheduler, got.objective, got.task) == ("mine", "squares", "repeat")
    with pytest.raises(SystemExit):
        train.parse(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for table in (PRESETS, OBJECTIVES, TASKS):
        assert all(name in shown for name in table)


def test_every_named_part_is_sound():
    for name in PRESETS:
        assert TrainConfig(scheduler=name).budget == 32 * 8
    for name in OBJECTIVES:
        TrainConfig(scheduler="uniform", objective=name)
