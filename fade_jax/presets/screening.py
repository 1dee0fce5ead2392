"""Presets that generate first and choose afterwards: their rule is which groups they learn from.

The rollouts of groups that are thrown away are charged like all others, so at equal budgets these
presets take fewer or smaller optimiser steps.

`**options` are max_groups, sources, source_floor and low_signal, see `selectors.sizes`.

Shapes: `N` prompts in the pool.
"""

from typing import Any, Unpack

from fade_jax.presets.choosing import uniform
from fade_jax.selectors import sizes
from fade_jax.types import Admission, Scheduler, check_admission


def dapo(
    num_prompts: int,
    *,
    budget: int,
    group_size: int,
    train_groups: int | None = None,
    max_iterations: int = 10,
    **options: Unpack[sizes.Options],
) -> Scheduler:
    """DAPO's dynamic sampling (arXiv 2503.14476): random prompts, degenerate groups dropped.

    Informative groups are collected over iterations of one policy until a batch is full.

    Args:
        num_prompts: N.
        budget: rollouts of an iteration.
        group_size: rollouts of a group.
        train_groups: of a training batch; by default a third of the generated groups, as published
            (1,536 generated for 512 trained).
        max_iterations: the longest wait; then what there is is used.
        **options: see the module.

    Returns:
        A Scheduler.

    Raises:
        ValueError: train_groups or max_iterations below 1.
    """
    return _screened(
        "drop_degenerate", 3, num_prompts, budget, group_size, train_groups, max_iterations, options
    )


def lilo(
    num_prompts: int,
    *,
    budget: int,
    group_size: int,
    train_groups: int | None = None,
    **options: Unpack[sizes.Options],
) -> Scheduler:
    """LILO (arXiv 2502.12272): random prompts, of which the groups of largest p (1 - p) train.

    p is the group's own successes / trials.

    Args:
        num_prompts: N.
        budget: rollouts of an iteration.
        group_size: rollouts of a group.
        train_groups: of a training batch; by default a quarter of the generated groups, as
            published.
        **options: see the module.

    Returns:
        A Scheduler.

    Raises:
        ValueError: train_groups below 1 or above the generated groups.
    """
    return _screened("best_of", 4, num_prompts, budget, group_size, train_groups, 1, options)


def _screened(
    rule: Any, times: int, num_prompts, budget, group_size, train_groups, max_iterations, options
) -> Scheduler:
    scheduler = uniform(num_prompts, budget=budget, group_size=group_size, **options)
    groups = budget // group_size
    wanted = max(groups // times, 1) if train_groups is None else train_groups
    admission = check_admission(Admission(rule, wanted, max_iterations), groups)
    return scheduler._replace(admission=admission)
