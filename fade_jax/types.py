"""The grammar every scheduler speaks: observations, beliefs, trackers; choices, selectors.

Shapes: `N` prompts in the pool, `B` observed rows, `M` slots for chosen prompts. A *tracker* holds
what we believe about each prompt's pass rate, a *selector* decides which prompts get how many
rollouts. Both are NamedTuples of pure functions, so `jit`, `vmap` and `scan` apply to them without
ceremony.
"""

from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, get_args, runtime_checkable

from jaxtyping import Array, Bool, Float, Int, Key

State: TypeAlias = Any
"""A tracker's or selector's own NamedTuple of arrays; opaque to everything but itself."""

GroupSize: TypeAlias = int | Int[Array, "*#N"]
"""Rollouts in a group: one static int for all prompts, or one int32 a prompt."""

Elapsed: TypeAlias = float | Float[Array, ""]
"""Time since the last `predict`: 1 per optimiser step, or KL / KL_ref for policy-scaled drift."""


class Observation(NamedTuple):
    """Outcomes of some rollout groups, all sampled from one policy.

    Repeated ids are merged where they are used; rows with `trials = 0` are inert, whatever their id
    (a padded batch keeps a static shape). Graded rewards in [0, 1] enter as float successes, which
    makes the likelihood quasi-binomial.

    Attributes:
        prompt_ids: [B] int32, in 0..N-1.
        successes: [B] float, in 0..trials.
        trials: [B] float, rollouts with a verdict.
    """

    prompt_ids: Int[Array, " B"]
    successes: Float[Array, " B"]
    trials: Float[Array, " B"]


class Estimate(NamedTuple):
    """Gaussian moments of success logits, `psi ~ N(mean, var)`, elementwise.

    Attributes:
        mean: logits.
        var: squared logits, >= 0.
    """

    mean: Float[Array, "*shape"]
    var: Float[Array, "*shape"]


class Info(NamedTuple):
    """What an update says about the observation it has just absorbed.

    Attributes:
        log_evidence: log probability of the counts under the belief held before the update, in
            nats, summed over the batch.
        nis: normalised innovation squared, `mean_i (y_i - n_i E[p_i])^2 / Var[y_i]` over the rows
            with trials; about 1 where the belief is calibrated, 0 for a batch without trials.
    """

    log_evidence: Float[Array, ""]
    nis: Float[Array, ""]


@runtime_checkable
class Init(Protocol):
    """Makes the state before any observation."""

    def __call__(self) -> State:
        """Returns the initial state."""
        ...


@runtime_checkable
class Predict(Protocol):
    """Ages the belief: the policy has moved on."""

    def __call__(self, state: State, elapsed: Elapsed) -> State:
        """Returns the state `elapsed` later."""
        ...


@runtime_checkable
class Update(Protocol):
    """Absorbs outcomes. An observation without trials leaves the state as it is, bit for bit."""

    def __call__(self, state: State, observation: Observation) -> tuple[State, Info]:
        """Returns the state after the observation, and what it said about it."""
        ...


@runtime_checkable
class PassRate(Protocol):
    """Reads the expected pass rates."""

    def __call__(self, state: State) -> Float[Array, " N"]:
        """Returns E[p] for every prompt, in 0..1."""
        ...


@runtime_checkable
class Informative(Protocol):
    """Reads how likely a rollout group is to teach anything."""

    def __call__(self, state: State, group_size: GroupSize) -> Float[Array, " N"]:
        """Returns P(1..group_size - 1 of group_size rollouts succeed); 0 for sizes 0 and 1."""
        ...


@runtime_checkable
class Draw(Protocol):
    """Draws from the belief, for Thompson sampling."""

    def __call__(self, key: Key[Array, ""], state: State) -> Float[Array, " N"]:
        """Consumes `key`; returns one joint posterior draw of all pass rates, in 0..1."""
        ...


class Tracker(NamedTuple):
    """A belief about every prompt's pass rate, as pure functions.

    Attributes:
        init: `() -> State`.
        predict: `(state, elapsed) -> State`.
        update: `(state, observation) -> (State, Info)`.
        pass_rate: `(state) -> [N]`, E[p].
        informative: `(state, group_size) -> [N]`, P(the group is neither all right nor all wrong).
        draw: `(key, state) -> [N]`, one joint posterior draw of pass rates.
    """

    init: Init
    predict: Predict
    update: Update
    pass_rate: PassRate
    informative: Informative
    draw: Draw


class Selection(NamedTuple):
    """Which prompts get how many rollouts in one iteration; each prompt at most once.

    Attributes:
        prompt_ids: [M] int32, in 0..N-1; -1 in unused slots, which come last.
        group_sizes: [M] int32; 0 in unused slots. They always sum to the selector's budget.
    """

    prompt_ids: Int[Array, " M"]
    group_sizes: Int[Array, " M"]


class SelectInfo(NamedTuple):
    """What a selector expects of its choice.

    Attributes:
        expected_informative: groups expected to be informative, the sum of their probabilities.
        planned_rollouts: int32, rollouts the rule itself asked for.
        shortfall: int32, budget minus planned_rollouts: handed to the next best prompts.
        low_signal: True where too few groups are expected to teach anything; a flag, never an
            error.
    """

    expected_informative: Float[Array, ""]
    planned_rollouts: Int[Array, ""]
    shortfall: Int[Array, ""]
    low_signal: Bool[Array, ""]


@runtime_checkable
class Select(Protocol):
    """Chooses the prompts of one iteration. Never ages a belief."""

    def __call__(
        self, state: State, tracker_state: State, key: Key[Array, ""]
    ) -> tuple[State, Selection, SelectInfo]:
        """Consumes `key`; returns the new selector state, the choice, what is expected of it."""
        ...


@runtime_checkable
class Observe(Protocol):
    """Tells a selector what its choice came to."""

    def __call__(self, state: State, observation: Observation) -> State:
        """Returns the selector's state after the outcomes of every generated group."""
        ...


class Selector(NamedTuple):
    """A rule that spends a fixed budget of rollouts, as pure functions with static sizes.

    Attributes:
        init: `() -> State`.
        select: `(state, tracker_state, key) -> (State, Selection, SelectInfo)`.
        observe: `(state, observation) -> State`.
        budget: rollouts of every iteration, static.
        max_groups: M, slots of a `Selection`, static.
        group_size: of every group, static; None where groups differ.
    """

    init: Init
    select: Select
    observe: Observe
    budget: int
    max_groups: int
    group_size: int | None = None


AdmitName: TypeAlias = Literal["all", "drop_degenerate", "best_of"]
"""Rules of an `Admission`."""


class Admission(NamedTuple):
    """Which generated groups reach the gradient, by the name of the rule.

    A scheduler only names it: the simulator and the trainer each have the rule for what they learn
    from. The budget counts generated rollouts, whatever is admitted.

    Attributes:
        rule: "all"; "drop_degenerate", over several iterations until there are enough (DAPO);
            "best_of", those of largest p (1 - p) (LILO).
        groups: of a training batch; None for all that an iteration generates.
        max_iterations: the longest wait of "drop_degenerate".
    """

    rule: AdmitName = "all"
    groups: int | None = None
    max_iterations: int = 10


def check_admission(admission: Admission, max_groups: int) -> Admission:
    """Refuses an admission that no rule can carry out.

    Args:
        admission: of a scheduler.
        max_groups: M, groups of an iteration.

    Returns:
        The same.

    Raises:
        ValueError: an unknown rule; groups that are no whole number, below 1, more than "best_of"
            can find, or without effect; max_iterations below 1.
    """
    rule, groups, max_iterations = admission
    if rule not in get_args(AdmitName):
        raise ValueError(f"admission.rule must be one of {get_args(AdmitName)}, got {rule!r}")
    if groups is not None:
        if rule == "all":
            raise ValueError(f'admission.groups: {groups} has no effect with the rule "all"')
        most = max_groups if rule == "best_of" else float("inf")
        if not isinstance(groups, int) or not 1 <= groups <= most:
            raise ValueError(f"admission.groups must be whole, in 1..{most}, got {groups}")
    if not isinstance(max_iterations, int) or max_iterations < 1:
        raise ValueError(f"admission.max_iterations must be whole, >= 1, got {max_iterations}")
    return admission


class Scheduler(NamedTuple):
    """A belief, a rule that acts on it, and what of its choice is learnt from.

    Attributes:
        tracker: what is believed about each prompt.
        selector: built on that tracker.
        admission: which generated groups reach the gradient.
    """

    tracker: Tracker
    selector: Selector
    admission: Admission = Admission()
