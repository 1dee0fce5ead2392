"""Sizes and switches of a decoder of the Llama or Qwen2 family."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Sizes and switches of a decoder.

    Llama: `qkv_bias=False`; Qwen2: `qkv_bias=True`.

    Attributes:
        vocab_size: V.
        hidden_size: D.
        num_layers: L.
        num_heads: N, a multiple of num_kv_heads.
        num_kv_heads: K.
        intermediate_size: width of SwiGLU.
        head_dim: H, even; by default hidden_size / num_heads.
        rope_theta: base of the rotary wavelengths.
        rms_norm_eps: added to the mean square.
        qkv_bias: whether queries, keys and values have a bias.
        tie_embeddings: whether the output head is the transposed embedding.
        dtype: of activations. Norms, attention weights and logits are float32 whatever it says.
        param_dtype: of parameters.
        remat: whether a backward pass computes each layer anew instead of storing it.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    intermediate_size: int
    head_dim: int | None = None
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6
    qkv_bias: bool = False
    tie_embeddings: bool = True
    dtype: str = "float32"
    param_dtype: str = "float32"
    remat: bool = False

    def __post_init__(self):
        """Refuses impossible sizes, naming the field."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type in (int, float, int | None) and value is not None and not value > 0:
                raise ValueError(f"{field.name} must be positive, got {value}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads must be a multiple of num_kv_heads = {self.num_kv_heads}, "
                f"got {self.num_heads}"
            )
        if self.head_dim is None and self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size must be a multiple of num_heads = {self.num_heads} unless head_dim "
                f"is given, got {self.hidden_size}"
            )
        if self.head_size % 2:
            raise ValueError(f"head_dim must be even, got {self.head_size}")
        for name in ("dtype", "param_dtype"):
            if getattr(self, name) not in ("float32", "float64", "bfloat16", "float16"):
                raise ValueError(f"{name} must be a float type, got {getattr(self, name)!r}")

    @property
    def head_size(self) -> int:
        """H: `head_dim`, or hidden_size / num_heads."""
        return self.head_dim or self.hidden_size // self.num_heads
