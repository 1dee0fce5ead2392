"""Replay against a Python list; staleness, stored log-probs, and what replay does to V."""

import dataclasses
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paced_jax import admit, off_policy, replay
from paced_jax.objectives import flowrl, gflowrl, grpo, paced, rloo, trajectory_balance, vargrad
from paced_jax.types import Rollouts, TrainBatch, empty_batch

TOKENS = 2


def batch_of(rewards, rates, predicted, versions, prompts=None, first_token=0):
    """Rows with the given columns; tokens and log-probs identify the row."""
    rows = len(rewards)
    tokens = first_token + np.arange(rows)[:, None] * np.ones((1, TOKENS))
    return empty_batch(rows, TOKENS)._replace(
        prompt_ids=jnp.asarray(np.arange(rows) if prompts is None else prompts, jnp.int32),
        tokens=jnp.asarray(tokens, jnp.int32),
        action_mask=jnp.ones((rows, TOKENS), bool),
        log_probs=jnp.asarray(-0.01 * tokens, jnp.float32),
        policy_version=jnp.asarray(versions, jnp.int32),
        predicted=jnp.asarray(predicted, jnp.float32),
        rewards=jnp.asarray(rewards, jnp.float32),
        weight=jnp.ones(rows),
        group_pass_rate=jnp.asarray(rates, jnp.float32),
    )


def stored(state):
    return {int(t) for t in state.items.tokens[state.items.weight > 0, 0]}


def drawn_rows(batch: TrainBatch):
    return [int(t) for t in batch.tokens[batch.weight > 0, 0]]


def test_staleness_bound():
    # Public report: no bound. max_staleness = 2, items of age 0, 2, 3: ages 0 and 2 are drawn, 3 is
    # evicted and counted.
    buffer = replay.build(TOKENS, capacity=4, additions=4, num_drawn=4, max_staleness=2)
    batch = batch_of([1, 1, 1], [0.5] * 3, [0.1, 0.2, 0.3], versions=[7, 5, 4])
    state = jax.jit(buffer.add)(buffer.init(), batch, jax.random.key(0))
    assert stored(state) == {0, 1, 2} and state.stale == 0
    state = jax.jit(buffer.evict)(state, jnp.int32(7))
    drawn = jax.jit(buffer.draw)(state, jax.random.key(1))
    assert drawn_rows(drawn) == [0, 1] and state.stale == 1
    assert (drawn.policy_version[:2] == jnp.array([7, 5])).all()
    np.testing.assert_allclose(drawn.log_probs[:2, 0], [0.0, -0.01])
    assert (drawn.weight[2:] == 0).all() and not drawn.action_mask[2:].any()


def test_stale_log_probs_are_an_error_until_a_correction_is_chosen():
    # Public report: old log-probs recomputed with the current actor give ratio 1, and staleness is
    # unseen. Replay at version + 2.
    with pytest.raises(ValueError, match="correction: rows up to 2 steps old need one"):
        replay.build(TOKENS, correction="none")
    batch = batch_of([1, 1, 1], [0.5] * 3, [0.1] * 3, versions=[9, 7, 9], prompts=[40, 41, 42])
    recomputed, version = jnp.full((3, TOKENS), -5.0), jnp.int32(9)
    old, row = off_policy.old_log_probs(batch, recomputed, version, "none")
    assert row == 1
    host = jax.tree.map(np.asarray, batch)
    with pytest.raises(ValueError, match=r"prompt 41 \(row 1\) was sampled by version 7.* by 9"):
        off_policy.raise_stale(int(row), host, 9)
    stored_one = recomputed.at[1].set(batch.log_probs[1])
    choices: list[tuple[off_policy.Correction, jax.Array]] = [
        ("current_anchor", recomputed),
        ("behaviour_anchor", stored_one),
    ]
    for correction, expected in choices:
        old, row = off_policy.old_log_probs(batch, recomputed, version, correction)
        np.testing.assert_array_equal(old, expected)
        off_policy.raise_stale(int(row), host, 9)
    # Rows that weigh nothing are no error.
    padding = batch._replace(weight=batch.weight.at[1].set(0.0))
    assert off_policy.old_log_probs(padding, recomputed, version, "none")[1] == -1


@pytest.mark.parametrize(
    "objective, name",
    [
        (grpo(), "advantage"),
        (rloo(), "advantage"),
        (flowrl(), "reward"),
        (vargrad(), "partition"),
        (gflowrl(), "reward"),
    ],
)
def test_losses_that_need_whole_groups_refuse_single_replayed_rows(objective, name):
    with pytest.raises(ValueError, match=name):
        off_policy.check_objective(objective)
    off_policy.check_objective(dataclasses.replace(paced(), partition="fixed"))


@pytest.mark.parametrize("eviction", ["fifo", "priority"])
def test_buffer_against_a_list(eviction):
    rng = np.random.default_rng(0)
    buffer = replay.build(
        TOKENS, capacity=6, additions=3, num_drawn=4, max_staleness=3, eviction=eviction
    )
    add, evict, draw = (jax.jit(f) for f in (buffer.add, buffer.evict, buffer.draw))
    state, items, count, stale, displaced = buffer.init(), [], 0, 0, 0
    for version in range(12):
        rows = 8
        rewards, rates = rng.integers(0, 2, rows), rng.permutation(rows) / 8.0
        predicted = rng.uniform(size=rows).astype(np.float32)
        batch = batch_of(rewards, rates, predicted, [version] * rows, first_token=100 * version)
        batch = batch._replace(weight=batch.weight.at[2].set(0.0))

        kept = [item for item in items if version - item["version"] <= 3]
        stale += len(items) - len(kept)
        items = kept
        state = evict(state, jnp.int32(version))
        expected = sorted(items, key=lambda item: -item["priority"])[:4]
        assert drawn_rows(draw(state, jax.random.key(0))) == [item["token"] for item in expected]

        fresh = [
            {
                "token": 100 * version + i,
                "version": version,
                "priority": float(np.abs(np.float32(rates[i]) - predicted[i])),
            }
            for i in range(rows)
            if rewards[i] == 1 and i != 2
        ]
        fresh = sorted(fresh, key=lambda item: -item["priority"])[:3]
        for number, item in enumerate(reversed(fresh)):
            item["number"] = count + number
        count += len(fresh)
        order = "number" if eviction == "fifo" else "priority"
        items = sorted(items + fresh, key=lambda item: -item[order])
        displaced += max(len(items) - 6, 0)
        items = items[:6]
        state = add(state, batch, jax.random.key(version))
        assert stored(state) == {item["token"] for item in items}
    assert (int(state.count), int(state.stale), int(state.displaced)) == (count, stale, displaced)
    assert stale > 0 and displaced > 0


def test_only_successes_are_stored_and_ties_are_random():
    buffer = replay.build(TOKENS, capacity=4, additions=2, num_drawn=2)
    batch = batch_of([0, 1, 1, 1, 0.5], [0.6] * 5, [0.1] * 5, versions=[0] * 5)
    keys = jax.random.split(jax.random.key(0), 20)
    add = jax.jit(jax.vmap(lambda key, batch: buffer.add(buffer.init(), batch, key), (0, None)))
    items = add(keys, batch).items
    seen = [set(t[w > 0].tolist()) for t, w in zip(items.tokens[..., 0], items.weight, strict=True)]
    assert all(len(s) == 2 and s <= {1, 2, 3} for s in seen)
    assert set.union(*seen) == {1, 2, 3}  # a miss has probability 3 (1/3)^20
    nothing = add(keys, batch._replace(rewards=0 * batch.rewards))
    assert (nothing.items.weight == 0).all() and (nothing.count == 0).all()


def test_uniform_selection_draws_without_replacement():
    buffer = replay.build(TOKENS, capacity=6, additions=6, num_drawn=3, selection="uniform")
    batch = batch_of([1] * 4, [0.9, 0.8, 0.7, 0.6], [0.5] * 4, [0] * 4)

    @jax.jit
    def draw_many(keys):
        state = buffer.add(buffer.init(), batch, keys[0])
        return jax.vmap(lambda key: buffer.draw(state, key).tokens[:, 0])(keys)

    draws = draw_many(jax.random.split(jax.random.key(0), 60)).tolist()
    assert all(len(set(d)) == 3 for d in draws)
    # Each of four is among three with probability 3/4: 45 of 60, sd 3.4; 4.4 sd either side.
    for token in range(4):
        assert 30 <= sum(token in d for d in draws) <= 60


@pytest.mark.parametrize("field, size", [("additions", 9), ("num_drawn", 0), ("max_staleness", -1)])
def test_bad_sizes_are_named(field, size):
    with pytest.raises(ValueError, match=f"{field} must be"):
        sizes: Any = {"capacity": 8, "additions": 4, "num_drawn": 4} | {field: size}
        replay.build(TOKENS, **sizes)


@pytest.mark.parametrize("option", ["correction", "partition", "selection", "eviction"])
def test_unknown_choices_are_named(option):
    with pytest.raises(ValueError, match=f"{option}: must be one of .*, got 'lifo'"):
        inspect.unwrap(replay.build)(TOKENS, **{option: "lifo"})  # behind the type checker


def group_of_eight(successes, version, first_token=0):
    rows = 8
    tokens = first_token + np.arange(rows)[:, None] * np.ones((1, TOKENS))
    return Rollouts(
        prompt_ids=jnp.full(rows, 5, jnp.int32),
        group=jnp.zeros(rows, jnp.int32),
        tokens=jnp.asarray(tokens, jnp.int32),
        action_mask=jnp.ones((rows, TOKENS), bool),
        log_probs=jnp.full((rows, TOKENS), -1.0),
        policy_version=jnp.full(rows, version, jnp.int32),
        predicted=jnp.full(rows, 0.5),
    ), jnp.asarray(np.arange(rows) < successes, jnp.int8)


@jax.jit
def best_v(batch):
    """The V that minimises the loss on a batch of one prompt, on-policy."""
    zeros = jnp.zeros_like(batch.log_probs)

    def loss(v):
        return trajectory_balance(
            paced(),
            zeros,
            zeros,
            jnp.broadcast_to(v, batch.weight.shape),
            batch.rewards,
            behaviour_log_probs=zeros,
            action_mask=batch.action_mask,
            group=batch.group,
            num_groups=5,
            weight=batch.weight,
            partition=batch.partition,
        )[0]

    slope = jax.grad(loss)
    return -slope(0.0) / (slope(1.0) - slope(0.0))


@pytest.mark.parametrize("partition", ["full", "off", "group_mean"])
def test_what_replayed_successes_do_to_v(partition):
    # 8 fresh rows at p = 1/8 and k replayed successes of that prompt pull V to (1 + k) / (8 + k);
    # "off" and "group_mean" leave it at 1/8.
    biased = {0: 0.125, 1: 0.222, 2: 0.300, 3: 0.364, 4: 0.417}
    buffer = replay.build(
        TOKENS, capacity=4, additions=1, num_drawn=4, max_staleness=9, partition=partition
    )
    rule = admit.with_replay(admit.all_groups(8, 1), buffer)
    assert (rule.num_rows, rule.num_groups, rule.num_replayed) == (12, 5, 4)
    state, step = rule.init(), jax.jit(rule.admit)
    for version, published in biased.items():
        source, verdicts = group_of_eight(1, version, 100 * version)
        state, batch, ready = step(state, source, verdicts, jax.random.key(version))
        # The rows of this step are drawn from what earlier steps stored, each its own group.
        assert ready and drawn_rows(batch)[8:] == [100 * v for v in range(version)][::-1]
        live = slice(8, 8 + version)
        assert batch.group[live].tolist() == list(range(1, 1 + version))
        assert (batch.prompt_ids[live] == 5).all() and (batch.rewards[live] == 1).all()
        assert batch.policy_version[live].tolist() == list(range(version))[::-1]
        expected = (1 + version) / (8 + version) if partition == "full" else 0.125
        np.testing.assert_allclose(best_v(batch), expected, rtol=1e-5)
        np.testing.assert_allclose((1 + version) / (8 + version), published, atol=5e-4)


def test_replay_waits_while_the_base_is_not_ready():
    base = admit.drop_degenerate(8, 1, TOKENS)
    rule = admit.with_replay(base, replay.build(TOKENS, capacity=4, additions=2, num_drawn=2))
    step, key = jax.jit(rule.admit), jax.random.key(0)
    source, verdicts = group_of_eight(8, 0)
    state, batch, ready = step(rule.init(), source, verdicts, key)
    assert not ready and (batch.weight == 0).all() and stored(state[1]) == set()
    source, verdicts = group_of_eight(3, 0, 100)
    state, batch, ready = step(state, source, verdicts, key)
    assert ready and batch.weight.tolist() == [1] * 8 + [0] * 2
    assert len(stored(state[1])) == 2 and stored(state[1]) <= {100, 101, 102}
    source, verdicts = group_of_eight(8, 1, 200)
    state, batch, ready = step(state, source, verdicts, key)
    assert not ready and (batch.weight == 0).all() and len(stored(state[1])) == 2
    source, verdicts = group_of_eight(1, 1, 300)
    _, batch, ready = step(state, source, verdicts, key)
    assert ready and set(drawn_rows(batch)[8:]) == stored(state[1])
