"""Random prompts in proportion to their score, without replacement.

One after the other, each of the prompts not yet taken with probability in proportion to
`score^(1 / temperature)`. MaPP samples in proportion to P(informative group), temperature 1; ARCUS
has .3. Equal in law to the top m of `log score / temperature + Gumbel noise`, which is one pass.

Shapes: `N` prompts in the pool.
"""

from collections.abc import Callable
from functools import partial
from typing import Unpack

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from fade_jax.selectors import equal_groups, sizes
from fade_jax.selectors.memoryless import init, observe
from fade_jax.types import SelectInfo, Selection, Selector, State, Tracker

Score = Callable[[State], Float[Array, " N"]]
"""`(tracker_state) -> [N]`, in proportion to which prompts are drawn."""


def log_weights(
    scores: Float[Array, " N"], temperature: sizes.ScalarLike, floor: sizes.ScalarLike
) -> Float[Array, " N"]:
    """Returns `log max(score, floor) / temperature`: finite, so that no prompt is ruled out."""
    return jnp.log(jnp.maximum(scores, floor)) / temperature


def select(
    plan: sizes.Plan,
    tracker: Tracker,
    score: Score | None,
    temperature: sizes.ScalarLike,
    floor: sizes.ScalarLike,
    state: State,
    tracker_state: State,
    key: Key[Array, ""],
) -> tuple[State, Selection, SelectInfo]:
    """Samples prompts without replacement.

    Args:
        plan: sizes.
        tracker: whose `informative` is the default score.
        score: `(tracker_state) -> [N]`, >= 0.
        temperature: 1 is proportional, towards 0 the best only.
        floor: the least weight, before the temperature.
        state: empty.
        tracker_state: the belief.
        key: consumed.

    Returns:
        The state, the Selection and its SelectInfo.
    """
    noise_key, choice_key = jax.random.split(key)
    informative = tracker.informative(tracker_state, plan.group_size)
    scores = informative if score is None else score(tracker_state)
    weights = log_weights(scores, temperature, floor)
    # "high": the default noise is too coarse in its upper tail, which decides in a large pool.
    noise = jax.random.gumbel(noise_key, weights.shape, weights.dtype, mode="high")
    prompt_ids = equal_groups.best(plan, weights + noise, choice_key)
    return state, *equal_groups.fill(plan, prompt_ids, informative)


def build(
    tracker: Tracker,
    *,
    num_prompts: int,
    budget: int,
    group_size: int,
    score: Score | None = None,
    temperature: sizes.ScalarLike = 1.0,
    floor: sizes.ScalarLike = 1e-3,
    candidates: int | None = None,
    exploration: float = 0.05,
    **options: Unpack[sizes.Options],
) -> Selector:
    """Builds weighted sampling.

    Args:
        tracker: that will hold the belief.
        num_prompts: N.
        budget: rollouts of an iteration.
        group_size: rollouts of a group.
        score: `(tracker_state) -> [N]`, >= 0; P(informative group) by default.
        temperature: > 0; 1 samples in proportion to the score, .3 (ARCUS) sharper.
        floor: the least score, > 0: a prompt believed hopeless keeps this weight.
        candidates: choose among so many random prompts; all by default (MaPP: 8 times the groups).
        exploration: share of the groups drawn uniformly, in 0..1.
        **options: max_groups, sources, source_floor, low_signal; see `sizes.plan`.

    Returns:
        A Selector.

    Raises:
        ValueError: temperature or floor not positive, sizes that do not fit (`sizes.plan`).
    """
    sizes.check_positive("temperature", temperature)
    sizes.check_positive("floor", floor)
    plan = sizes.plan(
        num_prompts,
        budget,
        group_size,
        candidates=candidates,
        exploration=exploration,
        **options,
    )
    rule = partial(select, plan, tracker, score, temperature, floor)
    return Selector(init, rule, observe, plan.budget, plan.max_groups, plan.group_size)
