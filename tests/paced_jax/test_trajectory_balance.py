"""The loss itself: by hand, by a slow loop, by finite differences, against torchgfn; NaN; masks."""

import copy
import dataclasses
import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from balance_rows import SETTINGS, call, example

from paced_jax.objectives import (
    TrajectoryBalance,
    flowrl,
    paced,
    trajectory_balance,
)
from paced_jax.objectives.reductions import first_nonfinite, raise_nonfinite
from paced_jax.types import PartitionUpdate


def slow(objective, a, frozen, partition=None):
    """The same loss as loops over rows and tokens; V of a group and weights are from `frozen`."""
    rows = [i for i in range(len(a["rewards"])) if a["weight"][i] > 0 and a["action_mask"][i].any()]

    def ratio(i, one, other, source, mean):
        tokens = [t for t in range(a["action_mask"].shape[1]) if a["action_mask"][i, t]]
        total = sum(source[one][i, t] - source[other][i, t] for t in tokens)
        return total / len(tokens) if mean else total

    def reward(i):
        if objective.reward == "raw":
            return a["rewards"][i]
        group = [a["rewards"][j] for j in rows if a["group"][j] == a["group"][i]]
        if max(group) == min(group):
            return 0.0
        return (a["rewards"][i] - np.mean(group)) / (np.std(group, ddof=1) + 1e-6)

    def free_energy(i, source):
        return reward(i) - objective.beta * ratio(
            i, "log_probs", "anchor_log_probs", source, objective.length_normalised
        )

    total = 0.0
    for i in rows:
        v = a["value"][i]
        if objective.partition == "group_mean":
            group = [j for j in rows if a["group"][j] == a["group"][i]]
            v = np.mean([free_energy(j, frozen) for j in group])
        residual = v - free_energy(i, a)
        pull = min(
            max(residual, -objective.beta * objective.gap_low),
            objective.beta * objective.gap_high,
        )
        w = 1.0
        if objective.importance != "none":
            mean = objective.importance == "sequence_mean"
            w = math.exp(ratio(i, "log_probs", "behaviour_log_probs", frozen, mean))
            w = min(max(w, objective.importance_low), objective.importance_high)
        total += w * (residual**2 if pull == residual else pull * (2 * residual - pull))
        if partition is not None:
            total += partition.target_weight[i] * (a["value"][i] - partition.target[i]) ** 2
    return total / len(rows) / (1.0 if objective.scaled else objective.beta**2)


def test_two_token_tree_by_hand(x64):
    # Vocabulary {a, EOS}, at most two tokens. Responses: EOS | a EOS | a a.
    # pi_theta: P(a) = 1/2, then P(EOS|a) = 1/4, P(a|a) = 3/4. Anchor: 1/2 everywhere.
    # log-ratios, summed:  0 | 0 + ln(1/2) = -0.6931471806 | 0 + ln(3/2) = 0.4054651081
    # beta = 1/2:          0 | -0.3465735903               | 0.2027325541
    # rewards 0 | 1 | 0 and V = 1/4, so V - r + beta * log-ratio is
    #                      0.25 | -1.0965735903            | 0.4527325541
    # squares:             0.0625 | 1.2024736389           | 0.2049667655
    # mean of the three:   1.4699404044 / 3 = 0.4899801348; plain: / beta^2 = 1.9599205392
    # V's gradient: 2 (0.25 - 1.0965735903 + 0.4527325541) / 3 = -0.2625606908
    half = math.log(0.5)
    log_probs = jnp.array([[half, 0], [half, math.log(0.25)], [half, math.log(0.75)]])
    anchor = jnp.array([[half, 0], [half, half], [half, half]])
    rest = {
        "behaviour_log_probs": anchor,
        "action_mask": jnp.array([[True, False], [True, True], [True, True]]),
        "group": jnp.zeros(3, jnp.int32),
        "num_groups": 1,
    }
    rewards = jnp.array([0.0, 1.0, 0.0])

    def loss(v, objective):
        value = jnp.full(3, v)
        return trajectory_balance(objective, log_probs, anchor, value, rewards, **rest)[0]

    scaled = paced(0.5)
    plain = dataclasses.replace(scaled, scaled=False)
    np.testing.assert_allclose(loss(0.25, scaled), 0.4899801348, atol=1e-10)
    np.testing.assert_allclose(loss(0.25, plain), 1.9599205392, atol=1e-10)
    np.testing.assert_allclose(jax.grad(loss)(0.25, scaled), -0.2625606908, atol=1e-10)
    # Per token: the log-ratios halve, so beta * log-ratio is 0 | -0.1732867951 | 0.1013662770 and
    # the squares 0.0625 | 0.8518087... (0.9232867951^2 = 0.8524585061) | 0.1234582647: mean
    # (0.0625 + 0.8524585061 + 0.1234582647) / 3 = 0.3461389236
    per_token = dataclasses.replace(scaled, length_normalised=True)
    np.testing.assert_allclose(loss(0.25, per_token), 0.3461389236, atol=1e-10)
    # Importance weights pi_theta / behaviour: 1 | 1/2 | 3/2. Capped at 5/4:
    # (0.0625 + 0.6012368194 + 1.25 * 0.2049667655) / 3 = 0.3066484254
    weighted = dataclasses.replace(scaled, importance="sequence_sum", importance_high=1.25)
    np.testing.assert_allclose(loss(0.25, weighted), 0.3066484254, atol=1e-10)


@pytest.mark.parametrize("name", SETTINGS)
def test_value_and_gradient_against_a_slow_loop(name, x64):
    objective, arrays = SETTINGS[name], example()
    loss, metrics = call(objective, arrays)
    np.testing.assert_allclose(loss, slow(objective, arrays, arrays), rtol=1e-12)

    for field in ("log_probs", "value"):
        gradient = jax.grad(lambda x, f=field: call(objective, arrays | {f: x})[0])(
            jnp.asarray(arrays[field])
        )
        # Central differences of the loop, with the parts that carry no gradient held at `arrays`.
        expected = np.zeros_like(arrays[field])
        for index in np.ndindex(expected.shape):
            sides = []
            for h in (1e-6, -1e-6):
                moved = arrays[field].copy()
                moved[index] += h
                sides.append(slow(objective, arrays | {field: moved}, arrays))
            expected[index] = (sides[0] - sides[1]) / 2e-6
        if field == "value" and objective.partition != "learned":
            expected[:] = 0.0
        np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-7)
        assert (np.abs(expected).max() > 1e-3) == (
            field == "log_probs" or objective.partition == "learned"
        )
    if name == "flowrl_tight":
        assert 0 < metrics.importance_clamped < 1
    if name == "gflowrl":
        assert 0 < metrics.gap_clamped < 1


def test_partition_update_routes_the_gradient_of_v(x64):
    objective, arrays = paced(0.3), example()
    rng = np.random.default_rng(1)
    update = PartitionUpdate(
        residual_weight=jnp.asarray(rng.choice([0.0, 0.5, 1.0], 12)),
        target=jnp.asarray(rng.uniform(size=12)),
        target_weight=jnp.asarray(rng.choice([0.0, 1.0], 12)),
    )
    loss, _ = call(objective, arrays, update)
    np.testing.assert_allclose(loss, slow(objective, arrays, arrays, update), rtol=1e-12)
    gradients = {}
    for key, partition in (("plain", None), ("routed", update)):
        for field in ("log_probs", "value"):
            gradients[key, field] = np.asarray(
                jax.grad(lambda x, f=field, p=partition: call(objective, arrays | {f: x}, p)[0])(
                    jnp.asarray(arrays[field])
                )
            )
    # The policy's gradient is the same; V's is scaled, plus that of its own regression.
    np.testing.assert_allclose(gradients["routed", "log_probs"], gradients["plain", "log_probs"])
    live = (arrays["weight"] > 0) & arrays["action_mask"].any(1)
    regression = 2 * update.target_weight * (arrays["value"] - update.target) * live / live.sum()
    np.testing.assert_allclose(
        gradients["routed", "value"],
        update.residual_weight * gradients["plain", "value"] + regression,
        rtol=1e-12,
    )
    # With a constant or a group's V there is no head to teach.
    fixed = dataclasses.replace(objective, partition="fixed")
    assert call(fixed, arrays, update)[0] == call(fixed, arrays)[0]


def test_torchgfn_figures():
    stored = json.loads((Path(__file__).parent / "data" / "torchgfn.json").read_text())
    log_pf, log_pb = (jnp.asarray(stored[k], jnp.float32).T for k in ("log_pf", "log_pb"))
    rows, tokens = log_pf.shape
    steps = jnp.asarray(stored["lengths"])[:, None]
    # torchgfn pads after the end with 0 and counts the exit as a step.
    mask = jnp.arange(tokens)[None] < steps
    assert (jnp.where(mask, 0.0, jnp.abs(log_pf) + jnp.abs(log_pb)) == 0).all()
    for objective, figure in (
        (TrajectoryBalance(beta=1.0), "trajectory_balance"),
        (TrajectoryBalance(beta=1.0, partition="group_mean"), "log_partition_variance"),
        (TrajectoryBalance(beta=1.0, scaled=False), "trajectory_balance"),
    ):
        loss, _ = trajectory_balance(
            objective,
            log_pf,
            log_pb,
            jnp.full(rows, stored["log_z"], jnp.float32),
            jnp.asarray(stored["log_rewards"], jnp.float32),
            behaviour_log_probs=log_pf,
            action_mask=mask,
            group=jnp.zeros(rows, jnp.int32),
            num_groups=1,
        )
        # Both in float32: residuals of about 1 from sums of six terms, so 1e-6.
        np.testing.assert_allclose(loss, stored[figure], rtol=1e-6)


@pytest.mark.parametrize("name", SETTINGS)
def test_nothing_live_gives_zero_loss_and_gradient(name, x64):
    arrays = example()
    arrays["rewards"][:] = np.nan
    for dead in ({"weight": np.zeros(12)}, {"action_mask": np.zeros((12, 4), bool)}):
        masked = {k: jnp.asarray(x) for k, x in (arrays | dead).items()}
        loss, metrics = call(SETTINGS[name], masked)
        assert loss == 0 and not metrics.live
        for field in ("log_probs", "value"):
            gradient = jax.grad(lambda x, f=field, m=masked: call(SETTINGS[name], m | {f: x})[0])
            assert (gradient(masked[field]) == 0).all()


@pytest.mark.parametrize("name", SETTINGS)
def test_padding_and_order_of_rows_do_not_matter(name, x64):
    objective, arrays = SETTINGS[name], example()
    loss, metrics = call(objective, arrays)
    garbage = {k: arrays[k].copy() for k in arrays}
    for field in ("log_probs", "anchor_log_probs", "behaviour_log_probs"):
        garbage[field][~arrays["action_mask"]] = np.nan
    for field in ("rewards", "value"):
        garbage[field][[3, 7]] = np.nan
    garbage["log_probs"][7] = -np.inf
    order = np.random.default_rng(2).permutation(12)
    longer = {
        k: np.concatenate([x, np.zeros((12, 2), x.dtype)], axis=1) if x.ndim == 2 else x
        for k, x in garbage.items()
    }
    shuffled = {k: x[order] for k, x in longer.items()}
    for other in (garbage, longer, shuffled):
        other_loss, other_metrics = call(objective, other)
        np.testing.assert_allclose(other_loss, loss, rtol=1e-13)
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-12), metrics, other_metrics
        )
        gradient = jax.grad(lambda x, o=other: call(objective, o | {"log_probs": x})[0])
        assert not np.isnan(gradient(jnp.asarray(other["log_probs"]))).any()


@pytest.mark.parametrize("field", ["log_probs", "anchor_log_probs", "rewards", "value"])
@pytest.mark.parametrize("name", SETTINGS)
def test_nan_in_a_live_row_is_loud(name, field, x64):
    arrays = example()
    if field == "value" and SETTINGS[name].partition == "group_mean":
        return  # V is not read
    arrays[field][5] = np.nan
    assert np.isnan(call(SETTINGS[name], arrays)[0])
    if field in ("rewards", "log_probs"):
        read = {
            k: jnp.asarray(arrays[k]) for k in ("rewards", "log_probs", "action_mask", "weight")
        }
        row = int(first_nonfinite(**read))
        assert row == 5
        host = [arrays[k] for k in ("rewards", "log_probs", "action_mask")]
        with pytest.raises(ValueError, match=rf"{field}: prompt 1005 \(row 5\) has nan"):
            raise_nonfinite(row, np.arange(1000, 1012), *host)


def test_first_nonfinite_looks_at_live_rows_only(x64):
    arrays = example()
    arrays["log_probs"][~arrays["action_mask"]] = np.nan
    arrays["log_probs"][7] = np.inf
    arrays["rewards"][3] = np.nan
    read = {k: jnp.asarray(arrays[k]) for k in ("rewards", "log_probs", "action_mask", "weight")}
    assert first_nonfinite(**read) == -1
    host = [arrays[k] for k in ("rewards", "log_probs", "action_mask")]
    raise_nonfinite(-1, np.arange(12), *host)
    del read["weight"]
    assert first_nonfinite(**read) == 7
    with pytest.raises(ValueError, match=r"log_probs: prompt 7 \(row 7\) has inf at token 0"):
        raise_nonfinite(7, np.arange(12), *host)


def test_importance_is_clamped_before_the_exponential():
    # float32 exp(89) is inf, and inf * 0 NaN: rows at balance (residual 0) must weigh in as 0.
    log_probs = jnp.array([[0.0], [89.0], [-200.0]], jnp.float32)
    arrays = {
        "log_probs": log_probs,
        "anchor_log_probs": log_probs,
        "behaviour_log_probs": jnp.zeros((3, 1)),
        "value": jnp.array([1.0, 0.0, 1.0]),
        "rewards": jnp.array([1.0, 0.0, 0.5]),
        "action_mask": jnp.ones((3, 1), bool),
        "group": jnp.zeros(3, jnp.int32),
    }
    objective = dataclasses.replace(
        paced(1.0), importance="sequence_sum", importance_low=0.5, importance_high=10.0
    )
    loss, metrics = call(objective, arrays, num_groups=1)
    # Only the last row is off balance: weight max(e^-200, 1/2) times (1 - 1/2)^2, over 3 rows.
    np.testing.assert_allclose(loss, 0.5 * 0.25 / 3, rtol=1e-6)
    gradient = jax.grad(lambda x: call(objective, arrays | {"log_probs": x}, num_groups=1)[0])
    np.testing.assert_allclose(gradient(log_probs)[:, 0], [0, 0, 2 * 0.5 * 0.5 / 3], rtol=1e-6)
    np.testing.assert_allclose(metrics.importance_clamped, 2 / 3)
    np.testing.assert_allclose(metrics.log_prob_gap, 200.0)


@pytest.mark.parametrize("switch", ["anchor", "partition", "reward", "importance"])
def test_a_misspelt_switch_is_named(switch):
    typo = copy.copy(paced())
    object.__setattr__(typo, switch, "raww")  # the type checker of the tests would refuse it first
    with pytest.raises(ValueError, match=f"{switch}: must be one of .*, got 'raww'"):
        typo.__post_init__()
    with pytest.raises(ValueError, match=r"beta: must be > 0, got 0\.0"):
        paced(0.0)


def test_metrics_say_what_they_claim(x64):
    arrays = example()
    loss, metrics = call(paced(0.3), arrays)
    live = (arrays["weight"] > 0) & arrays["action_mask"].any(1)
    ratio = np.where(arrays["action_mask"], arrays["log_probs"] - arrays["anchor_log_probs"], 0)
    residual = arrays["value"] - arrays["rewards"] + 0.3 * ratio.sum(1)
    rms = [np.sqrt(np.mean(residual[live & (arrays["group"] == g)] ** 2)) for g in range(3)]
    np.testing.assert_allclose(metrics.residual, rms)
    np.testing.assert_allclose(
        metrics.rows, [np.sum(live & (arrays["group"] == g)) for g in range(3)]
    )
    np.testing.assert_allclose(metrics.value, arrays["value"][live].mean())
    np.testing.assert_allclose(metrics.reward, arrays["rewards"][live].mean())
    np.testing.assert_allclose(metrics.beta_kl, -0.3 * ratio.sum(1)[live].mean())
    ref = dataclasses.replace(paced(0.3), anchor="ref")
    assert call(ref, arrays)[1].beta_kl == -metrics.beta_kl
    assert call(ref, arrays)[0] == loss and metrics.live
    gap = np.abs(arrays["log_probs"] - arrays["behaviour_log_probs"])
    mask = arrays["action_mask"] & live[:, None]
    np.testing.assert_allclose(metrics.log_prob_gap, gap[mask].max())
    # The V that is optimal for these rows is mean reward + beta_kl.
    best = dataclasses.replace(paced(0.3), partition="group_mean")
    one_group = arrays | {"group": np.zeros(12, int)}
    np.testing.assert_allclose(
        call(best, one_group, num_groups=1)[1].value, metrics.reward + metrics.beta_kl, rtol=1e-13
    )


def test_jit_and_vmap_over_beta_equal_single_calls():
    arrays = {
        k: jnp.asarray(v, jnp.float32) if v.dtype == float else v for k, v in example().items()
    }
    traces = []

    def loss(objective):
        traces.append(None)
        return call(objective, arrays)[0]

    betas = jnp.array([0.05, 0.3, 1.0])
    swept = jax.jit(jax.vmap(lambda beta: loss(dataclasses.replace(flowrl(), beta=beta))))(betas)
    jitted = jax.jit(loss)
    traces.clear()
    for beta, expected in zip([0.05, 0.3, 1.0], swept, strict=True):
        objective = dataclasses.replace(flowrl(), beta=jnp.float32(beta))
        np.testing.assert_allclose(jitted(objective), expected, rtol=2e-6)
    assert len(traces) == 1  # numbers are leaves: a new beta is not a new program
    np.testing.assert_allclose(loss(flowrl(0.3)), swept[1], rtol=2e-6)


def test_half_precision_log_probs_are_summed_in_float32():
    arrays = {
        k: jnp.asarray(v, jnp.float32) if v.dtype == float else v for k, v in example().items()
    }
    half = {k: jnp.asarray(arrays[k], jnp.bfloat16) for k in ("log_probs", "anchor_log_probs")}
    loss, _ = call(paced(), arrays | half)
    assert loss.dtype == jnp.float32
    same = {k: v.astype(jnp.float32) for k, v in half.items()}
    # The difference of two bfloat16 is rounded to 8 bits (2^-8 relative) before it is summed.
    np.testing.assert_allclose(loss, call(paced(), arrays | same)[0], rtol=1e-2)
