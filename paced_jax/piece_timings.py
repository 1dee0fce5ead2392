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

from fade_jax import driver
from fade_jax.driver import RunState
from paced_jax.training import Run

PIECES = ("choose", "sample", "verify", "admit", "learn", "record")
"""The pieces of an iteration, in order."""


_ENOUGH_SECONDS = 5.0
"""A piece that has been timed for so long is not timed again."""


def piece_seconds(run: Run, state: RunState, *, repeats: int = 5) -> dict[str, float]:
    """Times choose, sample, verify, admit, learn and record on one iteration.

    Args:
        run: what to time.
        state: where; not changed.
        repeats: timed calls of each piece, after one that compiles; fewer of a piece that takes
            seconds. The median counts.

    Returns:
        {`<piece>_seconds`: median}.
    """
    setup, make = run.setup, run.make
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
            if sum(taken) > _ENOUGH_SECONDS:
                break
        seconds[f"{name}_seconds"] = statistics.median(taken)
        return result

    def record(setup, state, choice, verdicts, report):
        _, observation = driver.count(choice.rows, verdicts)
        return driver.record(
            make(setup), setup, state.tracker, choice, observation, state.learner, report
        )

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
    _, report = timed(
        "learn",
        lambda setup, learner, batch: make(setup).learn(setup, learner, batch, key),
        setup,
        state.learner,
        batch,
    )
    timed("record", record, setup, state, chosen, verdicts, report)
    return seconds
