"""The work that all contenders of the trainer's benchmark do: one policy, its prompts, its rows.

The weights are drawn once and written under Hugging Face's names, so that every library loads the
same Qwen2. Biases and norms are drawn too: at 0 and 1 they would hide a mistake.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import numpy as np

from paced_jax.policy import hf
from paced_jax.policy.config import DecoderConfig
from paced_jax.policy.decoder import GraphDef, Params, create


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


def write(work: Work, folder: Path) -> None:
    """Writes `model.safetensors`, `config.json`, `work.json` and `rows.npz`.

    `rows.npz` has prompts [M, P], responses [R, T], rewards [R] of 0 and 1, and group-normalised
    advantages [R].
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.safetensors*"):
        old.unlink()
    hf.save(folder, work.decoder, draw_policy(work)[1])
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
