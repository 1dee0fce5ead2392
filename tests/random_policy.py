"""Random decoders without a compiled initialiser, which would take most of a test's time."""

import jax
import jax.numpy as jnp
import numpy as np

from paced_jax.policy.decoder import abstract


def random_policy(config, seed=0):
    """(graphdef, params); no bias is 0 and no norm's scale 1."""
    rng = np.random.default_rng(seed)
    graphdef, shapes = abstract(config)

    def draw(path, leaf):
        name = path[-1].key
        if name in ("scale", "bias"):
            value = rng.normal(name == "scale", 0.3, leaf.shape)
        else:
            fan_in = leaf.shape[-1 if name == "embedding" else -2]
            value = rng.normal(0.0, fan_in**-0.5, leaf.shape)
        return jnp.asarray(value, leaf.dtype)

    return graphdef, jax.tree_util.tree_map_with_path(draw, shapes)
