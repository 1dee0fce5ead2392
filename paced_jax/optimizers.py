"""The optimiser of the trainer: AdamW for the policy and for V, each with its own rate and clip.

A policy's learning rate (1e-6 for language models) cannot move V: in 150 steps at a shared rate an
intercept moves by less than 2e-4, and a head of 128 hidden units by .003 where .375 was needed.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PyTree

from paced_jax.types import Leaf, Parameters

S = TypeVar("S")

NOT_DECAYED = re.compile("bias|norm|scale|offset|embed")
"""Parameters whose path matches are not pulled towards 0 by weight decay."""


class StepInfo(NamedTuple):
    """What a step did.

    Attributes:
        policy_norm: gradient norm of the policy before clipping.
        partition_norm: the same of V's head.
        policy_clipped: True where the policy's gradient was scaled down.
        partition_clipped: the same of V's head.
    """

    policy_norm: Float[Array, ""]
    partition_norm: Float[Array, ""]
    policy_clipped: Bool[Array, ""]
    partition_clipped: Bool[Array, ""]


def decay_mask(params: PyTree) -> PyTree:
    """Marks the parameters that weight decay may touch: no biases, norms, scales or embeddings.

    By name, because layers stacked for a scan give a norm's scale two axes.

    >>> decay_mask({"kernel": jnp.ones((2, 2)), "norm": {"scale": jnp.ones(2)}})
    {'kernel': True, 'norm': {'scale': False}}
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, _: not NOT_DECAYED.search(jax.tree_util.keystr(path).lower()), params
    )


def warm_up(learning_rate: Leaf, steps: Leaf) -> Callable[[Any], Any]:
    """A schedule that rises linearly to `learning_rate` at step `steps`, then stays.

    The first step already has learning_rate / steps, so no step is wasted at rate 0.
    """
    return lambda count: learning_rate * jnp.minimum((count + 1) / jnp.maximum(steps, 1), 1.0)


def make_optimizer(
    policy_learning_rate: Leaf,
    partition_learning_rate: Leaf = 1e-3,
    *,
    policy_warmup: Leaf = 0,
    partition_warmup: Leaf = 0,
    policy_weight_decay: Leaf = 0.1,
    partition_weight_decay: Leaf = 0.0,
    clip_norm: Leaf = 1.0,
    b1: Leaf = 0.9,
    b2: Leaf = 0.999,
) -> optax.GradientTransformation:
    """AdamW on `Parameters(policy, partition)`, each group clipped by its own global norm.

    Args:
        policy_learning_rate: of the policy; 1e-6 in the papers.
        partition_learning_rate: of V's head. PACED-RL's is unknown; the default is ours.
        policy_warmup: steps of linear warm-up.
        partition_warmup: the same for V.
        policy_weight_decay: decoupled, on what `decay_mask` leaves.
        partition_weight_decay: the same for V; 0, so that a rare prompt's V isn't pulled to 0.
        clip_norm: largest norm of each group's gradient.
        b1: decay of the first moment.
        b2: decay of the second moment.

    Returns:
        A GradientTransformation for `Parameters`.
    """

    def group(learning_rate, warmup, weight_decay):
        return optax.chain(
            optax.clip_by_global_norm(clip_norm),
            optax.adamw(
                warm_up(learning_rate, warmup),
                b1=b1,
                b2=b2,
                weight_decay=weight_decay,
                mask=decay_mask,
            ),
        )

    return optax.multi_transform(
        {
            "policy": group(policy_learning_rate, policy_warmup, policy_weight_decay),
            "partition": group(partition_learning_rate, partition_warmup, partition_weight_decay),
        },
        Parameters("policy", "partition"),
    )


def step(
    optimizer: optax.GradientTransformation,
    params: Parameters,
    optimizer_state: Any,
    gradients: Parameters,
    *,
    clip_norm: Leaf = 1.0,
) -> tuple[Parameters, Any, StepInfo]:
    """Takes one optimiser step.

    Args:
        optimizer: from `make_optimizer`.
        params: what is trained.
        optimizer_state: its state.
        gradients: of the loss.
        clip_norm: the one given to `make_optimizer`, to report what was clipped.

    Returns:
        New parameters, new optimiser state, StepInfo.
    """
    updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
    policy, partition = (optax.tree.norm(group) for group in gradients)
    info = StepInfo(policy, partition, policy > clip_norm, partition > clip_norm)
    return optax.apply_updates(params, updates), optimizer_state, info  # pyright: ignore


def apply_if(ready: Bool[Array, ""], update: Callable[[S], S], state: S) -> S:
    """Returns `update(state)` where ready, else the state as it is, bit for bit.

    Not the same as a step with a zero gradient, which moves Adam's moments and count, and decays
    weights.

    Args:
        ready: scalar.
        update: keeps shapes and dtypes.
        state: any pytree: parameters, optimiser state, counters.
    """
    return jax.lax.cond(ready, update, lambda state: state, state)


def choose(ready: Bool[Array, ""], after: S, before: S) -> S:
    """`after` where ready is True, else `before`, number by number.

    `apply_if` for what is computed anyway: chosen where it is written, without a copy of the whole
    state, which a choice of branches makes.

    Args:
        ready: scalar.
        after: a pytree of arrays.
        before: the same structure.
    """
    return jax.tree.map(partial(jnp.where, ready), after, before)
