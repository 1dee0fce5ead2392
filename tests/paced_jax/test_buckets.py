"""Prompts of a few widths: least padding, the same iteration, nothing traced later."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from live_world import ground, host, play, start, unoptimised

from fade_jax import driver
from paced_jax import buckets
from paced_jax.buckets import choose_widths, crop, padding
from paced_jax.policy.forward import sequence_log_probs


def test_widths_pad_least_of_all():
    rng = np.random.default_rng(0)
    for _ in range(20):
        lengths = rng.integers(1, 12, size=rng.integers(1, 30))
        values = np.unique(lengths)
        for count in (1, 2, 3, 4):
            widths = choose_widths(lengths, count)
            assert widths[-1] == values[-1] and len(widths) == min(count, len(values))
            others = itertools.combinations(values[:-1], len(widths) - 1)
            least = min(padding(lengths, (*(int(x) for x in w), int(values[-1]))) for w in others)
            assert padding(lengths, widths) == least
    assert choose_widths(np.array([5, 5]), 3) == (5,)
    with pytest.raises(ValueError, match="buckets must be at least 1, got 0"):
        choose_widths(np.array([5]), 0)


def test_log_probs_are_those_of_the_wider_bucket():
    setup, lengths = start()[1], ground().pools.train.prompt_mask.sum(1)
    width, widest = choose_widths(lengths, 2)
    assert width < widest <= setup.prompt_tokens.shape[1]
    short = np.flatnonzero(lengths <= width)[:6]
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 12, size=(6, 4)).astype(np.int32)
    mask = np.arange(4)[None] < rng.integers(1, 5, size=6)[:, None]
    group = np.arange(6, dtype=np.int32)

    def forced(setup):
        return sequence_log_probs(
            ground().base.graphdef,
            ground().base.params,
            setup.prompt_tokens[short],
            setup.prompt_mask[short],
            *(jnp.asarray(x) for x in (group, tokens, mask)),
        )

    narrow, wide = (jax.jit(forced)(x) for x in (crop(setup, width), setup))
    np.testing.assert_allclose(narrow.log_probs, wide.log_probs, atol=1e-5)
    np.testing.assert_allclose(narrow.entropy, wide.entropy, atol=1e-5)


@pytest.mark.slow
def test_a_run_in_buckets_is_the_run_and_traces_nothing_after_its_warm_up():
    make, setup, init = start(num_prompts=2)
    widths = choose_widths(ground().pools.train.prompt_mask.sum(1), 3)
    assert len(widths) == 3
    traced: list[int] = []

    def counting(setup):
        traced.append(setup.prompt_tokens.shape[1])
        return make(setup)

    with unoptimised():
        first = init(setup, jax.random.key(0))
        step = buckets.compile_step(counting, setup, first, widths)
        # Choosing reads no prompt tokens and is traced at full width.
        assert traced == [setup.prompt_tokens.shape[1], *widths]
        lengths = np.asarray(setup.prompt_mask).sum(1)
        bucketed = play(step, setup, init(setup, jax.random.key(0)), 6)
        assert len(traced) == 1 + len(widths)
        plain = play(driver.compile_step(make, chunk=1), setup, init(setup, jax.random.key(0)), 6)
    # The same rollouts of the same prompts, and numbers that differ by rounding.
    used = [lengths[ids].max() for ids in plain.records.observation.prompt_ids]
    assert len({int(np.searchsorted(widths, x)) for x in used}) > 1
    rows, theirs = (x.records.sample_metrics.rows for x in (bucketed, plain))
    np.testing.assert_array_equal(rows.prompt_ids, theirs.prompt_ids)
    np.testing.assert_array_equal(rows.tokens, theirs.tokens)
    np.testing.assert_allclose(rows.log_probs, theirs.log_probs, atol=1e-4)
    np.testing.assert_allclose(rows.log_probs[0], theirs.log_probs[0], atol=1e-5)
    mine, other = (host(x.records.learn.metrics.figures) for x in (bucketed, plain))
    np.testing.assert_allclose(mine.loss, other.loss, rtol=1e-3, atol=1e-5)
    assert (mine.log_prob_gap < 1e-5).all()


@pytest.mark.parametrize("scheduler", ["paced", "dapo"])
def test_rows_kept_from_before_fit_too(scheduler):
    # Replayed rows, and groups that wait for a batch, may have longer prompts than those chosen.
    make, setup, init = start(scheduler=scheduler, num_prompts=6)
    state = jax.eval_shape(init, setup, jax.random.key(0))
    state = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), state._replace(key=()))
    lengths = np.asarray(setup.prompt_mask).sum(1)
    far, near = int(lengths.argmax()), int(lengths.argmin())
    choice = jax.eval_shape(
        lambda setup, key: driver.choose(make(setup), init(setup, key)), setup, jax.random.key(0)
    )
    choice = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), choice._replace(selector=()))
    rows = choice.rows._replace(prompt_ids=np.full_like(choice.rows.prompt_ids, near))
    choice = choice._replace(rows=rows)
    longest = jax.jit(buckets.longest)
    assert longest(setup, state, choice) == lengths[near]
    stored = state.admit[1].items if scheduler == "paced" else state.admit.batch
    stored.prompt_ids[0], stored.action_mask[0, 0] = far, True
    assert longest(setup, state, choice) == lengths[far]
