"""The value head V(x) = beta log Z(x) on frozen prompt embeddings: a three-layer MLP.

Parametrised on the scale of the reward, V starts at 1/2 whatever beta is, and is trained by the
beta^2-scaled residual. With the behaviour policy as anchor and raw 0/1 rewards, its optimum at
fixed theta is the pass rate of the policy that sampled, plus beta KL(pi_old || pi_theta)
(arXiv 2602.12642).

Shapes: `N` prompts, `E` features of an embedding, `H` hidden units.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from paced_jax.types import Leaf


class Layer(NamedTuple):
    """A hidden layer: linear, GELU, LayerNorm.

    Attributes:
        kernel: [I, H].
        bias: [H].
        norm_scale: [H].
        norm_bias: [H].
    """

    kernel: Float[Array, "I H"]
    bias: Float[Array, " H"]
    norm_scale: Float[Array, " H"]
    norm_bias: Float[Array, " H"]


class Head(NamedTuple):
    """Parameters of V.

    Attributes:
        hidden: two layers, E to H and H to H.
        kernel: [H, 1], the last layer.
        bias: [1].
    """

    hidden: tuple[Layer, Layer]
    kernel: Float[Array, "H 1"]
    bias: Float[Array, " 1"]


def init(
    key: Key[Array, ""], num_features: int, *, num_hidden: int = 128, start: Leaf = 0.5
) -> Head:
    """Draws the hidden layers; the last one is 0 with bias `start`, so V = start for every prompt.

    Args:
        key: consumed.
        num_features: E.
        num_hidden: H.
        start: V at the start; 1/2 is the pass rate at which a group teaches most.

    Returns:
        A Head in float32.
    """
    keys = jax.random.split(key)

    def layer(key, fan_in):
        kernel = jax.random.normal(key, (fan_in, num_hidden), jnp.float32) / jnp.sqrt(fan_in)
        zeros = jnp.zeros(num_hidden, jnp.float32)
        return Layer(kernel.astype(jnp.float32), zeros, zeros + 1, zeros)

    return Head(
        hidden=(layer(keys[0], num_features), layer(keys[1], num_hidden)),
        kernel=jnp.zeros((num_hidden, 1), jnp.float32),
        bias=jnp.full(1, start, jnp.float32),
    )


def value(head: Head, embeddings: Float[Array, "N E"]) -> Float[Array, " N"]:
    """Evaluates V = beta log Z for every prompt, in the head's precision.

    The layers are those of FlowRL's head, [linear, GELU, LayerNorm] twice, then linear, without its
    dropout: noise would reorder a greedy choice of prompts.

    Args:
        head: parameters.
        embeddings: [N, E], about unit variance a feature (`standardise`); never differentiated into
            the policy, because they were taken once from the base policy.

    Returns:
        [N], on the scale of the reward; not confined to 0..1.
    """
    x = embeddings.astype(head.kernel.dtype)
    for layer in head.hidden:
        x = jax.nn.gelu(x @ layer.kernel + layer.bias[None], approximate=False)
        x = x - x.mean(axis=1, keepdims=True)
        x = x * jax.lax.rsqrt((x**2).mean(axis=1, keepdims=True) + 1e-5)
        x = x * layer.norm_scale[None] + layer.norm_bias[None]
    return (x @ head.kernel)[:, 0] + head.bias


def standardise(embeddings: Float[Array, "N E"]) -> Float[Array, "N E"]:
    """Gives every feature mean 0 and variance 1 over the pool; a constant feature becomes 0.

    Args:
        embeddings: [N, E], say the base policy's last hidden states, averaged over a prompt's
            tokens.

    Returns:
        [N, E] float32.
    """
    x = embeddings.astype(jnp.float32)
    centred = x - x.mean(axis=0, keepdims=True)
    deviation = jnp.sqrt((centred**2).mean(axis=0, keepdims=True))
    # Rounding leaves a constant feature with a deviation of a few ulps of its mean.
    floor = 1e-5 * jnp.abs(x).max(axis=0, keepdims=True)
    return jnp.where(deviation > floor, centred / jnp.where(deviation > floor, deviation, 1.0), 0.0)


def pass_rate_from_log_z(log_z: Float[Array, "*shape"], beta: Leaf) -> Float[Array, "*shape"]:
    """Inverts the partition function of the joint optimum, `Z = 1 - p + p e^(1 / beta)`.

    `p = (Z - 1) / (e^(1 / beta) - 1)`, in logarithms so that e^(1 / beta) may overflow. This is Z
    where the policy has reached its optimum as well, as for a fixed anchor trained to convergence
    (FlowRL, raw rewards). It is not how PACED's V is read: that one is the pass rate itself.

    Args:
        log_z: log Z in nats; clamped to 0..1 / beta first.
        beta: > 0; FlowRL's beta is 1 / beta.

    Returns:
        The anchor's pass rate p, in 0..1.

    >>> pass_rate_from_log_z(jnp.array([98.613706]), beta=0.01).round(5).tolist()
    [0.25]
    """
    most = 1 / jnp.asarray(beta, log_z.dtype)
    z = jnp.clip(log_z, 0.0, most)
    return jnp.exp(z - most + jnp.log1p(-jnp.exp(-z)) - jnp.log1p(-jnp.exp(-most)))
