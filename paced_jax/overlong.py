"""Responses that are too long: a penalty before they are cut off, or no say for those that are.

Both change the batch that is learnt from, never a verdict: trackers, histories and what is dropped
as degenerate see the verifier's successes.

Shapes: `B` rows of a training batch, `T` response tokens.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from paced_jax.types import Admit, TrainBatch


def overlong_penalty(action_mask: Bool[Array, "B T"], buffer: int) -> Float[Array, " B"]:
    """DAPO's soft penalty (arXiv 2503.14476, eq. 13): linear over the last tokens before the limit.

    `-max(length - (T - buffer), 0) / buffer`, with the length in tokens, end of sequence included.

    Args:
        action_mask: [B, T].
        buffer: tokens before the limit T that cost something, in 1..T.

    Returns:
        [B], in -1..0; -1 at T tokens.

    >>> mask = jnp.arange(6)[None] < jnp.array([3, 4, 5, 6])[:, None]
    >>> overlong_penalty(mask, 2).tolist()
    [-0.0, -0.0, -0.5, -1.0]
    """
    free = action_mask.shape[1] - buffer
    beyond = jnp.maximum(action_mask.sum(axis=1) - free, 0)
    return -beyond.astype(jnp.float32) / buffer


def cut_off(batch: TrainBatch, eos_id: int) -> Bool[Array, " B"]:
    """Marks the responses that reached the limit without ending."""
    return batch.action_mask[:, -1] & (batch.tokens[:, -1] != eos_id)


def adjust(base: Admit, *, buffer: int = 0, masked: bool = False, eos_id: int = 0) -> Admit:
    """Penalises or masks overlong responses in the batches of another rule.

    Args:
        base: rule for the rows; put replay, which keeps successes by their reward, around the
            result.
        buffer: of `overlong_penalty`, which is added to the rewards; 0 for none.
        masked: rows that were cut off weigh 0, so they count in no mean of their group either.
        eos_id: the token that ends a response.
    """

    def admit(state, rollouts, verdicts, key):
        state, batch, ready = base.admit(state, rollouts, verdicts, key)
        if buffer:
            penalty = overlong_penalty(batch.action_mask, buffer).astype(batch.rewards.dtype)
            batch = batch._replace(rewards=batch.rewards + penalty)
        if masked:
            batch = batch._replace(weight=jnp.where(cut_off(batch, eos_id), 0.0, batch.weight))
        return state, batch, ready

    return base._replace(admit=admit)
