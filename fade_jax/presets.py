"""Schedulers by name: a tracker, a selector and the settings they were published with.

Call them inside the function being compiled, or outside it. Hyperparameters may be traced, sizes
are static. `**options` are max_groups, sources, source_floor and low_signal, see `selectors.sizes`.

Shapes: `N` prompts in the pool, `K` skills.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, Unpack

import jax.numpy as jnp
from jaxtyping import Array, Float

from fade_jax import ability_difficulty, hyperparameters, moments, utility
from fade_jax.dynamics import Dynamics, random_walk
from fade_jax.hyperparameters import Hyperparameters
from fade_jax.moments import MomentRule
from fade_jax.pool_loadings import PoolLoadings
from fade_jax.selectors import sizes, thompson, top_m, weighted
from fade_jax.selectors import uniform as uniform_choice
from fade_jax.shrinkage import Shrinkage, bayes
from fade_jax.trackers import discounted_beta
from fade_jax.types import Scheduler, Selector, State, Tracker


def uniform(
    num_prompts: int,
    *,
    budget: int,
    group_size: int,
    epochs: bool = False,
    discount: sizes.ScalarLike = 0.9,
    prior_successes: sizes.ScalarLike = 0.35,
    prior_failures: sizes.ScalarLike = 0.65,
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
        **options: see above.

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
        **options: see above.

    Returns:
        A Scheduler.
    """
    tracker = discounted_beta.build(num_prompts, discount=discount)
    if candidates is None:
        candidates = min(16 * (budget // utility.check_group_size(group_size)), num_prompts)
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


def fade(
    loadings: PoolLoadings | Float[Array, "N K"],
    hyper: Hyperparameters | None = None,
    *,
    budget: int,
    group_size: int,
    rule: MomentRule = moments.adf(),  # noqa: B008 - functions only, nothing is allocated
    dynamics: Dynamics = random_walk,
    shrinkage: Shrinkage = bayes(),  # noqa: B008
    selector: Literal["top_m", "weighted", "thompson"] = "top_m",
    exploration: float = 0.05,
    **options: Unpack[sizes.Options],
) -> Scheduler:
    """FADE: the ability-difficulty filter, and the prompts most likely to be informative.

    Uncertainty lowers P(informative), so "top_m" keeps coming back to the prompts it knows; where
    variety counts, take one of the others.

    Args:
        loadings: [N, K], or laid out by `pool_loadings.lay_out`.
        hyper: priors and rates; `hyperparameters.default` if None.
        budget: rollouts of an iteration.
        group_size: rollouts of a group.
        rule: moment rule of the filter.
        dynamics: of the ability.
        shrinkage: intercept rule.
        selector: "top_m" takes the most probable; "weighted" draws in proportion to P(informative);
            "thompson" takes the most informative under one joint draw of ability and intercepts.
        exploration: share of groups drawn at random.
        **options: see above.

    Returns:
        A Scheduler.

    Raises:
        ValueError: an unknown selector.
    """
    if isinstance(loadings, PoolLoadings):
        num_prompts, num_skills = loadings.num_prompts, loadings.features.shape[0]
    else:
        num_prompts, num_skills = loadings.shape
    hyper = hyperparameters.default(num_skills) if hyper is None else hyper
    tracker = ability_difficulty.build(
        loadings, hyper, rule=rule, dynamics=dynamics, shrinkage=shrinkage
    )
    rules: dict[str, Callable[..., Selector]] = {
        "top_m": top_m.build,
        "weighted": weighted.build,
        "thompson": partial(thompson.build, rule="informative"),
    }
    if selector not in rules:
        raise ValueError(f"selector must be one of {tuple(rules)}, got {selector!r}")
    chosen = rules[selector](
        tracker,
        num_prompts=num_prompts,
        budget=budget,
        group_size=group_size,
        exploration=exploration,
        **options,
    )
    return Scheduler(tracker, chosen)


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
        **options: see above.

    Returns:
        A Scheduler.
    """
    sizes.check_share("target", target)

    def score(state: State) -> Float[Array, " N"]:
        return -jnp.abs(tracker.pass_rate(state) - target)

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
