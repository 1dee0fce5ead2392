"""The tokenizer that a GGUF file carries, as `tokenizers` runs it."""

from typing import Any

from paced_jax.policy.gguf import field
from paced_jax.policy.text import Tokenizer

CONTROL, USER_DEFINED = 3, 4
"""Values of tokenizer.ggml.token_type that are matched before anything is split."""

QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen2 splits text before byte-pair merges."""

PRE_TOKENIZERS = ("smollm", "qwen2", "gpt-2", "default")
"""Values of tokenizer.ggml.pre that are known."""


def pre_tokenizer(kind: str) -> Any:
    """How text is split before byte-pair merges.

    Args:
        kind: one of `PRE_TOKENIZERS`.

    Raises:
        ValueError: another kind, naming it.
    """
    from tokenizers import Regex, pre_tokenizers

    bytes_of = pre_tokenizers.ByteLevel
    if kind == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, bytes_of(add_prefix_space=False)])
    if kind == "qwen2":
        words = pre_tokenizers.Split(Regex(QWEN2), "isolated")
        plain = bytes_of(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([words, plain])
    if kind in PRE_TOKENIZERS:
        return bytes_of(add_prefix_space=False)
    raise ValueError(f"tokenizer.ggml.pre must be one of {PRE_TOKENIZERS}, got {kind!r}")


def read_tokenizer(reader: Any) -> Tokenizer:
    """Builds the tokenizer from the metadata.

    Args:
        reader: from `gguf.open_file`.

    Raises:
        ValueError: a tokenizer other than byte-level BPE, or a way of splitting that is not known.
    """
    import tokenizers
    from tokenizers import AddedToken, decoders, models

    model = field(reader, "tokenizer.ggml.model")
    if model != "gpt2":
        raise ValueError(f"tokenizer.ggml.model must be 'gpt2', byte-level BPE, got {model!r}")
    tokens = field(reader, "tokenizer.ggml.tokens")
    merges = [tuple(pair.split(" ")) for pair in field(reader, "tokenizer.ggml.merges")]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    backend: Any = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizer(field(reader, "tokenizer.ggml.pre", "default"))
    backend.decoder = decoders.ByteLevel()
    kinds = field(reader, "tokenizer.ggml.token_type", [1] * len(tokens))
    for kind, special in ((CONTROL, True), (USER_DEFINED, False)):
        added = [
            AddedToken(token, special=special, normalized=False)
            for token, its in zip(tokens, kinds, strict=True)
            if its == kind
        ]
        (backend.add_special_tokens if special else backend.add_tokens)(added)
    names = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    special_text = {}
    for name, short in names.items():
        found = reader.get_field(f"tokenizer.ggml.{name}_token_id")
        if found is not None:
            special_text[f"{short}_token"] = tokens[found.contents()]
    template = reader.get_field("tokenizer.chat_template")
    return Tokenizer(
        backend,
        int(field(reader, "tokenizer.ggml.eos_token_id")),
        None if template is None else template.contents(),
        special_text,
    )
