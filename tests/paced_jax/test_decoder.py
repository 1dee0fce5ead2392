"""The decoder against a plain numpy one, and the invariances its callers rely on."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_policy import random_policy

from paced_jax.policy import decoder as decoder_module
from paced_jax.policy.attention import KeyValues, attend
from paced_jax.policy.config import DecoderConfig
from paced_jax.policy.decoder import abstract, create
from paced_jax.policy.forward import logits, positions_of

LLAMA = DecoderConfig(
    vocab_size=11,
    hidden_size=12,
    num_layers=3,
    num_heads=6,
    num_kv_heads=2,
    intermediate_size=20,
    head_dim=4,
    rms_norm_eps=1e-5,
)
QWEN2 = dataclasses.replace(
    LLAMA, num_kv_heads=3, qkv_bias=True, rope_theta=1e6, tie_embeddings=False, num_layers=2
)
PLAIN = dataclasses.replace(LLAMA, num_heads=2, num_kv_heads=2, head_dim=None, qkv_bias=True)
WIDE = dict(dtype="float64", param_dtype="float64")

forward = jax.jit(logits)


def some_tokens(shape):
    return jnp.asarray(np.random.default_rng(1).integers(0, 11, shape), jnp.int32)


def numpy_rms_norm(x, scale, eps):
    return x / np.sqrt((x**2).mean() + eps) * scale


def numpy_rope(x, position, theta):
    """Turns each pair (i, i + H/2) by position * theta^(-2i/H): complex multiplication."""
    half = len(x) // 2
    z = x[:half] + 1j * x[half:]
    z = z * np.exp(1j * position * theta ** (-2 * np.arange(half) / len(x)))
    return np.concatenate([z.real, z.imag])


def numpy_decoder(config, params, tokens, positions, mask):
    """Logits of one sequence, float64, one query and one head at a time."""
    p = jax.tree.map(lambda a: np.asarray(a, np.float64), params)
    eps, size = config.rms_norm_eps, config.head_size
    group = config.num_heads // config.num_kv_heads
    x = [p["embedding"][token] for token in tokens]
    for layer in range(config.num_layers):
        w = jax.tree.map(lambda a, i=layer: a[i], p["layers"])
        q, k, v = [], [], []
        for row, position in zip(x, positions, strict=True):
            h = numpy_rms_norm(row, w["attention_norm"]["scale"], eps)
            h = h @ w["qkv"]["kernel"] + (w["qkv"]["bias"] if config.qkv_bias else 0)
            heads = np.split(h, len(h) // size)  # queries, then keys, then values
            turned = [numpy_rope(head, position, config.rope_theta) for head in heads]
            ends = config.num_heads, config.num_heads + config.num_kv_heads
            q.append(turned[: ends[0]])
            k.append(turned[ends[0] : ends[1]])
            v.append(heads[ends[1] :])
        new = []
        for i, row in enumerate(x):
            outs = []
            for head in range(config.num_heads):
                seen = [j for j in range(i + 1) if mask[j]] or list(range(len(x)))
                shared = head // group
                score = np.array([q[i][head] @ k[j][shared] for j in seen]) / np.sqrt(size)
                weight = np.exp(score - score.max())
                weight /= weight.sum()
                outs.append(sum(a * v[j][shared] for a, j in zip(weight, seen, strict=True)))
            row = row + np.concatenate(outs) @ w["o"]["kernel"]
            h = numpy_rms_norm(row, w["mlp_norm"]["scale"], eps)
            gate, up = np.split(h @ w["gate_up"]["kernel"], 2)
            hidden = gate / (1 + np.exp(-gate)) * up
            new.append(row + hidden @ w["down"]["kernel"])
        x = new
    head = p["embedding"].T if config.tie_embeddings else p["head"]
    return np.stack([numpy_rms_norm(row, p["norm"]["scale"], eps) @ head for row in x])


@pytest.mark.parametrize("config", [LLAMA, QWEN2, PLAIN], ids=["llama", "qwen2", "plain"])
def test_logits_equal_a_numpy_decoder(config, x64):
    config = dataclasses.replace(config, **WIDE)
    graphdef, params = random_policy(config)
    tokens = some_tokens((2, 6))
    mask = jnp.asarray([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 0, 1]], bool)
    positions = jnp.asarray([[0, 1, 2, 3, 4, 5], [0, 0, 0, 1, 1, 7]], jnp.int32)
    got = np.asarray(forward(graphdef, params, tokens, mask, positions))
    for row in range(2):
        want = numpy_decoder(config, params, tokens[row], positions[row], mask[row])
        real = np.asarray(mask[row])
        np.testing.assert_allclose(got[row][real], want[real], rtol=1e-10, atol=1e-10)


def test_float32_stays_close_to_float64(x64):
    graphdef, params = random_policy(dataclasses.replace(QWEN2, **WIDE))
    tokens = some_tokens((3, 9))
    mask = jnp.ones((3, 9), bool)
    exact = forward(graphdef, params, tokens, mask)
    narrow = jax.tree.map(lambda a: a.astype(jnp.float32), params)
    got = forward(abstract(QWEN2)[0], narrow, tokens, mask)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, exact, atol=1e-5)


def test_bfloat16_activations_give_float32_logits():
    graphdef, params = random_policy(LLAMA)
    half, _ = abstract(dataclasses.replace(LLAMA, dtype="bfloat16"))
    tokens = some_tokens((3, 9))
    mask = jnp.ones((3, 9), bool)
    exact, got = (forward(g, params, tokens, mask) for g in (graphdef, half))
    assert got.dtype == jnp.float32
    # bfloat16 keeps 8 bits: 2^-8 relative a rounding, a dozen roundings of values of order 1.
    np.testing.assert_allclose(got, exact, atol=0.15)
    assert float(jnp.abs(got - exact).max()) > 1e-4


@pytest.mark.parametrize("queries", [1, 3])
def test_attention_over_parts_equals_loops(queries, x64):
    batch, kv, group, size = 2, 2, 3, 4
    lengths = (5, 2)
    rng = np.random.default_rng(0)
    q = rng.normal(size=(batch, queries, kv, group, size))
    keys = [rng.normal(size=(batch, kv, size, c)) for c in lengths]
    values = [rng.normal(size=(batch, kv, c, size)) for c in lengths]
    masks = [rng.random((batch, queries, c)) < 0.7 for c in lengths]
    masks[1][:, :, -1] = True
    parts = [
        (KeyValues(jnp.asarray(k), jnp.asarray(v)), jnp.asarray(m))
        for k, v, m in zip(keys, values, masks, strict=True)
    ]
    got = attend(jnp.asarray(q), parts)
    k, v, m = (
        np.concatenate(keys, axis=3),
        np.concatenate(values, axis=2),
        np.concatenate(masks, axis=2),
    )
    for b, s, h, g in np.ndindex(batch, queries, kv, group):
        seen = np.flatnonzero(m[b, s])
        weight = np.exp([q[b, s, h, g] @ k[b, h, :, c] / 2 for c in seen])  # sqrt(4) = 2
        want = (weight / weight.sum()) @ v[b, h, seen]
        np.testing.assert_allclose(got[b, s, h, g], want, rtol=1e-12, atol=1e-12)


def test_left_right_and_extra_padding_change_nothing():
    graphdef, params = random_policy(QWEN2)
    real = [3, 1, 4, 1, 5]
    layouts = {"bare": (0, 0), "left": (3, 0), "right": (0, 3), "both": (2, 6)}
    out = {}
    for name, (left, right) in layouts.items():
        tokens = jnp.asarray([[7] * left + real + [2] * right], jnp.int32)
        mask = jnp.asarray([[False] * left + [True] * 5 + [False] * right])
        out[name] = forward(graphdef, params, tokens, mask)[0, left : left + 5]
    for name in ("left", "right", "both"):
        np.testing.assert_allclose(out[name], out["bare"], atol=1e-5)


def test_padding_token_is_an_ordinary_token_where_the_mask_is_true():
    graphdef, params = random_policy(LLAMA)
    mask = jnp.ones((1, 4), bool)
    outs = [forward(graphdef, params, jnp.asarray([[t, 5, 6, 7]], jnp.int32), mask) for t in (0, 1)]
    assert float(jnp.abs(outs[0] - outs[1])[0, 3].max()) > 1e-3


def test_position_is_load_bearing_and_relative():
    graphdef, params = random_policy(LLAMA)
    tokens = jnp.asarray([[3, 1, 4, 1, 5]], jnp.int32)
    mask = jnp.ones((1, 5), bool)
    at = positions_of(mask)
    base = forward(graphdef, params, tokens, mask, at)
    # Rotary embeddings see differences only: a common shift changes nothing, a stretch does.
    shifted = forward(graphdef, params, tokens, mask, at + 40)
    np.testing.assert_allclose(shifted, base, atol=1e-4)
    stretched = forward(graphdef, params, tokens, mask, at * 3)
    assert float(jnp.abs(stretched - base)[0, -1].max()) > 1e-2


def test_the_future_is_not_seen():
    graphdef, params = random_policy(QWEN2)
    tokens = some_tokens((1, 7))
    mask = jnp.ones((1, 7), bool)
    base = forward(graphdef, params, tokens, mask)
    moved = forward(graphdef, params, tokens.at[0, 4].set((tokens[0, 4] + 1) % 11), mask)
    np.testing.assert_array_equal(moved[0, :4], base[0, :4])
    assert float(jnp.abs(moved - base)[0, 4:].min(axis=0).max()) > 1e-3


def test_program_size_does_not_grow_with_depth():
    def size(depth):
        graphdef, params = abstract(dataclasses.replace(LLAMA, num_layers=depth))
        tokens, mask = jnp.zeros((2, 5), jnp.int32), jnp.ones((2, 5), bool)
        return len(jax.jit(logits).lower(graphdef, params, tokens, mask).as_text().splitlines())

    assert size(2) == size(24)


def test_abstract_has_the_shapes_of_create():
    graphdef, params = create(QWEN2, jax.random.key(0))
    same, shapes = abstract(QWEN2)
    assert graphdef == same
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(lambda s: s.shape, shapes)
    assert set(params) == {"embedding", "head", "layers", "norm"}
    layers = params["layers"]
    assert (np.asarray(layers["mlp_norm"]["scale"]) == 1).all()
    assert (np.asarray(layers["qkv"]["bias"]) == 0).all()
    # Standard deviations from 240 and 480 draws: standard errors of 5 % and 3 %; five of them.
    for name, inputs, error in (("gate_up", 12, 0.1), ("down", 20 * 2 * 2, 0.2)):
        assert abs(float(layers[name]["kernel"].std()) * inputs**0.5 - 1) < error
    first, second = np.asarray(layers["gate_up"]["kernel"])
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.25
    assert "head" not in abstract(LLAMA)[1]
    assert "bias" not in abstract(LLAMA)[1]["layers"]["qkv"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (dict(vocab_size=0), "vocab_size"),
        (dict(num_kv_heads=4), "num_heads"),
        (dict(head_dim=None, hidden_size=13), "hidden_size"),
        (dict(head_dim=5), "head_dim"),
        (dict(rope_theta=-1.0), "rope_theta"),
        (dict(dtype="int8"), "dtype"),
        (dict(param_dtype="int8"), "param_dtype"),
    ],
)
def test_impossible_sizes_are_refused_by_name(change, field):
    with pytest.raises(ValueError, match=f"^{field} must be"):
        dataclasses.replace(LLAMA, **change)


def test_importing_allocates_nothing():
    assert not [v for v in vars(decoder_module).values() if isinstance(v, jax.Array)]
