"""FADE's own presets: the ability-difficulty filter, and the ablations every claim goes with.

`**options` are max_groups, sources, source_floor and low_signal, see `selectors.sizes`.

Shapes: `N` prompts in the pool, `K` skills.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, Unpack

import jax.numpy as jnp
from jaxtyping import Array, Float

from fade_jax import ability_difficulty, hyperparameters, moments
from fade_jax.dynamics import Dynamics, random_walk
from fade_jax.hyperparameters import Hyperparameters
from fade_jax.moments import MomentRule
from fade_jax.pool_loadings import PoolLoadings
from fade_jax.selectors import sizes, thompson, top_m, weighted
from fade_jax.shrinkage import Shrinkage, bayes
from fade_jax.types import Scheduler, Selector

FadeSelector = Literal["top_m", "weighted", "thompson"]
"""How FADE chooses by P(informative): the largest, in proportion, or by a draw of its belief."""


def fade(
    loadings: PoolLoadings | Float[Array, "N K"],
    hyper: Hyperparameters | None = None,
    *,
    budget: int,
    group_size: int,
    rule: MomentRule = moments.adf(),  # noqa: B008 - functions only, nothing is allocated
    dynamics: Dynamics = random_walk,
    shrinkage: Shrinkage = bayes(),  # noqa: B008
    selector: FadeSelector = "top_m",
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
        **options: see the module.

    Returns:
        A Scheduler.

    Raises:
        ValueError: an unknown selector.
    """
    if isinstance(loadings, PoolLoadings):
        num_prompts, num_skills = loadings.num_prompts, loadings.num_skills
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


def fade_pg(
    loadings: PoolLoadings | Float[Array, "N K"],
    hyper: Hyperparameters | None = None,
    *,
    budget: int,
    group_size: int,
    passes: int = 4,
    selector: FadeSelector = "top_m",
    exploration: float = 0.05,
    **options: Unpack[sizes.Options],
) -> Scheduler:
    """FADE by Polya-Gamma moments, the rule the paper names; over-confident, see `moments.pg`.

    Args:
        loadings: [N, K], or laid out by `pool_loadings.lay_out`.
        hyper: priors and rates; `hyperparameters.default` if None.
        budget: rollouts of an iteration.
        group_size: rollouts of a group.
        passes: of the variational fixed point; 1 is the literal single step.
        selector: see `fade`.
        exploration: share of groups drawn at random.
        **options: see the module.

    Returns:
        A Scheduler.
    """
    return fade(
        loadings,
        hyper,
        budget=budget,
        group_size=group_size,
        rule=moments.pg(passes),
        selector=selector,
        exploration=exploration,
        **options,
    )


def fade_k0(
    num_prompts: int,
    hyper: Hyperparameters | None = None,
    *,
    budget: int,
    group_size: int,
    selector: FadeSelector = "top_m",
    exploration: float = 0.05,
    **options: Unpack[sizes.Options],
) -> Scheduler:
    """FADE without loadings (K = 0): one ability moves all prompts alike.

    The control that a claim about loadings is held against.

    Args:
        num_prompts: N.
        hyper: priors and rates of K = 0; `hyperparameters.default` if None.
        budget: rollouts of an iteration.
        group_size: rollouts of a group.
        selector: see `fade`.
        exploration: share of groups drawn at random.
        **options: see the module.

    Returns:
        A Scheduler.
    """
    return fade(
        jnp.zeros((num_prompts, 0)),
        hyper,
        budget=budget,
        group_size=group_size,
        selector=selector,
        exploration=exploration,
        **options,
    )
