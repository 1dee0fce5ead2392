"""Thompson sampling: draw every pass rate from the belief, then act as if the draw were the truth.

MoPPS (arXiv 2507.04632) takes the prompts whose drawn pass rate is nearest a target. The draw is
joint: with a tracker of shared abilities one draw moves related prompts together.

Shapes: `N` prompts in the pool.
"""

from functools import partial
from typing import Literal, Unpack, get_args

import jax
from jaxtyping import Array, Float, Key

from fade_jax import utility
from fade_jax.selectors import equal_groups, sizes
from fade_jax.selectors.memoryless import init, observe
from fade_jax.types import SelectInfo, Selection, Selector, State, Tracker

Rule = Literal["nearest", "informative"]
"""What ranks drawn pass rates: nearness to a target, or the plug-in P(informative)."""


def score(
    pass_rates: Float[Array, " N"], rule: Rule, target: sizes.ScalarLike, group_size: int
) -> Float[Array, " N"]:
    """Ranks drawn pass rates p: `-|p - target|`, or the plug-in `1 - p^G - (1 - p)^G`.

    Args:
        pass_rates: [N] p, in 0..1.
        rule: "nearest" or "informative".
        target: of "nearest", in 0..1.
        group_size: G of "informative".

    Returns:
        [N], higher is better.
    """
    if rule == "nearest":
        return utility.nearness(pass_rates, target)
    return utility.informative_rate(pass_rates, group_size)


def select(
    plan: sizes.Plan,
    tracker: Tracker,
    rule: Rule,
    target: sizes.ScalarLike,
    state: State,
    tracker_state: State,
    key: Key[Array, ""],
) -> tuple[State, Selection, SelectInfo]:
    """Chooses the best by one joint posterior draw.

    Args:
        plan: sizes.
        tracker: whose belief is drawn from.
        rule: see `score`.
        target: see `score`.
        state: empty.
        tracker_state: the belief.
        key: consumed; the first half of its split goes to `tracker.draw`.

    Returns:
        The state, the Selection and its SelectInfo (expectations under the belief, not the draw).
    """
    draw_key, choice_key = jax.random.split(key)
    scores = score(tracker.draw(draw_key, tracker_state), rule, target, plan.group_size)
    prompt_ids = equal_groups.best(plan, scores, choice_key)
    informative = tracker.informative(tracker_state, plan.group_size)
    return state, *equal_groups.fill(plan, prompt_ids, informative)


def build(
    tracker: Tracker,
    *,
    num_prompts: int,
    budget: int,
    group_size: int,
    rule: Rule = "nearest",
    target: sizes.ScalarLike = 0.5,
    candidates: int | None = None,
    exploration: float = 0.05,
    **options: Unpack[sizes.Options],
) -> Selector:
    """Builds Thompson sampling.

    Args:
        tracker: that will hold the belief.
        num_prompts: N.
        budget: rollouts of an iteration.
        group_size: rollouts of a group.
        rule: "nearest" takes the smallest |p - target| (MoPPS), "informative" the largest
            P(informative group), each at the drawn pass rates.
        target: of "nearest", in 0..1.
        candidates: choose among so many random prompts; all by default. MoPPS has 16 (MATH) or 8
            times the groups.
        exploration: share of the groups drawn at random, in 0..1.
        **options: max_groups, sources, source_floor, low_signal; see `sizes.plan`.

    Returns:
        A Selector.

    Raises:
        ValueError: an unknown rule, a target outside 0..1, sizes that do not fit (`sizes.plan`).
    """
    if rule not in get_args(Rule):
        raise ValueError(f"rule must be one of {get_args(Rule)}, got {rule!r}")
    sizes.check_share("target", target)
    plan = sizes.plan(
        num_prompts,
        budget,
        group_size,
        candidates=candidates,
        exploration=exploration,
        **options,
    )
    act = partial(select, plan, tracker, rule, target)
    return Selector(init, act, observe, plan.budget, plan.max_groups, plan.group_size)
