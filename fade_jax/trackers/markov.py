"""Hidden Markov chain over what a prompt's group looks like (DPS, arXiv 2603.10887).

Each prompt is in one of three states: all wrong, mixed, all right. Emission is degenerate: the
state of an observed group is the one that was seen. The 3 x 3 transition probabilities of every
prompt are learned as Dirichlet counts that fade towards their prior, and the belief is propagated
every step for **all** prompts, so one left alone drifts towards its stationary distribution.

The chain has no notion of a group's size: two mixed groups of 4 and of 64 rollouts are the same
event to it, and so are all groups it predicts.

Shapes: `N` prompts in the pool, `B` observed rows; `3` is (all wrong, mixed, all right), and
`3 3` is (from, to). Prompts come last: the small axes unroll and the long one vectorises.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from fade_jax import outcomes
from fade_jax.trackers.ema import PROBABILITY_FLOOR
from fade_jax.types import Elapsed, GroupSize, Info, Observation, Tracker

LEAP_BITS = 10
"""A single `predict` covers at most 2^10 steps; a longer one is cut to that."""


class State(NamedTuple):
    """Beliefs and counts.

    Attributes:
        belief: [3, N] P(state now), sums to 1 over the first axis.
        previous: [3, N] P(state one step ago), the origin of the latest transition.
        stride: length of that transition, in steps, 0..1; below 1 after a fractional `predict`.
        transitions: [3, 3, N] Dirichlet counts (from, to), > 0.
        prepaid: [N] steps, 0..1, whose forgetting a visit has already applied to `transitions`.
        mixed_successes: [N] discounted successes in mixed groups.
        mixed_trials: [N] discounted rollouts in mixed groups.
    """

    belief: Float[Array, "3 N"]
    previous: Float[Array, "3 N"]
    stride: Float[Array, ""]
    transitions: Float[Array, "3 3 N"]
    prepaid: Float[Array, " N"]
    mixed_successes: Float[Array, " N"]
    mixed_trials: Float[Array, " N"]


def init(num_prompts: int, prior_count: float | Float[Array, ""]) -> State:
    """Returns uniform beliefs and `prior_count` for each of the nine transitions."""
    return State(
        belief=jnp.full((3, num_prompts), 1 / 3, float),
        previous=jnp.full((3, num_prompts), 1 / 3, float),
        stride=jnp.ones((), float),
        transitions=jnp.full((3, 3, num_prompts), prior_count, float),
        prepaid=jnp.zeros(num_prompts, float),
        mixed_successes=jnp.zeros(num_prompts, float),
        mixed_trials=jnp.zeros(num_prompts, float),
    )


def _transition_matrix(transitions: Float[Array, "3 3 B"]) -> Float[Array, "3 3 B"]:
    # Sums over the short axes are written out: as reductions they take 20 times longer on a CPU.
    rows = transitions[:, 0] + transitions[:, 1] + transitions[:, 2]
    return transitions / rows[:, None, :]


def _step(belief: Float[Array, "3 N"], matrix: Float[Array, "3 3 N"]) -> Float[Array, "3 N"]:
    return belief[0][None] * matrix[0] + belief[1][None] * matrix[1] + belief[2][None] * matrix[2]


def _normalised(belief: Float[Array, "3 N"]) -> Float[Array, "3 N"]:
    return belief / (belief[0] + belief[1] + belief[2])[None]


def _leap(
    belief: Float[Array, "3 N"], matrix: Float[Array, "3 3 N"], steps: Float[Array, ""]
) -> Float[Array, "3 N"]:
    """Moves `steps` >= 0 steps: the fraction by interpolation, then repeated squaring."""
    steps = jnp.minimum(steps, 2.0**LEAP_BITS - 1)
    whole = steps.astype(jnp.int32)
    fraction = steps - whole.astype(steps.dtype)
    belief = (1 - fraction) * belief + fraction * _step(belief, matrix)

    def bit(carry, position):
        belief, matrix = carry
        used = (whole >> position) & 1
        belief = jnp.where(used == 1, _step(belief, matrix), belief)
        squared = jnp.stack([_step(row, matrix) for row in matrix])
        return (belief, _transition_matrix(squared)), None  # rows sum to 1 again

    (belief, _), _ = jax.lax.scan(bit, (belief, matrix), jnp.arange(LEAP_BITS, dtype=jnp.int32))
    return _normalised(belief)


def predict(
    state: State,
    elapsed: Elapsed,
    discount: float | Float[Array, ""],
    prior_count: float | Float[Array, ""],
) -> State:
    """Propagates every belief, and lets the counts of prompts left alone fade.

    One step, as published: `alpha <- discount alpha + (1 - discount) alpha0` for a prompt not
    observed in the step that ends (a visit has done it already), then `belief <- belief Phi` with
    `Phi` the expected transition probabilities. `elapsed = 0` changes nothing. A fraction f moves
    the belief a share f of the way, and fades the counts by `discount^f`. Several steps at once
    fade first and then apply `Phi` that often, without relearning it on the way.

    Args:
        state: beliefs before.
        elapsed: steps, >= 0; cut to 1024.
        discount: memory of the counts over one step, in 0..1.
        prior_count: alpha0, the Dirichlet prior of each transition, > 0.

    Returns:
        The aged state.
    """
    dtype = state.belief.dtype
    elapsed = jnp.asarray(elapsed, dtype)
    keep = (discount ** jnp.maximum(elapsed - state.prepaid, 0.0))[None, None, :]
    transitions = keep * state.transitions + (1 - keep) * prior_count
    matrix = _transition_matrix(transitions)
    stride = jnp.minimum(elapsed, 1.0)
    rest = jnp.maximum(elapsed - 1.0, 0.0)
    previous = jax.lax.cond(
        rest > 0, lambda: _leap(state.belief, matrix, rest), lambda: state.belief
    )
    belief = (1 - stride) * previous + stride * _step(previous, matrix)
    aged = state._replace(
        belief=_normalised(belief),
        previous=previous,
        stride=stride,
        transitions=transitions,
        prepaid=jnp.maximum(state.prepaid - elapsed, 0.0),
    )
    return jax.tree.map(lambda new, old: jnp.where(elapsed > 0, new, old), aged, state)


def _mixed_rate(successes: Float[Array, " B"], trials: Float[Array, " B"]) -> Float[Array, " B"]:
    """Mean of Beta(1 + successes, 1 + failures): the pass rate of a mixed prompt, never 0 or 1."""
    return (successes + 1) / (trials + 2)


def _log_probability(
    belief: Float[Array, "3 B"], rate: Float[Array, " B"], rows: Observation
) -> Float[Array, " B"]:
    """Log probability of the counts: the state, then a binomial at `rate` cut to 1..k-1."""
    _, successes, trials = rows
    failures = trials - successes
    wrong, mixed, right = jnp.log(jnp.maximum(belief, PROBABILITY_FLOOR))
    log_pmf = outcomes.log_binomial_coefficient(successes, trials)
    log_pmf = log_pmf + successes * jnp.log(rate) + failures * jnp.log1p(-rate)
    size = jnp.where(trials > 1, trials, 2.0)
    rarer = jnp.minimum(rate, 1 - rate)
    log_cut = jnp.log(-jnp.expm1(size * jnp.log1p(-rarer)) - rarer**size)
    group = jnp.where(
        successes <= 0, wrong, jnp.where(failures <= 0, right, mixed + log_pmf - log_cut)
    )
    # A single rollout cannot be mixed; a prompt in the mixed state answers it at its own rate.
    single = belief[2] + belief[1] * rate
    single = jnp.clip(single, PROBABILITY_FLOOR, 1 - PROBABILITY_FLOOR)
    single = successes * jnp.log(single) + failures * jnp.log1p(-single)
    return jnp.where(trials > 1, group, single)


def update(
    state: State,
    observation: Observation,
    discount: float | Float[Array, ""],
    prior_count: float | Float[Array, ""],
) -> tuple[State, Info]:
    """Sees the state of every observed prompt and counts the transition that led there.

    With j the state a step ago and k the one seen, `xi_jk = previous_j Phi_jk / sum_j (...)` and
    `alpha <- discount alpha + (1 - discount) alpha0 + xi`. A second visit within the same step
    replaces the state seen and counts no transition: no time has passed.

    Args:
        state: beliefs held before.
        observation: [B] rows; the groups of one prompt are pooled, so an all-right and an
            all-wrong one make a mixed one. A group of one rollout is never mixed.
        discount: memory of the counts over one step, in 0..1.
        prior_count: alpha0, > 0.

    Returns:
        The new state, and Info of the old one. Its log evidence spreads the mixed state over
        1..k-1 successes by a binomial at the prompt's mixed pass rate, cut to that range.
    """
    rows = outcomes.merge_duplicates(observation, state.prepaid.shape[0])
    ids, successes, trials = rows
    wrong, right = successes <= 0, successes >= trials
    seen = jnp.stack([wrong, ~(wrong | right), right & ~wrong]).astype(state.belief.dtype)

    belief = state.belief.at[:, ids].get(mode="clip")
    previous = state.previous.at[:, ids].get(mode="clip")
    prepaid = state.prepaid.at[ids].get(mode="clip")
    counts = state.transitions.at[:, :, ids].get(mode="clip")
    moved = state.stride * previous[:, None, :] * _transition_matrix(counts) * seen[None, :, :]
    stayed = (1 - state.stride) * previous * seen
    xi = moved / jnp.maximum(moved.sum((0, 1)) + stayed.sum(0), 1e-30)[None, None, :]
    xi = jnp.where(prepaid[None, None, :] < 1, xi, 0.0)
    keep = (discount ** (1 - prepaid))[None, None, :]
    counts = keep * counts + (1 - keep) * prior_count + xi

    old_successes = state.mixed_successes.at[ids].get(mode="clip")
    old_trials = state.mixed_trials.at[ids].get(mode="clip")
    mixed = seen[1] > 0
    new_successes = jnp.where(mixed, discount * old_successes + successes, old_successes)
    new_trials = jnp.where(mixed, discount * old_trials + trials, old_trials)
    new = state._replace(
        belief=state.belief.at[:, ids].set(seen, mode="drop"),
        transitions=state.transitions.at[:, :, ids].set(counts, mode="drop"),
        prepaid=state.prepaid.at[ids].set(1.0, mode="drop"),
        mixed_successes=state.mixed_successes.at[ids].set(new_successes, mode="drop"),
        mixed_trials=state.mixed_trials.at[ids].set(new_trials, mode="drop"),
    )

    rate = _mixed_rate(old_successes, old_trials)
    log_pmf = _log_probability(belief, rate, rows)
    mean = belief[2] + belief[1] * rate
    variance = jnp.maximum(belief[2] + belief[1] * rate**2 - mean**2, 0.0)
    nis = outcomes.normalised_innovation(mean, variance, successes, trials)
    return new, Info(jnp.where(trials > 0, log_pmf, 0.0).sum(), nis)


def pass_rate(state: State) -> Float[Array, " N"]:
    """Returns P(all right) + P(mixed) x the mean pass rate of the prompt's own mixed groups.

    The chain itself says nothing of the rate within the mixed state. That mean is discounted as
    the counts are, visit by visit, and starts from 1/2 with the weight of two rollouts.
    """
    rate = _mixed_rate(state.mixed_successes, state.mixed_trials)
    return state.belief[2] + state.belief[1] * rate


def informative(state: State, group_size: GroupSize) -> Float[Array, " N"]:
    """Returns P(the next group is mixed), whatever its size; 0 for sizes 0 and 1."""
    return jnp.where(jnp.asarray(group_size) < 2, 0.0, state.belief[1])


def draw(key: Key[Array, ""], state: State) -> Float[Array, " N"]:
    """Consumes `key`; draws each prompt's state, then 0, 1 or a Beta draw of its mixed rate."""
    state_key, rate_key = jax.random.split(key)
    failures = state.mixed_trials - state.mixed_successes
    rate = jax.random.beta(rate_key, state.mixed_successes + 1, failures + 1)
    uniform = jax.random.uniform(state_key, rate.shape, rate.dtype)
    below = jnp.where(uniform < state.belief[0], 0.0, rate)
    return jnp.where(uniform >= state.belief[0] + state.belief[1], 1.0, below)


def build(
    num_prompts: int,
    *,
    discount: float | Float[Array, ""] = 0.7,
    prior_count: float | Float[Array, ""] = 1.0,
) -> Tracker:
    """Builds the Markov tracker.

    Published settings: `discount` 0.7 (MATH) or 0.5 (Countdown, Geometry3k), `prior_count` 1.

    Args:
        num_prompts: N.
        discount: memory of the transition counts over one step, in 0..1.
        prior_count: Dirichlet prior of each transition, > 0.

    Returns:
        A Tracker.

    >>> tracker = build(2)
    >>> group = Observation(jnp.array([1]), jnp.array([3.0]), jnp.array([8.0]))
    >>> state, _ = tracker.update(tracker.init(), group)
    >>> mixed = tracker.informative(tracker.predict(state, 1.0), 8)  # row (1, 4/3, 1) / (10/3)
    >>> [round(u, 4) for u in mixed.tolist()]
    [0.3333, 0.4]
    """
    return Tracker(
        init=partial(init, num_prompts, prior_count),
        predict=lambda state, elapsed: predict(state, elapsed, discount, prior_count),
        update=lambda state, observation: update(state, observation, discount, prior_count),
        pass_rate=pass_rate,
        informative=informative,
        draw=draw,
    )
