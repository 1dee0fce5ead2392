"""What a trainer reads off a decoder, as functions of `(graphdef, params)` and arrays.

Prompts and responses are separate arrays. `M` unique prompts of `P` slots, padded left or right;
`group` says which prompt each of `R` responses of `T` slots answers. A prompt is run once, however
many responses share it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from paced_jax.policy.attention import Context
from paced_jax.policy.decoder import Decoder, GraphDef, Params

LOGITS_AT_ONCE = 2**25
"""At most so many logits are in memory at once (128 MB) when only statistics of them are wanted."""


class Prefill(NamedTuple):
    """Prompts that have been run.

    Attributes:
        context: their keys and values, [L, M, ...], for `Decoder.states`.
        last: [M, D], the state at the last real token, which predicts the first response token.
        lengths: [M] int32, real tokens; also the position of the first response token.
    """

    context: Context
    last: Float[Array, "M D"]
    lengths: Int[Array, " M"]


class ActionStats(NamedTuple):
    """What the policy thinks of given responses. Zero where `action_mask` is False.

    Attributes:
        log_probs: [R, T], log pi(token | prompt, earlier tokens), nats, <= 0.
        entropy: [R, T], of the distribution the token was drawn from, nats, >= 0.
    """

    log_probs: Float[Array, "R T"]
    entropy: Float[Array, "R T"]


def positions_of(mask: Bool[Array, "B S"]) -> Int[Array, "B S"]:
    """Positions 0, 1, 2, ... of real tokens; padding has that of the token before, or 0."""
    return jnp.maximum(jnp.cumsum(mask, axis=1, dtype=jnp.int32) - 1, 0)


def logits(
    graphdef: GraphDef,
    params: Params,
    tokens: Int[Array, "B S"],
    mask: Bool[Array, "B S"],
    positions: Int[Array, "B S"] | None = None,
) -> Float[Array, "B S V"]:
    """Next-token logits at every slot; those of padding mean nothing.

    Args:
        graphdef: static half of the decoder.
        params: its parameters.
        tokens: [B, S], in 0..V-1, padding included.
        mask: [B, S], which tokens exist.
        positions: [B, S]; by default the real tokens are counted from 0.

    Returns:
        [B, S, V] float32.
    """
    decoder: Decoder = nnx.merge(graphdef, params)
    states, _ = decoder.states(tokens, positions_of(mask) if positions is None else positions, mask)
    return decoder.logits(states)


def last_real(states: Float[Array, "M P D"], mask: Bool[Array, "M P"]) -> Float[Array, "M D"]:
    """States at the last real token of each row."""
    slots = jnp.arange(mask.shape[1], dtype=jnp.int32)[None]
    final = jnp.where(mask, slots, 0).max(axis=1)
    return jnp.take_along_axis(states, final[:, None, None], axis=1)[:, 0]


def prefill(
    decoder: Decoder, prompt_tokens: Int[Array, "M P"], prompt_mask: Bool[Array, "M P"]
) -> Prefill:
    """Runs each prompt once. A prompt without a single real token gives a meaningless state."""
    states, cache = decoder.states(prompt_tokens, positions_of(prompt_mask), prompt_mask)
    return Prefill(
        Context(cache, prompt_mask),
        last_real(states, prompt_mask),
        prompt_mask.sum(axis=1, dtype=jnp.int32),
    )


@jax.custom_vjp
def token_stats(
    logits: Float[Array, "*S V"], tokens: Int[Array, "*S"]
) -> tuple[Float[Array, "*S"], Float[Array, "*S"]]:
    """Log-probabilities of the tokens and entropies of the distributions, nats.

    With a gradient by hand, `p_v (-g - h (log p_v + H)) + g 1[v = token]` for cotangents `g` of the
    log-probability and `h` of the entropy `H`: it takes one pass over the logits, and nothing but
    them is stored. No forward-mode derivatives.

    Args:
        logits: [..., V].
        tokens: [...], in 0..V-1.
    """
    return _token_stats(logits, tokens)[0]


def _token_stats(logits, tokens):
    highest = jax.lax.stop_gradient(logits.max(axis=-1, keepdims=True))
    exponentials = jnp.exp(logits - highest)
    total = exponentials.sum(axis=-1)
    log_total = jnp.log(total)
    chosen = jnp.take_along_axis(logits, tokens[..., None], axis=-1)
    log_probs = (chosen - highest)[..., 0] - log_total
    entropy = log_total - (exponentials * (logits - highest)).sum(axis=-1) / total
    return (log_probs, entropy), highest[..., 0] + log_total


def _token_stats_forward(logits, tokens):
    out, log_sum = _token_stats(logits, tokens)
    return out, (logits, tokens, log_sum, out[1])


def _token_stats_backward(stored, cotangents):
    logits, *rest = stored
    tokens, log_sum, entropy, g, h = (x[..., None] for x in (*rest, *cotangents))
    log_p = logits - log_sum
    slopes = -jnp.exp(log_p) * (g + h * (log_p + entropy))
    ids = jax.lax.broadcasted_iota(tokens.dtype, logits.shape, logits.ndim - 1)
    return jnp.where(ids == tokens, slopes + g, slopes), None


token_stats.defvjp(_token_stats_forward, _token_stats_backward)


def sequence_log_probs(
    graphdef: GraphDef,
    params: Params,
    prompt_tokens: Int[Array, "M P"],
    prompt_mask: Bool[Array, "M P"],
    group: Int[Array, " R"],
    tokens: Int[Array, "R T"],
    action_mask: Bool[Array, "R T"],
) -> ActionStats:
    """Teacher forcing: log-probabilities and entropies of given responses, differentiable.

    Logits are computed where actions were taken, never over prompts, and in blocks that a backward
    pass computes anew when the vocabulary is large.

    Args:
        graphdef: static half of the decoder.
        params: its parameters.
        prompt_tokens: [M, P].
        prompt_mask: [M, P], real tokens; left or right padding.
        group: [R], in 0..M-1.
        tokens: [R, T], responses; slots outside `action_mask` may hold any token.
        action_mask: [R, T], True up to and including the end-of-sequence token.

    Returns:
        `ActionStats` of [R, T] float32.
    """
    decoder: Decoder = nnx.merge(graphdef, params)
    lengths = prompt_mask.sum(axis=1, dtype=jnp.int32)[group]
    steps = jnp.arange(tokens.shape[1] - 1, dtype=jnp.int32)[None]
    prompt_states, later = decoder.shared_states(
        prompt_tokens,
        positions_of(prompt_mask),
        prompt_mask,
        group,
        tokens[:, :-1],
        lengths[:, None] + steps,
    )
    first = last_real(prompt_states, prompt_mask)[group]
    states = jnp.concatenate([first[:, None], later], axis=1)

    def stats(state_and_token):
        state, token = state_and_token
        return token_stats(decoder.logits(state), token)

    if tokens.size * decoder.config.vocab_size <= LOGITS_AT_ONCE:
        log_probs, entropy = stats((states, tokens))
    else:
        flat = (states.reshape(-1, states.shape[-1]), tokens.reshape(-1))
        block = max(1, LOGITS_AT_ONCE // decoder.config.vocab_size)
        out = jax.lax.map(jax.checkpoint(stats), flat, batch_size=block)
        log_probs, entropy = jax.tree.map(lambda a: a.reshape(tokens.shape), out)
    return ActionStats(jnp.where(action_mask, log_probs, 0.0), jnp.where(action_mask, entropy, 0.0))


def prompt_embeddings(
    graphdef: GraphDef,
    params: Params,
    prompt_tokens: Int[Array, "N P"],
    prompt_mask: Bool[Array, "N P"],
    *,
    batch_size: int = 256,
) -> Float[Array, "N D"]:
    """Mean over a prompt's real tokens of the last-layer states, float32.

    Args:
        graphdef: static half of the decoder.
        params: its parameters.
        prompt_tokens: [N, P].
        prompt_mask: [N, P]; a prompt without real tokens gets zeros.
        batch_size: prompts run at once.

    Returns:
        [N, D] float32.
    """
    decoder: Decoder = nnx.merge(graphdef, params)

    def embed(prompt):
        tokens, mask = prompt
        states, _ = decoder.states(tokens[None], positions_of(mask[None]), mask[None])
        weights = mask.astype(jnp.float32)[:, None]
        total = (states[0].astype(jnp.float32) * weights).sum(axis=0)
        return total / jnp.maximum(weights.sum(axis=0), 1.0)

    return jax.lax.map(embed, (prompt_tokens, prompt_mask), batch_size=batch_size)
