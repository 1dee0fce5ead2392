"""CDAS: one ability, one difficulty a prompt, both moved by averages (arXiv 2505.17652).

`p = sigmoid(R - d)`. The nearest scalar relative of the FADE filter, but a bare point estimate: no
variance anywhere, a gain that only shrinks, and a difficulty that averages errors lying in -1..1.
So |d| stays below 1, and p within about `sigmoid(R -+ 1)`, however one-sided the evidence.

Shapes: `N` prompts in the pool, `B` observed rows.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from fade_jax import outcomes, utility
from fade_jax.trackers.ema import plug_in_info
from fade_jax.types import Elapsed, GroupSize, Info, Observation, Tracker


class State(NamedTuple):
    """Point estimates.

    Attributes:
        ability: R, logits.
        difficulty: [N] d, logits; the mean of `p - s / k` over the prompt's visits.
        visits: [N] batches in which the prompt was observed.
    """

    ability: Float[Array, ""]
    difficulty: Float[Array, " N"]
    visits: Float[Array, " N"]


def init(num_prompts: int, ability: float | Float[Array, ""]) -> State:
    """Returns the given ability, no difficulty and no visits."""
    return State(
        jnp.full((), ability, float), jnp.zeros(num_prompts, float), jnp.zeros(num_prompts, float)
    )


def predict(state: State, elapsed: Elapsed) -> State:
    """Returns the state as it is: CDAS learns of a new policy only by its outcomes."""
    del elapsed
    return state


def pass_rate(state: State) -> Float[Array, " N"]:
    """Returns `sigmoid(R - d)`."""
    return jax.nn.sigmoid(state.ability - state.difficulty)


def update(
    state: State, observation: Observation, visit_offset: float | Float[Array, ""]
) -> tuple[State, Info]:
    """Moves the observed difficulties, then the ability against their sum.

    `d <- ((n - 1) / n) d + (p - s / k) / n` with `n = visits + visit_offset`, then
    `R <- R - sum_i (change of d_i) / N`; every p is the one held before the batch.

    Args:
        state: estimates held before.
        observation: [B] rows; all groups of one prompt count as one visit.
        visit_offset: 1 is the published rule, the plain average. A larger one damps early visits
            (the Robbins-Monro gain `1 / (visits + offset)`).

    Returns:
        The new state, and Info of the old one.
    """
    num_prompts = state.difficulty.shape[0]
    rows = outcomes.merge_duplicates(observation, num_prompts)
    ids = rows.prompt_ids
    predicted = pass_rate(state)
    old = state.difficulty.at[ids].get(mode="clip")
    error = predicted.at[ids].get(mode="clip") - rows.successes / jnp.maximum(rows.trials, 1.0)
    change = (error - old) / (state.visits.at[ids].get(mode="clip") + visit_offset)
    change = jnp.where(rows.trials > 0, change, 0.0)
    new = State(
        ability=state.ability - change.sum() / num_prompts,
        difficulty=state.difficulty.at[ids].add(change, mode="drop"),
        visits=state.visits.at[ids].add(1.0, mode="drop"),
    )
    return new, plug_in_info(predicted, rows)


def informative(state: State, group_size: GroupSize) -> Float[Array, " N"]:
    """Returns the plug-in `1 - p^G - (1 - p)^G` at `p = sigmoid(R - d)`."""
    return utility.informative_rate(pass_rate(state), group_size)


def draw(key: Key[Array, ""], state: State) -> Float[Array, " N"]:
    """Returns the point estimates: there is no posterior to draw from; `key` is unused."""
    del key
    return pass_rate(state)


def build(
    num_prompts: int,
    *,
    ability: float | Float[Array, ""] = 0.0,
    visit_offset: float | Float[Array, ""] = 1.0,
) -> Tracker:
    """Builds the CDAS tracker.

    Args:
        num_prompts: N.
        ability: R at the start, logits.
        visit_offset: gain of a visit is `1 / (earlier visits + visit_offset)`; >= 1.

    Returns:
        A Tracker.

    >>> tracker = build(2)
    >>> group = Observation(jnp.array([1]), jnp.array([8.0]), jnp.array([8.0]))
    >>> state, _ = tracker.update(tracker.init(), group)
    >>> state.difficulty.tolist(), state.ability.tolist()  # p was .5: d = .5 - 1, R = .5 / 2
    ([0.0, -0.5], 0.25)
    """
    return Tracker(
        init=partial(init, num_prompts, ability),
        predict=predict,
        update=lambda state, observation: update(state, observation, visit_offset),
        pass_rate=pass_rate,
        informative=informative,
        draw=draw,
    )
