"""One step of learning under every loss: its gradient, what it reports, what must not move it."""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from learning_world import (
    BALANCE,
    FRESH,
    GRADIENTS,
    OBJECTIVES,
    ONE_EACH,
    OPTIMIZER,
    PARTITION_RATE,
    POLICY_RATE,
    PROMPTS,
    REPLAYED,
    TOKENS,
    VERSION,
    assert_unchanged,
    batch_of,
    before,
    change,
    fill,
    forced,
    norm,
    one_success_each,
    sampled,
    setup_of,
)
from live_world import GROUP_SIZE, NUM_PROMPTS, ground, host, unoptimised

from paced_jax import partition
from paced_jax.learning import LearnOptions, divergence, learn
from paced_jax.objectives import paced
from paced_jax.policy.forward import logits

KL_REFERENCE = 0.1


@pytest.fixture(scope="module", autouse=True)
def quick_compiler() -> Iterator[None]:
    with unoptimised():
        yield


@functools.cache
def compiled(name: str):
    """`(setup, learner, batch) -> (learner, report)`.

    Rows of an older version keep their own log-probs as anchor, except under vargrad, which refuses
    them. Under paced time passes by KL; rloo measures none.
    """
    options = LearnOptions(
        objective=OBJECTIVES[name],
        correction="none" if name == "vargrad" else "behaviour_anchor",
        measure_kl=name != "rloo",
        kl_reference=KL_REFERENCE if name == "paced" else None,
    )

    @jax.jit
    def step(setup, learner, batch):
        return learn(
            setup,
            learner,
            batch,
            jax.random.key(0),
            graphdef=ground().base.graphdef,
            options=options,
            optimizer=OPTIMIZER,
            num_groups=NUM_PROMPTS + REPLAYED,
            num_replayed=REPLAYED,
        )

    return step


def test_fresh_rows_carry_the_version_and_log_probs_of_the_policy_that_sampled():
    rollouts, _ = sampled()
    assert (np.asarray(rollouts.policy_version) == VERSION).all()
    mask = np.asarray(rollouts.action_mask)
    assert (mask.sum(1) < TOKENS).any() and (mask.sum(1) == TOKENS).any()
    teacher = forced(before().params.policy, one_success_each())
    np.testing.assert_allclose(rollouts.log_probs, teacher.log_probs, atol=1e-5)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_right_answer_becomes_more_probable(name):
    batch, learner = one_success_each(), before()
    after, report = compiled(name)(setup_of(name), learner, batch)
    assert report.stepped and report.bad_prompt == -1
    assert after.version == VERSION + 1
    was, now = (np.asarray(forced(x.params.policy, batch).log_probs) for x in (learner, after))
    moved = (now - was).sum(1)
    assert moved[ONE_EACH == 1].mean() > 0.01
    assert moved[ONE_EACH == 1].mean() > moved[ONE_EACH == 0].mean() + 0.05

    # Adam's first step is one learning rate long, in each group; the policy's matrices decay too.
    policy = change(after.params.policy, learner.params.policy)
    steps = [
        np.abs(step + POLICY_RATE * 0.1 * (path[-1].key == "kernel") * np.asarray(weight)).max()
        for (path, step), weight in zip(
            jax.tree_util.tree_leaves_with_path(policy),
            jax.tree.leaves(learner.params.policy),
            strict=True,
        )
    ]
    np.testing.assert_allclose(max(steps), POLICY_RATE, rtol=1e-3)
    value = change(after.params.partition, learner.params.partition)
    if OBJECTIVES[name] in (OBJECTIVES["paced"], OBJECTIVES["flowrl"]):  # V is learned
        largest = max(float(np.abs(x).max()) for x in jax.tree.leaves(value))
        np.testing.assert_allclose(largest, PARTITION_RATE, rtol=1e-3)
    else:
        assert norm(value) == 0

    metrics = host(report.metrics)
    np.testing.assert_allclose(metrics.reward, 0.25, rtol=1e-6)
    assert metrics.log_prob_gap < 1e-5 and metrics.replayed == 0 and metrics.replay_age == 0
    gradients = after.optimizer_state[1]
    np.testing.assert_allclose(metrics.policy_norm, norm(gradients.policy), rtol=1e-5)
    np.testing.assert_allclose(metrics.partition_norm, norm(gradients.partition), rtol=1e-5)
    assert metrics.policy_clipped == (metrics.policy_norm > 1)
    assert metrics.partition_clipped == (metrics.partition_norm > 1)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_samplers_log_probs_are_as_good_an_anchor_as_recomputed_ones(name):
    setup, learner, batch = setup_of(name), before(), one_success_each()
    recomputed = forced(learner.params.policy, batch).log_probs
    ours = batch._replace(log_probs=batch.log_probs.at[:FRESH].set(recomputed))
    theirs = batch
    if name not in BALANCE[1:]:  # marked as older, a row is anchored at the log-probs it carries
        theirs = batch._replace(policy_version=batch.policy_version - 1)
    results = [compiled(name)(setup, learner, b) for b in (ours, theirs)]
    losses = [float(report.metrics.loss) for _, report in results]
    gradients = [after.optimizer_state[1] for after, _ in results]
    # A surrogate's own loss is a mean of advantages, near 0: rounding is that of its terms, of 1.
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5, atol=1e-6)
    assert norm(change(gradients[1], gradients[0])) <= 1e-5 * norm(gradients[0])
    assert norm(gradients[0].policy) > 1e-4
    assert float(jnp.abs(recomputed - batch.log_probs[:FRESH]).max()) > 0


def test_on_policy_gradient_of_paced_is_reinforce_with_baseline_v():
    setup, learner, batch = setup_of("paced"), before(), one_success_each()
    after, report = compiled("paced")(setup, learner, batch)
    value = partition.value(learner.params.partition, setup.embeddings[PROMPTS])
    value = np.asarray(value, float)[np.repeat(np.arange(NUM_PROMPTS), GROUP_SIZE)]
    assert np.std(value) > 0.05
    mask, tokens = (np.asarray(x[:FRESH]) for x in (batch.action_mask, batch.tokens))
    prompts = np.repeat(PROMPTS, GROUP_SIZE)
    width = setup.prompt_tokens.shape[1]

    @jax.jit
    def log_prob(policy):
        """[R] log pi of whole responses, by plain logits over prompt and response in one row."""
        row = jnp.concatenate([setup.prompt_tokens[prompts], tokens], axis=1)
        real = jnp.concatenate([setup.prompt_mask[prompts], mask], axis=1)
        log_p = jax.nn.log_softmax(logits(ground().base.graphdef, policy, row, real))
        last = setup.prompt_mask[prompts].sum(1) - 1
        first = jnp.arange(TOKENS)[None] == 0  # predicted at the last real token of the prompt
        at = jnp.where(first, last[:, None], width - 1 + jnp.arange(TOKENS)[None])
        of_tokens = log_p[np.arange(FRESH)[:, None], at, tokens]
        return jnp.where(mask, of_tokens, 0.0).sum(1)

    beta, advantage = 0.1, ONE_EACH - value
    _, pull = jax.vjp(log_prob, learner.params.policy)
    (expected,) = pull(jnp.asarray(-2 * beta * advantage / FRESH, jnp.float32))
    gradients = after.optimizer_state[1]
    assert norm(change(gradients.policy, expected)) <= 1e-5 * norm(expected)
    # V regresses on the reward: 2 (V - r) / R for each row, and the loss is its mean square.
    _, pull = jax.vjp(
        lambda head: partition.value(head, setup.embeddings[prompts]), learner.params.partition
    )
    (expected,) = pull(jnp.asarray(-2 * advantage / FRESH, jnp.float32))
    assert norm(change(gradients.partition, expected)) <= 1e-5 * norm(expected)
    metrics = host(report.metrics)
    np.testing.assert_allclose(metrics.loss, np.mean(advantage**2), rtol=1e-5)
    np.testing.assert_allclose(metrics.residual, np.sqrt(np.mean(advantage**2)), rtol=1e-5)
    np.testing.assert_allclose(metrics.value, value.mean(), rtol=1e-5)


@pytest.mark.parametrize("name", ["paced", "grpo", "rloo"])
def test_the_kl_of_a_step_is_measured_after_it(name):
    batch, learner = one_success_each(), before()
    after, report = compiled(name)(setup_of(name), learner, batch)
    was, now = (
        np.asarray(forced(x.params.policy, batch).log_probs, float) for x in (learner, after)
    )
    k = now - was
    kl = np.sum(np.where(batch.action_mask[:FRESH], np.exp(k) - k - 1, 0)) / FRESH
    assert kl > 1e-5
    if name == "rloo":  # told not to
        assert np.isnan(report.metrics.beta_kl) and report.elapsed == 1
        return
    beta = 0.1 if name == "paced" else 1.0
    # Log-probs are rounded at 1e-7, and k is about 1e-2.
    np.testing.assert_allclose(report.metrics.beta_kl, beta * kl, rtol=1e-3)
    expected = kl / KL_REFERENCE if name == "paced" else 1.0
    np.testing.assert_allclose(report.elapsed, expected, rtol=1e-3)


def test_the_kl_of_a_step_is_never_negative():
    # Everything right: the step makes every sampled response more probable, and the plain estimate
    # -k is below 0; so would be the time that passes for the trackers.
    batch, learner = batch_of(np.ones(FRESH)), before()
    after, report = compiled("paced")(setup_of("paced"), learner, batch)
    was, now = (np.asarray(forced(x.params.policy, batch).log_probs) for x in (learner, after))
    assert (was - now).sum() < -0.01
    assert report.stepped and report.metrics.beta_kl > 0 and report.elapsed > 0


def test_divergence_is_unbiased_and_does_not_overflow():
    rng = np.random.default_rng(0)
    p, q = (rng.dirichlet(np.ones(24)) + 1e-3 for _ in range(2))
    p, q = p / p.sum(), q / q.sum()
    ratio = jnp.asarray(np.log(q / p), jnp.float32)
    np.testing.assert_allclose(
        np.sum(p * np.asarray(divergence(ratio), float)), np.sum(p * np.log(p / q)), rtol=1e-5
    )
    far = np.asarray(divergence(jnp.asarray([-200.0, 0.0, 89.0, 1e-4], jnp.float32)), float)
    # e^k - 1 - k = k^2 / 2 is what is left of k = 1e-4, to an ulp of k.
    np.testing.assert_allclose(far, [19.0, 0.0, np.exp(20) - 21, 5e-9], rtol=1e-6, atol=1e-11)
    assert np.isnan(divergence(jnp.float32(np.nan)))


def test_replayed_rows_are_told_apart_from_fresh_ones():
    setup, learner, batch = setup_of("paced"), before(), one_success_each()
    _, alone = compiled("paced")(setup, learner, batch)
    # Two successes of versions 6 and 4, whose log-probs were five nats lower a token.
    stale = fill(batch, [0, 5], policy_version=[6, 4], log_probs=batch.log_probs[0:2] - 5.0)
    _, report = compiled("paced")(setup, learner, stale)
    metrics = host(report.metrics)
    assert metrics.log_prob_gap == alone.metrics.log_prob_gap <= 1e-5
    assert metrics.entropy == alone.metrics.entropy
    assert metrics.replayed == 2 and metrics.replay_age == (1 + 3) / 2
    np.testing.assert_allclose(metrics.reward, (4 + 2) / (FRESH + 2), rtol=1e-6)
    one = fill(batch, [0, 5], policy_version=[6, 4], weight=[1.0, 0.0])
    _, report = compiled("paced")(setup, learner, one)
    assert report.metrics.replayed == 1 and report.metrics.replay_age == 1


def test_entropy_and_gap_are_those_of_rows_that_count():
    verdicts = ONE_EACH.copy()
    verdicts[[1, 6]] = -1
    batch = batch_of(verdicts)
    assert np.asarray(batch.weight).sum() == FRESH - 2
    odd = batch._replace(log_probs=batch.log_probs.at[1].add(-3.0))
    _, report = compiled("paced")(setup_of("paced"), before(), odd)
    mask = np.asarray(batch.action_mask[:FRESH]) & (verdicts >= 0)[:, None]
    entropy = np.asarray(forced(before().params.policy, batch).entropy)[mask].mean()
    np.testing.assert_allclose(report.metrics.entropy, entropy, rtol=1e-5)
    assert report.metrics.log_prob_gap < 1e-5


def test_stale_rows_without_a_correction_are_refused_by_name():
    setup, learner, batch = setup_of("vargrad"), before(), one_success_each()
    step = compiled("vargrad")
    stale = batch._replace(policy_version=batch.policy_version.at[9].add(-2))
    after, report = step(setup, learner, stale)
    assert report.bad_prompt == PROMPTS[2] and not report.stepped
    assert_unchanged(after, learner)
    uncounted = stale._replace(weight=stale.weight.at[9].set(0.0))
    assert step(setup, learner, uncounted)[1].stepped


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_batch_without_live_rows_moves_nothing(name):
    setup, step = setup_of(name), compiled(name)
    learner, _ = step(setup, before(), one_success_each())  # so that moments and count are not 0
    batch = one_success_each()._replace(
        policy_version=jnp.full(FRESH + REPLAYED, VERSION + 1, jnp.int32)
    )
    dead: Any = [
        {"weight": jnp.zeros_like(batch.weight)},
        {"action_mask": jnp.zeros_like(batch.action_mask)},
        {"weight": jnp.zeros_like(batch.weight), "rewards": jnp.full_like(batch.rewards, np.nan)},
    ]
    for columns in dead:
        after, report = step(setup, learner, batch._replace(**columns))
        assert not report.stepped and report.bad_prompt == -1
        assert_unchanged(after, learner)
        np.testing.assert_array_equal(report.metrics.beta_kl, np.nan if name == "rloo" else 0.0)
    # What must not move does move by a step: the optimiser counts it.
    after, _ = step(setup, learner, batch)
    counts = [
        {int(n) for _, n in optax.tree.get_all_with_path(x.optimizer_state[0], "count")}
        for x in (learner, after)
    ]
    assert counts == [{1}, {2}]


@pytest.mark.parametrize("name", ["paced", *GRADIENTS])
def test_a_batch_of_degenerate_groups_teaches_v_alone(name):
    setup, step = setup_of(name), compiled(name)
    learner, _ = step(setup, before(), one_success_each())
    rewards = np.repeat([1, 0, 0, 1], GROUP_SIZE)
    batch = batch_of(rewards)._replace(
        policy_version=jnp.full(FRESH + REPLAYED, VERSION + 1, jnp.int32)
    )
    after, report = step(setup, learner, batch)
    assert report.bad_prompt == -1
    if name != "paced":
        assert not report.stepped
        assert_unchanged(after, learner)
        return
    assert report.stepped and after.version == learner.version + 1
    was, now = (
        np.asarray(partition.value(x.params.partition, setup.embeddings[PROMPTS]))
        for x in (learner, after)
    )
    assert (np.sign(now - was) == np.sign(rewards[::GROUP_SIZE] - was)).all()


def poisoned(what: str, name: str):
    """(setup, learner, batch, the prompt to blame): a single number is not finite."""
    setup, learner, batch = setup_of(name), before(), one_success_each()
    row, prompt, nan = 10, int(PROMPTS[2]), jnp.nan
    token = int(np.flatnonzero(np.asarray(batch.action_mask[row]))[-1])
    if what == "reward":
        batch = batch._replace(rewards=batch.rewards.at[row].set(nan))
    elif what == "behaviour log-prob":
        batch = batch._replace(log_probs=batch.log_probs.at[row, token].set(-jnp.inf))
    elif what == "policy":
        policy = learner.params.policy | {"embedding": learner.params.policy["embedding"] * nan}
        learner = learner._replace(params=learner.params._replace(policy=policy))
        prompt = int(PROMPTS[0])
    elif what == "V of one prompt":
        setup = setup._replace(embeddings=setup.embeddings.at[prompt].set(nan))
    else:
        head = learner.params.partition
        head = head._replace(bias=head.bias * nan)
        learner = learner._replace(params=learner.params._replace(partition=head))
        prompt = int(PROMPTS[0])
    return setup, learner, batch, prompt


@pytest.mark.parametrize(
    "what", ["reward", "behaviour log-prob", "policy", "V of one prompt", "V of all"]
)
@pytest.mark.parametrize("name", ["paced", "grpo"])
def test_what_is_not_finite_is_named_and_moves_nothing(name, what):
    setup, learner, batch, prompt = poisoned(what, name)
    after, report = compiled(name)(setup, learner, batch)
    assert report.bad_prompt == prompt and not report.stepped
    assert_unchanged(after, learner)


@pytest.mark.parametrize("name", ["paced", "grpo"])
def test_what_does_not_count_may_hold_anything(name):
    setup, learner, batch = setup_of(name), before(), one_success_each()
    expected, _ = compiled(name)(setup, learner, batch)
    garbage = batch._replace(
        log_probs=jnp.where(batch.action_mask, batch.log_probs, jnp.nan),
        rewards=batch.rewards.at[FRESH:].set(jnp.nan),
    )
    after, report = compiled(name)(setup, learner, garbage)
    assert report.stepped and report.bad_prompt == -1
    assert_unchanged(after, expected)


def test_a_reference_that_is_missing_is_named():
    with pytest.raises(ValueError, match="reference: the objective needs a reference policy"):
        compiled("flowrl")(setup_of("paced"), before(), one_success_each())


@pytest.mark.parametrize(
    "options", [{"kl_reference": 0.0}, {"kl_reference": -1.0}, {"measure_kl": False}]
)
def test_time_by_kl_needs_the_kl(options):
    with pytest.raises(ValueError, match="kl_reference must be positive and needs measure_kl"):
        LearnOptions(objective=paced(), **({"kl_reference": 0.1} | options))
