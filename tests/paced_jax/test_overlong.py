"""Overlong responses: what they lose, what they still count for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from live_world import config, ground

from fade_jax import outcomes
from paced_jax import admit, overlong
from paced_jax.overlong import overlong_penalty
from paced_jax.training import prepare
from paced_jax.types import Rollouts

ROWS, TOKENS, EOS = 8, 10, 1


def rollouts() -> Rollouts:
    """Two groups of four; row i has i + 3 tokens, so the last is cut off at ten."""
    lengths = np.arange(ROWS) + 3
    mask = np.arange(TOKENS)[None] < lengths[:, None]
    tokens = np.full((ROWS, TOKENS), 5, np.int32)
    ended = lengths < TOKENS
    tokens[ended, lengths[ended] - 1] = EOS
    group = np.repeat(np.arange(2, dtype=np.int32), 4)
    return Rollouts(
        prompt_ids=jnp.asarray(group),
        group=jnp.asarray(group),
        tokens=jnp.asarray(tokens),
        action_mask=jnp.asarray(mask),
        log_probs=jnp.where(mask, -1.0, 0.0),
        policy_version=jnp.zeros(ROWS, jnp.int32),
        predicted=jnp.full(ROWS, 0.5),
    )


def test_the_penalty_is_that_of_dapo():
    # Eq. 13 as it stands: 0 up to L_max - L_cache, then (L_max - L_cache - |y|) / L_cache.
    for buffer in (1, 4, TOKENS):
        expected = []
        for length in range(1, TOKENS + 1):
            free = TOKENS - buffer
            expected.append(0.0 if length <= free else (free - length) / buffer)
        mask = np.arange(TOKENS)[None] < np.arange(1, TOKENS + 1)[:, None]
        np.testing.assert_allclose(overlong_penalty(jnp.asarray(mask), buffer), expected, rtol=1e-6)
        assert expected[-1] == -1.0


def test_rewards_lose_it_and_verdicts_do_not():
    verdicts = jnp.array([1, 0, 1, 1, 1, 0, 0, 1], jnp.int8)
    base = admit.all_groups(ROWS, 2)
    key = jax.random.key(0)
    _, plain, _ = base.admit((), rollouts(), verdicts, key)
    _, batch, ready = overlong.adjust(base, buffer=4).admit((), rollouts(), verdicts, key)
    # Lengths 3..10 against 6 free tokens.
    np.testing.assert_allclose(
        batch.rewards, [1, 0, 1, 1, 0.75, -0.5, -0.75, 0.0], rtol=1e-6, atol=1e-7
    )
    same = batch._replace(rewards=plain.rewards)
    jax.tree.map(np.testing.assert_array_equal, same, plain)
    assert ready
    # What trackers read is counted from the verdicts; so is a row's group rate.
    counts = outcomes.group_outcomes(verdicts, rollouts().group, 2)
    np.testing.assert_array_equal(counts.successes, [3, 2])
    np.testing.assert_array_equal(batch.group_pass_rate, [0.75] * 4 + [0.5] * 4)


def test_what_was_cut_off_is_masked_and_what_ended_at_the_limit_is_not():
    verdicts = jnp.array([1, 0, 1, 1, 1, 0, 0, 0], jnp.int8)
    rule = overlong.adjust(admit.all_groups(ROWS, 2), masked=True, eos_id=EOS)
    _, batch, _ = rule.admit((), rollouts(), verdicts, jax.random.key(0))
    np.testing.assert_array_equal(batch.weight, [1] * 7 + [0])
    ended = rollouts()._replace(tokens=rollouts().tokens.at[-1, -1].set(EOS))
    _, batch, _ = rule.admit((), ended, verdicts, jax.random.key(0))
    np.testing.assert_array_equal(batch.weight, [1] * 8)


def test_a_buffer_beyond_the_limit_is_refused():
    limit = ground().pools.train.answer_tokens.shape[1]
    plan = {"scheduler": "uniform", "objective": "dapo"}
    prepare(config(**plan, overlong_buffer=limit), ground())
    with pytest.raises(ValueError, match=f"overlong_buffer must be at most .* = {limit}, got"):
        prepare(config(**plan, overlong_buffer=limit + 1), ground())
