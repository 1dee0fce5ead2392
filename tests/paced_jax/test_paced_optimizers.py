"""Two optimiser groups: rates, clips, decay, warm-up; and steps that must not happen."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from random_policy import random_policy

from paced_jax import partition
from paced_jax.objectives import dr_grpo, paced, policy_gradient, trajectory_balance
from paced_jax.optimizers import apply_if, decay_mask, make_optimizer, step
from paced_jax.policy.config import DecoderConfig
from paced_jax.types import Parameters


def test_v_needs_its_own_learning_rate():
    # Public reports (a factor of 1000 is usual): at a policy rate of 1e-6 a shared rate moves an
    # intercept by at most 150 x 1e-6 in 150 steps; its own rate takes it to the pass rate.
    optimum, reached = 0.125, {}
    for name, rate in (("shared", 1e-6), ("own", 1e-2)):
        optimizer = make_optimizer(1e-6, rate)
        params = Parameters({"kernel": jnp.ones(2)}, {"bias": jnp.float32(0.5)})

        def body(carry, _, optimizer=optimizer):
            params, state = carry
            gradients = jax.grad(lambda p: (p.partition["bias"] - optimum) ** 2)(params)
            params, state, _ = step(optimizer, params, state, gradients)
            return (params, state), None

        (params, _), _ = jax.lax.scan(body, (params, optimizer.init(params)), length=150)
        reached[name] = float(params.partition["bias"])
    assert 1e-4 < 0.5 - reached["shared"] < 2e-4
    assert abs(reached["own"] - optimum) < 0.05


def test_one_step_by_hand_groups_apart(x64):
    # Group by group: clip the gradient's norm at 1, then AdamW's first step, in which m-hat / root
    # v-hat is the sign of the gradient (eps 1e-8 aside): -rate (sign + decay * weight).
    params = Parameters(
        {"kernel": jnp.array([[3.0, -2.0]]), "norm": {"scale": jnp.array([1.0, 1.0])}},
        {"kernel": jnp.array([[0.5, 0.5]]), "bias": jnp.array([0.5])},
    )
    gradients = Parameters(
        {"kernel": jnp.array([[30.0, -40.0]]), "norm": {"scale": jnp.array([0.0, 120.0])}},
        {"kernel": jnp.array([[0.3, 0.0]]), "bias": jnp.array([-0.4])},
    )
    optimizer = make_optimizer(
        1e-3, 1e-2, policy_warmup=4, policy_weight_decay=0.1, partition_weight_decay=0.2
    )
    new, state, info = step(optimizer, params, optimizer.init(params), gradients)
    assert info.policy_norm == 130.0 and info.policy_clipped
    assert info.partition_norm == 0.5 and not info.partition_clipped
    moved = jax.tree.map(lambda a, b: a - b, new, params)
    rate = 1e-3 / 4  # first of four warm-up steps
    np.testing.assert_allclose(
        moved.policy["kernel"], [[-rate * (1 + 0.3), -rate * (-1 - 0.2)]], rtol=1e-6
    )
    np.testing.assert_allclose(moved.policy["norm"]["scale"], [0.0, -rate], rtol=1e-6, atol=1e-15)
    np.testing.assert_allclose(moved.partition["kernel"], [[-1e-2 * 1.1, -1e-2 * 0.1]], rtol=1e-6)
    np.testing.assert_allclose(moved.partition["bias"], [1e-2], rtol=1e-6)
    # The norm of one group never shrinks the other: V's step is that of V alone.
    calm = gradients._replace(policy=jax.tree.map(lambda g: g / 1e3, gradients.policy))
    other, _, calm_info = step(optimizer, params, optimizer.init(params), calm)
    assert not calm_info.policy_clipped
    jax.tree.map(np.testing.assert_array_equal, other.partition, new.partition)
    # Warm-up ends at the fourth step.
    for _ in range(5):
        before = new
        new, state, _ = step(optimizer, new, state, gradients)
    last = (new.policy["norm"]["scale"] - before.policy["norm"]["scale"])[1]
    np.testing.assert_allclose(last, -1e-3, rtol=1e-6)


def test_decay_spares_what_should_not_shrink():
    head = partition.init(jax.random.key(0), 3, num_hidden=4)
    mask = decay_mask(
        Parameters({"embedding": jnp.ones((5, 2)), "q": {"kernel": head.kernel}}, head)
    )
    assert mask.policy == {"embedding": False, "q": {"kernel": True}}
    for layer in mask.partition.hidden:
        assert tuple(layer) == (True, False, False, False)
    assert mask.partition.kernel and not mask.partition.bias


def test_of_a_decoder_the_matrices_decay_and_nothing_else():
    # Qwen2's has biases; an untied head counts as a matrix, the embedding does not.
    config = DecoderConfig(
        vocab_size=8,
        hidden_size=4,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        intermediate_size=8,
        qkv_bias=True,
        tie_embeddings=False,
    )
    params = random_policy(config)[1]
    decayed = {
        jax.tree_util.keystr(path)
        for path, wanted in jax.tree_util.tree_leaves_with_path(decay_mask(params))
        if wanted
    }
    names = {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)}
    assert decayed == {name for name in names if "kernel" in name or "head" in name}
    assert any("head" in name for name in decayed) and decayed < names


@pytest.mark.parametrize("objective", ["paced", "dr_grpo"])
def test_a_batch_with_nothing_to_learn_moves_nothing(objective):
    optimizer = make_optimizer(1e-2)
    params = Parameters({"kernel": jnp.array([[0.3, -0.4]])}, {"bias": jnp.array([0.5, 0.5])})
    group, answer = jnp.array([0, 0, 1, 1]), jnp.array([0, 1, 1, 0])
    shared = {"action_mask": jnp.ones((4, 1), bool), "group": group, "num_groups": 2}

    def loss(params, rewards, weight):
        log_probs = jax.nn.log_softmax(params.policy["kernel"])[0][answer][:, None]
        old = jax.lax.stop_gradient(log_probs)
        rest = {"weight": weight, **shared}
        if objective == "dr_grpo":
            return policy_gradient(dr_grpo(1), log_probs, old, rewards, **rest)
        value = params.partition["bias"][group]
        return trajectory_balance(
            paced(), log_probs, old, value, rewards, behaviour_log_probs=old, **rest
        )

    @jax.jit
    def learn(carry, rewards, weight):
        params, optimizer_state = carry
        gradients, metrics = jax.grad(loss, has_aux=True)(params, rewards, weight)
        careless = step(optimizer, params, optimizer_state, gradients)[:2]
        return apply_if(metrics.live, lambda _: careless, carry), careless, gradients

    informative, once = jnp.array([1.0, 0.0, 1.0, 1.0]), jnp.ones(4)
    start = (params, optimizer.init(params))
    moved, _, _ = learn(start, informative, once)  # so that Adam's moments are not zero
    assert not np.array_equal(moved[0].policy["kernel"], params.policy["kernel"])

    nothing = [(informative, 0 * once)]  # all masked
    degenerate = (jnp.array([0.0, 0.0, 1.0, 1.0]), once)
    if objective == "dr_grpo":
        nothing.append(degenerate)
    else:  # under trajectory balance V still learns
        after, _, _ = learn(moved, *degenerate)
        assert (after[0].partition["bias"] != moved[0].partition["bias"]).all()
    for batch in nothing:
        after, careless, gradients = learn(moved, *batch)
        jax.tree.map(np.testing.assert_array_equal, after, moved)
        # The gradient is zero, and a step with it would still move weights and be counted.
        assert all((g == 0).all() for g in jax.tree.leaves(gradients))
        assert not np.array_equal(careless[0].policy["kernel"], moved[0].policy["kernel"])
        counts = optax.tree.get_all_with_path(careless[1], "count")
        assert {int(count) for _, count in counts} == {2}
