"""A batch divided: summed over micro-batches, learnt from in several steps, groups whole."""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from learning_world import (
    FRESH,
    OBJECTIVES,
    ONE_EACH,
    OPTIMIZER,
    PROMPTS,
    REPLAYED,
    VERSION,
    assert_unchanged,
    batch_of,
    before,
    change,
    fill,
    forced,
    norm,
    one_success_each,
    setup_of,
)
from live_world import GROUP_SIZE, NUM_PROMPTS, POOL, config, ground, play, start, unoptimised

from fade_jax import driver
from fade_jax.selectors import allocation
from fade_jax.trackers import ema
from fade_jax.types import Scheduler
from paced_jax.learning import LearnOptions, divergence, learn
from paced_jax.minibatches import deal, put_back, take
from paced_jax.training import prepare

traces: list[tuple[Any, ...]] = []


@pytest.fixture(scope="module", autouse=True)
def quick_compiler() -> Iterator[None]:
    with unoptimised():
        yield


@functools.cache
def compiled(name: str, *, replayed: int = REPLAYED, **options: Any):
    """`(setup, learner, batch) -> (learner, report)`; older rows keep their log-probs as anchor."""
    options = {"correction": "behaviour_anchor"} | options

    @jax.jit
    def step(setup, learner, batch):
        traces.append((name, replayed, *options.items()))
        return learn(
            setup,
            learner,
            batch,
            jax.random.key(0),
            graphdef=ground().base.graphdef,
            options=LearnOptions(objective=OBJECTIVES[name], **options),
            optimizer=OPTIMIZER,
            num_groups=NUM_PROMPTS + REPLAYED,
            num_replayed=replayed,
            group_size=GROUP_SIZE,
        )

    return step


def assert_close(metrics, expected, rtol: float, without: tuple[str, ...] = ()) -> None:
    for name in set(expected._fields) - set(without):
        np.testing.assert_allclose(
            getattr(metrics, name), getattr(expected, name), rtol=rtol, atol=1e-5, err_msg=name
        )


@pytest.mark.parametrize("parts", [1, 2, 3, 6])
@pytest.mark.parametrize("num_replayed", [0, 1, 7])
def test_every_row_is_dealt_once_and_groups_stay_whole(parts, num_replayed):
    size, groups = 3, 6
    rows = size * groups + num_replayed
    dealt = deal(rows, num_replayed, size, parts)
    there = dealt.rows[dealt.rows < rows]
    np.testing.assert_array_equal(np.sort(there), np.arange(rows))
    for part in dealt.rows:
        for group in range(dealt.num_groups):
            members = part[dealt.group == group]
            owners = np.where(members < size * groups, members // size, members)
            assert len(members) and len(set(owners.tolist())) == 1
            fresh = members[0] < size * groups
            assert len(members) == (size if fresh else 1)
    counts = (dealt.rows < rows).sum(1)
    assert counts.max() - counts.min() <= 1  # replayed rows too
    columns = {"tokens": np.arange(rows)[:, None], "numbers": np.arange(float(rows)) + 1}
    parted = jax.tree.map(
        lambda x: jnp.take(jnp.asarray(x), dealt.rows, axis=0, mode="fill", fill_value=0), columns
    )
    jax.tree.map(np.testing.assert_array_equal, put_back(parted, dealt), columns)


def test_places_without_a_row_are_padding():
    batch = one_success_each()
    parts = take(batch, deal(FRESH + REPLAYED, REPLAYED, GROUP_SIZE, 4))
    assert parts.weight.shape == (4, GROUP_SIZE + 1)
    np.testing.assert_array_equal(parts.group, [[0] * GROUP_SIZE + [1]] * 4)
    np.testing.assert_array_equal(parts.prompt_ids[:, 0], PROMPTS)
    live = np.asarray(parts.weight) > 0
    np.testing.assert_array_equal(
        live.sum(1), np.asarray(batch.weight[:FRESH]).reshape(4, -1).sum(1)
    )
    assert not np.asarray(parts.action_mask)[2:, GROUP_SIZE].any()


def test_parts_that_do_not_go_up_are_refused_by_name():
    with pytest.raises(ValueError, match=r"must divide the 4 groups of a training batch, got 3"):
        deal(FRESH, 0, GROUP_SIZE, 3)
    with pytest.raises(ValueError, match="need groups of one size, but the scheduler's"):
        deal(FRESH, 0, None, 2)
    for name in ("minibatches", "accumulate"):
        none: dict[str, Any] = {name: 0}
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
            LearnOptions(objective=OBJECTIVES["paced"], **none)


def uneven(name: str):
    """Rows without verdicts in one group, one group degenerate, rows of many lengths; replayed rows
    under paced, of which one teaches V its group's rate."""
    verdicts = ONE_EACH.copy()
    verdicts[[1, 2]] = -1
    verdicts[12:] = 0
    batch = batch_of(verdicts)
    if name != "paced":
        return batch
    batch = fill(batch, [0, 5], policy_version=[VERSION - 1, VERSION - 3])
    return batch._replace(
        partition=batch.partition._replace(
            residual_weight=batch.partition.residual_weight.at[-1].set(0.0),
            target=batch.partition.target.at[-1].set(0.25),
            target_weight=batch.partition.target_weight.at[-1].set(1.0),
        )
    )


def later(*names):
    """These of a test's cases, for the slow suite."""
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


# V and whole responses; means of responses; of tokens; log Z of a group under the policy itself.
@pytest.mark.parametrize("name", ["paced", *later("grpo", "dapo", "vargrad")])
def test_the_gradient_summed_over_micro_batches_is_that_in_one_go(name):
    setup, learner, batch = setup_of(name), before(), uneven(name)
    lengths = np.asarray(batch.action_mask[:FRESH]).sum(1).reshape(4, -1).sum(1)
    assert len(set(lengths.tolist())) > 1  # or a mean of means would do
    whole, expected = compiled(name)(setup, learner, batch)
    gradients = whole.optimizer_state[1]
    assert norm(gradients.policy) > 1e-4
    after, report = compiled(name, accumulate=4)(setup, learner, batch)
    for mine, theirs in zip(after.optimizer_state[1], gradients, strict=True):
        assert norm(change(mine, theirs)) <= 1e-5 * norm(theirs)
    assert report.stepped and report.elapsed == 1 and after.version == VERSION + 1
    # Adam's first step divides a gradient by itself, and its KL is what that came to.
    assert_close(report.metrics, expected.metrics, 1e-5, ("beta_kl",))
    np.testing.assert_allclose(report.metrics.beta_kl, expected.metrics.beta_kl, rtol=1e-2)


def test_a_mean_of_micro_means_would_not_do():
    # What the shares are for: dapo's mean is over tokens, whose number differs.
    setup, learner, batch = setup_of("dapo"), before(), uneven("dapo")
    gradients = compiled("dapo")(setup, learner, batch)[0].optimizer_state[1].policy
    dealt = deal(FRESH + REPLAYED, REPLAYED, GROUP_SIZE, 4)
    naive = None
    for rows in dealt.rows:
        keep = np.isin(np.arange(FRESH + REPLAYED), rows)
        part = batch._replace(weight=jnp.where(keep, batch.weight, 0.0))
        own = jax.tree.map(
            lambda x: np.asarray(x) / 4,
            compiled("dapo")(setup, learner, part)[0].optimizer_state[1].policy,
        )
        # A part without an informative group takes no step: its gradient is 0.
        stepped = compiled("dapo")(setup, learner, part)[1].stepped
        own = jax.tree.map(lambda x, s=stepped: x * bool(s), own)
        naive = own if naive is None else jax.tree.map(np.add, naive, own)
    assert norm(change(naive, gradients)) > 1e-2 * norm(gradients)


def part_of(batch, groups):
    """The rows of some groups, the others without weight."""
    keep = np.isin(np.arange(FRESH + REPLAYED) // GROUP_SIZE, groups)
    return batch._replace(weight=jnp.where(keep, batch.weight, 0.0))


@pytest.mark.parametrize("name", ["paced", *later("dapo")])
def test_two_mini_batches_are_two_steps_from_one_old_policy(name):
    setup, learner = setup_of(name), before()
    verdicts = ONE_EACH.copy()
    verdicts[12:] = [1, 1, 0, 1]
    batch = batch_of(verdicts)
    after, report = compiled(name, minibatches=2)(setup, learner, batch)
    # One by one: marked as older, rows are anchored at the log-probs they carry.
    one = compiled(name)
    older = batch._replace(policy_version=batch.policy_version - 1)
    middle, first = one(setup, learner, part_of(older, [0, 2]))
    last, second = one(setup, middle, part_of(older, [1, 3]))
    moved = norm(change(last.params, learner.params))
    assert norm(change(after.params, last.params)) < 1e-3 * moved
    assert report.stepped and report.elapsed == 2 and after.version == VERSION + 2
    for field in ("loss", "value", "reward", "policy_norm", "ratio_clipped", "importance_clamped"):
        both = [getattr(r.metrics, field) for r in (first, second)]
        weights = [
            float(np.asarray(x.action_mask[:FRESH] * x.weight[:FRESH, None]).sum())
            for x in (part_of(batch, [0, 2]), part_of(batch, [1, 3]))
        ]
        by_tokens = field == "ratio_clipped" or (name == "dapo" and field == "loss")
        expected = np.average(both, weights=weights if by_tokens else None)
        np.testing.assert_allclose(
            getattr(report.metrics, field), expected, rtol=1e-3, atol=1e-5, err_msg=field
        )
    # Entropy and gap are those of the policy that sampled; the KL is that of both steps.
    _, alone = one(setup, learner, batch)
    np.testing.assert_allclose(report.metrics.entropy, alone.metrics.entropy, rtol=1e-5)
    assert report.metrics.log_prob_gap < 1e-5
    now, then = (forced(x.params.policy, batch).log_probs for x in (after, learner))
    kl = (divergence(now - then) * batch.action_mask[:FRESH]).sum(axis=1).mean()
    beta = 0.1 if name == "paced" else 1.0
    np.testing.assert_allclose(report.metrics.beta_kl, beta * kl, rtol=1e-2)
    assert report.metrics.beta_kl > first.metrics.beta_kl

    # The policy of the step itself as old policy would be another step: every drift 0, ratio 1.
    moving = part_of(batch, [1, 3])._replace(
        policy_version=jnp.full(FRESH + REPLAYED, VERSION + 1, jnp.int32)
    )
    other = one(setup, middle, moving)[0].optimizer_state[1].policy
    mine = after.optimizer_state[1].policy
    assert norm(change(other, mine)) > 1e-3 * norm(mine)
    assert norm(change(last.optimizer_state[1].policy, mine)) < 1e-4 * norm(mine)


@pytest.mark.slow
def test_mini_batches_and_micro_batches_go_together():
    setup, learner = setup_of("paced"), before()
    batch = batch_of(ONE_EACH)
    two, expected = compiled("paced", minibatches=2)(setup, learner, batch)
    # Two parts are groups 0, 2 and 1, 3; of four parts, the first two are a mini-batch.
    order = np.arange(FRESH).reshape(4, -1)[[0, 2, 1, 3]].reshape(-1)
    order = np.concatenate([order, np.arange(FRESH, FRESH + REPLAYED)])
    swapped = jax.tree.map(lambda x: x[order], batch)
    both, report = compiled("paced", minibatches=2, accumulate=2)(setup, learner, swapped)
    assert both.version == two.version == VERSION + 2
    mine, theirs = (x.optimizer_state[1] for x in (both, two))
    assert norm(change(mine, theirs)) < 1e-4 * norm(theirs)
    assert_close(report.metrics, expected.metrics, 1e-3)


def test_a_mini_batch_with_nothing_to_learn_takes_no_step():
    setup, learner = setup_of("dapo"), before()
    verdicts = ONE_EACH.copy()
    verdicts[4:8] = verdicts[12:] = 0  # the second mini-batch
    after, report = compiled("dapo", minibatches=2)(setup, learner, batch_of(verdicts))
    assert report.stepped and report.elapsed == 1 and after.version == VERSION + 1
    only, _ = compiled("dapo")(setup, learner, part_of(batch_of(verdicts), [0, 2]))
    assert norm(change(after.params, only.params)) <= 1e-3 * norm(
        change(only.params, learner.params)
    )
    nothing, report = compiled("dapo", minibatches=2)(setup, learner, batch_of(0 * verdicts))
    assert not report.stepped and report.bad_prompt == -1
    assert_unchanged(nothing, learner)


@pytest.mark.parametrize("row, prompt", [(2, PROMPTS[0]), (FRESH - 1, PROMPTS[3])])
@pytest.mark.parametrize("division", [{"minibatches": 2}, {"accumulate": 4}])
def test_if_one_part_is_not_finite_nothing_moves(row, prompt, division):
    setup, learner, batch = setup_of("paced"), before(), one_success_each()
    batch = batch._replace(rewards=batch.rewards.at[row].set(jnp.nan))
    after, report = compiled("paced", **division)(setup, learner, batch)
    assert report.bad_prompt == prompt and not report.stepped
    assert_unchanged(after, learner)


def test_a_divided_step_was_traced_once():
    assert all(traces.count(key) == 1 for key in traces)


@pytest.mark.slow
def test_a_run_counts_steps_and_replays_as_before():
    make, setup, init = start(minibatches=2, num_prompts=6)
    step = driver.compile_step(make, chunk=4)
    played = play(step, setup, init(setup, jax.random.key(0)), 4)
    last, metrics = played.states[-1], played.records.learn.metrics.figures
    assert last.updates == 4 and last.learner.version == 8
    np.testing.assert_array_equal(played.records.learn.elapsed, 2.0)
    batch = played.records.learn.metrics.rows
    fresh = batch.policy_version[:, : 6 * GROUP_SIZE]
    np.testing.assert_array_equal(fresh, np.arange(0, 8, 2)[:, None] * np.ones_like(fresh))
    assert (metrics.log_prob_gap < 1e-5).all() and (metrics.beta_kl > 0).all()
    # Rows of the last two batches, of two steps each.
    assert (metrics.replayed[1:] > 0).all() and (metrics.replay_age[1:] >= 2).all()
    assert metrics.replay_age.max() <= 4


def test_what_reaches_a_run_is_refused_where_it_does_not_go_up():
    run = prepare(config(scheduler="uniform", minibatches=3), ground())
    step = driver.compile_step(run.make, chunk=1)
    with pytest.raises(ValueError, match="minibatches x accumulate must divide the 4 groups"):
        step(run.setup, run.init(run.setup, jax.random.key(0)))

    def uneven_groups(setup):
        tracker = ema.build(POOL)
        return Scheduler(
            tracker,
            allocation.build(tracker, num_prompts=POOL, budget=FRESH, group_size=GROUP_SIZE),
        )

    run = prepare(config(scheduler="own", accumulate=2), ground(), scheduler=uneven_groups)
    step = driver.compile_step(run.make, chunk=1)
    with pytest.raises(ValueError, match="need groups of one size"):
        step(run.setup, run.init(run.setup, jax.random.key(0)))
