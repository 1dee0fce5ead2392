"""Admission rules against plain Python on lists of groups."""

import jax
import jax.numpy as jnp
import numpy as np

from paced_jax import admit
from paced_jax.types import Rollouts, TrainBatch, empty_batch, occupied, prompts_of_groups

TOKENS = 3


def rollouts(rng, sizes, version=0, first_token=0):
    """Rows of the given group sizes in shuffled order; a row's first token identifies it."""
    group = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    rows = len(group)
    tokens = np.zeros((rows, TOKENS), np.int32)
    tokens[:, 0] = first_token + np.arange(rows)
    length = rng.integers(1, TOKENS + 1, rows)
    prompt_ids = 100 + rng.permutation(50)[: len(sizes)]
    return Rollouts(
        prompt_ids=jnp.asarray(prompt_ids[group], jnp.int32),
        group=jnp.asarray(group, jnp.int32),
        tokens=jnp.asarray(tokens),
        action_mask=jnp.asarray(np.arange(TOKENS) < length[:, None]),
        log_probs=jnp.asarray(-rng.gamma(1.0, 1.0, (rows, TOKENS)), jnp.float32),
        policy_version=jnp.full(rows, version, jnp.int32),
        predicted=jnp.asarray(rng.uniform(size=len(sizes))[group], jnp.float32),
    )


def groups_of(batch: TrainBatch) -> list[frozenset[int]]:
    """The rows (by first token) of each group of a batch, in the order of groups."""
    found: dict[int, set[int]] = {}
    for row in np.flatnonzero(occupied(batch)):
        found.setdefault(int(batch.group[row]), set()).add(int(batch.tokens[row, 0]))
    assert sorted(found) == list(range(len(found)))  # numbered without gaps
    return [frozenset(found[g]) for g in range(len(found))]


def check_rows(batch: TrainBatch, source: Rollouts, verdicts, offset=0):
    """Every field of an occupied row is that of the rollout it came from; the rest is padding."""
    verdicts = np.asarray(verdicts)
    for row in range(len(batch.weight)):
        if not batch.action_mask[row].any():
            assert all((np.asarray(x)[row] == 0).all() for x in jax.tree.leaves(batch))
            continue
        i = int(batch.tokens[row, 0]) - offset
        if not 0 <= i < len(verdicts):
            continue  # of another iteration
        for field in ("prompt_ids", "tokens", "action_mask", "log_probs", "policy_version"):
            np.testing.assert_array_equal(getattr(batch, field)[row], getattr(source, field)[i])
        assert batch.predicted[row] == source.predicted[i]
        assert batch.rewards[row] == max(verdicts[i], 0)
        assert batch.weight[row] == (verdicts[i] >= 0)
        members = (np.asarray(source.group) == int(source.group[i])) & (verdicts >= 0)
        rate = verdicts[members].mean() if members.any() else 0.0
        np.testing.assert_allclose(batch.group_pass_rate[row], rate, rtol=1e-6)


def test_all_groups_keeps_rows_in_place():
    rng = np.random.default_rng(0)
    source = rollouts(rng, [4, 2, 0, 6])
    verdicts = jnp.asarray(rng.integers(-1, 2, 12), jnp.int8)
    rule = admit.all_groups(12, 4)
    state, batch, ready = rule.admit(rule.init(), source, verdicts, jax.random.key(0))
    assert ready and state == () and (rule.num_rows, rule.num_groups) == (12, 4)
    check_rows(batch, source, verdicts)
    np.testing.assert_array_equal(batch.tokens, source.tokens)
    prompts = np.asarray(prompts_of_groups(batch, 4))
    for g in (0, 1, 3):
        assert prompts[g] == int(source.prompt_ids[np.flatnonzero(source.group == g)[0]])
    none = jnp.full(12, -1, jnp.int8)
    _, batch, ready = rule.admit((), source, none, jax.random.key(0))
    assert not ready and (batch.weight == 0).all()


def test_drop_degenerate_waits_for_a_full_batch():
    # Budget 12 as three groups of 4; the batch takes 8 rows, two groups.
    rng = np.random.default_rng(1)
    rule = admit.drop_degenerate(8, 3, TOKENS)
    step = jax.jit(rule.admit)
    state, key = rule.init(), jax.random.key(0)

    def verdicts(source, per_group):
        """Each row's verdict: its group's successes first."""
        seen, out = dict.fromkeys(range(3), 0), np.zeros(12, np.int8)
        for i, g in enumerate(np.asarray(source.group)):
            out[i] = per_group[int(g)][seen[int(g)]]
            seen[int(g)] += 1
        return jnp.asarray(out)

    def members(source, g, offset):
        return frozenset(offset + i for i in np.flatnonzero(np.asarray(source.group) == g))

    # One informative group: it waits, and nothing of it reaches the gradient.
    first = rollouts(rng, [4, 4, 4])
    marks = verdicts(first, {0: [1] * 4, 1: [0, 1, 0, -1], 2: [0] * 4})
    state, batch, ready = step(state, first, marks, key)
    assert not ready and not occupied(batch).any() and state.num_groups == 1
    # None at all: it goes on waiting.
    second = rollouts(rng, [4, 4, 4], first_token=100)
    nothing = verdicts(second, {0: [1] * 4, 1: [-1] * 4, 2: [0, 0, 0, -1]})
    state, batch, ready = step(state, second, nothing, key)
    assert not ready and state.num_groups == 1 and state.iterations == 2
    # Two more: the first of them fills the batch, the surplus is cut.
    third = rollouts(rng, [4, 4, 4], first_token=200)
    last = verdicts(third, {0: [1] * 4, 1: [0, 1, 1, 1], 2: [0, 0, 0, 1]})
    state, batch, ready = step(state, third, last, key)
    assert ready
    assert groups_of(batch) == [members(first, 1, 0), members(third, 1, 200)]
    check_rows(batch, first, marks)
    check_rows(batch, third, last, offset=200)
    jax.tree.map(np.testing.assert_array_equal, state, rule.init())
    # Graded rewards: degenerate is who does not differ, not who has a mean of 0 or 1.
    graded = np.where(np.asarray(third.group) == 0, 0.5, 0.0).astype(np.float32)
    graded[np.flatnonzero(np.asarray(third.group) == 2)[0]] = 0.25
    state, batch, ready = jax.jit(rule.admit)(rule.init(), third, jnp.asarray(graded), key)
    assert not ready and groups_of(state.batch) == [members(third, 2, 200)]


def test_drop_degenerate_never_blocks():
    # Public report: too hard a data set killed the run. 64 rows without signal, then one group.
    rng = np.random.default_rng(2)
    rule = admit.drop_degenerate(8, 2, TOKENS, max_iterations=3)
    state, key, answers = rule.init(), jax.random.key(0), []
    step = jax.jit(rule.admit)
    for iteration in range(6):
        source = rollouts(rng, [4, 4])
        marks = np.zeros(8, np.int8)
        if iteration == 4:
            marks[np.flatnonzero(np.asarray(source.group) == 1)[0]] = 1
        state, batch, ready = step(state, source, jnp.asarray(marks), key)
        answers.append((bool(ready), int(occupied(batch).sum()), int(state.iterations)))
    # After three empty iterations waiting starts anew; after three more, half a batch is used.
    waits = [
        (False, 0, 1),
        (False, 0, 2),
        (False, 0, 0),
        (False, 0, 1),
        (False, 0, 2),
        (True, 4, 0),
    ]
    assert answers == waits


def test_drop_degenerate_with_uneven_groups_against_lists():
    rng = np.random.default_rng(3)
    rule = admit.drop_degenerate(10, 5, TOKENS, max_iterations=4)
    step, state = jax.jit(rule.admit), rule.init()
    waiting, waited, readies = [], 0, 0
    for iteration in range(25):
        sizes = rng.multinomial(12, [0.35, 0.3, 0.2, 0.15, 0.0])
        source = rollouts(rng, sizes, first_token=100 * iteration)
        marks = rng.integers(-1, 2, 12).astype(np.int8)
        state, batch, ready = step(state, source, jnp.asarray(marks), jax.random.key(0))
        room, full = 10 - sum(map(len, waiting)), False
        for g in range(5):
            rows = np.flatnonzero(np.asarray(source.group) == g)
            counted = marks[rows][marks[rows] >= 0]
            if len(counted) == 0 or counted.min() == counted.max():
                continue
            if full or len(rows) > room:
                full = True
                continue
            waiting.append(frozenset(100 * iteration + i for i in rows))
            room -= len(rows)
        waited += 1
        expected = full or room == 0 or (waited >= 4 and len(waiting) > 0)
        assert bool(ready) == expected
        assert groups_of(batch) == (waiting if expected else [])
        if expected or waited >= 4:
            readies, waiting, waited = readies + expected, [], 0
    assert readies >= 8


def test_best_of_takes_the_most_uncertain_groups():
    rng = np.random.default_rng(4)
    rule = admit.best_of(8, 6)
    step, cut = jax.jit(rule.admit), set()
    for seed in range(12):
        source = rollouts(rng, [4] * 6)
        successes = rng.permutation([0, 4, 1, 3, 2, 1])  # p(1-p): 0 0 3 3 4 3 sixteenths
        marks, seen = np.zeros(24, np.int8), [0] * 6
        for i, g in enumerate(np.asarray(source.group)):
            marks[i] = seen[g] < successes[g]
            seen[g] += 1
        _, batch, ready = step((), source, jnp.asarray(marks), jax.random.key(seed))
        check_rows(batch, source, marks)
        taken = [int(source.group[next(iter(rows))]) for rows in groups_of(batch)]
        assert ready and len(taken) == 2 and all(len(rows) == 4 for rows in groups_of(batch))
        assert successes[taken[0]] == 2 and successes[taken[1]] in (1, 3)
        cut.add(int(np.flatnonzero(np.flatnonzero(np.isin(successes, [1, 3])) == taken[1])[0]))
    assert cut == {0, 1, 2}  # ties are broken at random: a miss has probability 3 (2/3)^12 = .023


def test_empty_batch_is_padding():
    batch = empty_batch(5, TOKENS)
    assert not occupied(batch).any() and (batch.weight == 0).all()
    assert (prompts_of_groups(batch, 3) == 0).all()
