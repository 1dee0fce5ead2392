"""Decoders from GGUF files, whatever their quantisation."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from paced_jax.policy import weight_names
from paced_jax.policy.config import DecoderConfig
from paced_jax.policy.decoder import GraphDef, Params, abstract
from paced_jax.policy.weight_names import GGUF, Place

FAMILIES = ("llama", "qwen2")
"""Values of general.architecture."""


def open_file(path: Path) -> Any:
    """A `GGUFReader` of the package gguf, which maps the file into memory.

    Raises:
        ValueError: there is no such file, or it is no GGUF file.
    """
    from gguf import GGUFReader

    if not path.is_file():
        raise ValueError(f"path: there is no file {path}")
    try:
        return GGUFReader(path)
    except (ValueError, IndexError) as error:
        raise ValueError(f"path: {path} is no GGUF file: {error}") from error


def field(reader: Any, name: str, default: Any = None) -> Any:
    """A value of the file's metadata.

    Raises:
        ValueError: it is missing and there is no default.
    """
    found = reader.get_field(name)
    if found is None and default is None:
        raise ValueError(f"the file has no {name}")
    return default if found is None else found.contents()


def read_config(
    reader: Any, *, dtype: str = "float32", param_dtype: str | None = None
) -> DecoderConfig:
    """Reads the sizes of the decoder from the metadata.

    Raises:
        ValueError: another family, or rotary positions other than the plain ones.
    """
    family = field(reader, "general.architecture")
    if family not in FAMILIES:
        raise ValueError(f"general.architecture must be one of {FAMILIES}, got {family!r}")
    scaling = field(reader, f"{family}.rope.scaling.type", "none")
    shapes = {tensor.name: tensor.shape for tensor in reader.tensors}
    if scaling != "none" or "rope_freqs.weight" in shapes:
        raise ValueError(f"{family}.rope.scaling.type must be 'none', got {scaling!r}")
    if "token_embd.weight" not in shapes:
        raise ValueError("the file has no token_embd.weight")
    heads = field(reader, f"{family}.attention.head_count")
    width = field(reader, f"{family}.embedding_length")
    head_dim = field(reader, f"{family}.attention.key_length", width // heads)
    return DecoderConfig(
        vocab_size=int(shapes["token_embd.weight"][1]),
        hidden_size=width,
        num_layers=field(reader, f"{family}.block_count"),
        num_heads=heads,
        num_kv_heads=field(reader, f"{family}.attention.head_count_kv", heads),
        intermediate_size=field(reader, f"{family}.feed_forward_length"),
        head_dim=None if head_dim == width / heads else head_dim,
        rope_theta=float(field(reader, f"{family}.rope.freq_base", 10_000.0)),
        rms_norm_eps=float(field(reader, f"{family}.attention.layer_norm_rms_epsilon")),
        qkv_bias="blk.0.attn_q.bias" in shapes,
        tie_embeddings="output.weight" not in shapes,
        dtype=dtype,
        param_dtype=param_dtype or dtype,
    )


def unpermute(rows: np.ndarray, head_size: int) -> np.ndarray:
    """Rows of queries or keys from pairs (2i, 2i + 1) to pairs (i, i + H/2).

    llama.cpp turns neighbours where this library and Hugging Face turn halves; its converter
    permutes the rows of the Llama family, and only of it.

    Args:
        rows: [heads * H, ...].
        head_size: H.
    """
    pairs = rows.reshape(-1, head_size // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def stream(reader: Any, config: DecoderConfig) -> Iterator[tuple[str, np.ndarray]]:
    """(name, float32 array) of every tensor, dequantised one at a time."""
    from gguf.quants import dequantize

    llama = field(reader, "general.architecture") == "llama"
    where: dict[str, Place] = weight_names.places(config, GGUF)
    for tensor in reader.tensors:
        array = dequantize(tensor.data, tensor.tensor_type)
        array = array.reshape(tuple(int(size) for size in tensor.shape[::-1]))
        place = where.get(tensor.name)
        if llama and place is not None and place.module in ("q", "k"):
            array = unpermute(array, config.head_size)
        yield tensor.name, array


def load(
    path: Path,
    *,
    dtype: str = "float32",
    param_dtype: str | None = None,
    reader: Any = None,
) -> tuple[GraphDef, Params, DecoderConfig]:
    """Reads a decoder, tensor by tensor.

    Args:
        path: of the file.
        dtype: of activations.
        param_dtype: of parameters; as activations by default.
        reader: of this file, where it is open already: opening takes seconds.

    Returns:
        (graphdef, params, config), as `decoder.create` makes them.

    Raises:
        ValueError: as `open_file`, `read_config` and `weight_names.fill`, naming the file.
    """
    reader = open_file(path) if reader is None else reader
    try:
        config = read_config(reader, dtype=dtype, param_dtype=param_dtype)
        params = weight_names.fill(config, GGUF, stream(reader, config))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return abstract(config)[0], params, config
