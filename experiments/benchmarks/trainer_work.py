"""The work that all contenders of the trainer's benchmark do: one policy, its prompts, its rows.

The weights, drawn or those of SmolLM2, are written once under Hugging Face's names, so that every
library loads the same policy. Biases and norms are drawn too: at 0 and 1 they would hide a mistake.
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import jax
import numpy as np

from experiments.settings import SMOLLM2
from paced_jax.policy import hf, smollm2
from paced_jax.policy.config import DecoderConfig
from paced_jax.policy.decoder import GraphDef, Params, create
from paced_jax.tasks import arithmetic

SIZES = (
    "vocab_size",
    "hidden_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "intermediate_size",
)
"""Fields of `Work` that a policy has too."""


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
        model: whose weights: drawn, or those of SmolLM2, whose sizes the sizes must be.
        task: what the prompts are: random tokens, or the first training prompts of the arithmetic
            task, padded to prompt_length.
        peer_parts: parts that transformers' train step is run in where its activations would not
            fit into memory at once; their gradients add up to the same.
        variants: whether to time what explains a time too, beside sampler and train step.
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
    model: Literal["random", "smollm2"] = "random"
    task: Literal["random", "arithmetic"] = "random"
    peer_parts: int = 1
    variants: bool = True

    @property
    def rows(self) -> int:
        """R."""
        return self.prompts * self.group_size

    @property
    def decoder(self) -> DecoderConfig:
        """The random policy: a Qwen2 with tied embeddings."""
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


def smollm2_works(seed: int) -> dict[str, Work]:
    """SmolLM2 on prompts and answers of its setting in `settings`, and on longer ones.

    Args:
        seed: of prompts, responses and rewards.

    Returns:
        `Work` by name.
    """
    setting = Work(
        vocab_size=49_152,
        hidden_size=576,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        intermediate_size=1_536,
        prompts=SMOLLM2.num_prompts,
        prompt_length=43,
        group_size=SMOLLM2.group_size,
        response_length=9,
        seed=seed,
        model="smollm2",
        task="arithmetic",
    )
    longer = replace(
        setting,
        prompt_length=128,
        response_length=64,
        task="random",
        peer_parts=setting.prompts,
        variants=False,
    )
    return {"few-shot arithmetic": setting, "longer prompts and responses": longer}


def write_policy(work: Work, folder: Path) -> None:
    """Writes `model.safetensors` and `config.json` in place of what is there.

    Raises:
        ValueError: the sizes are not SmolLM2's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if work.model == "random":
        config, params = work.decoder, draw_policy(work)[1]
    else:
        _, params, config, _ = smollm2.load()
        for name in SIZES:
            if getattr(work, name) != getattr(config, name):
                raise ValueError(
                    f"{name}: SmolLM2 has {getattr(config, name)}, got {getattr(work, name)}"
                )
    for old in folder.glob("*.safetensors*"):
        old.unlink()
    hf.save(folder, config, params)


def draw_prompts(work: Work, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Tokens [M, P] int32, padded on the left, and which of them are real.

    Raises:
        ValueError: prompts or answers of the task have other lengths.
    """
    shape = work.prompts, work.prompt_length
    if work.task == "random":
        return rng.integers(0, work.vocab_size, shape, np.int32), np.ones(shape, bool)
    tokenizer = smollm2.load()[3]
    pool = arithmetic.build_pool(tokenizer, SMOLLM2.pool_seed, num_train=SMOLLM2.num_train).train
    found = pool.prompt_tokens.shape[1], pool.answer_tokens.shape[1]
    if found != (work.prompt_length, work.response_length):
        raise ValueError(f"prompt_length, response_length: must be {found} for {work.task!r}")
    tokens, mask = pool.prompt_tokens[: work.prompts], pool.prompt_mask[: work.prompts]
    order = np.argsort(mask, axis=1, kind="stable")
    return np.take_along_axis(tokens, order, axis=1), np.take_along_axis(mask, order, axis=1)


def write(work: Work, folder: Path) -> None:
    """Writes `work.json` and `rows.npz`.

    `rows.npz` has prompts [M, P] and mask [M, P] of their real tokens, which padding precedes;
    responses [R, T], rewards [R] of 0 and 1, and group-normalised advantages [R].
    """
    (folder / "work.json").write_text(json.dumps(asdict(work)) + "\n")
    rng = np.random.default_rng(work.seed + 1)
    rewards = rng.integers(0, 2, (work.prompts, work.group_size)).astype(np.float32)
    rewards[:, 0], rewards[:, -1] = 0, 1
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    advantages = centred / (rewards.std(axis=1, ddof=1, keepdims=True) + 1e-6)
    prompts, mask = draw_prompts(work, rng)
    np.savez(
        folder / "rows.npz",
        prompts=prompts,
        mask=mask,
        responses=rng.integers(0, work.vocab_size, (work.rows, work.response_length), np.int32),
        rewards=rewards.reshape(-1),
        advantages=advantages.reshape(-1),
    )
