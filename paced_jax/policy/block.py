"""One layer of the decoder.

Shapes: `D` hidden size, `N` query heads, `K` key-value heads, `H` head size.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from paced_jax.policy.attention import PRECISION, rotate
from paced_jax.policy.config import DecoderConfig


def linear(
    config: DecoderConfig, rngs: nnx.Rngs, inputs: int, outputs: int, *, bias: bool = False
) -> nnx.Linear:
    """Projection [..., inputs] to [..., outputs]; starts at zero."""
    return nnx.Linear(
        inputs,
        outputs,
        use_bias=bias,
        dtype=jnp.dtype(config.dtype),
        param_dtype=jnp.dtype(config.param_dtype),
        precision=PRECISION,
        kernel_init=nnx.initializers.zeros,
        rngs=rngs,
    )


def norm(config: DecoderConfig, rngs: nnx.Rngs) -> nnx.RMSNorm:
    """RMSNorm over D; its scale starts at 1."""
    return nnx.RMSNorm(
        config.hidden_size,
        epsilon=config.rms_norm_eps,
        dtype=jnp.dtype(config.dtype),
        param_dtype=jnp.dtype(config.param_dtype),
        rngs=rngs,
    )


class Block(nnx.Module):
    """One layer: grouped-query attention and SwiGLU, each after an RMSNorm, each residual."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs):
        self.config = config
        d, h, f = config.hidden_size, config.head_size, config.intermediate_size
        heads = config.num_heads + 2 * config.num_kv_heads
        self.attention_norm = norm(config, rngs)
        self.qkv = linear(config, rngs, d, heads * h, bias=config.qkv_bias)
        self.o = linear(config, rngs, config.num_heads * h, d)
        self.mlp_norm = norm(config, rngs)
        self.gate_up = linear(config, rngs, d, 2 * f)
        self.down = linear(config, rngs, f, d)

    def __call__(self, x, cos, sin, mix):
        """The layer's output, shaped as x [..., D], and whatever else `mix` returns.

        `mix(queries [..., N, H], keys [..., K, H], values [..., K, H]) -> ([..., N * H], extra)`
        is the attention; it alone knows which tokens belong together.
        """
        n, k = self.config.num_heads, self.config.num_kv_heads
        heads = self.qkv(self.attention_norm(x))
        heads = heads.reshape(*x.shape[:-1], n + 2 * k, self.config.head_size)
        turned = rotate(heads[..., : n + k, :], cos, sin)
        mixed, extra = mix(turned[..., :n, :], turned[..., n:, :], heads[..., n + k :, :])
        x = x + self.o(mixed)
        gate, up = jnp.split(self.gate_up(self.mlp_norm(x)), 2, axis=-1)
        return x + self.down(jax.nn.silu(gate) * up), extra
