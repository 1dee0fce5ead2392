"""Rows sampled by an older policy: what stands in for log pi_old, and what refuses them.

Every row carries the version and the log-probabilities of the policy that sampled it. Recomputing
them with the current policy makes every importance ratio 1 and hides how stale a row is, so a
trainer that replays must say what it does instead.

Shapes: `B` rows of a training batch, `T` response tokens.
"""

from typing import Literal, TypeAlias

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from paced_jax.objectives import Objective, PolicyGradient, RowLoss
from paced_jax.types import TrainBatch

Correction: TypeAlias = Literal["none", "current_anchor", "behaviour_anchor"]
"""What stands in for log pi_old in rows older than the policy.

* "none": they are an error.
* "current_anchor": the current policy's log-probabilities. Trajectory balance holds for any row,
  whoever sampled it, so its anchor may move on; PACED-RL's default here.
* "behaviour_anchor": the stored ones; together with `importance="sequence_mean"` and a cap of 2 the
  cautious choice.
"""


def check_objective(objective: Objective) -> None:
    """Refuses losses that mean nothing on replayed rows. Call it where pieces are put together.

    Replayed rows are kept one by one, without the other responses of their group.

    Args:
        objective: of the learner.

    Raises:
        ValueError: naming the switch that needs whole groups.
    """
    if isinstance(objective, PolicyGradient):
        raise ValueError(
            f"advantage: {objective.advantage!r} needs whole groups, replay keeps single successes"
        )
    if isinstance(objective, RowLoss):
        if objective.by_group:
            raise ValueError("by_group: True needs whole groups, replay keeps single successes")
        return
    for name, switch in (("reward", objective.reward), ("partition", objective.partition)):
        if switch in ("group_normalised", "group_mean"):
            raise ValueError(
                f"{name}: {switch!r} needs whole groups, replay keeps single successes"
            )


def old_log_probs(
    batch: TrainBatch,
    recomputed: Float[Array, "B T"],
    version: Int[Array, ""],
    correction: Correction,
) -> tuple[Float[Array, "B T"], Int[Array, ""]]:
    """Chooses log pi_old of every row: what the anchor "old" is.

    Rows of the current policy take the recomputed log-probabilities. For older rows these are the
    wrong policy's; what to do is a choice, never a default of the loss.

    Args:
        batch: fresh and replayed rows.
        recomputed: [B, T] log-probabilities under the current policy, without gradient.
        version: optimiser steps taken by that policy.
        correction: see `Correction`.

    Returns:
        [B, T]; and int32, the first row that is stale under correction "none", -1 if there is none:
        `raise_stale` it.
    """
    stale = (batch.policy_version != version) & (batch.weight > 0)
    if correction == "none":
        row = jnp.where(stale.any(), jnp.argmax(stale), -1)
        return recomputed, row.astype(jnp.int32)
    if correction == "behaviour_anchor":
        recomputed = jnp.where(stale[:, None], batch.log_probs, recomputed)
    return recomputed, jnp.int32(-1)


def raise_stale(row: int, batch: TrainBatch, version: int) -> None:
    """Raises for the row that `old_log_probs` flagged; does nothing for -1. Runs on the host.

    Raises:
        ValueError: naming the prompt id and both versions.
    """
    if row >= 0:
        raise ValueError(
            f"policy_version: prompt {batch.prompt_ids[row]} (row {row}) was sampled by version"
            f" {batch.policy_version[row]}, its log-probs recomputed by {version}; choose a"
            " correction"
        )
