"""Supervised pre-training of a base policy on the skill tasks.

Long problems are rare in proportion to how hard they are, never absent: pass rates then spread over
(0, 1) and reinforcement learning has something to climb everywhere. Problems are drawn afresh in
every step, inside compiled code.

Shapes: `B` problems of a step, `W` the greatest length, 8 skills.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key

from paced_jax.policy.config import DecoderConfig
from paced_jax.policy.decoder import GraphDef, Params, create
from paced_jax.policy.forward import sequence_log_probs
from paced_jax.tasks.skills import MAX_LENGTH, draw_problems
from paced_jax.tasks.tokens import SKILLS


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """How a base policy is made.

    Attributes:
        decoder: its sizes.
        steps: optimiser steps at most.
        stop_loss: training ends when the mean loss of a chunk of steps is no greater, nats a token;
            how well a policy is trained then depends less on its seed. 0: never.
        batch_size: B.
        learning_rate: constant after a linear warm-up, so that a shorter run is the beginning of a
            longer one.
        warmup_steps: of the learning rate.
        weight_decay: AdamW's.
        skill_share: [8], relative frequency of each skill.
        length_decay: [8], for each skill: a length is exp(-length_decay) as frequent as the one
            before it.
        length_floor: share of each skill's problems spread evenly over all lengths, in 0..1.
        max_length: W.
        short_length: problems up to this length are run in narrower arrays: a matter of speed.
    """

    decoder: DecoderConfig
    steps: int
    stop_loss: float = 0.0
    batch_size: int
    learning_rate: float = 3e-3
    warmup_steps: int = 100
    weight_decay: float = 0.01
    skill_share: tuple[float, ...] = (1.0,) * len(SKILLS)
    length_decay: tuple[float, ...] = (0.5,) * len(SKILLS)
    length_floor: float = 0.0
    max_length: int = MAX_LENGTH
    short_length: int = 3

    def __post_init__(self):
        """Refuses impossible values, naming the field."""
        for name in ("steps", "batch_size", "learning_rate", "warmup_steps", "max_length"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if not 0 < self.short_length < self.max_length:
            raise ValueError(
                f"short_length must be in 1..max_length - 1 = {self.max_length - 1}, "
                f"got {self.short_length}"
            )
        if not 0 <= self.length_floor <= 1:
            raise ValueError(f"length_floor must be in 0..1, got {self.length_floor}")
        for name in ("skill_share", "length_decay"):
            values = getattr(self, name)
            if len(values) != len(SKILLS) or min(values) <= 0:
                raise ValueError(f"{name} needs {len(SKILLS)} positive numbers, got {values}")


class PretrainState(NamedTuple):
    """Everything that decides what happens next.

    Attributes:
        params: of the policy.
        optimiser: optax's state.
        step: int32, steps done.
    """

    params: Params
    optimiser: Any
    step: Int[Array, ""]


def cell_weights(config: PretrainConfig) -> Float[np.ndarray, "S W"]:
    """Relative frequency of each skill and length in pre-training; strictly positive, sums to 1.

    `w[s, n] = share[s] ((1 - floor) g[s, n] + floor / W)`, with `g[s, n]` proportional to
    `exp(-length_decay[s] (n - 1))` and both `g[s]` and `share` summing to 1.

    Args:
        config: its `skill_share`, `length_decay`, `length_floor`.

    Returns:
        [8, W] float32.
    """
    share, decay = np.asarray(config.skill_share), np.asarray(config.length_decay)
    geometric = np.exp(-decay[:, None] * np.arange(config.max_length))
    geometric /= geometric.sum(axis=1, keepdims=True)
    floor = config.length_floor
    lengths = (1 - floor) * geometric + floor / config.max_length
    return (lengths * (share / share.sum())[:, None]).astype(np.float32)


def _buckets(config: PretrainConfig) -> list[tuple[np.ndarray, int]]:
    """(cell weights, problems) of the short and of the long part of a batch, stratified."""
    weights = cell_weights(config)
    short = weights[:, : config.short_length]
    num_short = round(config.batch_size * float(short.sum()))
    num_short = min(max(num_short, 1), config.batch_size - 1)  # neither is ever cut off
    long = np.where(np.arange(config.max_length) < config.short_length, 0, weights)
    return [(short, num_short), (long, config.batch_size - num_short)]


def optimiser(config: PretrainConfig) -> optax.GradientTransformation:
    """AdamW with a warm-up, gradients clipped at norm 1."""
    rate = optax.linear_schedule(0.0, config.learning_rate, config.warmup_steps)
    adamw = optax.adamw(rate, b2=0.98, weight_decay=config.weight_decay)
    return optax.chain(optax.clip_by_global_norm(1.0), adamw)


def train_step(
    config: PretrainConfig, graphdef: GraphDef, state: PretrainState, key: Key[Array, ""]
) -> tuple[PretrainState, Float[Array, ""]]:
    """One step of maximum likelihood on answers, with `fold_in(key, step)`.

    `loss = -sum over answer tokens of log pi(token | earlier) / number of answer tokens`

    Args:
        config: how the policy is made.
        graphdef: static half of the decoder.
        state: parameters, optimiser, step.
        key: of the whole run; not consumed.

    Returns:
        (state, loss in nats a token).
    """
    step_key = jax.random.fold_in(key, state.step)

    def loss(params):
        total, count = jnp.asarray(0.0), jnp.asarray(0, jnp.int32)
        for i, (weights, size) in enumerate(_buckets(config)):
            problems, _, _ = draw_problems(
                jax.random.fold_in(step_key, i), jnp.asarray(weights), size
            )
            places = jnp.arange(problems.answer_tokens.shape[1], dtype=jnp.int32)[None]
            action_mask = places < problems.answer_lengths[:, None]
            stats = sequence_log_probs(
                graphdef,
                params,
                problems.prompt_tokens,
                problems.prompt_mask,
                jnp.arange(size, dtype=jnp.int32),
                problems.answer_tokens,
                action_mask,
            )
            total, count = total - stats.log_probs.sum(), count + action_mask.sum()
        return total / count.astype(jnp.float32)

    value, gradient = jax.value_and_grad(loss)(state.params)
    updates, opt_state = optimiser(config).update(gradient, state.optimiser, state.params)
    params = optax.apply_updates(state.params, updates)
    return PretrainState(params, opt_state, state.step + 1), value


def pretrain(
    config: PretrainConfig,
    key: Key[Array, ""],
    *,
    chunk: int = 50,
    report: Callable[[int, float], None] | None = None,
) -> tuple[GraphDef, Params]:
    """Makes a base policy; consumes `key`.

    Args:
        config: sizes, steps, frequencies.
        key: for initial weights and data.
        chunk: steps compiled into one call, between two looks at the loss; divides config.steps.
        report: called after each chunk with (steps done, mean loss).

    Returns:
        (graphdef, params).

    Raises:
        ValueError: if chunk does not divide config.steps.
    """
    if config.steps % chunk:
        raise ValueError(f"chunk must divide steps = {config.steps}, got {chunk}")
    init_key, data_key = jax.random.split(key)
    graphdef, params = create(config.decoder, init_key)
    state = PretrainState(params, optimiser(config).init(params), jnp.asarray(0, jnp.int32))

    @jax.jit
    def advance(state):
        def step(state, _):
            return train_step(config, graphdef, state, data_key)

        return jax.lax.scan(step, state, None, length=chunk)

    for done in range(chunk, config.steps + 1, chunk):
        state, losses = advance(state)
        loss = float(losses.mean())
        if report is not None:
            report(done, loss)
        if loss <= config.stop_loss:
            break
    return graphdef, state.params
