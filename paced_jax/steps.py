"""Optimiser steps on one training batch: a single one, or one a mini-batch.

Shapes: `B` rows of a training batch in `G` groups, `T` response tokens.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int

from paced_jax import gradients
from paced_jax.gradients import Figures
from paced_jax.minibatches import Deal, put_back, take
from paced_jax.optimizers import StepInfo, choose, step
from paced_jax.policy.decoder import Params
from paced_jax.policy.forward import ActionStats
from paced_jax.types import Learner, TrainBatch


class Taken(NamedTuple):
    """What the steps on a batch did.

    Attributes:
        stats: [B, T], of the policy before the first step.
        figures: of the batch; with several steps every row's under the policy that it moved.
        info: norms, and what was clipped, as float32; with several steps their mean.
        steps: int32, how many were taken.
        bad_prompt: int32; where it is not -1 nothing moved.
    """

    stats: ActionStats
    figures: Figures
    info: StepInfo
    steps: Int[Array, ""]
    bad_prompt: Int[Array, ""]


class Steps(NamedTuple):
    """How a batch is run.

    Attributes:
        force: `policy -> ActionStats [B, T]` of the batch, without gradient.
        take: `learner -> (Learner, Taken)`.
    """

    force: Callable[[Params], ActionStats]
    take: Callable[[Learner], tuple[Learner, Taken]]


def one_step(
    batch: TrainBatch,
    num_groups: int,
    optimizer: optax.GradientTransformation,
    clip_norm: float,
    problem: dict[str, Any],
) -> Steps:
    """The whole batch in one go. With one step log pi_old is this forward pass, without gradient.

    Args:
        batch: B rows.
        num_groups: G, static.
        optimizer: from `optimizers.make_optimizer`.
        clip_norm: to report what was clipped.
        problem: what else `gradients.batch_loss` takes.
    """

    def steps(learner: Learner) -> tuple[Learner, Taken]:
        pull = gradients.gradient(learner.params, batch, None, num_groups=num_groups, **problem)
        after, info, stepped = _step(learner, pull, optimizer, clip_norm)
        return after, Taken(pull.stats, pull.figures, info, stepped, pull.bad_prompt)

    force = partial(gradients.teacher_force, problem["setup"], problem["graphdef"])
    return Steps(lambda policy: force(policy, batch, num_groups), steps)


def several_steps(
    batch: TrainBatch,
    dealt: Deal,
    minibatches: int,
    optimizer: optax.GradientTransformation,
    clip_norm: float,
    problem: dict[str, Any],
) -> Steps:
    """The batch dealt out: a step a mini-batch, whose gradient is summed over its micro-batches.

    With several steps log pi_old comes from a forward pass before the first. A mini-batch with
    nothing to learn from takes no step; if one is not finite, all steps are undone.

    Args:
        batch: B rows.
        dealt: into all micro-batches.
        minibatches: how many of them, each with its share of the micro-batches.
        optimizer: from `optimizers.make_optimizer`.
        clip_norm: to report what was clipped.
        problem: what else `gradients.batch_loss` takes.
    """
    num_groups = dealt.num_groups
    micro = take(batch, dealt)
    force = partial(gradients.teacher_force, problem["setup"], problem["graphdef"])

    def forced(policy: Params) -> ActionStats:
        """[micro-batches, rows, T], one after another."""
        return jax.lax.map(lambda part: force(policy, part, num_groups), micro)

    def minibatch(learner, part_and_old):
        pull = gradients.accumulated(
            learner.params, *part_and_old, num_groups=num_groups, **problem
        )
        after, info, stepped = _step(learner, pull, optimizer, clip_norm)
        return after, (pull.stats, pull.figures, info, stepped, pull.bad_prompt)

    def steps(learner: Learner) -> tuple[Learner, Taken]:
        before = forced(learner.params.policy) if minibatches > 1 else None
        old = None if before is None else before.log_probs
        parts = jax.tree.map(lambda x: x.reshape(minibatches, -1, *x.shape[1:]), (micro, old))
        after, (stats, figures, info, stepped, bad) = jax.lax.scan(minibatch, learner, parts)
        if before is None:
            before = jax.tree.map(lambda x: x[0], stats)
        bad_prompt = bad[jnp.argmax(bad >= 0)]
        after = choose(bad_prompt < 0, after, learner)
        return after, Taken(
            put_back(before, dealt),
            gradients.pool(figures, problem["objective"]),
            jax.tree.map(lambda x: x.mean(), info),
            jnp.where(bad_prompt < 0, stepped.sum(), 0),
            bad_prompt,
        )

    return Steps(lambda policy: put_back(forced(policy), dealt), steps)


def _step(learner: Learner, pull: gradients.Pull, optimizer, clip_norm):
    """(Learner, StepInfo as float32, steps taken), where there is something to learn from."""
    params, optimizer_state, info = step(
        optimizer,
        learner.params,
        learner.optimizer_state,
        pull.gradients,
        clip_norm=clip_norm,
    )
    stepped = (pull.bad_prompt < 0) & pull.live
    moved = Learner(params, optimizer_state, learner.version + 1)
    info = jax.tree.map(lambda x: x.astype(jnp.float32), info)
    return choose(stepped, moved, learner), info, stepped.astype(jnp.int32)
