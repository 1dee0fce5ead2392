"""Which tensor of a weight file is which part of a decoder's parameters.

Files keep queries, keys, values, gate and up apart and matrices as [outputs, inputs]; a decoder
keeps them side by side, layers stacked, matrices as [inputs, outputs].
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Num

from paced_jax.policy.config import DecoderConfig
from paced_jax.policy.decoder import Params, abstract

HUGGING_FACE = {
    "embedding": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "attention_norm": "model.layers.{}.input_layernorm",
    "q": "model.layers.{}.self_attn.q_proj",
    "k": "model.layers.{}.self_attn.k_proj",
    "v": "model.layers.{}.self_attn.v_proj",
    "o": "model.layers.{}.self_attn.o_proj",
    "mlp_norm": "model.layers.{}.post_attention_layernorm",
    "gate": "model.layers.{}.mlp.gate_proj",
    "up": "model.layers.{}.mlp.up_proj",
    "down": "model.layers.{}.mlp.down_proj",
}
"""Modules of LlamaForCausalLM and Qwen2ForCausalLM; `.weight` and `.bias` come after."""

GGUF = {
    "embedding": "token_embd",
    "norm": "output_norm",
    "head": "output",
    "attention_norm": "blk.{}.attn_norm",
    "q": "blk.{}.attn_q",
    "k": "blk.{}.attn_k",
    "v": "blk.{}.attn_v",
    "o": "blk.{}.attn_output",
    "mlp_norm": "blk.{}.ffn_norm",
    "gate": "blk.{}.ffn_gate",
    "up": "blk.{}.ffn_up",
    "down": "blk.{}.ffn_down",
}
"""The same modules in a GGUF file."""

DERIVED = re.compile(r".*\.rotary_emb\.inv_freq")
"""Tensors of old files that the configuration already says."""


class Place(NamedTuple):
    """Where a tensor lies in a decoder's parameters.

    Attributes:
        path: of the parameter.
        layer: its index on the first axis; None for what isn't stacked.
        start: first of its columns on the last axis.
        shape: of the tensor in the file.
        module: its key in `HUGGING_FACE`.
    """

    path: tuple[str, ...]
    layer: int | None
    start: int
    shape: tuple[int, ...]
    module: str

    @property
    def columns(self) -> slice:
        """Of the last axis of the parameter."""
        width = self.shape[-1] if self.path[0] == "embedding" else self.shape[0]
        return slice(self.start, self.start + width)

    @property
    def turned(self) -> bool:
        """Whether the file has the matrix the other way round."""
        return len(self.shape) == 2 and self.path[0] != "embedding"


def places(config: DecoderConfig, names: Mapping[str, str]) -> dict[str, Place]:
    """The place of every tensor that a file of this decoder has.

    Args:
        config: of the decoder.
        names: `HUGGING_FACE` or `GGUF`.

    Example:
        >>> config = DecoderConfig(vocab_size=9, hidden_size=8, num_layers=1, num_heads=2,
        ...                        num_kv_heads=1, intermediate_size=12)
        >>> places(config, HUGGING_FACE)["model.layers.0.self_attn.k_proj.weight"]
        Place(path=('layers', 'qkv', 'kernel'), layer=0, start=8, shape=(4, 8), module='k')
    """
    d, f, h = config.hidden_size, config.intermediate_size, config.head_size
    queries, keys = config.num_heads * h, config.num_kv_heads * h
    # (module, parameter, first column, outputs, inputs)
    matrices = [
        ("q", "qkv", 0, queries, d),
        ("k", "qkv", queries, keys, d),
        ("v", "qkv", queries + keys, keys, d),
        ("o", "o", 0, d, queries),
        ("gate", "gate_up", 0, f, d),
        ("up", "gate_up", f, f, d),
        ("down", "down", 0, d, f),
    ]
    vocabulary = (config.vocab_size, d)
    found = {
        f"{names['embedding']}.weight": Place(("embedding",), None, 0, vocabulary, "embedding"),
        f"{names['norm']}.weight": Place(("norm", "scale"), None, 0, (d,), "norm"),
    }
    if not config.tie_embeddings:
        found[f"{names['head']}.weight"] = Place(("head",), None, 0, vocabulary, "head")
    for layer in range(config.num_layers):
        for module in ("attention_norm", "mlp_norm"):
            path = ("layers", module, "scale")
            found[f"{names[module].format(layer)}.weight"] = Place(path, layer, 0, (d,), module)
        for module, parameter, start, outputs, inputs in matrices:
            name, path = names[module].format(layer), ("layers", parameter)
            shape = (outputs, inputs)
            found[f"{name}.weight"] = Place((*path, "kernel"), layer, start, shape, module)
            if config.qkv_bias and parameter == "qkv":
                found[f"{name}.bias"] = Place((*path, "bias"), layer, start, (outputs,), module)
    return found


def fill(
    config: DecoderConfig,
    names: Mapping[str, str],
    tensors: Iterable[tuple[str, Num[np.ndarray, "..."]]],
) -> Params:
    """Puts the tensors of a file where they belong, one by one.

    Each is cast to `config.param_dtype` as it comes, so that no second copy of the model is held.

    Args:
        config: of the decoder.
        names: `HUGGING_FACE` or `GGUF`.
        tensors: (name, array), read as they are asked for.

    Returns:
        Parameters, on the default device.

    Raises:
        ValueError: tensors that are missing, that have no place, come twice, have another shape,
            or a head that is not the transposed embedding it should be, naming them.
    """
    _, shapes = abstract(config)
    arrays = jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), shapes)
    where = places(config, names)
    head = f"{names['head']}.weight"
    missing, unknown, tied = set(where), [], None
    for name, tensor in tensors:
        if name not in where:
            if name == head and config.tie_embeddings:
                tied = np.asarray(tensor)
            elif not DERIVED.fullmatch(name):
                unknown.append(name)
            continue
        place = where[name]
        if tensor.shape != place.shape:
            raise ValueError(f"{name} must have shape {place.shape}, got {tensor.shape}")
        if name not in missing:
            raise ValueError(f"{name} comes twice")
        missing.remove(name)
        target = _find(arrays, place.path)
        rows = target if place.layer is None else target[place.layer]
        rows[..., place.columns] = tensor.T if place.turned else tensor
    for what, odd in (("missing", sorted(missing)), ("without a place", sorted(unknown))):
        if odd:
            more = f" and {len(odd) - 8} more" if len(odd) > 8 else ""
            raise ValueError(f"tensors {what}: {', '.join(odd[:8])}{more}")
    if tied is not None and not np.array_equal(
        tied.astype(config.param_dtype), arrays["embedding"]
    ):
        raise ValueError(f"{head} differs from the embedding, the configuration says they are tied")
    return jax.tree.map(jnp.asarray, arrays)


def split(
    config: DecoderConfig, names: Mapping[str, str], params: Params
) -> Iterator[tuple[str, Num[np.ndarray, "..."]]]:
    """The reverse of `fill`: the tensors of a file, one by one, contiguous, dtype as stored."""
    for name, place in places(config, names).items():
        parameter: Array = _find(params, place.path)
        rows = parameter if place.layer is None else parameter[place.layer]
        piece = np.asarray(rows[..., place.columns])
        yield name, np.ascontiguousarray(piece.T if place.turned else piece)


def num_parameters(config: DecoderConfig) -> int:
    """How many numbers a decoder has."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(abstract(config)[1]))


def _find(tree, path):
    for key in path:
        tree = tree[key]
    return tree
