"""A decoder in Flax NNX that covers the Llama and Qwen2 families.

RMSNorm, rotary positions, grouped-query attention, SwiGLU, optional QKV bias, tied or untied
embeddings. Layers are stacked and scanned, so that compile time does not grow with depth. Padding
is data: every call takes positions and a mask, and no token id means anything here.

Shapes: `L` layers, `B` sequences, `S` tokens of a call, `C` cached tokens, `R` rows that share
cached sequences, `D` hidden size, `N` query heads, `K` key-value heads, `H` head size, `V` tokens
of the vocabulary.
"""

import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from paced_jax.policy.attention import Blocks, Context, KeyValues, attend, causal, wide_product
from paced_jax.policy.block import Block, norm
from paced_jax.policy.config import DecoderConfig

GraphDef: TypeAlias = nnx.GraphDef
"""The static half of a decoder; hashable, a pytree without leaves."""

Params: TypeAlias = Any
"""The other half: a nested dict of plain arrays, ready for optax, checkpoints and `vmap`."""


class Decoder(nnx.Module):
    """Embedding, stacked blocks, final norm and head; see the module docstring.

    Matrices start at zero: `create` draws them, weight files fill them.
    Columns of `qkv`: N query heads, K key heads, K value heads; of `gate_up`: gate, then up. Fused,
    because the compiler's time is spent by the number of operations.
    """

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs):
        self.config = config
        empty = jnp.zeros((config.vocab_size, config.hidden_size), config.param_dtype)
        self.embedding = nnx.Param(empty)

        @nnx.split_rngs(splits=config.num_layers)
        @nnx.vmap(in_axes=0, out_axes=0)
        def stack(rngs):
            return Block(config, rngs=rngs)

        self.layers = stack(rngs)
        self.norm = norm(config, rngs)
        if not config.tie_embeddings:
            self.head = nnx.Param(empty.T)

    def embed(
        self, tokens: Int[Array, "*B"], positions: Int[Array, "*B"]
    ) -> tuple[Float[Array, "*B D"], Float[Array, "*B half"], Float[Array, "*B half"]]:
        """Embeddings of the tokens, cosines and sines of their positions."""
        config = self.config
        wide = jnp.promote_types(config.dtype, jnp.float32)
        half = np.arange(0, config.head_size, 2) / config.head_size
        frequencies = jnp.asarray(config.rope_theta**-half, wide)
        angles = jnp.multiply.outer(positions.astype(wide), frequencies)
        x = self.embedding[...].astype(config.dtype)[tokens]
        return x, jnp.cos(angles), jnp.sin(angles)

    def _run(self, tokens, positions, mix, caches=None):
        """Scans the blocks; `mix(queries, keys, values, cache of the layer)`, see `Block`."""
        x, cos, sin = self.embed(tokens, positions)
        graphdef, stacked = nnx.split(self.layers)

        def layer(x, weights_and_cache):
            weights, cache = weights_and_cache
            block = nnx.merge(graphdef, weights)
            return block(x, cos, sin, functools.partial(mix, cache=cache))

        body = jax.checkpoint(layer) if self.config.remat else layer
        x, extra = jax.lax.scan(body, x, (stacked, caches))
        return self.norm(x), extra

    def _attend(self, queries, parts, blocks=None):
        """`attend` from [B, S, N, H] to [B, S, N * H]."""
        batch, length, heads, size = queries.shape
        kv_heads = self.config.num_kv_heads
        grouped = queries.reshape(batch, length, kv_heads, heads // kv_heads, size)
        return attend(grouped, parts, blocks).reshape(batch, length, heads * size)

    def states(
        self,
        tokens: Int[Array, "B S"],
        positions: Int[Array, "B S"],
        mask: Bool[Array, "B S"],
        contexts: Sequence[Context] = (),
    ) -> tuple[Float[Array, "B S D"], KeyValues]:
        """Last-layer states after the final norm, and the keys and values of these tokens.

        A token sees every token of `contexts`, then the tokens up to itself, where masks allow.

        Args:
            tokens: [B, S], in 0..V-1.
            positions: [B, S], what the rotary embedding reads.
            mask: [B, S], which tokens may be seen.
            contexts: earlier tokens, cached.

        Returns:
            (states [B, S, D], `KeyValues` of [L, B, ...]).
        """
        seen = causal(mask)

        def mix(queries, keys, values, cache):
            own = KeyValues(keys.transpose(0, 2, 3, 1), values.transpose(0, 2, 1, 3))
            earlier = [(kv, c.mask[:, None]) for kv, c in zip(cache, contexts, strict=True)]
            return self._attend(queries, [*earlier, (own, seen)]), own

        return self._run(tokens, positions, mix, [c.cache for c in contexts])

    def unstack(self) -> list[Block]:
        """The layers one by one, for `step`."""
        graphdef, stacked = nnx.split(self.layers)
        leaves, structure = jax.tree.flatten(stacked)
        each = zip(*leaves, strict=True)
        return [nnx.merge(graphdef, jax.tree.unflatten(structure, layer)) for layer in each]

    def step(
        self,
        layers: Sequence[Block],
        tokens: Int[Array, " B"],
        positions: Int[Array, " B"],
        caches: Sequence[Sequence[KeyValues]],
        masks: Sequence[Bool[Array, "B _"]],
        blocks: Blocks,
    ) -> tuple[Float[Array, "B D"], list[KeyValues]]:
        """As `states` for one token a sequence, with the layers unrolled.

        In a loop over tokens a scan would copy each layer's weights and caches out of their stack,
        token by token: a third of the time.

        Args:
            layers: from `unstack`, outside the loop.
            tokens: [B], in 0..V-1.
            positions: [B].
            caches: for each layer its caches of earlier tokens, without the layer axis. The first
                has a sequence a block.
            masks: for each of these caches [B, C], which tokens exist.
            blocks: how sequences read the first cache.

        Returns:
            (states [B, D], the `KeyValues` of these tokens for each layer).
        """
        seen = [mask[:, None] for mask in masks] + [jnp.ones((tokens.shape[0], 1, 1), bool)]

        def mix(queries, keys, values, cache):
            own = KeyValues(keys.transpose(0, 2, 3, 1), values.transpose(0, 2, 1, 3))
            return self._attend(queries, [*zip([*cache, own], seen, strict=True)], blocks), own

        x, cos, sin = self.embed(tokens[:, None], positions[:, None])
        new = []
        for block, cache in zip(layers, caches, strict=True):
            x, own = block(x, cos, sin, functools.partial(mix, cache=cache))
            new.append(own)
        return self.norm(x)[:, 0], new

    def shared_states(
        self,
        prompt_tokens: Int[Array, "M P"],
        prompt_positions: Int[Array, "M P"],
        prompt_mask: Bool[Array, "M P"],
        group: Int[Array, " R"],
        tokens: Int[Array, "R S"],
        positions: Int[Array, "R S"],
    ) -> tuple[Float[Array, "M P D"], Float[Array, "R S D"]]:
        """States of prompts and of responses to them; a prompt is run once for all its responses.

        All tokens go through the layers as one stream; only attention tells them apart. A response
        token sees its prompt and the response up to itself.

        Args:
            prompt_tokens: [M, P], in 0..V-1.
            prompt_positions: [M, P].
            prompt_mask: [M, P], real tokens.
            group: [R], in 0..M-1, the prompt of a response.
            tokens: [R, S], in 0..V-1.
            positions: [R, S].

        Returns:
            (prompt states [M, P, D], response states [R, S, D]), after the final norm.
        """
        prompts, responses = prompt_tokens.shape, tokens.shape
        size, real = prompt_tokens.size, prompt_mask[group][:, None]
        seen = jnp.broadcast_to(real, (*responses, prompts[1]))
        own = jnp.broadcast_to(
            causal(jnp.ones((1, responses[1]), bool)), (*responses, responses[1])
        )
        seen, prompt_seen = jnp.concatenate([seen, own], axis=2), causal(prompt_mask)

        def split(x):
            heads = x.shape[1:]
            return x[:size].reshape(*prompts, *heads), x[size:].reshape(*responses, *heads)

        def mix(queries, keys, values, cache):
            (q, q_), (k, k_), (v, v_) = map(split, (queries, keys, values))
            first = KeyValues(k.transpose(0, 2, 3, 1), v.transpose(0, 2, 1, 3))
            later = KeyValues(
                jnp.concatenate([first.keys[group], k_.transpose(0, 2, 3, 1)], axis=3),
                jnp.concatenate([first.values[group], v_.transpose(0, 2, 1, 3)], axis=2),
            )
            mixed = self._attend(q, [(first, prompt_seen)]), self._attend(q_, [(later, seen)])
            return jnp.concatenate([m.reshape(-1, m.shape[2]) for m in mixed]), None

        def join(a, b):
            return jnp.concatenate([a.reshape(-1), b.reshape(-1)])

        states, _ = self._run(join(prompt_tokens, tokens), join(prompt_positions, positions), mix)
        return split(states)

    def logits(self, states: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
        """Output head, at least float32."""
        head = self.embedding[...].T if self.config.tie_embeddings else self.head[...]
        return wide_product("...d,dv->...v", states, head.astype(states.dtype))


def abstract(config: DecoderConfig) -> tuple[GraphDef, Params]:
    """As `create`, with shapes in place of arrays: what a weight file has to fill."""

    def build():
        graphdef, state = nnx.split(Decoder(config, rngs=nnx.Rngs(params=jax.random.key(0))))
        return graphdef, nnx.to_pure_dict(state)

    return jax.eval_shape(build)


def create(config: DecoderConfig, key: Key[Array, ""]) -> tuple[GraphDef, Params]:
    """Draws a random decoder; consumes `key`.

    Matrices are normal with variance 1 / (columns in), embeddings with 1 / D; the two projections
    back into the residual stream are smaller by sqrt(2 L). Norms start at 1, biases at 0.

    Args:
        config: its sizes.
        key: for the initial weights.

    Returns:
        (graphdef, params): `nnx.merge(graphdef, params)` is the decoder. Every array of
        `params["layers"]` has the layer as its first axis.
    """
    graphdef, shapes = abstract(config)
    # One draw for all: compiling a generator for each array took seconds.
    noise = jax.random.normal(key, (sum(leaf.size for leaf in jax.tree.leaves(shapes)),))
    start = 0

    def draw(path, leaf):
        nonlocal start
        name, parent = path[-1].key, path[-2].key if len(path) > 1 else ""
        if name in ("scale", "bias"):
            return jnp.full(leaf.shape, name == "scale", leaf.dtype)
        inputs = config.hidden_size if name in ("embedding", "head") else leaf.shape[-2]
        shrink = 2 * config.num_layers if parent in ("o", "down") else 1
        start += leaf.size
        piece = noise[start - leaf.size : start].reshape(leaf.shape)
        return (piece * (inputs * shrink) ** -0.5).astype(leaf.dtype)

    return graphdef, jax.tree_util.tree_map_with_path(draw, shapes)
