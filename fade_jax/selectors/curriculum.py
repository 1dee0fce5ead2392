"""A target difficulty that follows the reward (AdaRFT, arXiv 2504.05520).

With R the success rate of the last batch, the target moves by

    T <- clip(T + eta tanh(alpha (R - beta)), 0, 100)

and the prompts whose difficulty is nearest T are chosen. Difficulties are given, 0 (easy) to 100;
or they are the tracker's, `100 (1 - E[p])`, and then they fall as the policy learns.

Shapes: `N` prompts in the pool, `B` observed rows.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Unpack

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Key

from fade_jax.selectors import equal_groups, sizes
from fade_jax.types import Observation, SelectInfo, Selection, Selector, Tracker
from fade_jax.types import State as TrackerState

Difficulty = Callable[[TrackerState], Float[Array, " N"]]
"""`(tracker_state) -> [N]`, in 0..100."""


class State(NamedTuple):
    """Where the curriculum stands.

    Attributes:
        target: T, difficulty sought, in 0..100.
    """

    target: Float[Array, ""]


class Control(NamedTuple):
    """Settings of the target, each with its default as published.

    Attributes:
        start: T before the first batch, in 0..100.
        step: eta, the largest move of T.
        sensitivity: alpha, how soon the move saturates.
        success_rate: beta, the success rate at which T stays.
    """

    start: sizes.ScalarLike = 0.0
    step: sizes.ScalarLike = 50.0
    sensitivity: sizes.ScalarLike = 2.0
    success_rate: sizes.ScalarLike = 0.5


def init(control: Control) -> State:
    """Returns the target at its start."""
    return State(jnp.full((), control.start, float))


def select(
    plan: sizes.Plan,
    tracker: Tracker,
    difficulty: Difficulty,
    state: State,
    tracker_state: TrackerState,
    key: Key[Array, ""],
) -> tuple[State, Selection, SelectInfo]:
    """Chooses the prompts whose difficulty is nearest the target.

    Args:
        plan: sizes.
        tracker: asked what to expect of the choice.
        difficulty: `(tracker_state) -> [N]`, in 0..100.
        state: the target.
        tracker_state: the belief.
        key: consumed; decides ties, candidates and exploration.

    Returns:
        The state, the Selection and its SelectInfo.
    """
    informative = tracker.informative(tracker_state, plan.group_size)
    distance = jnp.abs(difficulty(tracker_state) - state.target)
    prompt_ids = equal_groups.best(plan, -distance, key)
    return state, *equal_groups.fill(plan, prompt_ids, informative)


def observe(control: Control, state: State, observation: Observation) -> State:
    """Moves the target by the success rate of all observed rollouts.

    Args:
        control: settings.
        state: before.
        observation: [B] rows. Without trials nothing changes.

    Returns:
        The state after.
    """
    live = observation.trials > 0
    trials = jnp.where(live, observation.trials, 0).sum()
    rate = jnp.where(live, observation.successes, 0).sum() / jnp.maximum(trials, 1e-6)
    move = control.step * jnp.tanh(control.sensitivity * (rate - control.success_rate))
    moved = jnp.clip(state.target + move, 0.0, 100.0)
    return State(jnp.where(trials > 0, moved, state.target))


def build(
    tracker: Tracker,
    *,
    num_prompts: int,
    budget: int,
    group_size: int,
    difficulty: Difficulty | Float[Array, " N"] | Float[np.ndarray, " N"] | None = None,
    control: Control = Control(),  # noqa: B008 - numbers only
    candidates: int | None = None,
    exploration: float = 0.05,
    **options: Unpack[sizes.Options],
) -> Selector:
    """Builds the curriculum.

    Args:
        tracker: that will hold the belief.
        num_prompts: N.
        budget: rollouts of an iteration.
        group_size: rollouts of a group.
        difficulty: [N] in 0..100, estimated beforehand as in AdaRFT; or `(tracker_state) -> [N]`,
            `100 (1 - E[p])` by default. Inside `jit`, pass a large array as an argument of the
            jitted function; a traced one is not checked.
        control: of the target.
        candidates: choose among so many random prompts; all by default.
        exploration: share of the groups drawn at random, in 0..1.
        **options: max_groups, sources, source_floor, low_signal; see `sizes.plan`.

    Returns:
        A Selector.

    Raises:
        ValueError: a difficulty or start outside 0..100, a negative step or sensitivity, a
            success_rate outside 0..1, sizes that do not fit (`sizes.plan`).
    """
    for field in ("step", "sensitivity"):
        sizes.check_not_negative(field, getattr(control, field))
    sizes.check_share("success_rate", control.success_rate)
    _check_difficulty("start", control.start)
    plan = sizes.plan(
        num_prompts,
        budget,
        group_size,
        candidates=candidates,
        exploration=exploration,
        **options,
    )
    if difficulty is None:
        read: Difficulty = lambda belief: 100 * (1 - tracker.pass_rate(belief))  # noqa: E731
    elif callable(difficulty):
        read = difficulty
    else:
        if difficulty.shape != (num_prompts,):
            raise ValueError(f"difficulty must be [{num_prompts}], got {difficulty.shape}")
        _check_difficulty("difficulty", difficulty)
        given = difficulty
        read = lambda belief: jnp.asarray(given, float)  # noqa: E731
    return Selector(
        partial(init, control),
        partial(select, plan, tracker, read),
        partial(observe, control),
        plan.budget,
        plan.max_groups,
        plan.group_size,
    )


def _check_difficulty(field: str, value: Any) -> None:
    if isinstance(value, Tracer):
        return
    values = np.atleast_1d(np.asarray(value))
    bad = ~((values >= 0) & (values <= 100))
    if bad.any():
        prompt = int(np.argmax(bad))
        where = f" for prompt {prompt}" if np.ndim(value) else ""
        raise ValueError(f"{field} must be in 0..100, got {values[prompt]}{where}")
