"""google-tunix, a peer of `trainer`; runs where only it is installed."""

import importlib.metadata
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tunix.generate import sampler as sampler_lib  # pyright: ignore[reportMissingImports]
from tunix.models.qwen2 import model as qwen2  # pyright: ignore[reportMissingImports]
from tunix.models.qwen2 import params as qwen2_params  # pyright: ignore[reportMissingImports]
from tunix.rl import algo_core, common  # pyright: ignore[reportMissingImports]
from tunix.rl import trainer as trainer_lib  # pyright: ignore[reportMissingImports]
from tunix.rl.grpo import grpo_learner  # pyright: ignore[reportMissingImports]
from tunix.sft import peft_trainer  # pyright: ignore[reportMissingImports]

from experiments.benchmarks.trainer_pipe import serve


class Numbers:
    """A tokenizer of space-separated token ids; its end and padding are no tokens of the model."""

    def __init__(self, vocab_size: int):
        self._vocab_size = vocab_size

    def encode(self, text: str, **options: Any) -> list[int]:
        """Ids of a text."""
        return [int(word) for word in text.split()]

    def decode(self, ids: list[int], **options: Any) -> str:
        """Text of ids."""
        return " ".join(map(str, ids))

    def bos_id(self) -> None:
        """None: the sampler would put it before the prompt."""

    def eos_id(self) -> int:
        """Never drawn."""
        return self._vocab_size + 1

    def pad_id(self) -> int:
        """Never drawn."""
        return self._vocab_size


def prepare(folder: Path) -> Mapping[str, Callable[[], dict[str, Any]]]:
    """Loads the work and makes the actions."""
    work = json.loads((folder / "work.json").read_text())
    rows = dict(np.load(folder / "rows.npz"))
    group, length = work["group_size"], work["response_length"]
    head_size = work["hidden_size"] // work["num_heads"]
    config = qwen2.ModelConfig(
        num_layers=work["num_layers"],
        vocab_size=work["vocab_size"],
        embed_dim=work["hidden_size"],
        hidden_dim=work["intermediate_size"],
        num_heads=work["num_heads"],
        head_dim=head_size,
        num_kv_heads=work["num_kv_heads"],
        rope_theta=1_000_000,
        norm_eps=1e-6,
        use_tied_embedding=True,
    )
    model = qwen2_params.create_model_from_safe_tensors(str(folder), config)
    tokenizer = Numbers(work["vocab_size"])
    prompts = rows["prompts"]
    repeated = np.repeat(prompts, group, axis=0)
    texts = [" ".join(map(str, prompt)) for prompt in repeated]
    sampler = sampler_lib.Sampler(
        model,
        tokenizer,
        sampler_lib.CacheConfig(
            cache_size=prompts.shape[1] + length,
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=head_size,
        ),
    )
    calls = iter(range(1, 1_000_000))

    def think() -> dict[str, Any]:
        mask = jnp.ones(prompts.shape, bool)
        positions = common.build_positions_from_mask(mask)
        out, _ = model(jnp.asarray(prompts), positions, None, common.make_causal_attn_mask(mask))
        np.save(folder / "logits_tunix.npy", np.asarray(out)[rows["mask"]])
        return {}

    def draw() -> dict[str, Any]:
        out = sampler(
            texts,
            max_generation_steps=length,
            max_prompt_length=prompts.shape[1],
            temperature=1.0,
            top_p=1.0,
            return_logprobs=True,
            seed=next(calls),
        )
        tokens = np.asarray(out.tokens)
        return {"tokens": tokens.size, "mean_log_prob": float(np.mean(out.logprobs))}

    # As `GRPOLearner` wires its actor's trainer, without the reference that beta = 0 leaves out.
    algorithm = grpo_learner.GRPOConfig(num_generations=group, beta=0.0)
    algorithm.temperature = 1.0
    trainer = trainer_lib.Trainer(
        model,
        optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-6, weight_decay=0.0)),
        peft_trainer.TrainingConfig(eval_every_n_steps=1_000_000),
        custom_checkpoint_metadata_fn=dict,
    )
    trainer.with_loss_fn(
        lambda model, train_example, algo_config: algo_core.grpo_loss_fn(
            model,
            train_example,
            algo_config=algorithm,
            pad_id=tokenizer.pad_id(),
            eos_id=tokenizer.eos_id(),
        ),
        has_aux=True,
    )
    trainer.with_gen_model_input_fn(
        lambda example: {"train_example": example, "algo_config": algorithm}
    )
    responses = jnp.asarray(rows["responses"])
    example = grpo_learner.TrainExample(
        prompt_ids=jnp.asarray(repeated),
        prompt_mask=jnp.ones(repeated.shape, bool),
        completion_ids=responses,
        completion_mask=jnp.ones(responses.shape, bool),
        advantages=jnp.asarray(rows["advantages"], jnp.float32),
        ref_per_token_logps=None,
        old_per_token_logps=None,
    )
    step, _ = trainer.jit_train_and_eval_step()

    def train() -> dict[str, Any]:
        _, _, norm = jax.block_until_ready(step(example))
        return {"gradient_norm": float(norm)}

    return {"logits": think, "sample": draw, "train": train}


def about() -> dict[str, Any]:
    """Versions."""
    packages = ("google-tunix", "jax", "flax")
    return {name: importlib.metadata.version(name) for name in packages}


if __name__ == "__main__":
    serve(prepare, about)
