"""Decoders from and to Hugging Face model directories: config.json and safetensors."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  numpy then knows bfloat16
import numpy as np

from fade_jax.json_files import read_json
from paced_jax.policy import weight_names
from paced_jax.policy.config import DecoderConfig
from paced_jax.policy.decoder import GraphDef, Params, abstract
from paced_jax.policy.weight_names import HUGGING_FACE

FAMILIES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
"""By model_type."""

SHARD_BYTES = 5 * 10**9
"""Most bytes of a file of an exported model."""


def read_config(
    directory: Path, *, dtype: str = "float32", param_dtype: str | None = None
) -> DecoderConfig:
    """Reads config.json.

    Args:
        directory: of the model.
        dtype: of activations.
        param_dtype: of parameters; as activations by default.

    Raises:
        ValueError: a family, or an option of one, that `Decoder` has not, naming field and value.
    """
    path = directory / "config.json"
    if not path.exists():
        raise ValueError(f"directory: {directory} has no config.json")
    content = read_json(path)
    return of_description(content, str(path), dtype=dtype, param_dtype=param_dtype)


def of_description(
    content: dict[str, Any], source: str, *, dtype: str = "float32", param_dtype: str | None = None
) -> DecoderConfig:
    """What config.json says as a `DecoderConfig`; arguments and errors as `read_config`."""
    family = content.get("model_type")
    if family not in FAMILIES:
        raise ValueError(f"{source}: model_type must be one of {list(FAMILIES)}, got {family!r}")
    rope = content.get("rope_parameters") or content.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    needed = {
        "rope_type": (kind, "default"),
        "hidden_act": (content.get("hidden_act", "silu"), "silu"),
        "use_sliding_window": (content.get("use_sliding_window", False), False),
        "mlp_bias": (content.get("mlp_bias", False), False),
        "use_mrope": (content.get("use_mrope", False), False),
    }
    if family == "llama":
        needed["attention_bias"] = (content.get("attention_bias", False), False)
    for name, (value, wanted) in needed.items():
        if value != wanted:
            raise ValueError(f"{source}: {name} must be {wanted!r}, got {value!r}")
    try:
        heads, width = content["num_attention_heads"], content["hidden_size"]
        head_dim = content.get("head_dim")
        return DecoderConfig(
            vocab_size=content["vocab_size"],
            hidden_size=width,
            num_layers=content["num_hidden_layers"],
            num_heads=heads,
            num_kv_heads=content.get("num_key_value_heads") or heads,
            intermediate_size=content["intermediate_size"],
            head_dim=None if head_dim == width / heads else head_dim,
            rope_theta=float(rope.get("rope_theta") or content.get("rope_theta") or 10_000.0),
            rms_norm_eps=content.get("rms_norm_eps", 1e-6),
            qkv_bias=family == "qwen2",
            tie_embeddings=content.get("tie_word_embeddings", False),
            dtype=dtype,
            param_dtype=param_dtype or dtype,
        )
    except KeyError as missing:
        raise ValueError(f"{source}: {missing.args[0]} is missing") from None


def describe(config: DecoderConfig) -> dict[str, Any]:
    """config.json of a decoder: Qwen2 where queries, keys and values have a bias, else Llama."""
    family = "qwen2" if config.qkv_bias else "llama"
    return {
        "architectures": [FAMILIES[family]],
        "model_type": family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_size,
        "intermediate_size": config.intermediate_size,
        "rope_theta": config.rope_theta,
        "rms_norm_eps": config.rms_norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
        "hidden_act": "silu",
        "dtype": config.param_dtype,
    }


def shards(directory: Path) -> list[Path]:
    """The safetensors files of a model: those its index names, or the only one.

    Raises:
        ValueError: there is none, or one that the index names is not there.
    """
    index = directory / "model.safetensors.index.json"
    if index.exists():
        files = set(read_json(index)["weight_map"].values())
        found = [directory / name for name in sorted(files)]
    else:
        found = sorted(directory.glob("*.safetensors"))
    missing = [path.name for path in found if not path.exists()]
    if missing or not found:
        raise ValueError(f"directory: {directory} lacks {missing or 'a safetensors file'}")
    return found


def stream(files: list[Path]) -> Iterator[tuple[str, np.ndarray]]:
    """(name, array) of every tensor, read one at a time.

    Raises:
        ValueError: a file is cut or damaged; names it.
    """
    from safetensors import SafetensorError, safe_open

    for path in files:
        try:
            with safe_open(path, framework="numpy") as file:
                for name in file.keys():
                    yield name, file.get_tensor(name)
        except SafetensorError as error:
            raise ValueError(f"{path.name}: {error}") from error


def load(
    directory: Path, *, dtype: str = "float32", param_dtype: str | None = None
) -> tuple[GraphDef, Params, DecoderConfig]:
    """Reads a model directory, tensor by tensor.

    Args:
        directory: with config.json and safetensors files, sharded or not.
        dtype: of activations.
        param_dtype: of parameters, whatever the files have; as activations by default.

    Returns:
        (graphdef, params, config), as `decoder.create` makes them.

    Raises:
        ValueError: as `read_config`, `shards` and `weight_names.fill`, naming the directory.
    """
    config = read_config(directory, dtype=dtype, param_dtype=param_dtype)
    try:
        params = weight_names.fill(config, HUGGING_FACE, stream(shards(directory)))
    except ValueError as error:
        raise ValueError(f"{directory}: {error}") from error
    return abstract(config)[0], params, config


def save(
    directory: Path, config: DecoderConfig, params: Params, *, shard_bytes: int = SHARD_BYTES
) -> None:
    """Writes a directory that transformers loads, and `load` too; dtype as stored.

    Args:
        directory: made if missing; must hold no weights.
        config: of the decoder.
        params: its parameters.
        shard_bytes: most bytes of a file, unless one tensor is larger.

    Raises:
        ValueError: the directory holds weights already.
    """
    from safetensors.numpy import save_file

    if list(directory.glob("*.safetensors*")):
        raise ValueError(f"directory: {directory} holds weights already")
    directory.mkdir(parents=True, exist_ok=True)
    sizes = {
        name: math.prod(place.shape) * np.dtype(config.param_dtype).itemsize
        for name, place in weight_names.places(config, HUGGING_FACE).items()
    }
    # In the order of the tensors: a file is full where the next tensor would not fit.
    ends, used = [], 0
    for position, size in enumerate(sizes.values()):
        if used and used + size > shard_bytes:
            ends.append(position)
            used = 0
        used += size
    ends.append(len(sizes))
    tensors = weight_names.split(config, HUGGING_FACE, params)
    weight_map: dict[str, str] = {}
    start = 0
    for number, end in enumerate(ends, 1):
        name = "model.safetensors"
        if len(ends) > 1:
            name = f"model-{number:05d}-of-{len(ends):05d}.safetensors"
        shard = dict(next(tensors) for _ in range(end - start))
        save_file(shard, directory / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, name)
        start = end
    if len(ends) > 1:
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    (directory / "config.json").write_text(json.dumps(describe(config), indent=1) + "\n")
