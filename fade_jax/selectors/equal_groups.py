"""What the selectors that give equal groups share: scores in, a budget's worth of prompts out.

`budget / group_size` prompts get `group_size` rollouts each. Among them are the best of every
source (`source_floor`), the best of all, and a share drawn at random (`exploration`), so that no
prompt is given up for ever however low it scores.

Shapes: `N` prompts in the pool, `C = budget / group_size` chosen, `M >= C` slots.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from fade_jax.selectors.sizes import Plan
from fade_jax.top import largest
from fade_jax.types import SelectInfo, Selection


def best(plan: Plan, scores: Float[Array, " N"], key: Key[Array, ""]) -> Int[Array, " C"]:
    """Chooses the prompts of an iteration by score.

    Equal scores are chosen among uniformly, whatever the layout of the pool. Scores of +-inf rank
    as the largest and the smallest float, NaN as the smallest.

    Args:
        plan: sizes.
        scores: [N], higher is better.
        key: consumed.

    Returns:
        [C] distinct ids, those chosen by score before the explored ones.

    Raises:
        ValueError: the scores are not [num_prompts].
    """
    if scores.shape != (plan.num_prompts,):
        raise ValueError(f"num_prompts is {plan.num_prompts}, but there are {scores.shape} scores")
    limits = jnp.finfo(scores.dtype)
    scores = jnp.clip(jnp.where(jnp.isnan(scores), limits.min, scores), limits.min, limits.max)
    # Every purpose has a row of its own: who has lost a tie has had low numbers there.
    restricted = plan.candidates < plan.num_prompts
    floored = plan.sources is not None and plan.source_floor > 0
    rows = 1 + restricted + floored + (plan.explored > 0)
    noise = iter(jax.random.uniform(key, (rows, plan.num_prompts), jnp.float32))
    ranks, ties = scores, next(noise)
    if restricted:
        drawn = largest(next(noise), plan.candidates)
        ranks = jnp.full_like(scores, -jnp.inf).at[drawn].set(scores[drawn])
    if floored:
        sources = jnp.asarray(plan.sources)
        favoured = best_of_source(sources, scores, plan.source_floor, next(noise))
        ranks = jnp.where(favoured, jnp.inf, ranks)
    ranked = plan.groups - plan.explored
    chosen = largest_at_random(ranks, ranked, ties) if ranked else jnp.zeros(0, jnp.int32)
    if plan.explored:
        rest = next(noise).at[chosen].set(-jnp.inf)
        chosen = jnp.concatenate([chosen, largest(rest, plan.explored)])
    return chosen


def best_first(
    plan: Plan, prompt_ids: Int[Array, " C"], scores: Float[Array, " N"]
) -> Int[Array, " C"]:
    """Sorts what `best` has chosen by score; the explored prompts stay last.

    Args:
        plan: sizes.
        prompt_ids: [C] from `best`.
        scores: [N], higher is better.

    Returns:
        [C] the same ids.
    """
    by_score, explored = jnp.split(prompt_ids, [plan.groups - plan.explored])
    return jnp.concatenate([by_score[jnp.argsort(-scores[by_score])], explored])


def fill(
    plan: Plan, prompt_ids: Int[Array, " C"], informative: Float[Array, " N"]
) -> tuple[Selection, SelectInfo]:
    """Gives every chosen prompt its group.

    Args:
        plan: sizes.
        prompt_ids: [C] distinct ids.
        informative: [N], P(a group of group_size rollouts is informative).

    Returns:
        The Selection, [M], and its SelectInfo; the whole budget is planned.
    """
    unused = plan.max_groups - plan.groups
    ids = jnp.pad(prompt_ids.astype(jnp.int32), (0, unused), constant_values=-1)
    sizes = jnp.where(ids >= 0, plan.group_size, 0).astype(jnp.int32)
    expected = informative[prompt_ids].sum()
    info = SelectInfo(
        expected_informative=expected,
        planned_rollouts=jnp.asarray(plan.budget, jnp.int32),
        shortfall=jnp.asarray(0, jnp.int32),
        # Negated, so that an unknown (NaN) signal counts as low.
        low_signal=~(expected >= plan.low_signal * plan.groups),
    )
    return Selection(ids, sizes), info


def largest_at_random(
    ranks: Float[Array, " N"], count: int, noise: Float[Array, " N"]
) -> Int[Array, " count"]:
    """The largest; who gets the last places is drawn among those that tie for them.

    Same law as `top_k` of a random permutation of the pool, without the cost of sorting one.
    """
    first = largest(ranks, count)
    cutoff = ranks[first[-1:]]  # a slice: reading one number gathers a pool split over devices
    # XLA may compute the ranks twice, rounding differently: being among the first decides, the
    # comparisons with the cutoff only add those who tie. So the ids stay distinct.
    among = jnp.zeros(ranks.shape, bool).at[first].set(True)
    tied = jnp.where(among | (ranks == cutoff), noise, -1.0)
    return largest(jnp.where(among & (ranks > cutoff), 2.0, tied), count)


def best_of_source(
    sources: Int[Array, " N"], scores: Float[Array, " N"], count: int, noise: Float[Array, " N"]
) -> Bool[Array, " N"]:
    """Flags the `count` best prompts of every source, ties at random."""
    order = jnp.lexsort((noise, -scores, sources))
    place = jnp.arange(order.shape[0], dtype=jnp.int32)
    grouped = sources[order]
    starts = jnp.concatenate([jnp.ones(1, bool), grouped[1:] != grouped[:-1]])
    rank = place - jax.lax.cummax(jnp.where(starts, place, 0))
    return jnp.zeros(scores.shape, bool).at[order].set(rank < count)
