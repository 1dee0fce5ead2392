"""Teacher forcing and prompt embeddings against full-sequence logits."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_policy import random_policy

from paced_jax.policy import forward as forward_module
from paced_jax.policy.config import DecoderConfig
from paced_jax.policy.decoder import abstract
from paced_jax.policy.forward import logits, prompt_embeddings, sequence_log_probs, token_stats
from paced_jax.policy.sampling import sample

CONFIG = DecoderConfig(
    vocab_size=9,
    hidden_size=8,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    intermediate_size=16,
    qkv_bias=True,
)
GROUP = jnp.asarray([0, 2, 2, 1, 0], jnp.int32)
LENGTHS = [3, 5, 4]


def batch(side="right", extra=0):
    """Three prompts of different lengths, five responses of different lengths."""
    rng = np.random.default_rng(0)
    width = max(LENGTHS) + extra
    prompt, mask = np.full((3, width), 8, np.int32), np.zeros((3, width), bool)
    for i, n in enumerate(LENGTHS):
        where = slice(width - n, width) if side == "left" else slice(n)
        prompt[i, where], mask[i, where] = rng.integers(0, 9, n), True
    tokens = rng.integers(0, 9, (5, 6)).astype(np.int32)
    action_mask = np.arange(6)[None] < np.array([[6], [1], [3], [4], [2]])
    return tuple(jnp.asarray(a) for a in (prompt, mask, tokens, action_mask))


def slow_stats(graphdef, params, prompt, mask, group, tokens, action_mask):
    """One response at a time: log-softmax of the logits of the concatenated sequence."""
    run = jax.jit(logits)
    log_probs, entropy = np.zeros(tokens.shape), np.zeros(tokens.shape)
    for r, m in enumerate(group.tolist()):
        start = int(mask[m].sum())
        row = np.zeros((1, 12), np.int32)
        row[0, :start] = np.asarray(prompt[m])[np.asarray(mask[m])]
        row[0, start : start + 6] = tokens[r]
        real = jnp.arange(12)[None] < start + 6
        out = np.asarray(run(graphdef, params, jnp.asarray(row), real)[0], np.float64)
        for step in np.flatnonzero(action_mask[r]):
            log_p = out[start + step - 1]
            log_p = log_p - np.log(np.exp(log_p).sum())
            log_probs[r, step] = log_p[tokens[r, step]]
            entropy[r, step] = -(np.exp(log_p) * log_p).sum()
    return log_probs, entropy


@pytest.mark.parametrize(("side", "extra"), [("right", 0), ("left", 0), ("left", 4)])
def test_teacher_forcing_equals_full_sequences(side, extra):
    graphdef, params = random_policy(CONFIG)
    prompt, mask, tokens, action_mask = batch(side, extra)
    got = jax.jit(sequence_log_probs)(graphdef, params, prompt, mask, GROUP, tokens, action_mask)
    log_probs, entropy = slow_stats(graphdef, params, prompt, mask, GROUP, tokens, action_mask)
    np.testing.assert_allclose(got.log_probs, log_probs, atol=1e-5)
    np.testing.assert_allclose(got.entropy, entropy, atol=1e-5)
    assert (np.asarray(got.log_probs)[~np.asarray(action_mask)] == 0).all()


def test_tokens_outside_the_mask_do_not_matter():
    graphdef, params = random_policy(CONFIG)
    prompt, mask, tokens, action_mask = batch()
    run = jax.jit(sequence_log_probs)
    first = run(graphdef, params, prompt, mask, GROUP, tokens, action_mask)
    other = jnp.where(action_mask, tokens, (tokens + 3) % 9)
    second = run(graphdef, params, prompt, mask, GROUP, other, action_mask)
    np.testing.assert_array_equal(first.log_probs, second.log_probs)


def test_gradient_equals_that_of_full_sequences(x64, monkeypatch):
    """Shared prompts sum the gradients of the rows that share them; blocks of logits and layers
    computed anew in the backward pass change nothing."""
    config = dataclasses.replace(CONFIG, dtype="float64", param_dtype="float64")
    graphdef, params = random_policy(config)
    anew, _ = abstract(dataclasses.replace(config, remat=True))
    prompt, mask, tokens, action_mask = batch()
    weights = jnp.asarray(np.random.default_rng(1).normal(size=tokens.shape))

    def shared(params):
        stats = sequence_log_probs(anew, params, prompt, mask, GROUP, tokens, action_mask)
        return (weights * stats.log_probs).sum() + 0.1 * stats.entropy.sum()

    def full(params):
        row = jnp.concatenate([prompt[GROUP], tokens], axis=1)
        real = jnp.concatenate([mask[GROUP], action_mask], axis=1)
        log_p = jax.nn.log_softmax(logits(graphdef, params, row, real))
        starts = mask[GROUP].sum(axis=1)
        # The first action is predicted at the prompt's last token, the others one slot before.
        at = jnp.arange(6)[None] + prompt.shape[1] - 1
        at = jnp.where(jnp.arange(6)[None] == 0, starts[:, None] - 1, at)
        log_p = jnp.take_along_axis(log_p, at[..., None], axis=1)
        chosen = jnp.take_along_axis(log_p, tokens[..., None], axis=2)[..., 0]
        entropy = -(jnp.exp(log_p) * log_p).sum(axis=-1)
        return jnp.where(action_mask, weights * chosen + 0.1 * entropy, 0.0).sum()

    want = jax.jit(jax.value_and_grad(full))(params)
    # All logits at once are [5, 6, 9]; in blocks of 7 tokens they are nowhere in the program.
    for at_once, whole in ((2**24, True), (7 * CONFIG.vocab_size, False)):
        monkeypatch.setattr(forward_module, "LOGITS_AT_ONCE", at_once)
        lowered = jax.jit(jax.value_and_grad(lambda p: shared(p))).lower(params)
        assert ("tensor<5x6x9xf64>" in lowered.as_text()) == whole
        got = lowered.compile()(params)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10), got, want
        )


def plain_stats(logits, tokens):
    log_p = jax.nn.log_softmax(logits, axis=-1)
    chosen = jnp.take_along_axis(log_p, tokens[..., None], axis=-1)[..., 0]
    return chosen, -(jnp.exp(log_p) * log_p).sum(axis=-1)


def test_token_statistics_and_their_gradient_are_those_of_a_log_softmax(x64):
    rng = np.random.default_rng(0)
    # The last row is all but certain, far from zero.
    x = rng.normal(size=(4, 5, 11)) * np.array([0.1, 1, 5, 1])[:, None, None]
    x[3] += 1e4
    x[3, :, 2] += 600
    x = jnp.asarray(x)
    tokens = jnp.asarray(rng.integers(0, 11, (4, 5)), jnp.int32)
    weights = rng.normal(size=(2, 4, 5))

    def total(stats, x):
        log_probs, entropy = stats(x, tokens)
        return (weights[0] * log_probs).sum() + (weights[1] * entropy).sum()

    for found, expected in zip(token_stats(x, tokens), plain_stats(x, tokens), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    slopes, expected = (jax.grad(total, argnums=1)(f, x) for f in (token_stats, plain_stats))
    np.testing.assert_allclose(slopes, expected, rtol=1e-9, atol=1e-12)
    by_row = jax.vmap(token_stats)(x, tokens)
    np.testing.assert_allclose(by_row[0], token_stats(x, tokens)[0], rtol=1e-12)


def test_single_token_responses():
    graphdef, params = random_policy(CONFIG)
    prompt, mask, tokens, action_mask = batch()
    run = jax.jit(sequence_log_probs)
    whole = run(graphdef, params, prompt, mask, GROUP, tokens, action_mask)
    one = run(graphdef, params, prompt, mask, GROUP, tokens[:, :1], action_mask[:, :1])
    np.testing.assert_allclose(one.log_probs, whole.log_probs[:, :1], atol=1e-6)


def test_prompt_embeddings_are_means_over_real_tokens():
    """A head whose first 8 columns are the identity makes logits[..., :8] the last states."""
    graphdef, params = random_policy(dataclasses.replace(CONFIG, tie_embeddings=False))
    params["head"] = jnp.eye(8, 9)
    prompt, mask, _, _ = batch("left", extra=2)
    embed = jax.jit(prompt_embeddings, static_argnames="batch_size")
    got = embed(graphdef, params, prompt, mask, batch_size=2)
    states = np.asarray(jax.jit(logits)(graphdef, params, prompt, mask))[..., :8]
    want = [states[i][np.asarray(mask[i])].mean(axis=0) for i in range(3)]
    np.testing.assert_allclose(got, np.stack(want), atol=1e-5)
    assert got.dtype == jnp.float32


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
def test_narrow_activations_can_be_sampled_scored_and_differentiated(dtype):
    graphdef, params = random_policy(dataclasses.replace(CONFIG, dtype=dtype))
    exact, _ = random_policy(CONFIG)
    prompt = jnp.asarray([[1, 4, 3], [1, 5, 6]], jnp.int32)
    mask, group = jnp.ones((2, 3), bool), jnp.asarray([0, 0, 1, 1], jnp.int32)
    draw = jax.jit(functools.partial(sample, graphdef, max_tokens=4, eos_id=2))
    samples = draw(params, prompt, mask, group, jax.random.key(0))

    def total(params, graphdef):
        stats = sequence_log_probs(
            graphdef, params, prompt, mask, group, samples.tokens, samples.action_mask
        )
        return stats.log_probs.sum(), stats.log_probs

    score = jax.jit(jax.value_and_grad(total, has_aux=True), static_argnums=1)
    (_, log_probs), gradient = score(params, graphdef)
    (_, wide), true_gradient = score(params, exact)
    assert log_probs.dtype == jnp.float32
    # A narrow type keeps 8 (bfloat16) or 11 bits; log-probabilities are sums of a dozen roundings.
    tolerance = 0.2 if dtype == "bfloat16" else 0.03
    np.testing.assert_allclose(log_probs, wide, atol=tolerance)
    np.testing.assert_allclose(log_probs, samples.log_probs, atol=tolerance)
    got, want = (
        jnp.concatenate([x.ravel() for x in jax.tree.leaves(g)]) for g in (gradient, true_gradient)
    )
    cosine = (got @ want) / (jnp.linalg.norm(got) * jnp.linalg.norm(want))
    assert cosine > 0.98
