"""A language model small enough to compare whole: a byte-level tokenizer and a random decoder."""

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
from random_policy import random_policy

from paced_jax.policy.config import DecoderConfig
from paced_jax.policy.language_model import LanguageModel
from paced_jax.policy.text import Tokenizer
from paced_jax.verifiers.verdicts import as_verdicts

TEMPLATE = (
    "{% for m in messages %}<{{ m['role'][0] }}>{{ m['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)


@functools.cache
def tokenizer(template: str | None = TEMPLATE) -> Tokenizer:
    """One token a byte, and one that ends a text."""
    import tokenizers

    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: i for i, letter in enumerate(alphabet)}
    backend: Any = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>"])
    end = backend.token_to_id("<|end|>")
    return Tokenizer(backend, end, template, {"eos_token": "<|end|>"})


@functools.cache
def model() -> LanguageModel:
    """A decoder of one layer over the bytes."""
    config = DecoderConfig(
        vocab_size=tokenizer().backend.get_vocab_size(),
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        intermediate_size=16,
    )
    return LanguageModel(*random_policy(config), config, tokenizer())


class SameLetter:
    """Right where the response has the gold letter; none where it has a NUL byte."""

    def verify(self, responses, golds):
        rows = [
            (-1, "none", 0.0) if "\x00" in text else (int(gold in text), "read", 0.0)
            for text, gold in zip(responses, golds, strict=True)
        ]
        return as_verdicts(rows)

    def close(self):
        pass


def write_prompts(path: Path, count: int = 60) -> Path:
    """Additions whose answers are their sums, from two sources."""
    rng = np.random.default_rng(0)
    lines = [
        {"prompt": f"{a}+{i}=", "answer": str(a + i), "kind": "even" if i % 2 == 0 else "odd"}
        for i, a in enumerate(rng.integers(0, 90, count).tolist())
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
