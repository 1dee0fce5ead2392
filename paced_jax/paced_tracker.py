"""The PACED tracker: the trainer's own value head read as a belief about pass rates.

`p(x) = clip(beta log Z(x), 0, 1)` for every prompt of the pool, seen or not, without a rollout
spent on estimation (arXiv 2602.12642). The head is trained by the trajectory-balance loss and lives
in the learner; this tracker's state is a copy, replaced by `refresh` after every step. Where
nothing trains the head (a simulation, a recorded history) build with `fit=True`.

Shapes: `N` prompts in the pool, `E` features of an embedding, `B` observed rows.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key

from fade_jax import outcomes, utility
from fade_jax.trackers.ema import plug_in_info
from fade_jax.types import Elapsed, GroupSize, Info, Observation, Tracker
from paced_jax.optimizers import apply_if
from paced_jax.partition import Head, value
from paced_jax.types import Leaf


class State(NamedTuple):
    """A copy of the head.

    Attributes:
        head: parameters of V.
        value: [N], V of every prompt under `head`, on the scale of the reward.
        optimizer_state: of the least-squares fit; empty unless built with `fit=True`.
    """

    head: Head
    value: Float[Array, " N"]
    optimizer_state: Any


def init(
    head: Head,
    embeddings: Float[Array, "N E"],
    optimizer: optax.GradientTransformation | None,
) -> State:
    """Returns the state before any step."""
    head = jax.tree.map(jnp.array, head)  # a copy, so that a step may donate it
    return State(head, value(head, embeddings), optimizer.init(head) if optimizer else ())


def refresh(state: State, head: Head, embeddings: Float[Array, "N E"]) -> State:
    """Copies the learner's head, after `learn`.

    Args:
        state: the copy held before.
        head: the learner's parameters of V.
        embeddings: [N, E] of the pool.

    Returns:
        The state whose pass rates are those of `head`.
    """
    return state._replace(head=head, value=value(head, embeddings))


def predict(state: State, elapsed: Elapsed) -> State:
    """Returns the state as it is: V moves when the learner does, by `refresh`."""
    del elapsed
    return state


def update(
    state: State,
    observation: Observation,
    embeddings: Float[Array, "N E"],
    optimizer: optax.GradientTransformation | None,
) -> tuple[State, Info]:
    """Scores the counts; with an optimiser, takes one least-squares step towards them.

    The step descends `sum_i k_i (V_i - s_i / k_i)^2 / sum_i k_i`, which has the gradient that the
    on-policy trajectory-balance loss gives V. Without trials nothing moves.

    Args:
        state: V held before.
        observation: [B] rows.
        embeddings: [N, E] of the pool.
        optimizer: of the head; None leaves the state as it is.

    Returns:
        The new state, and Info of the old one, with V clipped to 0..1 as a certain pass rate.
    """
    rows = outcomes.merge_duplicates(observation, state.value.shape[0])
    info = plug_in_info(pass_rate(state), rows)
    if optimizer is None:
        return state, info
    seen = embeddings.at[rows.prompt_ids].get(mode="clip")
    rates = rows.successes / jnp.maximum(rows.trials, 1.0)

    def loss(head):
        return (rows.trials * (value(head, seen) - rates) ** 2).sum() / rows.trials.sum()

    def fit(state):
        updates, optimizer_state = optimizer.update(
            jax.grad(loss)(state.head), state.optimizer_state, state.head
        )
        head: Head = optax.apply_updates(state.head, updates)  # pyright: ignore
        return State(head, value(head, embeddings), optimizer_state)

    return apply_if(rows.trials.sum() > 0, fit, state), info


def pass_rate(state: State) -> Float[Array, " N"]:
    """Returns V clipped to 0..1; only here, never in the loss."""
    return jnp.clip(state.value, 0.0, 1.0)


def informative(state: State, group_size: GroupSize) -> Float[Array, " N"]:
    """Returns the plug-in `1 - p^G - (1 - p)^G`: V says nothing of its own uncertainty."""
    return utility.informative_rate(pass_rate(state), group_size)


def draw(key: Key[Array, ""], state: State) -> Float[Array, " N"]:
    """Returns the pass rates themselves: V has no posterior to draw from; `key` is unused."""
    del key
    return pass_rate(state)


def nearness(state: State, target: Leaf = 0.5) -> Float[Array, " N"]:
    """PACED-RL's score of a prompt, `-|p - target|`, for a greedy selector over the whole pool.

    Args:
        state: the tracker's.
        target: pass rate to aim at (tau), in 0..1.

    Returns:
        [N], <= 0.
    """
    return utility.nearness(pass_rate(state), target)


def build(
    embeddings: Float[Array, "N E"],
    head: Head,
    *,
    fit: bool = False,
    learning_rate: Leaf = 1e-3,
    clip_norm: Leaf = 1.0,
) -> Tracker:
    """Builds the PACED tracker.

    Args:
        embeddings: [N, E], frozen, standardised (`partition.standardise`).
        head: parameters of V at the start (`partition.init`).
        fit: `update` trains the tracker's own copy on observed counts; for use without a learner.
        learning_rate: of Adam, with `fit`.
        clip_norm: largest gradient norm, with `fit`.

    Returns:
        A Tracker. Its score for PACED-RL's selection is `nearness`.
    """
    optimizer = None
    if fit:
        optimizer = optax.chain(optax.clip_by_global_norm(clip_norm), optax.adam(learning_rate))
    return Tracker(
        init=partial(init, head, embeddings, optimizer),
        predict=predict,
        update=partial(update, embeddings=embeddings, optimizer=optimizer),
        pass_rate=pass_rate,
        informative=informative,
        draw=draw,
    )
