"""Evaluation of a policy by a verifier on the host, batch by batch.

Shapes: `N` prompts, `G` rollouts of each, `P` prompt slots, `T` response slots.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Int8, Key

from paced_jax.evaluation import Evaluation, distinct_correct
from paced_jax.host_judge import Judge
from paced_jax.policy.decoder import GraphDef, Params
from paced_jax.policy.sampling import Samples, sample
from paced_jax.tasks.skill_pool import SkillPool

Sampler = Callable[..., Samples]
"""`(params, prompt_tokens [M, P], prompt_mask, key, group_size=G) -> Samples` of [M G, T]."""


class Batch(NamedTuple):
    """Judged rollouts of some prompts, G of each, side by side.

    Attributes:
        prompts: [M], places in the pool.
        tokens: [M * G, T].
        action_mask: [M * G, T].
        verdicts: [M * G], 1, 0 or -1.
        reasons: [M * G], how each verdict came about.
    """

    prompts: Int[np.ndarray, " M"]
    tokens: Int[np.ndarray, "R T"]
    action_mask: Bool[np.ndarray, "R T"]
    verdicts: Int8[np.ndarray, " R"]
    reasons: tuple[str, ...]


def make_sampler(
    graphdef: GraphDef, *, max_tokens: int, eos_id: int, temperature: float = 1.0
) -> Sampler:
    """Compiles the sampling of rollout groups.

    Args:
        graphdef: static half of the decoder.
        max_tokens: T.
        eos_id: the token that ends a response.
        temperature: 0 takes the likeliest token.
    """

    @partial(jax.jit, static_argnames="group_size")
    def draw(params, prompt_tokens, prompt_mask, key, *, group_size):
        slot = jnp.repeat(jnp.arange(len(prompt_tokens), dtype=jnp.int32), group_size)
        return sample(
            graphdef,
            params,
            prompt_tokens,
            prompt_mask,
            slot,
            key,
            max_tokens=max_tokens,
            eos_id=eos_id,
            temperature=temperature,
        )

    return draw


def batches(
    sampler: Sampler,
    judge: Judge,
    params: Params,
    pool: SkillPool,
    key: Key[Array, ""],
    *,
    group_size: int,
    batch_size: int,
    start: int = 0,
) -> Iterator[Batch]:
    """Samples and judges the prompts in order; batch b with `fold_in(key, b)`.

    Args:
        sampler: from `make_sampler`.
        judge: with the verifier.
        params: of the policy.
        pool: prompts and golds.
        key: for all rollouts.
        group_size: G.
        batch_size: prompts at once; the last batch is filled up with the last prompt, and cut.
        start: batches done before, which are skipped.

    Yields:
        The judged batches.
    """
    count = len(pool.skill)
    for number, first in enumerate(range(0, count, batch_size)):
        if number < start:
            continue
        prompts = np.minimum(np.arange(first, first + batch_size), count - 1)
        drawn = sampler(
            params,
            pool.prompt_tokens[prompts],
            pool.prompt_mask[prompts],
            jax.random.fold_in(key, number),
            group_size=group_size,
        )
        live = min(batch_size, count - first)
        tokens, _, mask = (np.asarray(x)[: live * group_size] for x in drawn)
        golds = np.repeat(pool.gold[prompts[:live]], group_size).tolist()
        judged = judge.verify(tokens, mask, golds)
        yield Batch(prompts[:live], tokens, mask, judged.verdict, judged.reason)


def evaluate(
    sampler: Sampler,
    judge: Judge,
    params: Params,
    pool: SkillPool,
    key: Key[Array, ""],
    *,
    group_size: int,
    batch_size: int,
    eos_id: int,
) -> Evaluation:
    """As `evaluation.evaluate`, judged on the host; arguments as `batches`.

    Args:
        sampler: from `make_sampler`.
        judge: with the verifier.
        params: of the policy.
        pool: prompts and golds.
        key: for all rollouts.
        group_size: G.
        batch_size: prompts at once.
        eos_id: the token that ends a response.

    Returns:
        Evaluation of [N].
    """
    parts = []
    options = {"group_size": group_size, "batch_size": batch_size}
    for batch in batches(sampler, judge, params, pool, key, **options):
        groups = len(batch.prompts)
        slot = np.repeat(np.arange(groups, dtype=np.int32), group_size)
        right = batch.verdicts == 1
        cut_off = batch.action_mask[:, -1] & (batch.tokens[:, -1] != eos_id)
        distinct = distinct_correct(
            jnp.asarray(batch.tokens),
            jnp.asarray(batch.action_mask),
            jnp.asarray(right),
            jnp.asarray(slot),
            groups,
        )

        def count(rows, groups=groups):
            return jnp.asarray(rows.reshape(groups, group_size).sum(axis=1), jnp.int32)

        parts.append(
            Evaluation(
                successes=count(right),
                trials=count(batch.verdicts >= 0),
                distinct_correct=distinct,
                response_tokens=count(batch.action_mask.sum(axis=1)),
                cut_off=count(cut_off),
            )
        )
    return jax.tree.map(lambda *column: jnp.concatenate(column), *parts)
