"""The live loop, choose -> sample -> verify -> admit -> learn -> record, for trainer and simulator.

One iteration spends exactly the selector's budget of rollouts. `RunState` alone decides what
happens next; constants travel beside it as `setup`. Verdicts may come from inside the compiled
step, or from the host between its two halves, `generate` and `absorb`.

Shapes: `N` prompts in the pool, `M` chosen prompts, `R` rollouts of an iteration (the budget).
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, Num

from fade_jax import faults, outcomes
from fade_jax.faults import Fault
from fade_jax.run_state import (
    Choice,
    DriverFault,
    Generated,
    LearnReport,
    Pieces,
    Record,
    Rows,
    RunState,
    Setup,
)
from fade_jax.types import Info, Observation, Tracker

__all__ = [
    "Choice",
    "DriverFault",
    "Fault",
    "Generated",
    "LearnReport",
    "Pieces",
    "Record",
    "Rows",
    "RunState",
    "Setup",
    "absorb",
    "check_size",
    "choose",
    "compile_step",
    "count",
    "generate",
    "generate_chosen",
    "init",
    "iterate",
    "record",
    "run",
]


def init(pieces: Pieces, setup: Setup, learner: Any, key: Key[Array, ""]) -> RunState:
    """The state before the first iteration. Call it inside `jit`, so that a step may donate it.

    Args:
        pieces: of the run.
        setup: constants.
        learner: parameters, optimiser, policy version.
        key: of the whole run.
    """
    tracker, selector, _ = pieces.scheduler
    zero = jnp.int32(0)
    return RunState(
        learner,
        pieces.refresh(setup, tracker.init(), learner),
        selector.init(),
        pieces.init_admit(),
        key,
        zero,
        zero + 0,
        faults.none(),
    )


def _keys(state: RunState) -> Key[Array, " 4"]:
    return jax.random.split(jax.random.fold_in(state.key, state.iteration), 4)


def choose(pieces: Pieces, state: RunState) -> Choice:
    """Chooses prompts and lays their rollouts out in rows; ages nothing.

    Args:
        pieces: of the run.
        state: not changed; the selector's next state is among the results.
    """
    tracker, selector, _ = pieces.scheduler
    key, _, _, _ = _keys(state)
    chosen, selection, info = selector.select(state.selector, state.tracker, key)
    slots = jnp.arange(selector.max_groups, dtype=jnp.int32)
    group = jnp.repeat(slots, selection.group_sizes, total_repeat_length=selector.budget)
    used = selection.group_sizes > 0
    ids = jnp.where(used, selection.prompt_ids, 0)
    # A size a prompt, and only the chosen rows read: over several devices a static size would
    # gather the whole pool's scores.
    sizes = jnp.zeros(tracker_size(tracker, state.tracker), jnp.int32)
    sizes = sizes.at[ids].add(selection.group_sizes)
    predicted = jnp.where(used, tracker.pass_rate(state.tracker)[ids], 0.0)
    informative = jnp.where(used, tracker.informative(state.tracker, sizes)[ids], 0.0)
    rows = Rows(selection, ids[group], group, predicted[group])
    return Choice(chosen, rows, info, predicted, informative)


def generate(pieces: Pieces, setup: Setup, state: RunState) -> Generated:
    """Choose and sample: the half of an iteration before the verdicts.

    Args:
        pieces: of the run.
        setup: constants.
        state: not changed.
    """
    return generate_chosen(pieces, setup, state, choose(pieces, state))


def generate_chosen(pieces: Pieces, setup: Setup, state: RunState, choice: Choice) -> Generated:
    """Samples what has been chosen.

    Args:
        pieces: of the run.
        setup: constants.
        state: the one `choose` was given; not changed.
        choice: its result.
    """
    _, key, _, _ = _keys(state)
    rollouts, metrics = pieces.sample(setup, state.learner, choice.rows, key)
    return Generated(choice, rollouts, metrics)


def tracker_size(tracker, state) -> int:
    """N, from shapes alone."""
    return jax.eval_shape(tracker.pass_rate, state).shape[0]


def check_size(tracker: Tracker, num_prompts: int) -> None:
    """Refuses a tracker made for another pool; call it where the pieces are built.

    Raises:
        ValueError: naming both sizes.
    """
    size = tracker_size(tracker, jax.eval_shape(tracker.init))
    if size != num_prompts:
        raise ValueError(f"tracker: made for {size} prompts, the pool has {num_prompts}")


def absorb(
    pieces: Pieces,
    setup: Setup,
    state: RunState,
    generated: Generated,
    verdicts: Num[Array, " R"],
) -> tuple[RunState, Record]:
    """Admit, learn and record: the half of an iteration after the verdicts.

    The tracker sees every generated group, of the policy that sampled it; only then, and only if
    `learn` stepped, does time pass for it. After a fault nothing moves.

    Args:
        pieces: of the run.
        setup: constants.
        state: the one `generate` was given.
        generated: its result.
        verdicts: [R], 1 right, 0 wrong, graded in between, negative for none.

    Returns:
        (new state, Record).
    """
    tracker, selector, _ = pieces.scheduler
    _, _, admit_key, learn_key = _keys(state)
    choice, rows = generated.choice, generated.choice.rows
    counts, observation = count(rows, verdicts)
    num_prompts = tracker_size(tracker, state.tracker)
    fault = faults.first(
        state.fault,
        faults.of_selection(rows.selection, selector, num_prompts),
        faults.of_verdicts(observation, verdicts, rows.group, num_prompts),
    )
    sound = fault.kind == faults.NONE

    admitted, batch, ready = pieces.admit(state.admit, generated.rollouts, verdicts, admit_key)
    learner, report = _learn_if(ready & sound, pieces, setup, state.learner, batch, learn_key)

    seen, chosen, info = record(pieces, setup, state.tracker, choice, observation, learner, report)

    fault = faults.first(fault, faults.of_learning(report.bad_prompt))
    live = fault.kind == faults.NONE
    new = (
        seen,
        chosen,
        admitted,
        state.iteration + 1,
        state.updates + report.stepped.astype(jnp.int32),
    )
    old = (state.tracker, state.selector, state.admit, state.iteration, state.updates)
    seen, chosen, admitted, iteration, updates = jax.tree.map(
        lambda new, old: jnp.where(live, new, old), new, old
    )
    line = Record(
        state.iteration,
        live,
        observation,
        counts.missing,
        counts.degenerate,
        choice.predicted,
        choice.informative,
        choice.select_info,
        info,
        ready & sound,
        generated.sample_metrics,
        report,
    )
    return RunState(learner, seen, chosen, admitted, state.key, iteration, updates, fault), line


def count(rows: Rows, verdicts: Num[Array, " R"]) -> tuple[outcomes.GroupOutcomes, Observation]:
    """What the M chosen groups came to, and the same as a tracker reads it.

    Args:
        rows: what was asked for.
        verdicts: [R], as `absorb` takes them.
    """
    ids = rows.selection.prompt_ids
    counts = outcomes.group_outcomes(verdicts, rows.group, ids.shape[0])
    return counts, Observation(ids, counts.successes, counts.trials)


def record(
    pieces: Pieces,
    setup: Setup,
    tracker_state: Any,
    choice: Choice,
    observation: Observation,
    learner: Any,
    report: LearnReport,
) -> tuple[Any, Any, Info]:
    """Shows tracker and selector every generated group; then time passes, if `learn` stepped.

    Args:
        pieces: of the run.
        setup: constants.
        tracker_state: before.
        choice: of this iteration; it holds the selector's state.
        observation: of the M chosen groups.
        learner: after `learn`.
        report: of `learn`.

    Returns:
        (tracker state, selector state, the tracker's Info).
    """
    tracker, selector, _ = pieces.scheduler
    seen, info = tracker.update(tracker_state, observation)
    aged = tracker.predict(seen, report.elapsed)
    seen = jax.tree.map(lambda new, old: jnp.where(report.stepped, new, old), aged, seen)
    return (
        pieces.refresh(setup, seen, learner),
        selector.observe(choice.selector, observation),
        info,
    )


def _learn_if(ready, pieces, setup, learner, batch, key):
    """`learn` where ready; else the same learner, bit for bit, and a report of zeros."""

    def learn(learner):
        return pieces.learn(setup, learner, batch, key)

    _, shapes = jax.eval_shape(learn, learner)

    def skip(learner):
        report: LearnReport = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return learner, report._replace(bad_prompt=jnp.int32(-1))

    return jax.lax.cond(ready, learn, skip, learner)


def iterate(pieces: Pieces, setup: Setup, state: RunState) -> tuple[RunState, Record]:
    """One whole iteration with verdicts from inside compiled code."""
    if pieces.verify is None:
        raise ValueError("verify: None; the host must judge between `generate` and `absorb`")
    generated = generate(pieces, setup, state)
    return absorb(pieces, setup, state, generated, pieces.verify(setup, generated.rollouts))


Step: TypeAlias = Callable[[Setup, RunState], tuple[RunState, Record]]
"""Compiled: some iterations, whose Records have them as their first axis."""


def compile_step(
    make: Callable[[Setup], Pieces],
    *,
    chunk: int = 10,
    seeds: bool = False,
    host_verify: Callable[[Setup, Any], np.ndarray] | None = None,
) -> Step:
    """Compiles a chunk of iterations; the state given to it is donated.

    It can't raise: after a fault it moves nothing, `state.fault` says why, and `run` raises.

    Args:
        make: builds the pieces from the constants, inside the compiled function.
        chunk: iterations of one call; 1 with host_verify.
        seeds: states carry a leading axis of seeds, mapped over; so do the Records, before the
            axis of iterations.
        host_verify: `(setup, rollouts) -> verdicts [R]` on the host, for tasks that can't be
            verified in compiled code.

    Returns:
        A Step.

    Raises:
        ValueError: a chunk below 1; a chunk above 1, or seeds, together with host_verify.
    """
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    if host_verify is not None:
        if chunk != 1 or seeds:
            raise ValueError(f"host_verify needs chunk 1 and no seeds, got {chunk} and {seeds}")
        return _host_step(make, host_verify)

    def advance(setup, state):
        pieces = make(setup)
        return jax.lax.scan(
            lambda state, _: iterate(pieces, setup, state), state, None, length=chunk
        )

    mapped = jax.vmap(advance, in_axes=(None, 0)) if seeds else advance
    return jax.jit(mapped, donate_argnums=1)


def _host_step(make, host_verify) -> Step:
    first = jax.jit(lambda setup, state: generate(make(setup), setup, state))

    def second(setup, state, generated, verdicts):
        return absorb(make(setup), setup, state, generated, verdicts)

    second = jax.jit(second, donate_argnums=1)

    def step(setup, state):
        generated = first(setup, state)
        verdicts = np.asarray(host_verify(setup, generated.rollouts))
        rows = generated.choice.rows.group.shape
        if verdicts.shape != rows:
            raise ValueError(f"host_verify must return verdicts {rows}, got {verdicts.shape}")
        state, record = second(setup, state, generated, verdicts)
        return state, jax.tree.map(lambda x: x[None], record)

    return step


def run(
    step: Step,
    setup: Setup,
    state: RunState,
    *,
    iterations: int,
    between: Callable[[RunState, Record], RunState] | None = None,
) -> RunState:
    """Runs until `iterations` are done; logs, checkpoints and errors come between chunks.

    Args:
        step: from `compile_step`.
        setup: constants.
        state: donated; may come from a checkpoint.
        iterations: in all, counted from the beginning of the run. The last chunk may pass it.
        between: `(state, records) -> state` after every chunk, records on the host.

    Returns:
        The last state.

    Raises:
        DriverFault: naming iteration, prompt, field and value; holds the last good state, which can
            be run on. The good iterations before it have gone through `between`.
    """
    while np.min(jax.device_get(state.iteration)) < iterations:
        state, records = step(setup, state)
        fault = faults.describe(state.fault, state.iteration)
        if between is not None:
            state = between(state, jax.device_get(records))
        if fault is not None:
            cleared = jax.tree.map(
                lambda now, none: jnp.broadcast_to(none, now.shape), state.fault, faults.none()
            )
            raise DriverFault(fault, state._replace(fault=cleared))
    return state
