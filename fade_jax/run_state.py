"""What flows through the live loop: pieces, state, what an iteration leaves behind.

Shapes: `N` prompts in the pool, `M` chosen prompts, `R` rollouts of an iteration (the budget).
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from jaxtyping import Array, Bool, Float, Int, Key

from fade_jax.faults import Fault
from fade_jax.types import Info, Observation, Scheduler, SelectInfo, Selection

Setup: TypeAlias = Any
"""Constants of a run, any pytree: pool, answers, loadings, embeddings, reference parameters."""


class Rows(NamedTuple):
    """Which rollouts to generate, one a row.

    Attributes:
        selection: the M chosen prompts.
        prompt_ids: [R] int32, in 0..N-1.
        group: [R] int32, in 0..M-1, the slot a row belongs to.
        predicted: [R], pass rate believed when the row's prompt was chosen, in 0..1.
    """

    selection: Selection
    prompt_ids: Int[Array, " R"]
    group: Int[Array, " R"]
    predicted: Float[Array, " R"]


class LearnReport(NamedTuple):
    """What `learn` did.

    Attributes:
        stepped: whether the policy has changed.
        elapsed: time that passed for the trackers: 1 an optimiser step, or KL / KL_ref.
        bad_prompt: int32, a prompt whose rewards or log-probabilities are not finite (nothing was
            learnt then), -1 if there is none.
        metrics: any pytree of arrays.
    """

    stepped: Bool[Array, ""]
    elapsed: Float[Array, ""]
    bad_prompt: Int[Array, ""]
    metrics: Any


def keep_tracker(setup: Setup, tracker_state: Any, learner: Any) -> Any:
    """Leaves a tracker that does not read the learner as it is."""
    del setup, learner
    return tracker_state


class Pieces(NamedTuple):
    """The six pieces, as pure functions.

    Attributes:
        scheduler: `choose` and `record`.
        sample: `(setup, learner, rows, key) -> (rollouts, metrics)`, any pytrees.
        verify: `(setup, rollouts) -> verdicts [R]`: 1 right, 0 wrong, graded in between, negative
            for none. None where the host does it.
        init_admit: `() -> State`.
        admit: `(state, rollouts, verdicts, key) -> (state, batch, ready)`.
        learn: `(setup, learner, batch, key) -> (learner, LearnReport)`; keeps the learner where
            it reports a bad prompt.
        refresh: `(setup, tracker_state, learner) -> tracker_state`, after `record`; for trackers
            that read the learner.
    """

    scheduler: Scheduler
    sample: Callable[[Setup, Any, Rows, Array], tuple[Any, Any]]
    verify: Callable[[Setup, Any], Array] | None
    init_admit: Callable[[], Any]
    admit: Callable[[Any, Any, Array, Array], tuple[Any, Any, Array]]
    learn: Callable[[Setup, Any, Any, Array], tuple[Any, LearnReport]]
    refresh: Callable[[Setup, Any, Any], Any] = keep_tracker


class RunState(NamedTuple):
    """Everything that decides what happens next.

    Attributes:
        learner: parameters, optimiser, policy version; opaque here.
        tracker: the tracker's state.
        selector: the selector's state.
        admit: the admit rule's state, replay included.
        key: of the whole run, never consumed: an iteration uses `fold_in(key, iteration)`.
        iteration: int32, iterations done.
        updates: int32, batches learnt from: optimiser steps, where each makes one.
        fault: see `faults.Fault`.
    """

    learner: Any
    tracker: Any
    selector: Any
    admit: Any
    key: Key[Array, ""]
    iteration: Int[Array, ""]
    updates: Int[Array, ""]
    fault: Fault


class Choice(NamedTuple):
    """What was chosen, and what was believed of it.

    Attributes:
        selector: the selector's state after choosing.
        rows: what to generate.
        select_info: what the selector expects of it.
        predicted: [M] pass rate believed of each chosen prompt, 0 in unused slots.
        informative: [M] P(its group is informative), 0 in unused slots.
    """

    selector: Any
    rows: Rows
    select_info: SelectInfo
    predicted: Float[Array, " M"]
    informative: Float[Array, " M"]


class Generated(NamedTuple):
    """First half of an iteration: chosen and sampled, not yet judged.

    Attributes:
        choice: what was asked for.
        rollouts: what was generated.
        sample_metrics: of `sample`.
    """

    choice: Choice
    rollouts: Any
    sample_metrics: Any


class Record(NamedTuple):
    """What one iteration leaves for logs and histories; predictions were made before its outcomes.

    Attributes:
        iteration: int32, counted from 0.
        live: False where a fault has stopped the run; the rest is then meaningless.
        observation: outcomes of the M chosen prompts; trials 0 in unused slots.
        missing: [M] rollouts without a verdict.
        degenerate: [M] True where the verdicts of a group agree.
        predicted: [M], see `Choice`.
        informative: [M], see `Choice`.
        select_info: what the selector expected.
        tracker_info: score of the outcomes under the tracker.
        ready: whether a batch was ready to learn from.
        sample_metrics: of `sample`.
        learn: of `learn`; zeros where it did not run.
    """

    iteration: Int[Array, ""]
    live: Bool[Array, ""]
    observation: Observation
    missing: Float[Array, " M"]
    degenerate: Bool[Array, " M"]
    predicted: Float[Array, " M"]
    informative: Float[Array, " M"]
    select_info: SelectInfo
    tracker_info: Info
    ready: Bool[Array, ""]
    sample_metrics: Any
    learn: LearnReport


class DriverFault(ValueError):
    """A run met an impossible selection, impossible verdicts or numbers that are not finite.

    Attributes:
        state: the last good RunState.
    """

    def __init__(self, message: str, state: RunState):
        super().__init__(message)
        self.state = state
