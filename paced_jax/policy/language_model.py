"""A language model and its tokenizer, from whatever holds both."""

from pathlib import Path
from typing import NamedTuple

from paced_jax.policy import gguf, hf, smollm2, text
from paced_jax.policy.config import DecoderConfig
from paced_jax.policy.decoder import GraphDef, Params
from paced_jax.policy.gguf_tokenizer import read_tokenizer
from paced_jax.policy.text import Tokenizer

SMOLLM2 = "smollm2"
"""Name of the model that comes as a Python package, see `policy.smollm2`."""


class LanguageModel(NamedTuple):
    """A decoder that reads and writes text.

    Attributes:
        graphdef: static half of the decoder.
        params: its parameters.
        config: of the decoder.
        tokenizer: of its text.
    """

    graphdef: GraphDef
    params: Params
    config: DecoderConfig
    tokenizer: Tokenizer


def is_language_model(name: str) -> bool:
    """Whether `load` may know this name: smollm2, a folder or a GGUF file that is there."""
    return name == SMOLLM2 or Path(name).exists()


def load(name: str) -> LanguageModel:
    """Reads model and tokenizer, float32.

    Args:
        name: "smollm2"; a Hugging Face directory of the Llama or Qwen2 family; a GGUF file.

    Raises:
        ValueError: nothing of that name, or what `smollm2`, `hf`, `gguf` and `text` refuse.
    """
    path = Path(name)
    if name == SMOLLM2:
        return LanguageModel(*smollm2.load())
    if path.is_dir():
        return LanguageModel(*hf.load(path), text.load(path))
    if path.suffix == ".gguf" and path.is_file():
        reader = gguf.open_file(path)
        return LanguageModel(*gguf.load(path, reader=reader), read_tokenizer(reader))
    raise ValueError(f"policy: {name!r} is neither 'smollm2', a model directory nor a .gguf file")


def save(directory: Path, model: LanguageModel) -> None:
    """Writes a Hugging Face directory: what `load` and transformers read.

    Raises:
        ValueError: the directory holds weights already.
    """
    hf.save(directory, model.config, model.params)
    text.save(directory, model.tokenizer)
