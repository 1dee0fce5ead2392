"""Presets whose selector learns too, or that bring a difficulty of their own.

Where the rule needs no belief, a discounted Beta counter with the settings of `uniform` stands
beside it, so that every scheduler's predictions can be scored.

`**options` are max_groups, sources, source_floor and low_signal, see `selectors.sizes`.

Shapes: `N` prompts in the pool.
"""

from typing import Unpack

import numpy as np
from jaxtyping import Array, Float

from fade_jax.presets.choosing import COUNTER
from fade_jax.selectors import cdas as two_sided
from fade_jax.selectors import curriculum, sizes, skip
from fade_jax.trackers import cdas as ability_and_difficulty
from fade_jax.trackers import discounted_beta
from fade_jax.types import Scheduler


def greso(
    num_prompts: int,
    *,
    budget: int,
    group_size: int,
    floor: sizes.ScalarLike = 0.01,
    control: skip.Control = skip.Control(),  # noqa: B008 - numbers only
    exploration: float = 0.0,
    **options: Unpack[sizes.Options],
) -> Scheduler:
    """GRESO (arXiv 2506.02177): prompts without variance are skipped, longer the longer it lasts.

    The original fills its batch by sampling again; here the budget is fixed, and skipped prompts
    fill it.

    Args:
        num_prompts: N.
        budget: rollouts of an iteration.
        group_size: rollouts of a group.
        floor: the least probability of not being skipped.
        control: of the two exploration probabilities.
        exploration: share of groups drawn at random; none in the original, which has the floor.
        **options: see the module.

    Returns:
        A Scheduler.
    """
    tracker = discounted_beta.build(num_prompts, **COUNTER)
    selector = skip.build(
        tracker,
        num_prompts=num_prompts,
        budget=budget,
        group_size=group_size,
        floor=floor,
        control=control,
        exploration=exploration,
        **options,
    )
    return Scheduler(tracker, selector)


def adarft(
    num_prompts: int,
    *,
    budget: int,
    group_size: int,
    difficulty: Float[Array, " N"] | Float[np.ndarray, " N"] | None = None,
    control: curriculum.Control = curriculum.Control(),  # noqa: B008 - numbers only
    exploration: float = 0.0,
    **options: Unpack[sizes.Options],
) -> Scheduler:
    """AdaRFT (arXiv 2504.05520): the difficulties nearest a target that follows the success rate.

    Args:
        num_prompts: N.
        budget: rollouts of an iteration.
        group_size: rollouts of a group.
        difficulty: [N] in 0..100, estimated beforehand as in the original; without it
            `100 (1 - E[p])` of the counter.
        control: of the target.
        exploration: share of groups drawn at random; none in the original.
        **options: see the module.

    Returns:
        A Scheduler.
    """
    tracker = discounted_beta.build(num_prompts, **COUNTER)
    selector = curriculum.build(
        tracker,
        num_prompts=num_prompts,
        budget=budget,
        group_size=group_size,
        difficulty=difficulty,
        control=control,
        exploration=exploration,
        **options,
    )
    return Scheduler(tracker, selector)


def cdas(
    num_prompts: int,
    *,
    budget: int,
    group_size: int,
    ability: sizes.ScalarLike = 0.0,
    visit_offset: sizes.ScalarLike = 1.0,
    exploration: float = 0.0,
    **options: Unpack[sizes.Options],
) -> Scheduler:
    """CDAS (arXiv 2505.17652): half of the prompts just below the ability, half just above.

    Args:
        num_prompts: N.
        budget: rollouts of an iteration.
        group_size: rollouts of a group.
        ability: R at the start, logits.
        visit_offset: see `trackers.cdas.build`.
        exploration: share of groups drawn at random; none in the original.
        **options: see the module.

    Returns:
        A Scheduler.
    """
    tracker = ability_and_difficulty.build(num_prompts, ability=ability, visit_offset=visit_offset)
    selector = two_sided.build(
        tracker,
        num_prompts=num_prompts,
        budget=budget,
        group_size=group_size,
        exploration=exploration,
        **options,
    )
    return Scheduler(tracker, selector)
