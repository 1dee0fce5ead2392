"""The pool over several devices. Their number is fixed when jax starts: other processes, slow."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from experiments.benchmarks.pool_scale_job import Job, run_job
from fade_jax import ability_difficulty, hyperparameters, sharded_pool
from fade_jax.pool_loadings import lay_out
from fade_jax.trackers import cdas, discounted_beta, ema, logit_kalman, markov

EIGHT = AbstractMesh((8,), ("prompts",), axis_types=(AxisType.Auto,))
SPLIT, COPIED = PartitionSpec("prompts"), PartitionSpec()


def shapes(make, *args):
    return jax.eval_shape(make, *args)


def fade_state(num_prompts, num_skills=4):
    hyper = hyperparameters.default(num_skills)
    loadings = jnp.zeros((num_prompts, num_skills))
    return shapes(lambda x: ability_difficulty.build(x, hyper).init(), loadings)


def specs(tree, num_prompts, mesh: AbstractMesh = EIGHT):
    return jax.tree.map(lambda x: x.spec, sharded_pool.shardings(mesh, tree, num_prompts))


def test_the_filter_splits_its_intercepts_and_copies_its_ability():
    found = specs(fade_state(1024), 1024)
    assert found.ability == (COPIED, COPIED)
    assert found.intercept == (SPLIT, SPLIT)
    assert (found.last_visit, found.visits) == (SPLIT, SPLIT)
    assert (found.clock, found.nis) == (COPIED, COPIED)


def test_arrays_split_along_the_prompts_wherever_they_are():
    struct = jax.ShapeDtypeStruct
    assert specs(struct((4, 1024), jnp.float32), 1000) == PartitionSpec(None, "prompts")  # padded
    assert specs(struct((1000, 4), jnp.float32), 1000) == SPLIT
    assert specs(struct((4, 1000), jnp.float32), 1000) == PartitionSpec(None, "prompts")
    for other in ((), (5,), (5, 5), (3, 1000, 5), (896,), (2048,), (1001,)):
        assert specs(struct(other, jnp.float32), 1000) == COPIED


@pytest.mark.parametrize("tracker", [cdas, discounted_beta, ema, logit_kalman, markov])
def test_trackers_without_loadings_split_what_is_per_prompt(tracker):
    state = shapes(tracker.build(1600).init)
    for array, spec in zip(
        jax.tree.leaves(state), jax.tree.leaves(specs(state, 1600)), strict=True
    ):
        expected = PartitionSpec(*[None] * (array.ndim - 1), "prompts") if array.ndim else COPIED
        assert spec == expected


def test_what_cannot_be_split_is_named():
    with pytest.raises(ValueError, match=r"intercept.mean has 1152 prompts, which 5 devices"):
        specs(
            fade_state(1100),
            1100,
            AbstractMesh((5,), ("prompts",), axis_types=(AxisType.Auto,)),
        )
    with pytest.raises(
        ValueError, match=r"successes has 1001 prompts, which 8 devices can't share"
    ):
        specs(shapes(discounted_beta.build(1001).init), 1001)
    with pytest.raises(ValueError, match=r'an axis "prompts", got \(.data.,\)'):
        specs(fade_state(1024), 1024, AbstractMesh((8,), ("data",)))
    with pytest.raises(ValueError, match='an axis "prompts"'):
        sharded_pool.lay_out(jax.make_mesh((1,), ("data",)), np.zeros((4, 2)))


@pytest.mark.parametrize("num_skills", [0, 3])
@pytest.mark.parametrize("num_prompts", [1, 128, 300])
def test_layout_on_a_mesh_is_the_layout_without(num_prompts, num_skills):
    loadings = np.random.default_rng(0).normal(size=(num_prompts, num_skills)).astype(np.float32)
    mesh = sharded_pool.make_mesh(jax.devices()[:1])
    found = sharded_pool.lay_out(mesh, loadings)
    expected = lay_out(jnp.asarray(loadings))
    assert found.num_prompts == expected.num_prompts
    np.testing.assert_array_equal(found.features, expected.features)


def test_a_state_made_in_place_is_the_state():
    mesh = sharded_pool.make_mesh(jax.devices()[:1])
    loadings = sharded_pool.lay_out(mesh, np.zeros((200, 2), np.float32))
    hyper = hyperparameters.default(2)

    def make(loadings):
        return ability_difficulty.build(loadings, hyper).init()

    made = sharded_pool.init(mesh, make, 200, loadings)
    moved = sharded_pool.place(mesh, make(loadings), 200)
    again = sharded_pool.place(mesh, loadings, 200)
    np.testing.assert_array_equal(again.features, loadings.features)
    assert sharded_pool.place(mesh, hyper, 200).ability_mean.shape == (3,)
    for a, b in zip(jax.tree.leaves(made), jax.tree.leaves(moved), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.sharding.is_equivalent_to(b.sharding, a.ndim)


def test_outside_a_mesh_nothing_is_split():
    scores = jnp.arange(256.0)
    assert sharded_pool.context_shards() == 1
    assert sharded_pool.split(scores) is scores


def state_bytes(make):
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shapes(make)))


def test_the_filter_keeps_sixteen_bytes_a_prompt():
    """Mean, variance, last visit and visits; beside them one ability, whatever the pool."""

    def held(num_prompts):
        state = fade_state(num_prompts, num_skills=16)
        return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))

    small, large = 128 * 1000, 128 * 80_000
    assert held(large) - held(small) == 16 * (large - small)
    assert held(large) - 16 * large < 1300


@pytest.mark.parametrize(
    ("tracker", "each"),
    [(cdas, 8), (discounted_beta, 8), (ema, 4), (logit_kalman, 12), (markov, 72)],
)
def test_bytes_a_prompt_of_the_others(tracker, each):
    small, large = 1000, 10_000_000
    grown = state_bytes(tracker.build(large).init) - state_bytes(tracker.build(small).init)
    assert grown == each * (large - small)


def check(one, many):
    """Same ids, same bits, and no array of the pool on one device or between devices."""
    assert (one["devices"], many["devices"]) == (1, 8)
    groups, steps = one["job"]["groups"], one["job"]["steps"]
    assert len(set(one["ids"])) > 1 and one["distinct"] == [groups] * steps
    assert many["ids"] == one["ids"]
    assert many["outputs"] == one["outputs"]
    assert many["state"] == one["state"]
    assert many["same_layout"]
    assert one["collectives"] == {}
    # Each device sends its best; the rows of the observed prompts are summed over devices.
    assert many["collectives"] and max(many["collectives"].values()) <= 8 * groups


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tracker", "selector", "num_prompts"),
    [
        ("fade", "top_m", 51_200),
        ("fade", "top_m", 50_001),  # neither 128 nor 8 divides it
        ("fade", "weighted", 50_001),
        ("fade", "thompson", 50_001),
        ("discounted_beta", "top_m", 50_000),
        ("discounted_beta", "thompson", 50_000),
    ],
)
def test_eight_devices_choose_what_one_chooses(tracker, selector, num_prompts):
    """From a fresh pool, where every score ties, over four steps of the driver's choice."""
    job = Job(devices=0, tracker=tracker, selector=selector, num_prompts=num_prompts)
    check(run_job(job), run_job(replace(job, devices=8)))


@pytest.mark.slow
def test_ten_million_prompts_on_eight_devices_choose_what_one_chooses():
    job = Job(devices=0, num_prompts=10_000_000, groups=512)
    one, many = run_job(job), run_job(replace(job, devices=8))
    check(one, many)
    # Each device holds an eighth, and what it is padded with.
    for name in ("loadings_bytes", "state_bytes"):
        assert many[f"{name}_per_device"] < 1.001 * one[name] / 8
    assert many["driver_temporary_bytes"] < 64 * 10_000_000 / 8


@pytest.mark.slow
def test_temporary_memory_grows_by_a_few_bytes_a_prompt():
    small, large = 128 * 8 * 50, 128 * 8 * 400
    for devices in (0, 8):
        few, many = (
            run_job(Job(devices=devices, num_prompts=n, steps=1))["driver_temporary_bytes"]
            for n in (small, large)
        )
        slope = max(devices, 1) * (many - few) / (large - small)
        assert 4 <= slope <= 64, f"{slope} bytes a prompt on {devices or 1} devices"
