"""The sampler against teacher forcing, exact frequencies, and its own invariances."""

import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from random_policy import random_policy
from scipy import stats

from paced_jax.policy import decoder as decoder_module
from paced_jax.policy.attention import Context, KeyValues, lay_out
from paced_jax.policy.config import DecoderConfig
from paced_jax.policy.forward import logits, positions_of, prefill, sequence_log_probs
from paced_jax.policy.sampling import sample

EOS = 2
CONFIG = DecoderConfig(
    vocab_size=7,
    hidden_size=16,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    intermediate_size=24,
    qkv_bias=True,
)
MAX_TOKENS = 8
PROMPT = jnp.asarray([[1, 4, 3, 0], [1, 5, 0, 0], [1, 6, 4, 5]], jnp.int32)
MASK = jnp.asarray([[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]], bool)
GROUP = jnp.repeat(jnp.arange(3, dtype=jnp.int32), 16)

draw = jax.jit(sample, static_argnames=("max_tokens", "eos_id", "temperature"))
teacher = jax.jit(sequence_log_probs)
full = jax.jit(logits)
traces = []


@jax.jit
def run(graphdef, params, prompt, mask, group, key):
    traces.append(prompt.shape)
    return sample(graphdef, params, prompt, mask, group, key, max_tokens=MAX_TOKENS, eos_id=EOS)


@pytest.fixture(scope="module")
def policy():
    return random_policy(CONFIG)


@pytest.fixture(scope="module")
def out(policy):
    return run(*policy, PROMPT, MASK, GROUP, jax.random.key(3))


@pytest.fixture(scope="module")
def start_logits(policy):
    """[3, V], what the first token of each prompt is drawn from."""
    last = np.asarray(MASK).sum(axis=1) - 1
    return np.asarray(full(*policy, PROMPT, MASK), np.float64)[np.arange(3), last]


def test_incremental_decoding_equals_a_full_forward(policy):
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 7, (2, 9)), jnp.int32)
    mask = np.ones((2, 9), bool)
    mask[1, :2] = False
    mask = jnp.asarray(mask)
    at = positions_of(mask)
    want = full(*policy, tokens, mask)

    @jax.jit
    def start(graphdef, params):
        decoder = nnx.merge(graphdef, params)
        prompt = prefill(decoder, tokens[:, :4], mask[:, :4])
        empty = KeyValues(jnp.zeros((2, 2, 2, 4, 9)), jnp.zeros((2, 2, 2, 9, 4)))
        cache = KeyValues(
            empty.keys.at[..., :4].set(prompt.context.cache.keys),
            empty.values.at[..., :4, :].set(prompt.context.cache.values),
        )
        return decoder.logits(prompt.last), cache

    @jax.jit
    def step(graphdef, params, cache, i):
        decoder = nnx.merge(graphdef, params)
        seen = mask & (jnp.arange(9)[None] < i)
        token, position = (jax.lax.dynamic_slice_in_dim(a, i, 1, axis=1) for a in (tokens, at))
        real = jnp.ones((2, 1), bool)
        states, new = decoder.states(token, position, real, (Context(cache, seen),))
        cache = KeyValues(
            jax.lax.dynamic_update_slice_in_dim(cache.keys, new.keys, i, axis=4),
            jax.lax.dynamic_update_slice_in_dim(cache.values, new.values, i, axis=3),
        )
        return decoder.logits(states)[:, 0], cache

    got, cache = start(*policy)
    np.testing.assert_allclose(got, want[:, 3], atol=1e-5)
    for i in range(4, 9):
        got, cache = step(*policy, cache, i)
        np.testing.assert_allclose(got, want[:, i], atol=1e-5)


def test_log_probs_equal_teacher_forcing_for_every_token(policy, out):
    again = teacher(*policy, PROMPT, MASK, GROUP, out.tokens, out.action_mask)
    ended = (np.asarray(out.tokens) == EOS) & np.asarray(out.action_mask)
    assert ended.sum() > 10  # end-of-sequence tokens are among those compared,
    assert (np.asarray(out.action_mask).sum(axis=1) == MAX_TOKENS).any()  # and full rows
    np.testing.assert_allclose(out.log_probs, again.log_probs, atol=1e-5)


def test_the_mask_includes_the_first_eos_and_nothing_after_it(out):
    for tokens, log_probs, mask in zip(*map(np.asarray, out), strict=True):
        ends = np.flatnonzero(tokens == EOS)
        count = ends[0] + 1 if len(ends) else MAX_TOKENS
        np.testing.assert_array_equal(mask, np.arange(MAX_TOKENS) < count)
        assert (tokens[count:] == EOS).all()
        assert (log_probs[:count] < 0).all() and (log_probs[count:] == 0).all()


def test_an_immediate_eos_is_a_response_of_one_token(policy, start_logits):
    """Greedy decoding with the likeliest first token of prompt 0 as the end of sequence."""
    first = int(start_logits[0].argmax())
    greedy = draw(
        *policy,
        PROMPT,
        MASK,
        GROUP,
        jax.random.key(0),
        max_tokens=MAX_TOKENS,
        eos_id=first,
        temperature=0.0,
    )
    np.testing.assert_array_equal(
        greedy.tokens[:, 0], start_logits.argmax(axis=1)[np.asarray(GROUP)]
    )
    assert (np.asarray(greedy.log_probs) == 0).all()
    want = np.arange(MAX_TOKENS)[None] < 1
    np.testing.assert_array_equal(greedy.action_mask[:16], np.repeat(want, 16, axis=0))
    again = teacher(*policy, PROMPT, MASK, GROUP, greedy.tokens, greedy.action_mask)
    np.testing.assert_allclose(
        again.log_probs[:16].sum(axis=1), jax.nn.log_softmax(start_logits[0])[first], atol=1e-5
    )


def test_loss_and_gradient_with_sampler_log_probs_as_anchor(policy, out):
    """Residual V + beta (log pi - log pi_anchor) - r with the anchor from either source."""
    graphdef, params = policy
    recomputed = teacher(*policy, PROMPT, MASK, GROUP, out.tokens, out.action_mask).log_probs
    reward = (out.tokens[:, 0] > 3).astype(jnp.float32)

    @jax.jit
    @jax.value_and_grad
    def step(params, anchor):
        now = sequence_log_probs(graphdef, params, PROMPT, MASK, GROUP, out.tokens, out.action_mask)
        ratio = (now.log_probs - jax.lax.stop_gradient(anchor)).sum(axis=1)
        return ((0.5 + 0.05 * ratio - reward) ** 2).mean()

    value, grad = step(params, out.log_probs)
    value_, grad_ = step(params, recomputed)
    np.testing.assert_allclose(value, value_, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), grad, grad_)
    assert max(float(jnp.abs(g).max()) for g in jax.tree.leaves(grad)) > 1e-3


def test_first_and_second_tokens_have_the_policys_frequencies(policy, start_logits):
    """Chi-square on 10,000 rows of one prompt; each p-value is uniform under the hypothesis, so
    `p > 1e-3` for two statistics is a false alarm in 0.2 % of seeds; the seed is fixed."""
    rows = 10_000
    group = jnp.zeros(rows, jnp.int32)
    pairs = draw(*policy, PROMPT, MASK, group, jax.random.key(5), max_tokens=2, eos_id=EOS)
    first, second = np.asarray(pairs.tokens).T
    chance = np.exp(start_logits[0]) / np.exp(start_logits[0]).sum()
    counts = np.bincount(first, minlength=7)
    assert stats.chisquare(counts, chance * rows).pvalue > 1e-3
    follow = np.tile(np.asarray(PROMPT[:1]), (7, 1))
    follow[:, 3] = np.arange(7)
    after = np.asarray(full(*policy, jnp.asarray(follow), jnp.ones((7, 4), bool)), np.float64)
    chances = np.exp(after[:, 3]) / np.exp(after[:, 3]).sum(axis=1, keepdims=True)
    statistic = 0.0
    for token in [t for t in range(7) if t != EOS]:
        counts = np.bincount(second[first == token], minlength=7)
        statistic += stats.chisquare(counts, chances[token] * counts.sum()).statistic
    assert stats.chi2.sf(statistic, 6 * 6) > 1e-3


def test_same_key_same_samples_and_different_keys_differ(policy, out):
    same, other = (run(*policy, PROMPT, MASK, GROUP, jax.random.key(k)) for k in (3, 4))
    chex.assert_trees_all_equal(out, same)
    assert (np.asarray(out.tokens) != np.asarray(other.tokens)).any(axis=1).mean() > 0.5
    # Rows of one group have noise of their own: 16 responses to a prompt are not one response.
    for rows in np.split(np.asarray(out.tokens), 3):
        assert len(np.unique(rows, axis=0)) > 8


def test_neither_padding_nor_one_prefill_a_row_changes_a_sample(policy, out):
    wide = np.full((3, 7), 6, np.int32)
    for i, n in enumerate((3, 2, 4)):
        wide[i, 7 - n :] = PROMPT[i, :n]
    mask = np.arange(7)[None] >= 7 - np.array([[3], [2], [4]])
    rows = jnp.arange(GROUP.shape[0], dtype=jnp.int32)
    own = run(*policy, jnp.asarray(wide)[GROUP], jnp.asarray(mask)[GROUP], rows, jax.random.key(3))
    np.testing.assert_array_equal(own.tokens, out.tokens)
    np.testing.assert_array_equal(own.action_mask, out.action_mask)
    np.testing.assert_allclose(own.log_probs, out.log_probs, atol=1e-5)


def test_only_unique_prompts_are_prefilled(policy, monkeypatch):
    seen = []
    original = decoder_module.Decoder.embed

    def spy(self, tokens, *args):
        seen.append(tokens.shape)
        return original(self, tokens, *args)

    monkeypatch.setattr(decoder_module.Decoder, "embed", spy)
    jax.eval_shape(
        functools.partial(sample, max_tokens=MAX_TOKENS, eos_id=EOS),
        *policy,
        PROMPT,
        MASK,
        GROUP,
        jax.random.key(3),
    )
    # Traced: the three unique prompts, then one token for each of 48 rows.
    assert seen[0] == (3, 4)
    assert set(seen[1:]) == {(48, 1)}


def test_stops_as_soon_as_every_row_has_ended(policy, monkeypatch):
    steps = []
    original = decoder_module.Decoder.embed

    def counted(self, tokens, *args):
        jax.debug.callback(lambda: steps.append(tokens.shape))
        return original(self, tokens, *args)

    monkeypatch.setattr(decoder_module.Decoder, "embed", counted)
    long = jax.jit(functools.partial(sample, max_tokens=100, eos_id=EOS))
    for seed in range(3):
        steps.clear()
        got = long(*policy, PROMPT, MASK, GROUP[::8], jax.random.key(seed))
        jax.block_until_ready(got)
        jax.effects_barrier()
        longest = int(got.action_mask.sum(axis=1).max())
        assert longest < 100
        assert len(steps) == longest  # one prefill and longest - 1 decoding steps


def test_one_trace_over_iterations(policy, out):
    graphdef, params = policy
    before, seen = list(traces), {np.asarray(out.tokens).tobytes()}
    for i in range(3):
        params = jax.tree.map(lambda a: a * 1.1, params)
        key = jax.random.fold_in(jax.random.key(0), i)
        seen.add(np.asarray(run(graphdef, params, PROMPT, MASK, GROUP, key).tokens).tobytes())
    assert len(seen) == 4
    assert traces == before and traces.count(PROMPT.shape) == 1


@pytest.mark.slow
def test_vmapped_seeds_equal_single_runs(policy):
    """Loops of different lengths, each with its own parameters."""
    graphdef, params = policy
    keys = jax.random.split(jax.random.key(0), 4)
    scales = jnp.asarray([0.5, 1.0, 1.5, 0.0])
    many = jax.tree.map(lambda a: jnp.stack([a * s for s in scales]), params)

    def one(params, key):
        return sample(graphdef, params, PROMPT, MASK, GROUP, key, max_tokens=MAX_TOKENS, eos_id=EOS)

    together = jax.jit(jax.vmap(one))(many, keys)
    for i in range(4):
        mine = jax.tree.map(lambda a, i=i: a[i], many)
        single = run(graphdef, mine, PROMPT, MASK, GROUP, keys[i])
        np.testing.assert_array_equal(together.tokens[i], single.tokens)
        np.testing.assert_array_equal(together.action_mask[i], single.action_mask)
        np.testing.assert_allclose(together.log_probs[i], single.log_probs, atol=1e-5)
    # A second axis of seeds, abstractly.
    nested = jax.eval_shape(jax.vmap(jax.vmap(one, (None, 0)), (0, None)), many, keys)
    assert nested.tokens.shape == (4, 4, 48, MAX_TOKENS)


def test_temperature_is_that_of_the_reported_distribution(policy, start_logits):
    warm = draw(
        *policy, PROMPT, MASK, GROUP, jax.random.key(3), max_tokens=1, eos_id=EOS, temperature=0.5
    )
    want = np.asarray(jax.nn.log_softmax(start_logits / 0.5))
    want = want[np.asarray(GROUP), np.asarray(warm.tokens)[:, 0]]
    np.testing.assert_allclose(warm.log_probs[:, 0], want, atol=1e-5)


@pytest.mark.parametrize("bad", [dict(max_tokens=0), dict(temperature=-1.0)])
def test_impossible_options_are_refused_by_name(policy, bad):
    options: dict[str, Any] = dict(max_tokens=2, eos_id=EOS) | bad
    with pytest.raises(ValueError, match=next(iter(bad))):
        sample(policy[0], policy[1], PROMPT, MASK, GROUP, jax.random.key(0), **options)


def test_blocks_hold_every_row_once_beside_its_own_prompt():
    rng = np.random.default_rng(0)
    uneven = [
        np.repeat(np.arange(3), 4),
        np.array([2, 0, 2, 2, 2, 1, 2, 2, 2, 2]),
        np.zeros(7, int),
        rng.integers(0, 5, 33),
        np.array([4, 0]),
    ]
    for group in uneven:
        blocks = lay_out(jnp.asarray(group, jnp.int32), 5)
        slot = np.asarray(blocks.slot)
        assert len(set(slot.tolist())) == len(group)
        np.testing.assert_array_equal(blocks.row.reshape(-1)[slot], np.arange(len(group)))
        np.testing.assert_array_equal(np.repeat(blocks.owner, blocks.row.shape[1])[slot], group)
