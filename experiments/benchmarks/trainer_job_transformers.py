"""transformers on torch's CPU build, a peer of `trainer`; runs where only these are installed."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
import transformers  # pyright: ignore[reportMissingImports]

from experiments.benchmarks.trainer_pipe import serve

THREADS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def prepare(folder: Path) -> Mapping[str, Callable[[], dict[str, Any]]]:
    """Loads the work and makes the actions."""
    torch.set_num_threads(THREADS)
    work = json.loads((folder / "work.json").read_text())
    torch.manual_seed(work["seed"])
    rows = {name: torch.from_numpy(x) for name, x in np.load(folder / "rows.npz").items()}
    # Padding that all prompts share is no work.
    used = rows["mask"].any(dim=0)
    prompts, mask = rows["prompts"][:, used].long(), rows["mask"][:, used].long()
    responses = rows["responses"].long()
    group, length = work["group_size"], work["response_length"]
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa"
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.0, fused=True)
    # Of the arguments of `generate`, None stands for the file's or the family's own.
    model.generation_config.eos_token_id = None

    def think() -> dict[str, Any]:
        model.eval()
        with torch.inference_mode():
            out = model(
                prompts, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)
            ).logits
        np.save(folder / "logits_transformers.npy", out[mask.bool()].numpy())
        return {}

    def sampler(log_probs: bool = False, **options: Any) -> Callable[[], dict[str, Any]]:
        def action() -> dict[str, Any]:
            model.eval()
            with torch.inference_mode():
                out = model.generate(
                    prompts,
                    attention_mask=mask,
                    num_return_sequences=group,
                    do_sample=True,
                    temperature=1.0,
                    top_k=0,
                    top_p=1.0,
                    max_new_tokens=length,
                    min_new_tokens=length,
                    eos_token_id=None,
                    pad_token_id=0,
                    return_dict_in_generate=True,
                    output_logits=log_probs,
                    **options,
                )
                drawn = out.sequences[:, prompts.shape[1] :]
                found = {"tokens": drawn.numel()}
                if log_probs:
                    scores = model.compute_transition_scores(
                        out.sequences, out.logits, normalize_logits=True
                    )
                    found["mean_log_prob"] = scores.mean().item()
            return found

        return action

    def repeated(x: torch.Tensor) -> torch.Tensor:
        return x.repeat_interleave(group, dim=0)

    sequences = torch.cat([repeated(prompts), responses], dim=1)
    everywhere = torch.cat([repeated(mask), torch.ones_like(responses)], dim=1)
    positions = (everywhere.cumsum(1) - 1).clamp(min=0)
    advantages = rows["advantages"].float()[:, None]
    parts = torch.arange(len(responses)).chunk(work["peer_parts"])

    def train() -> dict[str, Any]:
        model.train()
        optimizer.zero_grad()
        for part in parts:
            out = model(
                sequences[part],
                attention_mask=everywhere[part],
                position_ids=positions[part],
                use_cache=False,
                logits_to_keep=length + 1,
            )
            log_probs = torch.log_softmax(out.logits[:, :-1], dim=-1)
            log_probs = log_probs.gather(-1, responses[part, :, None])[..., 0]
            ratio = torch.exp(log_probs - log_probs.detach())
            gain = advantages[part]
            surrogate = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
            loss = -surrogate.mean(dim=1).sum() / len(responses)
            loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return {"gradient_norm": norm.item()}

    actions = {
        "logits": think,
        "sample": sampler(),
        "train": train,
        "sample, static cache": sampler(cache_implementation="static"),
    }
    return actions | ({"sample, log-probs": sampler(log_probs=True)} if work["variants"] else {})


def about() -> dict[str, Any]:
    """Versions and settings."""
    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "attention": "sdpa",
        "threads": torch.get_num_threads(),
    }


if __name__ == "__main__":
    serve(prepare, about)
