"""The static sizes of a selector of equal groups, checked before anything is compiled.

Shapes: `N` prompts in the pool, `C = budget / group_size` chosen, `M >= C` slots.
"""

import math
import operator
from typing import Any, NamedTuple, TypedDict

import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from fade_jax.utility import check_group_size

ScalarLike = float | Float[Array, ""]
"""A number, or an array or tracer that holds one."""
Sources = Int[Array, " N"] | Int[np.ndarray, " N"]
"""[N] int32, where each prompt comes from."""


class Options(TypedDict, total=False):
    """Optional keywords of every selector of equal groups; see `plan`."""

    max_groups: int | None
    sources: Sources | None
    source_floor: int
    low_signal: ScalarLike


class Plan(NamedTuple):
    """The checked sizes of a selector, static but for `sources` and `low_signal`.

    Attributes:
        num_prompts: N.
        budget: rollouts of an iteration.
        group_size: rollouts of a group.
        groups: C, groups of an iteration.
        max_groups: M, slots.
        explored: how many of the groups are drawn at random.
        candidates: prompts among which the score chooses, drawn anew every time.
        sources: [N], the source of each prompt, or None.
        source_floor: groups that every source gets at least.
        low_signal: expected share of informative groups under which the flag is raised.
    """

    num_prompts: int
    budget: int
    group_size: int
    groups: int
    max_groups: int
    explored: int
    candidates: int
    sources: Sources | None
    source_floor: int
    low_signal: ScalarLike


def plan(
    num_prompts: int,
    budget: int,
    group_size: int,
    *,
    max_groups: int | None = None,
    exploration: float = 0.0,
    candidates: int | None = None,
    sources: Sources | None = None,
    source_floor: int = 0,
    low_signal: ScalarLike = 0.1,
) -> Plan:
    """Checks the sizes of a selector before anything is compiled.

    Args:
        num_prompts: N.
        budget: rollouts of an iteration, a multiple of group_size.
        group_size: rollouts of a group, in 2..64.
        max_groups: M, slots of a Selection; C by default, more if it must fit another selector.
        exploration: share of the groups, in 0..1 and rounded up, whose prompts are drawn uniformly
            from those not chosen by score.
        candidates: the score chooses among so many prompts, drawn uniformly anew every time; all
            by default. `source_floor` and `exploration` look at the whole pool regardless.
        sources: [N], 0..S-1, the source of each prompt. Inside `jit`, pass a large one as an
            argument of the jitted function; a traced one is not checked.
        source_floor: groups that every source gets at least, its best by score.
        low_signal: the flag is raised where a smaller share of the groups is expected to be
            informative.

    Returns:
        A Plan.

    Raises:
        ValueError: names the field and the value that cannot be.

    Example:
        >>> plan(1000, 64, 8, exploration=0.05).groups
        8
    """
    num_prompts, budget = _whole("num_prompts", num_prompts), _whole("budget", budget)
    group_size = check_group_size(group_size)
    if num_prompts < 1:
        raise ValueError(f"num_prompts must be at least 1, got {num_prompts}")
    if budget < 1 or budget % group_size:
        raise ValueError(
            f"budget must be a positive multiple of group_size {group_size}, got {budget}"
        )
    groups = budget // group_size
    if groups > num_prompts:
        raise ValueError(
            f"budget {budget} makes {groups} groups of {group_size}, but num_prompts is "
            f"{num_prompts} and a prompt is chosen once"
        )
    max_groups = groups if max_groups is None else _whole("max_groups", max_groups)
    if max_groups < groups:
        raise ValueError(f"max_groups must be at least {groups} (the groups), got {max_groups}")
    candidates = num_prompts if candidates is None else _whole("candidates", candidates)
    if not groups <= candidates <= num_prompts:
        raise ValueError(
            f"candidates must be in {groups}..{num_prompts} (groups..num_prompts), got {candidates}"
        )
    check_share("exploration", exploration)
    check_share("low_signal", low_signal)
    # Rounded up, but .07 x 100 = 7.000000000000001 is 7.
    explored = max(math.ceil(exploration * groups - 1e-9), int(exploration > 0))
    source_floor = _whole("source_floor", source_floor)
    _check_sources(sources, source_floor, num_prompts, groups - explored)
    return Plan(
        num_prompts,
        budget,
        group_size,
        groups,
        max_groups,
        explored,
        candidates,
        sources,
        source_floor,
        low_signal,
    )


def check_share(field: str, value: Any) -> None:
    """Refuses a concrete value outside 0..1, naming the field; a traced one passes."""
    if not isinstance(value, Tracer) and not 0 <= float(value) <= 1:
        raise ValueError(f"{field} must be in 0..1, got {value}")


def check_positive(field: str, value: Any) -> None:
    """Refuses a concrete value that is not > 0, naming the field; a traced one passes."""
    if not isinstance(value, Tracer) and not float(value) > 0:
        raise ValueError(f"{field} must be > 0, got {value}")


def check_not_negative(field: str, value: Any) -> None:
    """Refuses a concrete value that is not >= 0, naming the field; a traced one passes."""
    if not isinstance(value, Tracer) and not float(value) >= 0:
        raise ValueError(f"{field} must be >= 0, got {value}")


def _whole(field: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{field} must be a whole number, got {value!r}") from None


def _check_sources(sources: Any, floor: int, num_prompts: int, free: int) -> None:
    if floor < 0:
        raise ValueError(f"source_floor must be >= 0, got {floor}")
    if sources is None:
        if floor:
            raise ValueError(f"source_floor is {floor}, but sources is None")
        return
    if sources.shape != (num_prompts,):
        raise ValueError(f"sources must be [{num_prompts}] (num_prompts), got {sources.shape}")
    if isinstance(sources, Tracer):
        return
    sources = np.asarray(sources)
    if (sources < 0).any():
        prompt = int(np.argmax(sources < 0))
        raise ValueError(f"sources must be >= 0, got {sources[prompt]} for prompt {prompt}")
    names, sizes = np.unique(sources, return_counts=True)
    missing = np.flatnonzero(names != np.arange(len(names)))
    if missing.size:
        raise ValueError(f"sources must be 0..S-1 without gaps, got no prompt of {missing[0]}")
    if sizes.min() < floor:
        small = int(np.argmin(sizes))
        raise ValueError(
            f"source_floor is {floor}, but sources has {sizes[small]} prompts of source {small}"
        )
    if floor * len(names) > free:
        raise ValueError(
            f"source_floor {floor} for {len(names)} sources needs {floor * len(names)} groups, "
            f"but budget and exploration leave {free}"
        )
