"""Which simulated groups reach the learner: the rules that a `types.Admission` names.

Shapes: `M` generated groups, `G` groups of a training batch.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from fade_jax.types import Admission, Observation, check_admission


class Admit(NamedTuple):
    """A rule.

    Attributes:
        init: `() -> State`.
        admit: `(state, generated [M], key) -> (state, batch [G], ready)`; free places of the batch
            have no trials.
    """

    init: Callable[[], Any]
    admit: Callable[[Any, Observation, Key[Array, ""]], tuple[Any, Observation, Bool[Array, ""]]]


class Waiting(NamedTuple):
    """Informative groups that wait for the batch to fill.

    Attributes:
        batch: [G], the live ones first.
        iterations: int32, that have filled it so far.
    """

    batch: Observation
    iterations: Int[Array, ""]


def build(admission: Admission, max_groups: int) -> Admit:
    """Builds the rule.

    Args:
        admission: its name and sizes.
        max_groups: M.

    Raises:
        ValueError: as `types.check_admission`.
    """
    check_admission(admission, max_groups)
    groups = max_groups if admission.groups is None else admission.groups
    if admission.rule == "all":
        return Admit(lambda: (), _all)
    if admission.rule == "best_of":
        return Admit(lambda: (), lambda state, seen, key: _best_of(groups, state, seen, key))
    return Admit(
        lambda: Waiting(_empty(groups), jnp.int32(0)),
        lambda state, seen, key: _drop_degenerate(admission.max_iterations, state, seen),
    )


def _all(state, seen: Observation, key):
    return state, seen, (seen.trials > 0).any()


def _best_of(groups: int, state, seen: Observation, key):
    """The groups of largest p (1 - p), ties at random."""
    rate = seen.successes / jnp.maximum(seen.trials, 1.0)
    score = jnp.where(seen.trials > 0, rate * (1 - rate), -1.0)
    noise = jax.random.uniform(key, score.shape, score.dtype)
    batch = _take(seen, jnp.lexsort((noise, -score))[:groups])
    return state, batch, (batch.trials > 0).any()


def _drop_degenerate(max_iterations: int, state: Waiting, seen: Observation):
    """Groups that disagree, collected until the batch is full or the wait too long."""
    groups = state.batch.trials.shape[0]
    both: Observation = jax.tree.map(
        lambda a, b: jnp.concatenate([a, b.astype(a.dtype)]), state.batch, seen
    )
    wanted = (both.successes > 0) & (both.successes < both.trials)
    first = jnp.argsort(~wanted, stable=True)[:groups]
    batch = _take(both, first, wanted[first])
    iterations = state.iterations + 1
    some, full = (batch.trials > 0).any(), (batch.trials > 0).all()
    late = iterations >= max_iterations
    ready = full | (late & some)
    fresh = Waiting(_empty(groups), jnp.int32(0))
    waiting = jax.tree.map(
        lambda new, old: jnp.where(ready | late, new, old), fresh, Waiting(batch, iterations)
    )
    return waiting, batch, ready


def _take(seen: Observation, places: Int[Array, " G"], live: Any = True) -> Observation:
    ids, successes, trials = (x[places] for x in seen)
    zero: Float[Array, ""] = jnp.zeros((), trials.dtype)
    return Observation(ids, jnp.where(live, successes, zero), jnp.where(live, trials, zero))


def _empty(groups: int) -> Observation:
    return Observation(
        jnp.full(groups, -1, jnp.int32), jnp.zeros(groups, float), jnp.zeros(groups, float)
    )
