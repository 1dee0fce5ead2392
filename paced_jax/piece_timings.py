"""Seconds of each piece of an iteration, compiled and timed on its own.

A compiled chunk is one program, whose parts can't be told apart from outside; the sum of the parts
timed here is about the time of an iteration.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fade_jax import driver, outcomes
from fade_jax.driver import RunState
from fade_jax.types import Observation
from paced_jax.training import Run

PIECES = ("choose", "sample", "verify", "admit", "learn", "record")


def piece_seconds(run: Run, state: RunState, *, repeats: int = 5) -> dict[str, float]:
    """Times choose, sample, verify, admit, learn and record on one iteration.

    Args:
        run: what to time.
        state: where; not changed.
        repeats: timed calls of each piece, after one that compiles; the median counts.

    Returns:
        {`<piece>_seconds`: median}.
    """
    setup, make = run.setup, run.make
    num_slots = make(setup).scheduler.selector.max_groups
    key = jax.random.key(0)
    seconds = {}

    def timed(name: str, function: Callable[..., Any], *args: Any) -> Any:
        compiled = jax.jit(function)
        result = jax.block_until_ready(compiled(*args))
        taken = []
        for _ in range(repeats):
            started = time.perf_counter()
            jax.block_until_ready(compiled(*args))
            taken.append(time.perf_counter() - started)
        seconds[f"{name}_seconds"] = statistics.median(taken)
        return result

    def record(setup, state, rows, verdicts):
        pieces = make(setup)
        tracker, selector = pieces.scheduler
        counts = outcomes.group_outcomes(verdicts, rows.group, num_slots)
        seen = Observation(rows.selection.prompt_ids, counts.successes, counts.trials)
        belief, info = tracker.update(state.tracker, seen)
        belief = pieces.refresh(setup, tracker.predict(belief, 1.0), state.learner)
        return belief, info, selector.observe(state.selector, seen)

    chosen = timed("choose", lambda setup, state: driver.choose(make(setup), state), setup, state)
    rollouts, _ = timed(
        "sample",
        lambda setup, learner, rows: make(setup).sample(setup, learner, rows, key),
        setup,
        state.learner,
        chosen.rows,
    )

    def verify(setup, rollouts):
        judge = make(setup).verify
        return jnp.zeros(rollouts.group.shape) if judge is None else judge(setup, rollouts)

    verdicts = timed("verify", verify, setup, rollouts)
    _, batch, _ = timed(
        "admit",
        lambda setup, state, rollouts, verdicts: make(setup).admit(state, rollouts, verdicts, key),
        setup,
        state.admit,
        rollouts,
        verdicts,
    )
    timed(
        "learn",
        lambda setup, learner, batch: make(setup).learn(setup, learner, batch, key),
        setup,
        state.learner,
        batch,
    )
    timed("record", record, setup, state, chosen.rows, verdicts)
    return seconds
