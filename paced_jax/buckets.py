"""Prompts of a few widths, each compiled once: an iteration runs at the least that holds its own.

Shapes are static, so every prompt is as wide as the longest of the pool; attention to padding is
masked out, but paid for. Which prompts an iteration has is known before it samples: the host reads
their greatest length, once an iteration, and calls the program of the smallest width that fits.

Shapes: `N` prompts in the pool, of `P` slots.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from fade_jax import driver
from fade_jax.driver import Choice, Pieces, RunState
from paced_jax.pieces import Setup
from paced_jax.types import TrainBatch, occupied


def choose_widths(lengths: Int[np.ndarray, " N"], count: int) -> tuple[int, ...]:
    """The widths that pad least, were every prompt run at the smallest that fits it.

    Args:
        lengths: tokens of each prompt, >= 1.
        count: of widths, at most.

    Returns:
        Ascending, the last the greatest length; fewer than `count` where there are fewer lengths.

    >>> choose_widths(np.array([3, 3, 4, 9, 10, 30]), 3)
    (4, 10, 30)
    """
    if count < 1:
        raise ValueError(f"buckets must be at least 1, got {count}")
    values, number = np.unique(lengths, return_counts=True)
    # slots[i]: the fewest that hold all prompts up to length i, whose last width is i; `choices`
    # says which width comes before it. One more width at a time.
    held = np.concatenate([[0], np.cumsum(number)])
    slots = values * held[1:]
    choices: list[np.ndarray] = []
    for _ in range(1, min(count, len(values))):
        # With the width before at k < i, those between are as wide as i.
        table = slots[None, :] + values[:, None] * (held[1:, None] - held[None, 1:])
        table = np.where(values[None] < values[:, None], table, 2**62)
        choices.append(table.argmin(axis=1))
        slots = table.min(axis=1)
    at, widths = len(values) - 1, [int(values[-1])]
    for before in reversed(choices):
        at = int(before[at])
        widths.append(int(values[at]))
    return tuple(reversed(widths))


def padding(lengths: Int[np.ndarray, " N"], widths: tuple[int, ...]) -> int:
    """Slots without a token, were every prompt run at the smallest width that fits it.

    A batch is as wide as its longest prompt, so a run pads more.

    >>> padding(np.array([3, 3, 4, 9, 10, 30]), (4, 10, 30))
    3
    """
    return int(np.sum(np.asarray(widths)[np.searchsorted(widths, lengths)] - lengths))


def crop(setup: Setup, width: int) -> Setup:
    """The constants with prompts of `width` slots, padded on the right."""
    return setup._replace(
        prompt_tokens=setup.prompt_tokens[:, :width], prompt_mask=setup.prompt_mask[:, :width]
    )


def longest(setup: Setup, state: RunState, choice: Choice) -> Int[Array, ""]:
    """Tokens of the longest prompt an iteration can meet: chosen now, or kept by its admit rule."""
    kept = jax.tree.leaves(state.admit, is_leaf=lambda x: isinstance(x, TrainBatch))
    rows = [(choice.rows.prompt_ids, jnp.ones(choice.rows.prompt_ids.shape, bool))]
    rows += [(x.prompt_ids, occupied(x)) for x in kept if isinstance(x, TrainBatch)]
    lengths = [
        jnp.where(real, setup.prompt_mask[ids].sum(axis=1, dtype=jnp.int32), 0).max()
        for ids, real in rows
    ]
    return jnp.stack(lengths).max()


def compile_step(
    make: Callable[[Setup], Pieces], setup: Setup, state: RunState, widths: tuple[int, ...]
) -> driver.Step:
    """Compiles an iteration at every width, ahead of time: nothing is traced later.

    Args:
        make: builds the pieces from the constants; verdicts come from inside compiled code.
        setup: constants, or their shapes.
        state: one of the run, or its shapes; not run.
        widths: ascending, the last that of the longest prompt.

    Returns:
        A Step of one iteration, which donates the state.
    """

    def choose(setup, state):
        choice = driver.choose(make(setup), state)
        return choice, longest(setup, state, choice)

    def finish(width):
        def run(setup, state, choice):
            setup = crop(setup, width)
            pieces = make(setup)
            if pieces.verify is None:
                raise ValueError("verify: None; the host must judge, which buckets do not know of")
            generated = driver.generate_chosen(pieces, setup, state, choice)
            verdicts = pieces.verify(setup, generated.rollouts)
            return driver.absorb(pieces, setup, state, generated, verdicts)

        return jax.jit(run, donate_argnums=1).lower(setup, state, chosen).compile()

    first = jax.jit(choose).lower(setup, state)
    chosen, _ = first.out_info
    first, programs = first.compile(), [finish(width) for width in widths]

    def step(setup: Setup, state: RunState) -> tuple[RunState, Any]:
        choice, most = first(setup, state)
        fits = min(int(np.searchsorted(widths, int(most))), len(widths) - 1)
        state, record = programs[fits](setup, state, choice)
        return state, jax.tree.map(lambda x: x[None], record)

    return step
