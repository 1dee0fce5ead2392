"""Every tracker under every selector in a live run; `scheduler_grid` lists them.

A policy is sampled and trained; all selectors of a tracker share one compiled iteration, which is
told by number whose turn it is.
"""

from collections.abc import Callable, Iterator
from typing import Any

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
    lenient_verdict,
    unoptimised,
)
from scheduler_grid import SELECTORS, TRACKERS

from fade_jax import driver, faults
from fade_jax.selectors import one_of
from fade_jax.types import Scheduler
from paced_jax import paced_tracker, partition
from paced_jax.schedulers import LiveScheduler
from paced_jax.training import prepare

pytestmark = pytest.mark.slow

LIVE: dict[str, Callable[[int], Any]] = {**TRACKERS, "paced": lambda num_prompts: None}
"""The tracker of PACED-RL reads the learner, so it is built from the setup."""


@pytest.fixture(scope="module", autouse=True)
def quick_compiler() -> Iterator[None]:
    with unoptimised():
        yield


def build(name):
    """`(setup) -> LiveScheduler`; whose turn it is comes with the setup's loadings."""

    def made(setup):
        _, index = setup.loadings
        if name == "paced":
            head = partition.init(jax.random.key(0), setup.embeddings.shape[1])
            tracker = paced_tracker.build(setup.embeddings, head)
        else:
            tracker = LIVE[name](POOL)
        sizes = {"num_prompts": POOL, "budget": BUDGET, "group_size": GROUP_SIZE}
        rules = [make(tracker, max_groups=NUM_PROMPTS, **sizes) for make in SELECTORS.values()]
        return LiveScheduler(Scheduler(tracker, one_of.build(rules, index)), name == "paced")

    return made


@pytest.mark.parametrize("name", LIVE)
def test_any_tracker_trains_a_policy_under_any_selector(name):
    run = prepare(config(scheduler="own", replay="on"), ground(), scheduler=build(name))
    setup = run.setup._replace(loadings=(run.setup.loadings, jnp.int32(0)))

    def make(setup):
        return run.make(setup)._replace(verify=lenient_verdict)

    step = driver.compile_step(make, chunk=3)
    for index, rule in enumerate(SELECTORS):
        turn = setup._replace(loadings=(run.setup.loadings, jnp.int32(index)))
        state, records = step(turn, run.init(turn, jax.random.key(0)))
        assert int(state.fault.kind) == faults.NONE and int(state.iteration) == 3, rule
        trials = np.asarray(records.observation.trials)
        assert (trials.sum(1) == BUDGET).all(), rule
        ids = np.asarray(records.observation.prompt_ids)
        assert ((ids >= 0) == (trials > 0)).all() and ids.max() < POOL, rule
        assert all(len(set(row[row >= 0])) == (row >= 0).sum() for row in ids), rule
        # It has learnt, and the belief has seen every group.
        assert int(state.learner.version) == int(state.updates) == 3, rule
        expected = records.informative.sum(1)
        np.testing.assert_allclose(
            records.select_info.expected_informative, expected, rtol=1e-4, atol=1e-5
        )
