"""A run put together from its configuration: what is refused, what reaches which piece."""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from live_world import (
    BUDGET,
    GROUP_SIZE,
    NUM_PROMPTS,
    POOL,
    config,
    ground,
    play,
    start,
    unoptimised,
)

from fade_jax import driver, presets
from fade_jax.trackers import ema
from fade_jax.types import Admission, Scheduler, SelectInfo, Selection, Selector
from paced_jax import schedulers, training
from paced_jax.ground import GROUND_OPTIONS
from paced_jax.objectives import (
    PolicyGradient,
    TrajectoryBalance,
    dapo,
    dr_grpo,
    flowrl,
    gflowrl,
    grpo,
    paced,
    rloo,
    vargrad,
)
from paced_jax.tasks.tokens import SKILLS
from paced_jax.training import TrainConfig, make_admit, make_objective, prepare


@pytest.fixture(scope="module", autouse=True)
def quick_compiler() -> Iterator[None]:
    with unoptimised():
        yield


UNIFORM = {"scheduler": "uniform"}
# What each field changes of a run; those of its caller are read by whoever drives it.
CALLERS = {"iterations", "chunk", "buckets", "seed"}
FADE = {"scheduler": "fade", "num_skills": 3}
FLIPS: dict[str, tuple[dict[str, Any], Any]] = {
    "scheduler": (UNIFORM, "lilo"),
    "objective": (UNIFORM, "rloo"),
    "num_prompts": (UNIFORM, 5),
    "group_size": (UNIFORM, 5),
    "policy_learning_rate": (UNIFORM, 2e-2),
    "partition_learning_rate": (UNIFORM, 2e-2),
    "weight_decay": (UNIFORM, 0.1),
    "warmup": (UNIFORM, 3),
    "minibatches": (UNIFORM, 2),
    "accumulate": (UNIFORM, 2),
    "clip_norm": (UNIFORM, 0.5),
    "beta": (UNIFORM, 0.7),
    "admit": (UNIFORM, "best_of"),
    "overlong_buffer": (UNIFORM | {"objective": "dapo"}, 2),
    "mask_overlong": (UNIFORM | {"objective": "dapo"}, True),
    "replay": ({}, "off"),
    "replay_partition": ({}, "off"),
    "correction": ({}, "behaviour_anchor"),
    "loadings": (FADE, "shuffled"),
    "num_skills": (FADE, 4),
    "fade_selector": (FADE, "weighted"),
    "exploration": (FADE, 0.5),
    "epochs": (UNIFORM, True),
    "target": ({}, 0.4),
    "measure_kl": (UNIFORM, False),
}
GROUND = set(GROUND_OPTIONS)
"""Fields that another ground goes with: `prepare` refuses a difference."""


def fingerprint(**changes):
    """The program of an iteration and the constants it reads."""
    run = prepare(config(**changes), ground())
    state = jax.eval_shape(run.init, run.setup, jax.random.key(0))
    program = jax.make_jaxpr(lambda setup, s: driver.iterate(run.make(setup), setup, s))
    text = re.sub(r"0x[0-9a-f]+", "", str(program(run.setup, state)))
    return text, [np.asarray(x).tobytes() for x in jax.tree.leaves(run.setup)]


@pytest.mark.slow  # builds a run for every option
def test_every_option_has_an_effect():
    # Field report row 18: an option that is accepted and does nothing.
    fields = {field.name for field in dataclasses.fields(TrainConfig)}
    assert fields == set(FLIPS) | CALLERS | GROUND
    for name, (rest, value) in FLIPS.items():
        assert fingerprint(**rest) != fingerprint(**(rest | {name: value})), name
    assert fingerprint(**FADE) == fingerprint(**FADE)


class Turn(NamedTuple):
    """How often it has chosen."""

    count: Any


def in_turn(setup):
    """A scheduler of one's own: prompts in the order of the pool, whatever is believed."""
    num_prompts = setup.embeddings.shape[0]
    tracker = ema.build(num_prompts)

    def select(state, tracker_state, key):
        del key
        ids = (state.count * NUM_PROMPTS + jnp.arange(NUM_PROMPTS)) % num_prompts
        sizes = jnp.full(NUM_PROMPTS, GROUP_SIZE)
        info = SelectInfo(
            tracker.informative(tracker_state, GROUP_SIZE)[ids].sum(),
            jnp.int32(BUDGET),
            jnp.int32(0),
            jnp.asarray(False),
        )
        return Turn(state.count + 1), Selection(ids.astype(jnp.int32), sizes), info

    selector = Selector(
        lambda: Turn(jnp.int32(0)),
        select,
        lambda state, observation: state,
        BUDGET,
        NUM_PROMPTS,
        GROUP_SIZE,
    )
    return Scheduler(tracker, selector, Admission("best_of", 2))


@pytest.mark.slow
def test_a_scheduler_of_ones_own_trains():
    run = prepare(config(scheduler="own"), ground(), scheduler=in_turn)
    step = driver.compile_step(run.make, chunk=3)
    played = play(step, run.setup, run.init(run.setup, jax.random.key(0)), 12)
    ids = played.records.observation.prompt_ids
    np.testing.assert_array_equal(ids.reshape(-1), np.arange(12 * NUM_PROMPTS) % POOL)
    assert int(played.states[-1].selector.count) == 12
    # Its admission came along: two groups of each iteration train.
    assert make_admit(run.config, in_turn(run.setup), 4).num_rows == 2 * GROUP_SIZE
    assert int(played.states[-1].learner.version) > 0


def test_a_scheduler_of_another_budget_or_pool_is_refused():
    def twice(setup):
        return presets.uniform(POOL, budget=2 * BUDGET, group_size=GROUP_SIZE)

    def larger(setup):
        return presets.uniform(2 * POOL, budget=BUDGET, group_size=GROUP_SIZE)

    for build, words in (
        (twice, r"scheduler: its budget is 32, .* is 16"),
        (larger, "tracker: made for 80 prompts, the pool has 40"),
    ):
        run = prepare(config(scheduler="own"), ground(), scheduler=build)
        with pytest.raises(ValueError, match=words):
            run.init(run.setup, jax.random.key(0))
    for plan, given, words in (
        ("uniform", twice, "the config says 'uniform', and prepare was given one"),
        ("own", None, "the config says 'own', and prepare was given none"),
    ):
        with pytest.raises(ValueError, match=words):
            prepare(config(scheduler=plan), ground(), scheduler=given)


def admit_of(plan, max_tokens):
    """The rule of a plan; those of dapo and lilo come with their preset."""
    screening = {"dapo": presets.dapo, "lilo": presets.lilo}
    build = screening.get(plan.scheduler, presets.uniform)
    scheduler = build(plan.num_train, budget=plan.budget, group_size=plan.group_size)
    return make_admit(plan, scheduler, max_tokens)


def test_what_only_a_piece_can_refuse_is_refused_by_name_too():
    with pytest.raises(ValueError, match="correction: rows up to 2 steps old need one"):
        admit_of(config(correction="none", replay="on"), 4)
    with pytest.raises(ValueError, match="num_skills: 39 is not in"):
        prepare(config(scheduler="fade", num_skills=39), ground())


def test_a_ground_of_something_else_is_refused():
    for name, other in (("policy", "base"), ("pool_seed", 1), ("num_train", POOL + 8)):
        with pytest.raises(ValueError, match=f"{name}: the ground has .*, the config {other!r}"):
            prepare(config(**{name: other}), ground())


def test_replay_goes_with_the_scheduler_unless_said():
    names: list[Any] = ["uniform", "mopps", "greso", "fade", "fade_pg", "paced", "oracle"]
    assert [config(scheduler=n).uses_replay for n in names] == [n == "paced" for n in names]
    assert all(config(scheduler=n, replay="on").uses_replay for n in names)
    assert not config(scheduler="paced", replay="off").uses_replay
    # Of 256 rollouts, an eighth is replayed and a quarter kept.
    rule = admit_of(TrainConfig(), 12)
    assert (rule.num_rows, rule.num_groups, rule.num_replayed) == (256 + 32, 32 + 32, 32)
    assert rule.init()[1].number.shape == (64,)
    for choice, rows, groups in (
        ("all", BUDGET, NUM_PROMPTS),
        ("drop_degenerate", BUDGET, BUDGET // 2),
        ("best_of", BUDGET // 4, NUM_PROMPTS),
        ("preset", BUDGET, NUM_PROMPTS),
    ):
        rule = admit_of(config(scheduler="uniform", admit=choice), 4)
        assert (rule.num_rows, rule.num_groups, rule.num_replayed) == (rows, groups, 0)
    # Screening presets bring their own: a third waits to be informative, the best quarter trains.
    rows = [
        admit_of(TrainConfig(scheduler=name, num_prompts=24), 4).num_rows
        for name in ("dapo", "lilo")
    ]
    assert rows == [8 * 8, 6 * 8]
    overruled = admit_of(TrainConfig(scheduler="dapo", num_prompts=24, admit="all"), 4)
    assert overruled.num_rows == 24 * 8


def test_rollouts_are_counted():
    assert TrainConfig(num_prompts=6, group_size=5).budget == 30
    assert training.rollouts_of(TrainConfig(num_prompts=6, group_size=5, iterations=20)) == 600


NAMED: dict[Any, Any] = {
    "paced": paced(),
    "flowrl": flowrl(),
    "vargrad": vargrad(),
    "gflowrl": gflowrl(),
    "grpo": grpo(),
    "dapo": dapo(),
    "dr_grpo": dr_grpo(4.0),
    "rloo": rloo(),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_named_objective_is_its_setting_and_gets_a_reference_if_it_needs_one(name):
    run = prepare(config(scheduler="uniform", objective=name), ground())
    made = make_objective(run.config, run.setup.answer_tokens.shape[1])
    assert made == NAMED[name]
    if isinstance(made, TrajectoryBalance):
        strong = make_objective(config(objective=name, scheduler="uniform", beta=0.3), 4)
        assert strong == dataclasses.replace(made, beta=0.3)
        needs = made.anchor == "ref"
    else:
        assert isinstance(made, PolicyGradient)
        needs = False
    assert needs == (name in ("flowrl", "vargrad", "gflowrl"))
    if needs:
        jax.tree.map(np.testing.assert_array_equal, run.setup.reference, ground().base.params)
    else:
        assert run.setup.reference == ()


@pytest.mark.parametrize("name", ["embeddings", "skill", "skill_length", "shuffled"])
def test_fade_gets_the_loadings_of_its_arm_and_others_none(name):
    train = ground().pools.train
    size = {"num_skills": 3} if name in ("embeddings", "shuffled") else {}
    run = prepare(config(scheduler="fade", loadings=name, **size), ground())
    expected = schedulers.prompt_loadings(
        name,
        np.asarray(ground().embeddings),
        train.skill,
        train.length,
        num_skills=3,
        seed=0,
    )
    np.testing.assert_array_equal(run.setup.loadings, expected)
    assert run.setup.loadings.shape[0] == POOL
    others = prepare(config(scheduler="mopps"), ground())
    assert others.setup.loadings == ()


def test_setup_holds_the_pool():
    run, train = prepare(config(), ground()), ground().pools.train
    for array, name in zip(run.setup[:4], train._fields, strict=False):
        np.testing.assert_array_equal(array, getattr(train, name))
    embeddings = np.asarray(run.setup.embeddings, float)
    np.testing.assert_allclose(embeddings.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(embeddings.std(0), 1, rtol=1e-4)


def test_the_seed_decides_the_run():
    # FADE over DAPO: its filter, and batches that fill over several iterations.
    make, setup, init = start(
        scheduler="fade",
        num_skills=3,
        objective="dapo",
        admit="drop_degenerate",
        measure_kl=False,
    )
    step = driver.compile_step(make, chunk=8)
    first, again, other = (
        play(step, setup, init(setup, jax.random.key(seed)), 8) for seed in (0, 0, 1)
    )
    last, records = first.states[-1], first.records
    # Some iterations only fill a batch; the filter sees them all and ages by steps alone.
    assert 0 < records.ready.sum() < 8 and (records.observation.trials == GROUP_SIZE).all()
    assert records.ready.sum() == last.updates == last.learner.version == last.tracker.clock
    assert last.tracker.visits.sum() == 8 * NUM_PROMPTS
    np.testing.assert_array_equal(records.learn.stepped, records.ready)
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert not np.array_equal(
        first.records.observation.prompt_ids, other.records.observation.prompt_ids
    )


def test_the_shipped_policy_and_its_pool():
    plan = TrainConfig(policy="tiny", num_train=160, scheduler="uniform")
    run = prepare(plan)
    train = run.pools.train
    assert run.setup.embeddings.shape == (160, 64) and run.setup.prompt_tokens.shape == (160, 24)
    embeddings = np.asarray(run.setup.embeddings, float)
    np.testing.assert_allclose(embeddings.mean(0), 0, atol=1e-4)
    # They are of the frozen base policy and of nothing else: prompts of one skill are alike.
    rows = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    alike = rows @ rows.T
    same = train.skill[:, None] == train.skill[None]
    off = ~np.eye(160, dtype=bool)
    assert alike[same & off].mean() > 0.2 > alike[~same].mean()
    rates, table = training.base_rates(run), run.base.metadata["pass_rate"]
    assert rates is not None
    for i in range(160):
        assert rates[i] == table[SKILLS[train.skill[i]]][train.length[i] - 1]
    # A run starts from that policy, copied, and from V = 1/2.
    state = run.init(run.setup, jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, state.learner.params.policy, run.base.params)
    assert (state.learner.params.partition.bias == 0.5).all() and state.learner.version == 0
