"""Sampling responses: one prefill per unique prompt, a fixed-size cache, an early stop.

Shapes: `M` unique prompts of `P` slots, `R` responses of at most `T` tokens, `V` tokens of the
vocabulary.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from paced_jax.policy.attention import KeyValues, lay_out
from paced_jax.policy.decoder import Decoder, GraphDef, Params
from paced_jax.policy.forward import prefill
from paced_jax.policy.noise import gumbel


class Samples(NamedTuple):
    """Sampled responses.

    Attributes:
        tokens: [R, T] int32; `eos_id` where `action_mask` is False.
        log_probs: [R, T] float32, of the distribution each token was drawn from, nats; 0 where
            `action_mask` is False.
        action_mask: [R, T], True up to and **including** the end-of-sequence token. A row that is
            True throughout and does not end in it was cut off by `max_tokens`.
    """

    tokens: Int[Array, "R T"]
    log_probs: Float[Array, "R T"]
    action_mask: Bool[Array, "R T"]


class _Loop(NamedTuple):
    step: Int[Array, ""]
    live: Bool[Array, " R"]
    samples: Samples
    caches: list[KeyValues]


@jax.custom_batching.custom_vmap
def _any(live: Array) -> Array:
    return live.any()


@_any.def_vmap
def _any_of_all(axis_size, in_batched, live):
    """Under `vmap` one seed's loop waits for the others'.

    Otherwise the loop's counter would differ by seed, and every write into a cache become a
    scatter and a copy. Rows that have ended no longer change, so the result is the same.
    """
    return _any(live.reshape(-1)), False


def _categorical(key: Array, log_p: Array) -> Array:
    """`jax.random.categorical`, the same tokens; its noise and argmax are slow on CPUs."""
    noise = gumbel(key, log_p.shape, log_p.dtype)
    noisy = jax.lax.optimization_barrier(noise + log_p)
    highest = noisy.max(axis=-1, keepdims=True)
    ids = jnp.arange(log_p.shape[-1], dtype=jnp.int32)
    return jnp.where(noisy < highest, ids.size, ids).min(axis=-1)


def sample(
    graphdef: GraphDef,
    params: Params,
    prompt_tokens: Int[Array, "M P"],
    prompt_mask: Bool[Array, "M P"],
    group: Int[Array, " R"],
    key: Key[Array, ""],
    *,
    max_tokens: int,
    eos_id: int,
    temperature: float = 1.0,
) -> Samples:
    """Draws one response a row, token by token, until every row has ended.

    The distribution is the policy's own at temperature 1: no truncation, so the log-probabilities
    are what teacher forcing gives. Token t of all rows is drawn with `fold_in(key, t)`.

    Args:
        graphdef: static half of the decoder.
        params: its parameters.
        prompt_tokens: [M, P], unique prompts.
        prompt_mask: [M, P], real tokens; left or right padding.
        group: [R], in 0..M-1, which prompt a row answers.
        key: consumed; never re-use it for another call.
        max_tokens: T, including the end-of-sequence token.
        eos_id: the token that ends a response; sampled at once, it is a one-token response.
        temperature: 1 in training. For evaluation: logits are divided by it; 0 takes the likeliest
            token (the first among equals), with log-probability 0.

    Returns:
        `Samples` of [R, T].

    Raises:
        ValueError: for max_tokens < 1 or a negative temperature.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
    if temperature < 0:
        raise ValueError(f"temperature must be >= 0, got {temperature}")
    decoder: Decoder = nnx.merge(graphdef, params)
    config, rows = decoder.config, group.shape[0]

    def draw(state, step, live, samples):
        logits = decoder.logits(state)
        if temperature == 0:
            token = jnp.argmax(logits, axis=-1).astype(jnp.int32)
            log_prob = jnp.zeros(rows, jnp.float32)
        else:
            log_p = jax.nn.log_softmax(logits / temperature, axis=-1)
            token = _categorical(jax.random.fold_in(key, step), log_p)
            log_prob = jnp.take_along_axis(log_p, token[:, None], axis=-1)[:, 0]
        column = (
            jnp.where(live, token, eos_id),
            jnp.where(live, log_prob.astype(jnp.float32), 0.0),
            live,
        )
        samples = Samples(
            *(
                jax.lax.dynamic_update_slice_in_dim(old, new[:, None], step, axis=1)
                for old, new in zip(samples, column, strict=True)
            )
        )
        return live & (token != eos_id), samples

    prompts = prefill(decoder, prompt_tokens, prompt_mask)
    layers, each = decoder.unstack(), range(config.num_layers)
    # Laid out once; from here on the prompts' cache is only read.
    blocks = lay_out(group, prompt_tokens.shape[0])
    keys, values = prompts.context.cache
    shared = [KeyValues(keys[i, blocks.owner], values[i, blocks.owner]) for i in each]
    shared_mask, lengths = prompt_mask[group], prompts.lengths[group]
    heads, dtype = (rows, config.num_kv_heads), jnp.dtype(config.dtype)
    empty = [
        KeyValues(
            jnp.zeros((*heads, config.head_size, max_tokens), dtype),
            jnp.zeros((*heads, max_tokens, config.head_size), dtype),
        )
        for _ in each
    ]
    blank = Samples(
        jnp.full((rows, max_tokens), eos_id, jnp.int32),
        jnp.zeros((rows, max_tokens), jnp.float32),
        jnp.zeros((rows, max_tokens), bool),
    )
    live, samples = draw(prompts.last[group], 0, jnp.ones(rows, bool), blank)
    slots = jnp.arange(max_tokens, dtype=jnp.int32)[None]

    def unfinished(loop):
        return (loop.step < max_tokens) & _any(loop.live)

    def advance(loop):
        at = loop.step - 1
        token = jax.lax.dynamic_index_in_dim(loop.samples.tokens, at, axis=1, keepdims=False)
        earlier = jnp.broadcast_to(slots < at, (rows, max_tokens))
        state, new = decoder.step(
            layers,
            token,
            lengths + at,
            [*zip(shared, loop.caches, strict=True)],
            (shared_mask, earlier),
            blocks,
        )
        # One small write into each buffer: the loop updates in place.
        caches = [
            KeyValues(
                jax.lax.dynamic_update_slice_in_dim(old.keys, now.keys, at, axis=3),
                jax.lax.dynamic_update_slice_in_dim(old.values, now.values, at, axis=2),
            )
            for old, now in zip(loop.caches, new, strict=True)
        ]
        live, samples = draw(state, loop.step, loop.live, loop.samples)
        return _Loop(loop.step + 1, live, samples, caches)

    first = _Loop(jnp.asarray(1, jnp.int32), live, samples, empty)
    return jax.lax.while_loop(unfinished, advance, first).samples
