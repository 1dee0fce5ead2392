"""What stops a run: a selection, verdicts or numbers that cannot be. Flags inside compiled code.

A compiled loop can't raise: it carries the first fault and moves nothing from then on; the driver
raises between chunks, with `describe`'s words.

Shapes: `N` prompts in the pool, `M` chosen prompts, `R` rollouts of an iteration.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Num

from fade_jax import outcomes
from fade_jax.types import Observation, Selection, Selector

NONE, TOTAL, SIZE, PROMPT, TWICE, ORDER, VERDICT, LEARN = range(8)
"""Kinds of faults, see `Fault.kind`; NONE while all is well."""


class Fault(NamedTuple):
    """The first thing that went wrong; the state stays what it was before that iteration.

    Attributes:
        kind: int32, NONE while all is well; TOTAL to ORDER: the selector broke its contract;
            VERDICT: impossible verdicts; LEARN: numbers that are not finite.
        prompt_id: int32, the prompt concerned, as it was given.
        found: what it had: the sum of the group sizes, the group's size, its successes.
        limit: what `found` is held against: the budget, the group size of all, the number of
            prompts, its trials.
    """

    kind: Int[Array, ""]
    prompt_id: Int[Array, ""]
    found: Float[Array, ""]
    limit: Float[Array, ""]


def _fault(kind: int, prompt_id, found, limit) -> Fault:
    as_float = (jnp.asarray(x, jnp.float32) for x in (found, limit))
    return Fault(jnp.int32(kind), jnp.asarray(prompt_id, jnp.int32), *as_float)


def none() -> Fault:
    """All is well."""
    return _fault(NONE, -1, 0.0, 0.0)


def first(*faults: Fault) -> Fault:
    """The first of them that is one, or none."""
    *before, found = faults
    for fault in reversed(before):
        found = jax.tree.map(
            lambda a, b, there=fault.kind != NONE: jnp.where(there, a, b), fault, found
        )
    return found


def of_selection(selection: Selection, selector: Selector, num_prompts: int) -> Fault:
    """Holds a choice against the contract of `types.Selection`.

    Args:
        selection: [M].
        selector: whose choice it is: its budget, and its group size if it has one.
        num_prompts: N.

    Raises:
        ValueError: arrays of another length than max_groups.
    """
    ids, sizes = selection
    if ids.shape != (selector.max_groups,) or sizes.shape != ids.shape:
        raise ValueError(
            f"selector: prompt_ids and group_sizes must be [{selector.max_groups}] (max_groups),"
            f" got {ids.shape} and {sizes.shape}"
        )

    def where(wrong, kind: int, found, limit) -> Fault:
        """The first slot that is wrong."""
        slot = jnp.argmax(wrong)
        fault = _fault(kind, ids[slot], found[slot], limit)
        return jax.tree.map(lambda a, b: jnp.where(wrong.any(), a, b), fault, none())

    used = sizes > 0
    outside = used & ((ids < 0) | (ids >= num_prompts))
    # Unused slots get numbers of their own beyond the pool.
    slots = jnp.arange(ids.shape[0], dtype=ids.dtype)
    distinct = jnp.where(used & ~outside, ids, num_prompts + slots)
    order = jnp.argsort(distinct)
    again = jnp.concatenate([jnp.zeros(1, bool), jnp.diff(distinct[order]) == 0])
    twice = jnp.zeros_like(used).at[order].set(again)
    total, fixed = sizes.sum(), selector.group_size
    unequal = _fault(TOTAL, -1, total, selector.budget)
    wrong_size = sizes < 0 if fixed is None else (sizes != 0) & (sizes != fixed)
    return first(
        where(wrong_size, SIZE, sizes, 0 if fixed is None else fixed),
        where(outside, PROMPT, sizes, num_prompts),
        where(twice, TWICE, sizes, 1),
        where(used & (jnp.cumsum(~used) > 0), ORDER, sizes, 0),
        jax.tree.map(lambda a, b: jnp.where(total != selector.budget, a, b), unequal, none()),
    )


def of_verdicts(
    observation: Observation,
    verdicts: Num[Array, " R"],
    group: Int[Array, " R"],
    num_prompts: int,
) -> Fault:
    """Finds the first group with an impossible verdict.

    Args:
        observation: the counts of the M groups.
        verdicts: [R] they were counted from.
        group: [R], 0..M-1.
        num_prompts: N.
    """
    above = jax.ops.segment_max(
        (verdicts > 1).astype(jnp.int32), group, observation.trials.shape[0]
    )
    row = outcomes.first_invalid(observation, num_prompts)
    row = jnp.where((above > 0).any(), jnp.argmax(above > 0).astype(jnp.int32), row)
    found = _fault(VERDICT, *(x[row] for x in observation))
    return jax.tree.map(lambda a, b: jnp.where(row >= 0, a, b), found, none())


def of_learning(bad_prompt: Int[Array, ""]) -> Fault:
    """What `learn` reports: a prompt, or -1."""
    found = _fault(LEARN, bad_prompt, 0.0, 0.0)
    return jax.tree.map(lambda a, b: jnp.where(bad_prompt >= 0, a, b), found, none())


def describe(fault: Fault, iteration: Int[Array, "*seeds"]) -> str | None:
    """Says in words what a compiled chunk has flagged; None where all is well. Runs on the host.

    Args:
        fault: after the chunk; with seeds, the first faulty one is named.
        iteration: at which each run stands.
    """
    fault, iteration = jax.device_get((fault, iteration))
    kinds = np.atleast_1d(fault.kind)
    if not (kinds != NONE).any():
        return None
    seed = int(np.argmax(kinds != NONE))
    kind, prompt, found, limit = (np.atleast_1d(x)[seed] for x in fault)
    words = {
        TOTAL: f"selector: group_sizes sum to {found:g}, the budget is {limit:g}",
        SIZE: f"selector: the group size of prompt {prompt} is {found:g}; it must be "
        + (f"{limit:g}" if limit else ">= 0"),
        PROMPT: f"selector: prompt_ids must be in 0..{limit - 1:.0f}, got {prompt}",
        ORDER: f"selector: prompt {prompt} comes after an unused slot; those must come last",
        TWICE: f"selector: prompt {prompt} is in prompt_ids more than once",
        VERDICT: f"prompt {prompt}: verdicts must be in 0..1, or negative for none; its group has"
        f" {found} successes in {limit:g} trials",
        LEARN: f"prompt {prompt}: rewards, log_probs, V or their gradient are not finite",
    }
    return f"iteration {np.atleast_1d(iteration)[seed]}, {words[int(kind)]}"
