"""Text to tokens and back, with the tokenizer and the chat template that a model came with."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from fade_jax.json_files import read_json

Message = dict[str, str]
"""`{"role": "system" | "user" | "assistant", "content": text}`."""


class Tokenizer(NamedTuple):
    """A tokenizer and what its model says about it.

    Attributes:
        backend: a `tokenizers.Tokenizer`.
        eos_id: the token that ends a response.
        chat_template: Jinja source; None for a model without one.
        special: text of the special tokens by name, such as `bos_token`, for the template.
    """

    backend: Any
    eos_id: int
    chat_template: str | None
    special: dict[str, str]

    def encode(self, text: str) -> list[int]:
        """Token ids; special tokens written out in the text are recognised, none is added."""
        return self.backend.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the tokens, without special ones."""
        return self.backend.decode(list(ids), skip_special_tokens=True)

    def decode_responses(
        self, tokens: Int[np.ndarray, "R T"], action_mask: Bool[np.ndarray, "R T"]
    ) -> list[str]:
        """Text of every response, without what is masked and without special tokens."""
        rows = [row[mask].tolist() for row, mask in zip(tokens, action_mask, strict=True)]
        return self.backend.decode_batch(rows, skip_special_tokens=True)

    def chat(self, messages: Sequence[Message]) -> str:
        """The messages as the model was trained to read them, then the start of its answer.

        Raises:
            ValueError: the model has no chat template, or the template refuses the messages.
        """
        if self.chat_template is None:
            raise ValueError("chat_template: the model has none; write the prompts out in full")
        return render(self.chat_template, messages, self.special)


def render(template: str, messages: Sequence[Message], special: dict[str, str]) -> str:
    """Renders a chat template, in a sandbox: a template is code from a stranger.

    Raises:
        ValueError: the template refuses the messages, or is no template.
    """
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise ValueError(f"chat_template: {message}")

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = refuse
    try:
        return environment.from_string(template).render(
            messages=list(messages), add_generation_prompt=True, **special
        )
    except jinja2.TemplateError as error:
        raise ValueError(f"chat_template: {error}") from error


def load(directory: Path) -> Tokenizer:
    """Reads the tokenizer of a Hugging Face model directory.

    Args:
        directory: with tokenizer.json, and tokenizer_config.json for special tokens and template.

    Raises:
        ValueError: there is no tokenizer.json, or nothing says which token ends a response.
    """
    import tokenizers

    path = directory / "tokenizer.json"
    if not path.exists():
        raise ValueError(f"directory: {directory} has no tokenizer.json")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # `tokenizers` raises nothing narrower
        raise ValueError(f"{directory.name}/tokenizer.json: {error}") from error
    backend.no_truncation()  # as some files have it from training; it would cut prompts silently
    backend.no_padding()
    settings, generation = (
        read_json(file) if file.exists() else {}
        for file in (directory / "tokenizer_config.json", directory / "generation_config.json")
    )
    special = {
        name: value["content"] if isinstance(value, dict) else value
        for name, value in settings.items()
        if name.endswith("_token") and isinstance(value, str | dict)
    }
    template = settings.get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    own_file = directory / "chat_template.jinja"
    if own_file.exists():
        template = own_file.read_text()
    eos = generation.get("eos_token_id")
    if "eos_token" in special:
        eos = backend.token_to_id(special["eos_token"])
    elif isinstance(eos, list):
        eos = eos[0]
    if eos is None:
        raise ValueError(f"directory: nothing in {directory} says which token ends a response")
    return Tokenizer(backend, int(eos), template, special)


def save(directory: Path, tokenizer: Tokenizer) -> None:
    """Writes tokenizer.json and tokenizer_config.json into a model directory, for `load`.

    Args:
        directory: made if missing.
        tokenizer: to write.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.backend.save(str(directory / "tokenizer.json"))
    eos = tokenizer.backend.id_to_token(tokenizer.eos_id)
    settings = {
        **tokenizer.special,
        "eos_token": eos,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    if tokenizer.chat_template is not None:
        settings["chat_template"] = tokenizer.chat_template
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")


def pad(
    rows: Sequence[Sequence[int]], width: int | None = None
) -> tuple[Int[np.ndarray, "N P"], Bool[np.ndarray, "N P"]]:
    """Token rows side by side, padded on the right with zeros.

    Args:
        rows: of token ids.
        width: P; the longest row by default.

    Returns:
        (tokens [N, P] int32, mask [N, P]).

    Raises:
        ValueError: a row that is empty or longer than width, naming it.
    """
    width = max(map(len, rows), default=0) if width is None else width
    for number, row in enumerate(rows):
        if not 0 < len(row) <= width:
            raise ValueError(f"rows: row {number} must have 1..{width} tokens, has {len(row)}")
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(width)[None] < lengths[:, None]
    tokens = np.zeros((len(rows), width), np.int32)
    tokens[mask] = np.concatenate([np.asarray(row, np.int32) for row in rows])
    return tokens, mask
