"""What trajectory balance implies, on policies small enough to enumerate (weight = probability)."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tabular

from paced_jax import partition
from paced_jax.objectives import (
    TrajectoryBalance,
    flowrl,
    paced,
    policy_gradient,
    rloo,
    trajectory_balance,
)
from paced_jax.optimizers import make_optimizer, step
from paced_jax.types import Parameters

VOCABULARY, TOKENS = 3, 3
TREE = tabular.tree(VOCABULARY, TOKENS)
Y = len(TREE.tokens)
MASK, ONE_GROUP = jnp.asarray(TREE.mask), np.zeros(Y, np.int32)


def problem(seed):
    """Logits of policy and anchor, and a binary reward, at random."""
    rng = np.random.default_rng(seed)
    shape = (TREE.num_prefixes, VOCABULARY)
    reward = rng.integers(0, 2, Y).astype(float)
    reward[:2] = 0.0, 1.0
    return rng.normal(size=shape), rng.normal(size=shape), reward


def loss_of(objective, logits, anchor, value, reward, weight):
    """The loss of one prompt whose responses are all enumerated."""
    anchor_log_probs = tabular.log_probs(jnp.asarray(anchor), TREE)
    return trajectory_balance(
        objective,
        tabular.log_probs(logits, TREE),
        anchor_log_probs,
        jnp.full(Y, value),
        jnp.asarray(reward),
        behaviour_log_probs=anchor_log_probs,
        action_mask=MASK,
        group=jnp.asarray(ONE_GROUP),
        num_groups=1,
        weight=jnp.asarray(weight),
    )


def best_value(loss):
    """Minimiser of a quadratic, from its derivative at 0 and 1."""
    slope = jax.grad(lambda v: loss(v)[0])
    return -slope(0.0) / (slope(1.0) - slope(0.0))


def test_the_tree_is_complete():
    logits, _, _ = problem(0)
    assert Y == 1 + 2 + 4 * 3 and TREE.num_prefixes == 1 + 2 + 4
    np.testing.assert_allclose(tabular.probabilities(logits, TREE).sum(), 1.0, rtol=1e-13)


@pytest.mark.parametrize("beta", [0.05, 0.2, 1.0])
def test_optimal_intercept_is_the_pass_rate_plus_beta_kl(beta, x64):

    @jax.jit
    def best(logits, old, reward, pi_old):
        """Minimisers of the scaled and the plain loss, and the reported KL."""
        scaled, plain = (dataclasses.replace(paced(beta), scaled=s) for s in (True, False))
        values = [
            best_value(lambda v, o=o: loss_of(o, logits, old, v, reward, pi_old))
            for o in (scaled, plain)
        ]
        return *values, loss_of(scaled, logits, old, 0.5, reward, pi_old)[1].beta_kl

    for seed in range(20):
        logits, old, reward = problem(seed)
        pi_old, pi = tabular.probabilities(old, TREE), tabular.probabilities(logits, TREE)
        kl, p_old = np.sum(pi_old * np.log(pi_old / pi)), np.sum(pi_old * reward)
        scaled, plain, beta_kl = best(logits, old, reward, pi_old)
        np.testing.assert_allclose(scaled - beta * kl, p_old, rtol=0, atol=1e-12)
        np.testing.assert_allclose(plain - beta * kl, p_old, rtol=0, atol=1e-12)
        np.testing.assert_allclose(beta_kl, beta * kl, rtol=0, atol=1e-12)


@pytest.mark.parametrize("beta", [0.05, 1.0])
def test_on_policy_gradient_is_reinforce_with_baseline_v(beta, x64):
    logits, _, reward = problem(1)
    pi, value = tabular.probabilities(logits, TREE), 0.3
    reinforce = np.einsum("y,y,ypv->pv", pi, reward - value, tabular.score(logits, TREE))
    for scaled, factor in ((False, -2 / beta), (True, -2 * beta)):
        objective = dataclasses.replace(paced(beta), scaled=scaled)
        gradient = jax.grad(lambda x, o=objective: loss_of(o, x, logits, value, reward, pi)[0])(
            jnp.asarray(logits)
        )
        np.testing.assert_allclose(gradient, factor * reinforce, rtol=0, atol=1e-12 / beta)
    # V itself regresses on the reward: derivative 2 (V - p).
    slope = jax.grad(lambda v: loss_of(paced(beta), jnp.asarray(logits), logits, v, reward, pi)[0])
    np.testing.assert_allclose(slope(value), 2 * (value - np.sum(pi * reward)), atol=1e-13)


def test_vargrad_is_trajectory_balance_at_the_optimal_log_z(x64):
    logits, old, reward = problem(2)
    weight, beta = tabular.probabilities(old, TREE), 0.2
    group_mean = TrajectoryBalance(beta=beta, partition="group_mean")
    fixed = TrajectoryBalance(beta=beta, partition="fixed")
    best = best_value(lambda v: loss_of(paced(beta), jnp.asarray(logits), old, v, reward, weight))

    def both(objective, value):
        return jax.value_and_grad(lambda x: loss_of(objective, x, old, value, reward, weight)[0])(
            jnp.asarray(logits)
        )

    (loss, gradient), (fixed_loss, fixed_gradient) = both(group_mean, 9.0), both(fixed, best)
    np.testing.assert_allclose(loss, fixed_loss, rtol=1e-13)
    np.testing.assert_allclose(gradient, fixed_gradient, rtol=0, atol=1e-14)
    # It is the least loss there is, and its V is the optimum in closed form.
    assert both(fixed, best + 1e-3)[0] > loss and both(fixed, best - 1e-3)[0] > loss
    _, metrics = loss_of(group_mean, jnp.asarray(logits), old, 9.0, reward, weight)
    np.testing.assert_allclose(metrics.value, best, rtol=1e-12)


def test_group_mean_partition_is_rloo_up_to_a_factor(x64):
    rng, group_size, groups, beta = np.random.default_rng(3), 4, 3, 0.25
    rows = group_size * groups
    log_probs = jnp.asarray(-rng.gamma(1.0, 1.0, (rows, TOKENS)))
    shared = {
        "action_mask": jnp.asarray(np.arange(TOKENS) < rng.integers(1, 4, rows)[:, None]),
        "group": jnp.asarray(np.repeat(np.arange(groups), group_size), jnp.int32),
        "num_groups": groups,
    }
    rewards = jnp.asarray(rng.uniform(size=rows))
    plain = TrajectoryBalance(beta=beta, partition="group_mean", scaled=False)
    balance = jax.grad(
        lambda x: trajectory_balance(
            plain, x, log_probs, 0 * rewards, rewards, behaviour_log_probs=log_probs, **shared
        )[0]
    )(log_probs)
    reinforce = jax.grad(lambda x: policy_gradient(rloo(), x, log_probs, rewards, **shared)[0])(
        log_probs
    )
    factor = 2 / beta * (group_size - 1) / group_size
    np.testing.assert_allclose(balance, factor * reinforce, rtol=1e-12, atol=1e-14)
    assert np.abs(reinforce).max() > 0.01


def test_group_normalised_rewards_leave_nothing_in_log_z(x64):
    # Field report: "log Z converges to 0, so is it useless?" With normalised rewards it must.
    logits, _, reward = problem(4)
    pi = tabular.probabilities(logits, TREE)
    for objective, expected in (
        (dataclasses.replace(flowrl(0.05), anchor="old", importance="none"), 0.0),
        (paced(0.05), np.sum(pi * reward)),
    ):
        best = best_value(
            lambda v, o=objective: loss_of(o, jnp.asarray(logits), logits, v, reward, pi)
        )
        np.testing.assert_allclose(best, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("scaled", [True, False])
def test_zero_loss_and_gradient_at_the_tilted_anchor(scaled, x64):
    _, anchor, reward = problem(5)
    beta = 0.5
    tilted = tabular.probabilities(anchor, TREE) * np.exp(reward / beta)
    log_z = np.log(tilted.sum())
    optimum = jnp.asarray(tabular.logits_of(tilted / tilted.sum(), TREE, VOCABULARY))
    objective = dataclasses.replace(paced(beta), scaled=scaled)
    for weight in (np.ones(Y), tabular.probabilities(anchor, TREE)):
        loss, gradients = jax.value_and_grad(
            lambda x, v, w=weight: loss_of(objective, x, anchor, v, reward, w)[0], (0, 1)
        )(optimum, beta * log_z)
        assert loss < 1e-26
        for gradient in gradients:
            np.testing.assert_allclose(gradient, 0.0, atol=1e-12)
        _, metrics = loss_of(objective, optimum, anchor, beta * log_z, reward, weight)
        np.testing.assert_allclose(metrics.residual, 0.0, atol=1e-13)


def test_learned_log_z_and_policy_of_four_answers():
    # Field reports: is log Z learned, and what makes the target normalised? Four answers, uniform
    # reference, reward [1, 0, 0, 0] times 1 and 15: log Z = log(3/4 + e^multiplier / 4).
    multipliers, log_z = np.array([1.0, 15.0]), np.array([0.35737402, 13.61370656])
    np.testing.assert_allclose(np.log(0.75 + np.exp(multipliers) / 4), log_z, atol=5e-9)
    reward, reference = jnp.array([1.0, 0.0, 0.0, 0.0]), jnp.full((4, 1), np.log(0.25))
    embeddings = jnp.eye(4)[:1]
    optimizer = make_optimizer(0.1, 0.01, policy_weight_decay=0.0)

    def learn(beta):
        """V's head has its own learning rate, a tenth of the policy's."""
        objective = TrajectoryBalance(beta=beta, anchor="ref")

        def loss(params):
            return trajectory_balance(
                objective,
                jax.nn.log_softmax(params.policy)[:, None],
                reference,
                jnp.broadcast_to(partition.value(params.partition, embeddings), 4),
                reward,
                behaviour_log_probs=reference,
                action_mask=jnp.ones((4, 1), bool),
                group=jnp.zeros(4, jnp.int32),
                num_groups=1,
            )

        def train(carry, _):
            params, state = carry
            gradients, metrics = jax.grad(loss, has_aux=True)(params)
            params, state, _ = step(optimizer, params, state, gradients)
            return (params, state), metrics.residual[0]

        params = Parameters(jnp.zeros(4), partition.init(jax.random.key(0), 4, num_hidden=16))
        (params, _), residual = jax.lax.scan(train, (params, optimizer.init(params)), length=800)
        learned = partition.value(params.partition, embeddings)[0] / beta
        rate = partition.pass_rate_from_log_z(learned, beta)
        return learned, jax.nn.softmax(params.policy), residual, rate

    betas = jnp.asarray(1 / multipliers, jnp.float32)
    learned, policy, residual, rate = jax.jit(jax.vmap(learn))(betas)
    np.testing.assert_allclose(learned, log_z, rtol=0, atol=1e-2)
    target = np.exp(multipliers[:, None] * np.asarray(reward))
    target /= target.sum(1, keepdims=True)
    assert (0.5 * np.abs(policy - target).sum(1) < 1e-2).all()
    # An unconverged Z shows in the residual, which starts near V's own error and ends at nothing.
    assert (residual[:, 0] > 0.3).all() and (residual[:, -1] < 1e-3).all()
    # Read by the inversion of the joint optimum, log Z is the reference's pass rate.
    np.testing.assert_allclose(rate, 0.25, atol=0.01)
