"""Small base policies shipped as package data: weights in npz, how they were made in JSON.

Shipped weights are float16 on disk and float32 in memory; what the metadata says was measured on
the reloaded weights. No pickle.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fade_jax.json_files import read_json
from paced_jax.policy.config import DecoderConfig
from paced_jax.policy.decoder import GraphDef, Params, abstract

WEIGHTS = Path(__file__).parent / "weights"
"""Where the shipped policies are."""


class BasePolicy(NamedTuple):
    """A pre-trained policy.

    Attributes:
        graphdef: static half of the decoder.
        params: float32 parameters.
        metadata: config, command, seed, versions, pass rates of every cell.
    """

    graphdef: GraphDef
    params: Params
    metadata: dict[str, Any]


def _flatten(params: Params) -> dict[str, Any]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    return {"/".join(str(key.key) for key in path): leaf for path, leaf in leaves}


def save_base_policy(
    directory: Path,
    name: str,
    config: DecoderConfig,
    params: Params,
    metadata: dict[str, Any],
    *,
    dtype: str = "float16",
) -> None:
    """Writes `name.npz` and `name.json`.

    Args:
        directory: made if missing.
        name: of the policy.
        config: of the decoder; stored beside metadata.
        params: float arrays.
        metadata: JSON values.
        dtype: of the stored arrays; "float32" keeps a trained policy exactly.

    Raises:
        ValueError: if a parameter does not fit dtype, naming it.
    """
    stored = {}
    for key, leaf in _flatten(params).items():
        if not np.abs(np.asarray(leaf)).max() < np.finfo(dtype).max:
            raise ValueError(f"parameter {key} does not fit {dtype}")
        stored[key] = np.asarray(leaf).astype(dtype)
    directory.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(directory / f"{name}.npz", **stored)
    content = {"decoder": dataclasses.asdict(config), **metadata}
    (directory / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


def known_policies(directory: Path = WEIGHTS) -> list[str]:
    """Names of the policies in a directory, by default the shipped ones."""
    return sorted(path.stem for path in directory.glob("*.npz"))


def load_base_policy(name: str, directory: Path = WEIGHTS) -> BasePolicy:
    """Reads a base policy.

    Args:
        name: `tiny`, `base`, or another file in `directory`.
        directory: the shipped ones by default.

    Returns:
        `BasePolicy` with float32 parameters.

    Raises:
        ValueError: for an unknown name, listing the known ones; for parameters that are missing,
            superfluous or misshapen, naming them.

    Example:
        >>> load_base_policy("tiny").params["embedding"].shape
        (24, 64)
    """
    known = known_policies(directory)
    if name not in known:
        raise ValueError(f"name must be one of {known}, got {name!r}")
    metadata = read_json(directory / f"{name}.json")
    graphdef, shapes = abstract(DecoderConfig(**metadata["decoder"]))
    wanted = _flatten(shapes)
    with np.load(directory / f"{name}.npz", allow_pickle=False) as stored:
        odd = sorted(set(wanted) ^ set(stored.files))
        if odd:
            raise ValueError(f"{name}.npz: missing or unexpected parameters {odd}")
        for key, shape in wanted.items():
            if stored[key].shape != shape.shape:
                raise ValueError(
                    f"{name}.npz: {key} must have shape {shape.shape}, got {stored[key].shape}"
                )
        leaves = [jnp.asarray(stored[key], jnp.float32) for key in wanted]
    return BasePolicy(graphdef, jax.tree.unflatten(jax.tree.structure(shapes), leaves), metadata)
