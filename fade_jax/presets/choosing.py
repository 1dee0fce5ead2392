"""Presets that score every prompt afresh: no memory but the tracker's.

`**options` are max_groups, sources, source_floor and low_signal, see `selectors.sizes`.

Shapes: `N` prompts in the pool.
"""

from typing import Any, Unpack

import jax.numpy as jnp
from jaxtyping import Array, Float

from fade_jax import moments, utility
from fade_jax.selectors import sizes, thompson, top_m, warm_up, weighted
from fade_jax.selectors import uniform as uniform_choice
from fade_jax.trackers import discounted_beta, logit_kalman, markov
from fade_jax.types import Scheduler, State, Tracker

COUNTER = {"discount": 0.9, "prior_successes": 0.35, "prior_failures": 0.65}
"""The discounted Beta counter that stands beside a rule which needs no belief."""


def uniform(
    num_prompts: int,
    *,
    budget: int,
    group_size: int,
    epochs: bool = False,
    discount: sizes.ScalarLike = COUNTER["discount"],
    prior_successes: sizes.ScalarLike = COUNTER["prior_successes"],
    prior_failures: sizes.ScalarLike = COUNTER["prior_failures"],
    exploration: float = 0.0,
    **options: Unpack[sizes.Options],
) -> Scheduler:
    """Random prompts, with a discounted Beta counter beside them so that it can be scored too.

    The counter's defaults are those that did well on a recorded run: a new prompt passes with
    E[p] = .35 and probably almost always or almost never, and the last ten visits count.

    Args:
        num_prompts: N.
        budget: rollouts of an iteration.
        group_size: rollouts of a group.
        epochs: see every prompt once before any twice.
        discount: of the counter, a visit.
        prior_successes: a of its Beta prior.
        prior_failures: b of its Beta prior.
        exploration: see `selectors.uniform.build`.
        **options: see the module.

    Returns:
        A Scheduler.
    """
    prior = {"prior_successes": prior_successes, "prior_failures": prior_failures}
    tracker = discounted_beta.build(num_prompts, discount=discount, **prior)
    selector = uniform_choice.build(
        tracker,
        num_prompts=num_prompts,
        budget=budget,
        group_size=group_size,
        epochs=epochs,
        exploration=exploration,
        **options,
    )
    return Scheduler(tracker, selector)


def mopps(
    num_prompts: int,
    *,
    budget: int,
    group_size: int,
    discount: sizes.ScalarLike = 1.0,
    target: sizes.ScalarLike = 0.5,
    candidates: int | None = None,
    exploration: float = 0.0,
    **options: Unpack[sizes.Options],
) -> Scheduler:
    """MoPPS (arXiv 2507.04632): Thompson sampling of Beta(1, 1) counters toward a pass rate.

    Args:
        num_prompts: N.
        budget: rollouts of an iteration.
        group_size: rollouts of a group.
        discount: lambda, memory of a visit; released as 1.0 (MATH) or 0.5 (Countdown, Geometry3k).
        target: pass rate sought.
        candidates: random prompts to choose among; by default 16 times the groups as released for
            MATH, or the whole pool if it is smaller.
        exploration: share of groups drawn at random; none in the original, which explores by its
            draws.
        **options: see the module.

    Returns:
        A Scheduler.
    """
    tracker = discounted_beta.build(num_prompts, discount=discount)
    candidates = _candidates(16, candidates, num_prompts, budget, group_size)
    selector = thompson.build(
        tracker,
        num_prompts=num_prompts,
        budget=budget,
        group_size=group_size,
        target=target,
        candidates=candidates,
        exploration=exploration,
        **options,
    )
    return Scheduler(tracker, selector)


def mapp(
    num_prompts: int,
    *,
    budget: int,
    group_size: int,
    discount: sizes.ScalarLike = 0.5,
    candidates: int | None = None,
    exploration: float = 0.0,
    **options: Unpack[sizes.Options],
) -> Scheduler:
    """MaPP: random prompts in proportion to P(informative) under discounted Beta counters.

    `V_G = 1 - B(a + G, b) / B(a, b) - B(a, b + G) / B(a, b)`, exact.

    Args:
        num_prompts: N.
        budget: rollouts of an iteration.
        group_size: rollouts of a group.
        discount: lambda, memory of a visit.
        candidates: random prompts to choose among; by default 8 times the groups, or the whole pool
            if it is smaller.
        exploration: share of groups drawn at random; none in the original, where every prompt has
            a chance.
        **options: see the module.

    Returns:
        A Scheduler.
    """
    tracker = discounted_beta.build(num_prompts, discount=discount)
    selector = weighted.build(
        tracker,
        num_prompts=num_prompts,
        budget=budget,
        group_size=group_size,
        candidates=_candidates(8, candidates, num_prompts, budget, group_size),
        exploration=exploration,
        **options,
    )
    return Scheduler(tracker, selector)


def dps(
    num_prompts: int,
    *,
    budget: int,
    group_size: int,
    discount: sizes.ScalarLike = 0.7,
    candidates: int | None = None,
    exploration: float = 0.0,
    **options: Unpack[sizes.Options],
) -> Scheduler:
    """DPS (arXiv 2603.10887): the largest P(mixed) under a hidden Markov chain a prompt.

    Args:
        num_prompts: N.
        budget: rollouts of an iteration.
        group_size: rollouts of a group.
        discount: lambda, memory of the transition counts; published as 0.7 (MATH) or 0.5
            (Countdown, Geometry3k).
        candidates: random prompts to choose among; by default 32 times the groups as released for
            MATH, or the whole pool if it is smaller.
        exploration: share of groups drawn at random; none in the original.
        **options: see the module.

    Returns:
        A Scheduler.
    """
    tracker = markov.build(num_prompts, discount=discount)
    selector = top_m.build(
        tracker,
        num_prompts=num_prompts,
        budget=budget,
        group_size=group_size,
        candidates=_candidates(32, candidates, num_prompts, budget, group_size),
        exploration=exploration,
        **options,
    )
    return Scheduler(tracker, selector)


def kgps(
    num_prompts: int,
    *,
    budget: int,
    group_size: int,
    drift: sizes.ScalarLike = 0.2,
    prior_var: sizes.ScalarLike = 4.0,
    warm_up_epochs: int = 1,
    exploration: float = 0.0,
    **options: Unpack[sizes.Options],
) -> Scheduler:
    """KGPS (arXiv 2607.27610): the largest E[p (1 - p)] under a logit Kalman filter a prompt.

    The filter is the extended Kalman step, see `trackers.logit_kalman`; its walk is unbounded. The
    published drift follows the size of the policy update (pass that as `elapsed` to `predict`), its
    scale is not known. The first epoch is uniform.

    Args:
        num_prompts: N.
        budget: rollouts of an iteration.
        group_size: rollouts of a group.
        drift: standard deviation of the walk over one step, logits.
        prior_var: of the logits, squared.
        warm_up_epochs: times every prompt is seen before any is chosen by score.
        exploration: share of groups drawn at random afterwards; none in the original.
        **options: see the module.

    Returns:
        A Scheduler.

    Raises:
        ValueError: warm_up_epochs below 0.
    """
    tracker = logit_kalman.build(
        num_prompts, drift=drift, prior_var=prior_var, max_var=jnp.inf, rule=moments.ekf()
    )
    sized: dict[str, Any] = {"num_prompts": num_prompts, "budget": budget, "group_size": group_size}
    most_varied = top_m.build(
        tracker,
        score=lambda state: tracker.informative(state, 2) / 2,
        exploration=exploration,
        **sized,
        **options,
    )
    if warm_up_epochs < 0:
        raise ValueError(f"warm_up_epochs must be >= 0, got {warm_up_epochs}")
    if warm_up_epochs == 0:
        return Scheduler(tracker, most_varied)
    groups = budget // group_size
    first = uniform_choice.build(tracker, epochs=True, max_groups=most_varied.max_groups, **sized)
    iterations = -(-warm_up_epochs * num_prompts // groups)
    return Scheduler(tracker, warm_up.build(first, most_varied, iterations=iterations))


def paced(
    tracker: Tracker,
    target: sizes.ScalarLike = 0.5,
    *,
    num_prompts: int,
    budget: int,
    group_size: int,
    exploration: float = 0.0,
    **options: Unpack[sizes.Options],
) -> Scheduler:
    """The rule of PACED-RL: the expected pass rates nearest a target, over the whole pool.

    Args:
        tracker: any; in PACED-RL the learned partition function is the tracker.
        target: pass rate sought.
        num_prompts: N.
        budget: rollouts of an iteration.
        group_size: rollouts of a group.
        exploration: share of groups drawn at random; none in the original.
        **options: see the module.

    Returns:
        A Scheduler.
    """
    sizes.check_share("target", target)

    def score(state: State) -> Float[Array, " N"]:
        return utility.nearness(tracker.pass_rate(state), target)

    selector = top_m.build(
        tracker,
        num_prompts=num_prompts,
        budget=budget,
        group_size=group_size,
        score=score,
        exploration=exploration,
        **options,
    )
    return Scheduler(tracker, selector)


def _candidates(
    times: int, candidates: int | None, num_prompts: int, budget: int, group_size: int
) -> int:
    """The given number, or so many times the groups if the pool has them."""
    if candidates is not None:
        return candidates
    return min(times * (budget // utility.check_group_size(group_size)), num_prompts)
