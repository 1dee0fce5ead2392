"""How often a policy solves each skill at each length.

Shapes: 8 skills `S`, `W` the greatest length.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from paced_jax.policy.decoder import GraphDef, Params
from paced_jax.policy.sampling import sample
from paced_jax.tasks.skills import MAX_LENGTH, draw_problems, verify
from paced_jax.tasks.tokens import EOS, SKILLS


def cell_successes(
    graphdef: GraphDef,
    params: Params,
    key: Key[Array, ""],
    *,
    num_prompts: int,
    group_size: int,
    max_length: int = MAX_LENGTH,
) -> Int[Array, "S W prompts"]:
    """Successes of rollout groups in every cell, on fresh random prompts. Consumes `key`.

    Args:
        graphdef: static half of the decoder.
        params: its parameters.
        key: for prompts and rollouts.
        num_prompts: random prompts of each cell.
        group_size: rollouts of a prompt, temperature 1.
        max_length: W.

    Returns:
        [8, W, num_prompts] int32, successes in 0..group_size.
    """

    def one(cell):
        prompt_key, key_ = jax.random.split(jax.random.fold_in(key, cell))
        weights = jnp.zeros((len(SKILLS) * max_length,)).at[cell].set(1.0)
        problems, _, _ = draw_problems(
            prompt_key, weights.reshape(len(SKILLS), max_length), num_prompts
        )
        group = jnp.repeat(jnp.arange(num_prompts, dtype=jnp.int32), group_size)
        samples = sample(
            graphdef,
            params,
            problems.prompt_tokens,
            problems.prompt_mask,
            group,
            key_,
            max_tokens=max_length + 2,
            eos_id=EOS,
        )
        verdict = verify(
            problems.answer_tokens,
            problems.answer_lengths,
            group,
            samples.tokens,
            samples.action_mask,
        )
        return verdict.astype(jnp.int32).reshape(num_prompts, group_size).sum(axis=1)

    cells = jnp.arange(len(SKILLS) * max_length, dtype=jnp.int32)
    counts = jax.lax.map(one, cells)
    return counts.reshape(len(SKILLS), max_length, num_prompts)
