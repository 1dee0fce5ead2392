"""As many rollouts as each prompt is worth: group sizes vary, the budget does not.

The sizes maximise the expected number of informative groups, `sum_i U_{n_i}`, over `n_i` = 0 or
2..max_group_size with `sum_i n_i = budget`. The marginal gains

    U_{n+1} - U_n = E[p^n (1 - p) + (1 - p)^n p]

fall with n, so rollouts go one by one to the largest. The first two come as a pair, worth `U_2 / 2`
each, and `U_3 - U_2 = U_2 / 2`, so that gains per rollout never rise and the greedy choice is
optimal; where the budget ends inside a pair, the better of the two repairs is. (Knapsack RL, arXiv
2509.25849, and HORA, arXiv 2605.07114, allocate other values in this way.)

Exact for any belief about a pass rate. For approximate U the loss is at most its error.

Shapes: `N` prompts in the pool, `M` slots, `L <= M` prompts that share rollouts by their worth,
`S = max_group_size`.
"""

from collections.abc import Callable
from functools import partial
from typing import Unpack

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from fade_jax import utility
from fade_jax.selectors import equal_groups, sizes
from fade_jax.selectors.memoryless import init, observe
from fade_jax.types import SelectInfo, Selection, Selector, State, Tracker

Score = Callable[[State], Float[Array, " N"]]
"""`(tracker_state) -> [N]`, higher is better."""


def allocate(
    informative: Float[Array, "L S1"], budget: int, certain: Bool[Array, " L"] | None = None
) -> Int[Array, " L"]:
    """Splits a budget of rollouts so that the most groups are expected to be informative.

    Args:
        informative: [L, S + 1] U_n for n = 0..S, S >= 2; U_0 and U_1 are taken for 0.
        budget: rollouts, static, 0 or 2..L S; even if S = 2.
        certain: [L] prompts that get a pair before any other rollout is given.

    Returns:
        [L] int32 sizes, each 0 or 2..S, of sum `budget`. Equal gains are shared evenly.

    Example:
        >>> rate = jnp.array([0.5, 0.1])
        >>> table = jnp.stack([utility.informative_rate(rate, n) for n in range(5)], 1)
        >>> allocate(table, 4).tolist(), allocate(table, 6).tolist()
        ([4, 0], [4, 2])
    """
    rows, largest = informative.shape[0], informative.shape[1] - 1
    known = jnp.where(jnp.isnan(informative), 0.0, informative)
    pair = known[:, 2:3] / 2
    gains = jnp.concatenate([pair, pair, known[:, 3:] - known[:, 2:-1]], axis=1)
    # Closed forms of U are monotone and concave in n only to within their error.
    gains = jax.lax.cummin(jnp.maximum(gains, 0.0), axis=1)
    if certain is not None:
        gains = gains.at[:, :2].set(jnp.where(certain[:, None], jnp.inf, gains[:, :2]))
    size = jnp.maximum(jnp.arange(1, largest + 1, dtype=jnp.int32), 2)
    size = jnp.broadcast_to(size, gains.shape).reshape(-1)
    # Stable: the two of a pair stay together, so at most one prompt ends up with half a pair.
    taken = jnp.lexsort((size, -gains.reshape(-1)))[:budget]
    counts = jnp.zeros(rows, jnp.int32).at[taken // largest].add(1)
    return _without_half_pair(counts, gains)


def _without_half_pair(counts: Int[Array, " L"], gains: Float[Array, "L S"]) -> Int[Array, " L"]:
    """Gives a lone rollout to the best other prompt, or completes its pair at the least cost."""
    largest = gains.shape[1]
    row = jnp.arange(counts.shape[0], dtype=jnp.int32)
    half = counts == 1
    following = gains[row, jnp.minimum(counts, largest - 1)]
    following = jnp.where((counts >= 2) & (counts < largest), following, -jnp.inf)
    latest = jnp.where(counts >= 3, gains[row, counts - 1], jnp.inf)
    pair = jnp.where(half, gains[:, 0], 0.0).sum()
    giver, taker = jnp.argmin(latest), jnp.argmax(following)
    completes = pair - latest[giver] > following[taker] - pair
    one = half.astype(counts.dtype)
    completed = (counts + one).at[giver].add(-1)
    given = (counts - one).at[taker].add(1)
    return jnp.where(half.any(), jnp.where(completes, completed, given), counts)


def select(
    plan: sizes.Plan,
    tracker: Tracker,
    max_group_size: int,
    score: Score | None,
    state: State,
    tracker_state: State,
    key: Key[Array, ""],
) -> tuple[State, Selection, SelectInfo]:
    """Preselects as many prompts as there are slots by score, then splits the budget among them.

    Args:
        plan: sizes.
        tracker: whose `informative` gives the gains.
        max_group_size: S.
        score: `(tracker_state) -> [N]`, decides who may share.
        state: empty.
        tracker_state: the belief.
        key: consumed; decides ties, candidates and exploration.

    Returns:
        The state, the Selection, and its SelectInfo; the whole budget is planned.
    """
    shared = plan.budget - plan.explored * plan.group_size
    sharers = min(min(plan.max_groups, plan.num_prompts) - plan.explored, shared // 2)
    mean_size = min(max(shared // max(sharers, 1), 2), utility.MAX_GROUP_SIZE)
    scores = (
        tracker.informative(tracker_state, mean_size) if score is None else score(tracker_state)
    )
    wider = plan._replace(
        groups=sharers + plan.explored,
        candidates=max(plan.candidates, sharers + plan.explored),
    )
    prompt_ids = equal_groups.best(wider, scores, key)
    by_score, explored = jnp.split(prompt_ids, [sharers])

    def read(size: Int[Array, ""]) -> Float[Array, " C"]:
        return tracker.informative(tracker_state, size)[prompt_ids]

    # Not a loop over sizes: as one batch, the belief is read once.
    table = jax.vmap(read)(jnp.arange(2, max_group_size + 1, dtype=jnp.int32)).T
    table = jnp.pad(table, ((0, 0), (2, 0)))
    certain = None
    if plan.sources is not None and plan.source_floor > 0:
        sources = jnp.asarray(plan.sources)[by_score]
        ties = jnp.zeros(sharers, jnp.float32)
        certain = equal_groups.best_of_source(sources, scores[by_score], plan.source_floor, ties)
    split = jnp.zeros(0, jnp.int32)
    if sharers:
        split = allocate(table[:sharers], shared, certain)
    groups = jnp.concatenate([split, jnp.full(explored.shape, plan.group_size, jnp.int32)])
    expected = jnp.take_along_axis(table, groups[:, None], axis=1).sum()

    used = jnp.argsort(groups == 0, stable=True)
    unused = plan.max_groups - wider.groups
    groups = jnp.pad(groups[used], (0, unused))
    ids = jnp.pad(prompt_ids[used].astype(jnp.int32), (0, unused), constant_values=-1)
    info = SelectInfo(
        expected_informative=expected,
        planned_rollouts=jnp.asarray(plan.budget, jnp.int32),
        shortfall=jnp.asarray(0, jnp.int32),
        low_signal=~(expected >= plan.low_signal * plan.groups),
    )
    return state, Selection(jnp.where(groups > 0, ids, -1), groups), info


def build(
    tracker: Tracker,
    *,
    num_prompts: int,
    budget: int,
    group_size: int,
    max_group_size: int | None = None,
    score: Score | None = None,
    candidates: int | None = None,
    exploration: float = 0.05,
    **options: Unpack[sizes.Options],
) -> Selector:
    """Builds the allocation of rollouts by marginal gain.

    Args:
        tracker: that will hold the belief.
        num_prompts: N.
        budget: rollouts of an iteration, a multiple of group_size.
        group_size: mean size of the groups where every slot is used, and the size of explored ones.
        max_group_size: S, in group_size..64; four times group_size by default, or 64.
        score: `(tracker_state) -> [N]`; the best share the budget. By default P(informative) of a
            group of the mean size, `budget / max_groups`.
        candidates: preselect among so many random prompts; all by default.
        exploration: share of the groups, in 0..1, whose prompts are drawn at random; each of them
            gets group_size rollouts.
        **options: max_groups, sources, source_floor, low_signal; see `sizes.plan`. max_groups is
            the most prompts that share the budget, budget / group_size by default: more of them
            make the groups smaller. With a source_floor, the best of every source get two rollouts
            at least.

    Returns:
        A Selector.

    Raises:
        ValueError: a max_group_size outside group_size..64, sizes that do not fit (`sizes.plan`).
    """
    plan = sizes.plan(
        num_prompts,
        budget,
        group_size,
        candidates=candidates,
        exploration=exploration,
        **options,
    )
    if max_group_size is None:
        max_group_size = min(4 * plan.group_size, utility.MAX_GROUP_SIZE)
    if not plan.group_size <= max_group_size <= utility.MAX_GROUP_SIZE:
        raise ValueError(
            f"max_group_size must be in {plan.group_size}..{utility.MAX_GROUP_SIZE} (from "
            f"group_size), got {max_group_size}"
        )
    rule = partial(select, plan, tracker, max_group_size, score)
    return Selector(init, rule, observe, plan.budget, plan.max_groups)
