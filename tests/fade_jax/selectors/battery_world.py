"""A small world in which any tracker meets any selector, through the driver."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fade_jax import outcomes
from fade_jax.driver import LearnReport, Pieces
from fade_jax.selectors import one_of
from fade_jax.types import Scheduler, Selector, Tracker

NUM_PROMPTS, GROUP_SIZE, MAX_GROUPS = 10, 4, 5
BUDGET = 4 * GROUP_SIZE


class Learner(NamedTuple):
    ability: Any


def pass_rates(learner, prompt_ids):
    difficulty = 4 * prompt_ids.astype(jnp.float32) / (NUM_PROMPTS - 1) - 2
    return jax.nn.sigmoid(learner.ability - difficulty)


def pieces(
    build_tracker: Callable[[int], Tracker], builds: Sequence[Callable[..., Selector]], index
) -> Pieces:
    """Verdicts are drawn, nothing else; the ability grows with every informative group."""
    tracker = build_tracker(NUM_PROMPTS)
    sizes = {"num_prompts": NUM_PROMPTS, "budget": BUDGET, "group_size": GROUP_SIZE}
    selectors = [build(tracker, max_groups=MAX_GROUPS, **sizes) for build in builds]
    selector = one_of.build(selectors, index)

    def sample(setup, learner, rows, key):
        chance = pass_rates(learner, rows.prompt_ids)
        return (rows.group, jax.random.bernoulli(key, chance).astype(jnp.float32)), jnp.float32(0)

    def admit(state, rollouts, verdicts, key):
        counts = outcomes.group_outcomes(verdicts, rollouts[0], MAX_GROUPS)
        informative = (~counts.degenerate).sum(dtype=jnp.int32)
        return state, informative, informative > 0

    def learn(setup, learner, informative, key):
        moved = Learner(learner.ability + 0.1 * informative.astype(jnp.float32))
        report = LearnReport(jnp.asarray(True), jnp.float32(1.0), jnp.int32(-1), jnp.float32(0))
        return moved, report

    return Pieces(
        scheduler=Scheduler(tracker, selector),
        sample=sample,
        verify=lambda setup, rollouts: rollouts[1],
        init_admit=lambda: jnp.int32(0),
        admit=admit,
        learn=learn,
    )
