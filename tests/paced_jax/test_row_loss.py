"""Losses of one's own: the built-in ones written as such, what is live, what is refused."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paced_jax import off_policy
from paced_jax.objectives import (
    PolicyGradient,
    RowLoss,
    TrajectoryBalance,
    policy_gradient,
    row_loss,
    trajectory_balance,
)
from paced_jax.objectives.named import reads_reference, teaches_pass_rate, trains_value
from paced_jax.objectives.reductions import centre_by_group

R, T, M, BETA = 8, 5, 3, 0.2


def problem(seed=0):
    rng = np.random.default_rng(seed)
    mask = np.arange(T)[None] < rng.integers(1, T + 1, R)[:, None]
    given = {
        "log_probs": -rng.exponential(size=(R, T)),
        "old": -rng.exponential(size=(R, T)),
        "value": rng.uniform(size=R),
        "rewards": rng.integers(0, 2, R).astype(float),
    }
    given = {name: jnp.asarray(x, jnp.float32) for name, x in given.items()}
    weight = jnp.asarray([1, 1, 1, 0, 1, 1, 1, 1], jnp.float32)
    group = jnp.asarray([0, 0, 0, 0, 1, 1, 2, 2], jnp.int32)
    rest: dict[str, Any] = {
        "action_mask": jnp.asarray(mask),
        "group": group,
        "num_groups": M,
        "weight": weight,
    }
    return given, rest


def gradients(loss, given):
    """The loss and its gradient by log_probs and value."""
    return jax.value_and_grad(loss, argnums=(0, 1))(given["log_probs"], given["value"])


def test_trajectory_balance_as_a_loss_of_ones_own():
    given, rest = problem()

    def balance(rows):
        gap = (rows.log_probs - rows.old_log_probs).sum(axis=1)
        return (rows.value - rows.rewards + BETA * gap) ** 2

    own = RowLoss(loss=balance, by_group=False, teaches_pass_rate=True)
    arguments = given["old"], given["rewards"]

    def mine(log_probs, value):
        return row_loss(own, log_probs, arguments[0], value, arguments[1], **rest)[0]

    def theirs(log_probs, value):
        setting = TrajectoryBalance(beta=BETA)
        return trajectory_balance(
            setting,
            log_probs,
            arguments[0],
            value,
            arguments[1],
            behaviour_log_probs=arguments[0],
            **rest,
        )[0]

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7),
        gradients(mine, given),
        gradients(theirs, given),
    )


def test_a_clipped_surrogate_as_a_loss_of_ones_own():
    given, rest = problem(1)

    def surrogate(rows):
        advantage = centre_by_group(
            rows.rewards, rows.weight, rows.group, rows.num_groups, scale=False
        )[:, None]
        ratio = jnp.exp(rows.log_probs - rows.old_log_probs)
        worse = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage)
        return -jnp.where(rows.action_mask, worse, 0.0).sum(axis=1) / 4.0

    def mine(log_probs, value):
        own = RowLoss(loss=surrogate)
        return row_loss(own, log_probs, given["old"], value, given["rewards"], **rest)[0]

    def theirs(log_probs, value):
        setting = PolicyGradient(
            advantage="group_centred", aggregation="constant", token_budget=4.0
        )
        return policy_gradient(setting, log_probs, given["old"], given["rewards"], **rest)[0]

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7),
        gradients(mine, given),
        gradients(theirs, given),
    )


def test_a_dead_row_may_hold_anything_and_what_is_live_depends_on_the_group():
    given, rest = problem(2)
    by_value = RowLoss(loss=lambda rows: (rows.value - rows.rewards) ** 2)
    spoiled = given["log_probs"].at[3].set(jnp.nan), given["value"].at[3].set(jnp.nan)

    def of(objective, rewards, log_probs=given["log_probs"], value=given["value"]):
        return row_loss(objective, log_probs, given["old"], value, rewards, **rest)

    clean, seen = of(by_value, given["rewards"]), of(by_value, given["rewards"], *spoiled)
    jax.tree.map(np.testing.assert_array_equal, clean, seen)
    alike = jnp.asarray([1, 1, 1, 0, 0, 0, 1, 1], jnp.float32)  # only a dead row differs
    alone = dataclasses.replace(by_value, by_group=False)
    assert not of(by_value, alike)[1].live and of(alone, alike)[1].live
    assert of(by_value, alike.at[4].set(1.0))[1].live
    rest["weight"] = jnp.zeros(R)
    none = of(alone, alike)
    assert none[0] == 0 and not none[1].live


def test_a_loss_of_another_shape_and_replay_of_groups_are_refused():
    given, rest = problem()
    scalar = RowLoss(loss=lambda rows: rows.value.mean())
    with pytest.raises(ValueError, match=r"loss: must return one number a row, \(8,\), got \(\)"):
        row_loss(scalar, given["log_probs"], given["old"], given["value"], given["rewards"], **rest)
    with pytest.raises(ValueError, match="by_group: True needs whole groups"):
        off_policy.check_objective(scalar)
    single = dataclasses.replace(scalar, by_group=False)
    off_policy.check_objective(single)
    assert not reads_reference(single) and not trains_value(single)
    learns = dataclasses.replace(single, teaches_pass_rate=True, reads_reference=True)
    assert reads_reference(learns) and trains_value(learns) and teaches_pass_rate(learns)
