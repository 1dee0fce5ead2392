"""The work that all contenders of the trainer's benchmark do: one policy, its prompts, its rows.

The weights are drawn once and written under Hugging Face's names, so that every library loads the
same Qwen2. Biases and norms are drawn too: at 0 and 1 they would hide a mistake.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from paced_jax.policy.config import DecoderConfig
from paced_jax.policy.decoder import GraphDef, Params, abstract, create


@dataclass(frozen=True, kw_only=True)
class Work:
    """Sizes of the work.

    Attributes:
        vocab_size: V.
        hidden_size: D.
        num_layers: L.
        num_heads: query heads.
        num_kv_heads: key-value heads.
        intermediate_size: width of SwiGLU.
        prompts: M, unique prompts.
        prompt_length: P, tokens of every prompt.
        group_size: responses to a prompt.
        response_length: T, tokens of every response.
        seed: of weights, prompts, responses and rewards.
    """

    vocab_size: int = 2_048
    hidden_size: int = 256
    num_layers: int = 4
    num_heads: int = 8
    num_kv_heads: int = 2
    intermediate_size: int = 704
    prompts: int = 8
    prompt_length: int = 256
    group_size: int = 8
    response_length: int = 64
    seed: int = 0

    @property
    def rows(self) -> int:
        """R."""
        return self.prompts * self.group_size

    @property
    def decoder(self) -> DecoderConfig:
        """The policy: a Qwen2 with tied embeddings."""
        return DecoderConfig(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            intermediate_size=self.intermediate_size,
            rope_theta=1e6,
            qkv_bias=True,
        )


def draw_policy(work: Work) -> tuple[GraphDef, Params]:
    """The random policy, its biases and norms included."""
    graphdef, params = create(work.decoder, jax.random.key(work.seed))
    rng = np.random.default_rng(work.seed)

    def stir(path, leaf):
        if path[-1].key not in ("bias", "scale"):
            return leaf
        return leaf + 0.1 * rng.standard_normal(leaf.shape, np.float32)

    return graphdef, jax.tree_util.tree_map_with_path(stir, params)


def to_hugging_face(config: DecoderConfig, params: Params) -> dict[str, np.ndarray]:
    """The parameters under Hugging Face's names, matrices as [outputs, inputs]."""
    layers = jax.tree.map(np.asarray, params["layers"])
    ends = np.cumsum([config.num_heads, config.num_kv_heads]) * config.head_size
    out = {
        "model.embed_tokens.weight": np.asarray(params["embedding"]),
        "model.norm.weight": np.asarray(params["norm"]["scale"]),
    }
    for i in range(config.num_layers):
        start = f"model.layers.{i}."
        out[start + "input_layernorm.weight"] = layers["attention_norm"]["scale"][i]
        out[start + "post_attention_layernorm.weight"] = layers["mlp_norm"]["scale"][i]
        out[start + "self_attn.o_proj.weight"] = layers["o"]["kernel"][i].T
        out[start + "mlp.down_proj.weight"] = layers["down"]["kernel"][i].T
        for name, kind in (("kernel", "weight"), ("bias", "bias")):
            columns = np.split(layers["qkv"][name][i], ends, axis=-1)
            for which, piece in zip("qkv", columns, strict=True):
                out[f"{start}self_attn.{which}_proj.{kind}"] = piece.T
        gate, up = np.split(layers["gate_up"]["kernel"][i], 2, axis=-1)
        out[start + "mlp.gate_proj.weight"] = gate.T
        out[start + "mlp.up_proj.weight"] = up.T
    return {name: np.ascontiguousarray(array, np.float32) for name, array in out.items()}


def from_hugging_face(config: DecoderConfig, tensors: dict[str, np.ndarray]) -> Params:
    """The reverse of `to_hugging_face`."""

    def layer(i: int) -> dict[str, Any]:
        own = {
            name.removeprefix(f"model.layers.{i}."): array
            for name, array in tensors.items()
            if name.startswith(f"model.layers.{i}.")
        }

        def join(names: list[str], kind: str) -> np.ndarray:
            return np.concatenate([own[f"{name}_proj.{kind}"].T for name in names], axis=-1)

        heads = [f"self_attn.{which}" for which in "qkv"]
        return {
            "attention_norm": {"scale": own["input_layernorm.weight"]},
            "qkv": {"kernel": join(heads, "weight"), "bias": join(heads, "bias")},
            "o": {"kernel": own["self_attn.o_proj.weight"].T},
            "mlp_norm": {"scale": own["post_attention_layernorm.weight"]},
            "gate_up": {"kernel": join(["mlp.gate", "mlp.up"], "weight")},
            "down": {"kernel": own["mlp.down_proj.weight"].T},
        }

    layers = jax.tree.map(lambda *x: np.stack(x), *map(layer, range(config.num_layers)))
    return {
        "embedding": tensors["model.embed_tokens.weight"],
        "layers": layers,
        "norm": {"scale": tensors["model.norm.weight"]},
    }


def write_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """Writes float32 arrays as safetensors: length of the header, header, bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, array in tensors.items():
        start, end = end, end + array.nbytes
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in tensors.values():
            file.write(array.tobytes())


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Reads them back."""
    content = path.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    header.pop("__metadata__", None)

    def array(entry: dict[str, Any]) -> np.ndarray:
        start, end = entry["data_offsets"]
        return np.frombuffer(content[begin + start : begin + end], "<f4").reshape(entry["shape"])

    return {name: array(entry) for name, entry in header.items()}


def write(work: Work, folder: Path) -> None:
    """Writes `model.safetensors`, `config.json`, `work.json` and `rows.npz`.

    `rows.npz` has prompts [M, P], responses [R, T], rewards [R] of 0 and 1, and group-normalised
    advantages [R].
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = work.decoder
    graphdef, params = draw_policy(work)
    shapes = jax.tree.map(np.shape, abstract(config)[1])
    tensors = to_hugging_face(config, params)
    assert jax.tree.map(np.shape, from_hugging_face(config, tensors)) == shapes
    del graphdef
    write_safetensors(folder / "model.safetensors", tensors)
    description = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "intermediate_size": config.intermediate_size,
        "rope_theta": config.rope_theta,
        "rms_norm_eps": config.rms_norm_eps,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "max_position_embeddings": work.prompt_length + work.response_length,
        "dtype": "float32",
        "use_cache": True,
    }
    (folder / "config.json").write_text(json.dumps(description, indent=1) + "\n")
    (folder / "work.json").write_text(json.dumps(asdict(work)) + "\n")
    rng = np.random.default_rng(work.seed + 1)
    rewards = rng.integers(0, 2, (work.prompts, work.group_size)).astype(np.float32)
    rewards[:, 0], rewards[:, -1] = 0, 1
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    advantages = centred / (rewards.std(axis=1, ddof=1, keepdims=True) + 1e-6)
    np.savez(
        folder / "rows.npz",
        prompts=rng.integers(0, work.vocab_size, (work.prompts, work.prompt_length), np.int32),
        responses=rng.integers(0, work.vocab_size, (work.rows, work.response_length), np.int32),
        rewards=rewards.reshape(-1),
        advantages=advantages.reshape(-1),
    )
