"""The trainer inside the driver: one run however it is executed, tracker, replay, faults.

One small world, a few compiled chunks of it, and everything below reads what they did.
"""

import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from live_world import (
    BUDGET,
    GROUP_SIZE,
    NUM_PROMPTS,
    POOL,
    Played,
    ground,
    host,
    play,
    start,
    unoptimised,
)

from fade_jax import driver
from paced_jax import partition
from paced_jax.policy.forward import sequence_log_probs

ITERATIONS = 8
SCHEDULERS = ("uniform", "paced")
traces: list[tuple] = []


@pytest.fixture(scope="module", autouse=True)
def quick_compiler() -> Iterator[None]:
    with unoptimised():
        yield


@functools.cache
def run_of(scheduler: str):
    """(make, setup, init); paced with replay and the KL of every step, uniform without."""
    return start(scheduler=scheduler, measure_kl=scheduler == "paced")


@functools.cache
def compiled(scheduler: str, chunk: int, seeds: bool = False):
    make, _, _ = run_of(scheduler)

    def counting(setup):
        traces.append((scheduler, chunk, seeds))
        return make(setup)

    return driver.compile_step(counting, chunk=chunk, seeds=seeds)


def first(scheduler: str, seed: int = 0):
    _, setup, init = run_of(scheduler)
    return init(setup, jax.random.key(seed))


@functools.cache
def stepped(scheduler: str, seed: int = 0) -> Played:
    """Iterations one by one."""
    _, setup, _ = run_of(scheduler)
    return play(compiled(scheduler, 1), setup, first(scheduler, seed), ITERATIONS)


def tokens_of(records):
    return records.sample_metrics.rows.tokens


def assert_same(a, b) -> None:
    jax.tree.map(np.testing.assert_array_equal, a, b)


def assert_close(a, b, tolerance: float) -> None:
    """Whole numbers and flags exactly, the others to a tolerance."""
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if x.dtype.kind == "f":
            np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(x, y)


@pytest.mark.bitwise
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_scan_of_chunks_is_the_step_by_step_run_bit_for_bit(scheduler):
    one = stepped(scheduler)
    _, setup, _ = run_of(scheduler)
    four = play(compiled(scheduler, 4), setup, first(scheduler), ITERATIONS)
    assert_same(four.states[-1], one.states[-1])
    assert_same(four.states[1], one.states[4])
    assert_same(four.records, one.records)
    # It was a run worth comparing: the policy learnt all the time, from mixed groups.
    assert one.states[-1].updates == ITERATIONS == one.states[-1].learner.version
    rates = one.records.observation.successes / GROUP_SIZE
    assert 0.2 < rates.mean() < 0.8 and (~one.records.degenerate).sum() > ITERATIONS
    before, after = (one.states[i].learner.params.policy["embedding"] for i in (0, -1))
    assert np.abs(after - before).max() > 0.02
    assert len({x.tobytes() for x in tokens_of(one.records)}) == ITERATIONS


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_seeds_by_vmap_are_single_runs(scheduler):
    _, setup, _ = run_of(scheduler)
    seeds = (0, 1, 2)
    many = jax.tree.map(lambda *x: jnp.stack(x), *(first(scheduler, seed) for seed in seeds))
    together, records = compiled(scheduler, 4, True)(setup, many)
    together, records = host(together), host(records)
    for seed in seeds:
        single = stepped(scheduler, seed)
        mine, seen = jax.tree.map(lambda x, seed=seed: x[seed], (together, records))
        theirs = jax.tree.map(lambda x: x[:4], single.records)
        np.testing.assert_array_equal(tokens_of(seen), tokens_of(theirs))
        assert_close(seen.observation, theirs.observation, 0.0)
        assert_close(seen, theirs, 1e-5)
        assert_close(mine._replace(learner=()), single.states[4]._replace(learner=()), 1e-5)
        # Adam divides small gradients by themselves: a hundredth of one step of rate 1e-2.
        assert_close(mine.learner, single.states[4].learner, 1e-4)
    assert not np.array_equal(tokens_of(stepped(scheduler, 1).records), tokens_of(theirs))


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_every_step_was_traced_once_over_chunks_and_seeds(scheduler):
    for seed in (0, 1):
        stepped(scheduler, seed)
    assert traces.count((scheduler, 1, False)) == 1
    assert all(traces.count(key) == 1 for key in set(traces))


@pytest.mark.slow  # a thousand small compilations, one an operation
def test_without_a_compiler_it_is_the_same_iteration():
    make, setup, _ = run_of("uniform")
    with jax.disable_jit():
        state, record = driver.iterate(make(setup), setup, first("uniform"))
    one = stepped("uniform")
    expected = jax.tree.map(lambda x: x[0], one.records)
    np.testing.assert_array_equal(tokens_of(host(record)), tokens_of(expected))
    assert_close(host(record), expected, 1e-5)
    assert_close(host(state), one.states[1], 1e-5)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_every_iteration_spends_the_budget_with_the_policy_of_its_version(scheduler):
    one = stepped(scheduler)
    ids, _, trials = one.records.observation
    np.testing.assert_array_equal(trials, GROUP_SIZE)
    assert all(len(set(row)) == NUM_PROMPTS for row in ids.tolist())
    rows = one.records.sample_metrics.rows
    np.testing.assert_array_equal(rows.prompt_ids, np.repeat(ids, GROUP_SIZE, axis=1))
    versions = np.array([state.learner.version for state in one.states[:-1]])
    np.testing.assert_array_equal(rows.policy_version, np.repeat(versions[:, None], BUDGET, 1))
    np.testing.assert_allclose(rows.predicted, np.repeat(one.records.predicted, GROUP_SIZE, axis=1))
    figures = one.records.sample_metrics.figures
    np.testing.assert_array_equal(figures.tokens, rows.action_mask.sum(axis=(1, 2)))
    assert (one.records.learn.metrics.figures.log_prob_gap <= 1e-5).all()


def values(state) -> np.ndarray:
    """[N] the learner's V of every prompt."""
    return np.asarray(partition.value(state.learner.params.partition, ground().embeddings))


def test_the_paced_tracker_is_the_learners_v_after_every_iteration():
    one = stepped("paced")
    for state in one.states:
        assert_same(state.tracker.head, state.learner.params.partition)
        np.testing.assert_allclose(state.tracker.value, values(state), atol=1e-6)
    assert (one.states[0].tracker.value == 0.5).all()
    spread = [state.tracker.value.std() for state in one.states]
    assert spread[0] == 0 and min(spread[1:]) > 0.01
    # The uniform rule's tracker counts, and does not read V.
    assert not hasattr(stepped("uniform").states[0].tracker, "head")


def test_paced_chooses_what_it_predicts_nearest_to_one_half():
    one = stepped("paced")
    for state, ids, predicted in zip(
        one.states[:-1], one.records.observation.prompt_ids, one.records.predicted, strict=True
    ):
        believed = np.clip(values(state), 0, 1)
        np.testing.assert_allclose(predicted, believed[ids], atol=1e-6)
        distance = np.abs(believed - 0.5)
        others = np.setdiff1d(np.arange(POOL), ids)
        # V is computed twice: equal to 1e-6, so that two prompts so near may change places.
        assert distance[ids].max() <= distance[others].min() + 2e-6


def test_replayed_rows_are_earlier_successes_with_what_was_predicted_then():
    one = stepped("paced")
    batches = one.records.learn.metrics.rows
    figures = one.records.learn.metrics.figures
    generated = one.records.sample_metrics.rows
    ages_seen = set()
    for t in range(ITERATIONS):
        live = np.flatnonzero(batches.weight[t, BUDGET:] > 0) + BUDGET
        ages = t - batches.policy_version[t, live]
        assert len(live) == figures.replayed[t] == (0 if t == 0 else 2)
        np.testing.assert_allclose(figures.replay_age[t], ages.mean() if t else 0.0)
        ages_seen |= set(ages.tolist())
        # The most surprising of what is stored, by the predictions made before learning.
        stored = one.states[t].admit[1].items
        kept = stored.weight > 0
        surprise = np.sort(np.abs(stored.group_pass_rate - stored.predicted)[kept])[::-1]
        row = np.abs(batches.group_pass_rate - batches.predicted)[t, live]
        np.testing.assert_array_equal(np.sort(row)[::-1], surprise[: len(live)])
        for i, age in zip(live, ages, strict=True):
            then = t - age
            same = (generated.tokens[then] == batches.tokens[t, i]).all(1)
            same &= generated.prompt_ids[then] == batches.prompt_ids[t, i]
            # Which of equal responses it is can't be told from the tokens alone.
            twins = np.flatnonzero(
                same & (generated.log_probs[then] == batches.log_probs[t, i]).all(1)
            )
            assert len(twins) >= 1
            assert batches.rewards[t, i] == 1 == batches.rewards[then, twins[0]]
            assert batches.predicted[t, i] == generated.predicted[then, twins[0]]
            slot = generated.group[then, twins[0]]
            seen = jax.tree.map(
                lambda x, then=then, slot=slot: x[then, slot], one.records.observation
            )
            np.testing.assert_allclose(
                batches.group_pass_rate[t, i], seen.successes / seen.trials, rtol=1e-6
            )
    assert ages_seen and min(ages_seen) >= 1 and max(ages_seen) <= 2
    # Predictions of before learning: V has moved since.
    state, later = one.states[2], one.states[3]
    ids = one.records.observation.prompt_ids[2]
    assert np.abs(values(state)[ids] - values(later)[ids]).max() > 1e-3


def test_replayed_log_probs_are_those_of_the_policy_that_sampled():
    one = stepped("paced")
    batches, setup = one.records.learn.metrics.rows, run_of("paced")[1]

    @jax.jit
    def forced(policy, prompts, tokens, mask):
        group = jnp.arange(len(prompts), dtype=jnp.int32)
        return sequence_log_probs(
            ground().base.graphdef,
            policy,
            setup.prompt_tokens[prompts],
            setup.prompt_mask[prompts],
            group,
            tokens,
            mask,
        ).log_probs

    moved = []
    for t in range(1, ITERATIONS):
        replayed = jax.tree.map(lambda x, t=t: x[t, BUDGET:], batches)
        rows = replayed.prompt_ids, replayed.tokens, replayed.action_mask
        for i, version in enumerate(replayed.policy_version):
            then, now = (forced(one.states[v].learner.params.policy, *rows) for v in (version, t))
            np.testing.assert_allclose(replayed.log_probs[i], then[i], atol=1e-5)
            moved.append(float(jnp.abs(now[i] - then[i]).max()))
    assert np.median(moved) > 0.05  # a recomputed one would be another number


def newcomer(played: Played, iteration: int) -> tuple[int, int]:
    """(prompt, slot) of one that is chosen in this iteration and not before."""
    ids = played.records.observation.prompt_ids
    slot = int(np.argmin(np.isin(ids[iteration], ids[:iteration])))
    assert ids[iteration, slot] not in ids[:iteration]
    return int(ids[iteration, slot]), slot


def assert_kept(state, good) -> None:
    """The state is the good one, but for the flag."""
    assert_same(host(state)._replace(fault=good.fault), good)


@pytest.mark.bitwise
def test_a_verdict_that_is_not_a_number_is_named_and_the_last_good_state_kept():
    good = stepped("uniform")
    prompt, _ = newcomer(good, 2)
    _, setup, _ = run_of("uniform")
    spoiled = setup._replace(answer_lengths=setup.answer_lengths.at[prompt].set(-1))
    with pytest.raises(
        driver.DriverFault, match=rf"iteration 2, prompt {prompt}: .* nan successes"
    ) as caught:
        play(compiled("uniform", 4), spoiled, first("uniform"), ITERATIONS)
    assert_kept(caught.value.state, good.states[2])


@pytest.mark.bitwise
def test_a_value_that_is_not_a_number_is_named_and_the_last_good_state_kept():
    good = stepped("uniform")
    prompt, _ = newcomer(good, 2)
    _, setup, _ = run_of("uniform")
    spoiled = setup._replace(embeddings=setup.embeddings.at[prompt].set(jnp.nan))
    with pytest.raises(
        driver.DriverFault, match=rf"iteration 2, prompt {prompt}: .* not finite"
    ) as caught:
        play(compiled("uniform", 4), spoiled, first("uniform"), ITERATIONS)
    assert_kept(caught.value.state, good.states[2])


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_policy_that_is_not_a_number_is_named_and_kept(scheduler):
    _, setup, _ = run_of(scheduler)
    state = first(scheduler)
    params = state.learner.params
    policy = params.policy | {"embedding": params.policy["embedding"].at[0].set(jnp.nan)}
    learner = state.learner._replace(params=params._replace(policy=policy))
    bad = host(state._replace(learner=learner))
    with pytest.raises(driver.DriverFault, match=r"iteration 0, prompt \d+: .*finite") as caught:
        play(compiled(scheduler, 4), setup, state._replace(learner=learner), 4)
    prompt = int(str(caught.value).split("prompt ")[1].split(":")[0])
    assert prompt in stepped(scheduler).records.observation.prompt_ids[0]
    assert_kept(caught.value.state, bad)
