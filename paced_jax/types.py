"""What flows between the trainer's pieces: rollouts, training batches, the admit seam.

Shapes: `R` rollouts generated in one iteration, `T` response tokens, `M` selected prompts; `B` rows
and `G` groups of a training batch. Prompts are not repeated here: `prompt_ids` index the pool's
prompt tokens, which are constants.
"""

import dataclasses
from typing import (
    Any,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    get_args,
    get_origin,
    get_type_hints,
)

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, Num

State: TypeAlias = Any
"""An admit's own NamedTuple of arrays; opaque to everything but that admit."""


Leaf: TypeAlias = Any
"""A hyperparameter: a float; or an array or tracer of it, where a sweep is a `vmap`."""


class Rollouts(NamedTuple):
    """Everything generated in one iteration, one response a row.

    Attributes:
        prompt_ids: [R] int32, in the pool.
        group: [R] int32, in 0..M-1, the selected prompt a row answers.
        tokens: [R, T] int32, response tokens.
        action_mask: [R, T], True for the tokens that were sampled, end of sequence included.
        log_probs: [R, T], behaviour log-probabilities as the sampler drew them, nats.
        policy_version: [R] int32, optimiser steps taken by the policy that sampled the row.
        predicted: [R], pass rate predicted for the row's prompt when it was chosen, in 0..1.
    """

    prompt_ids: Int[Array, " R"]
    group: Int[Array, " R"]
    tokens: Int[Array, "R T"]
    action_mask: Bool[Array, "R T"]
    log_probs: Float[Array, "R T"]
    policy_version: Int[Array, " R"]
    predicted: Float[Array, " R"]


class PartitionUpdate(NamedTuple):
    """How each row teaches the value V = beta log Z, beside what it teaches the policy.

    Attributes:
        residual_weight: [B], in 0..1, the share of the residual's gradient that reaches V: 1 for a
            fresh row; 0 cuts V off from the row, the policy still sees it.
        target: [B], pass rate that V is regressed on as well, in 0..1.
        target_weight: [B] >= 0, weight of that regression; 0 for none.
    """

    residual_weight: Float[Array, " B"]
    target: Float[Array, " B"]
    target_weight: Float[Array, " B"]


class TrainBatch(NamedTuple):
    """Rows that reach the gradient, padded to a static shape.

    Attributes:
        prompt_ids: [B] int32, in the pool; 0 in padding.
        group: [B] int32, in 0..G-1. A replayed row is a group of its own.
        tokens: [B, T] int32.
        action_mask: [B, T]; False throughout in padding.
        log_probs: [B, T], behaviour log-probabilities, of the policy `policy_version`, nats.
        policy_version: [B] int32.
        predicted: [B], pass rate predicted before learning, in 0..1.
        rewards: [B], in 0..1; 0 without a verdict. Down to 1 less with an overlong penalty.
        weight: [B], 1 for a live row; 0 for padding, for rows without a verdict, and throughout
            while the batch is not ready.
        group_pass_rate: [B], successes / trials of the row's rollout group when it was generated.
        partition: how each row teaches V.
    """

    prompt_ids: Int[Array, " B"]
    group: Int[Array, " B"]
    tokens: Int[Array, "B T"]
    action_mask: Bool[Array, "B T"]
    log_probs: Float[Array, "B T"]
    policy_version: Int[Array, " B"]
    predicted: Float[Array, " B"]
    rewards: Float[Array, " B"]
    weight: Float[Array, " B"]
    group_pass_rate: Float[Array, " B"]
    partition: PartitionUpdate


class AdmitStep(Protocol):
    """Decides which generated groups reach the gradient."""

    def __call__(
        self,
        state: State,
        rollouts: Rollouts,
        verdicts: Num[Array, " R"],
        key: Key[Array, ""],
    ) -> tuple[State, TrainBatch, Bool[Array, ""]]:
        """Returns the new state, the batch, and whether `learn` may use it."""
        ...


class Admit(NamedTuple):
    """Which generated groups reach the gradient, as pure functions with static sizes.

    Attributes:
        init: `() -> State`.
        admit: `(state, rollouts, verdicts, key) -> (state, TrainBatch, ready)`. Verdicts are 1
            right, 0 wrong, graded floats in between, negative for none.
        num_rows: B of its batches, static.
        num_groups: G of its batches, static.
        num_replayed: how many of the last rows are replayed, static; 0 without replay.
    """

    init: Any
    admit: AdmitStep
    num_rows: int
    num_groups: int
    num_replayed: int


class Parameters(NamedTuple):
    """Everything that is trained; the optimiser has one group for each field.

    Attributes:
        policy: parameters of the policy, any pytree.
        partition: parameters of the head V = beta log Z, any pytree.
    """

    policy: Any
    partition: Any


class Learner(NamedTuple):
    """Everything that learning moves.

    Attributes:
        params: of the policy and of V.
        optimizer_state: optax's.
        version: int32, optimiser steps taken: what rollouts are stamped with.
    """

    params: Parameters
    optimizer_state: Any
    version: Int[Array, ""]


def check_choice(name: str, choice: Any, choices: tuple[Any, ...]) -> None:
    """Raises a ValueError that names the option, unless the choice is one of the choices."""
    if choice not in choices:
        raise ValueError(f"{name}: must be one of {choices}, got {choice!r}")


def check_switches(settings: Any) -> None:
    """Checks the fields of a dataclass that are annotated as `Literal`: a typo must not pass."""
    hints = get_type_hints(type(settings))
    for field in dataclasses.fields(settings):
        if get_origin(hints[field.name]) is Literal:
            check_choice(field.name, getattr(settings, field.name), get_args(hints[field.name]))


def empty_batch(num_rows: int, num_tokens: int) -> TrainBatch:
    """Returns a batch of B padding rows, which weigh nothing."""
    zeros, ids = jnp.zeros(num_rows), jnp.zeros(num_rows, jnp.int32)
    per_token = (num_rows, num_tokens)
    return TrainBatch(
        prompt_ids=ids,
        group=ids,
        tokens=jnp.zeros(per_token, jnp.int32),
        action_mask=jnp.zeros(per_token, bool),
        log_probs=jnp.zeros(per_token),
        policy_version=ids,
        predicted=zeros,
        rewards=zeros,
        weight=zeros,
        group_pass_rate=zeros,
        partition=PartitionUpdate(zeros, zeros, zeros),
    )


def occupied(batch: TrainBatch) -> Bool[Array, " B"]:
    """Marks the rows that hold a response."""
    return batch.action_mask.any(axis=1)


def keep_rows(batch: TrainBatch, kept: Bool[Array, " B"]) -> TrainBatch:
    """Turns the other rows into padding: zeros throughout, of group 0."""
    return jax.tree.map(
        lambda x: jnp.where(kept.reshape(-1, *[1] * (x.ndim - 1)), x, jnp.zeros_like(x)), batch
    )


def prompts_of_groups(batch: TrainBatch, num_groups: int) -> Int[Array, " G"]:
    """Returns the prompt id of every group, [G]: each prompt is then run or embedded once.

    A group without rows gets prompt 0.

    >>> batch = empty_batch(3, 1)._replace(
    ...     prompt_ids=jnp.array([7, 7, 4]), group=jnp.array([0, 0, 2])
    ... )
    >>> prompts_of_groups(batch, 4).tolist()
    [7, 0, 4, 0]
    """
    return jnp.maximum(jax.ops.segment_max(batch.prompt_ids, batch.group, num_groups), 0)
