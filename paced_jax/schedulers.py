"""Schedulers of a live run by name, and the loadings FADE reads there.

Shapes: `N` prompts in the pool, `E` features of an embedding, `K` skills of a loading.
"""

from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fade_jax import hyperparameters, loadings, presets
from fade_jax.pool_loadings import PoolLoadings
from fade_jax.selectors import weighted
from fade_jax.trackers import oracle
from fade_jax.types import Scheduler
from paced_jax import paced_tracker, partition
from paced_jax.types import check_choice

PerPromptName: TypeAlias = Literal[
    "uniform", "mopps", "mapp", "dps", "kgps", "greso", "adarft", "cdas", "dapo", "lilo"
]
FadeName: TypeAlias = Literal["fade", "fade_pg", "fade_k0"]
SchedulerName: TypeAlias = Literal[PerPromptName, FadeName, "paced", "oracle", "own"]
"""The presets of `fade_jax.presets`; `own` is given to `training.prepare`. `paced` reads the
trainer's V. `oracle` is told the true pass
rate of every skill and length between chunks, by rollouts that are not charged, and draws prompts
in proportion to P(informative): the best of them alone would all be of one skill and length."""

RANDOM = ("uniform", "dapo", "lilo")
"""Those that choose at random: a share of exploration would change nothing."""

FadeSelector: TypeAlias = Literal["top_m", "weighted", "thompson"]
"""How FADE chooses by P(informative), see `presets.fade`."""

LoadingsName: TypeAlias = Literal["embeddings", "skill", "skill_length", "shuffled"]
"""What FADE knows of a prompt beforehand.

* "embeddings": PCA of the frozen prompt embeddings that PACED's head sees; the default.
* "skill": the skill's name, one-hot: the *informative* arm, told what a live run would not know.
* "skill_length": skill and length, one-hot: the *oracle-loading* arm.
* "shuffled": those of "embeddings", of another prompt each: the control.
"""


class LiveScheduler(NamedTuple):
    """A scheduler, and whether its tracker reads the learner's V."""

    scheduler: Scheduler
    reads_learner: bool


def prompt_loadings(
    name: LoadingsName,
    embeddings: Float[np.ndarray, "N E"],
    skill: np.ndarray,
    length: np.ndarray,
    *,
    num_skills: int = 16,
    seed: int = 0,
) -> Float[np.ndarray, "N K"]:
    """Loadings of a skill pool, whitened and divided by sqrt(K).

    Args:
        name: which arm.
        embeddings: [N, E], of the base policy.
        skill: [N] int.
        length: [N] int.
        num_skills: K of "embeddings" and "shuffled"; the others take what their tags span.
        seed: of the shuffle.

    Returns:
        [N, K].

    Raises:
        ValueError: an unknown name, or more skills than the embeddings span.
    """
    check_choice("loadings", name, get_args(LoadingsName))
    if name == "skill":
        return loadings.tag_loadings([str(s) for s in skill])
    if name == "skill_length":
        cells = [f"{s} x {n}" for s, n in zip(skill, length, strict=True)]
        return loadings.tag_loadings(cells)
    given = loadings.embedding_loadings(embeddings, num_skills)
    return loadings.shuffled_loadings(given, seed) if name == "shuffled" else given


def live_hyperparameters(num_skills: int) -> hyperparameters.Hyperparameters:
    """FADE's priors in a live run: the defaults, with a drift for policies that move fast.

    A uniform run of the shipped policies moves pass rates by one to two logits in 100 steps, which
    a drift sd of .1 a step covers and the default .05 does not.
    """
    return hyperparameters.default(num_skills, ability_drift=0.1)


def make(
    name: SchedulerName,
    setup: Any,
    *,
    budget: int,
    group_size: int,
    exploration: float | None = None,
    fade_selector: FadeSelector = "top_m",
    hyper: hyperparameters.Hyperparameters | None = None,
    target: float = 0.5,
    epochs: bool = False,
) -> LiveScheduler:
    """Builds a scheduler of a live run; call it inside the compiled step.

    Args:
        name: of the preset.
        setup: `pieces.Setup`; its loadings are FADE's, its embeddings PACED's.
        budget: rollouts an iteration.
        group_size: rollouts a prompt.
        exploration: share of the slots chosen at random; None for the preset's own.
        fade_selector: how FADE chooses, see `presets.fade`.
        hyper: FADE's priors; `live_hyperparameters` by default.
        target: PACED's tau, the pass rate it aims at.
        epochs: `uniform` sees every prompt once before any twice; no other preset has it.

    Returns:
        LiveScheduler.

    Raises:
        ValueError: an unknown name, or a bad size.
    """
    check_choice("scheduler", name, get_args(SchedulerName))
    if name == "own":
        raise ValueError("scheduler: 'own' is built by its owner, see `training.prepare`")
    num_prompts, num_features = setup.embeddings.shape
    plan: dict[str, Any] = {"budget": budget, "group_size": group_size}
    if exploration is not None and name not in RANDOM:
        plan["exploration"] = exploration
    if name == "uniform":
        plan["epochs"] = epochs
    if name in get_args(PerPromptName):
        return LiveScheduler(getattr(presets, name)(num_prompts, **plan), False)
    if name in get_args(FadeName):
        given = num_prompts if name == "fade_k0" else setup.loadings
        hyper = live_hyperparameters(_num_skills(given)) if hyper is None else hyper
        build = getattr(presets, name)
        return LiveScheduler(build(given, hyper, selector=fade_selector, **plan), False)
    if name == "oracle":
        tracker = oracle.build(jnp.full(num_prompts, 0.5))
        plan = {"exploration": 0.0} | plan
        selector = weighted.build(tracker, num_prompts=num_prompts, **plan)
        return LiveScheduler(Scheduler(tracker, selector), False)
    # The driver replaces this copy by the learner's V before the first choice.
    head = partition.init(jax.random.key(0), num_features)
    tracker = paced_tracker.build(setup.embeddings, head)
    return LiveScheduler(presets.paced(tracker, target, num_prompts=num_prompts, **plan), True)


def _num_skills(given: Any) -> int:
    """K of loadings [N, K], of their layout, or of none at all."""
    if isinstance(given, PoolLoadings):
        return given.num_skills
    return 0 if isinstance(given, int) else given.shape[1]


def tell_oracle(
    tracker_state: oracle.State,
    cell_rates: Float[Array, "S W"],
    skill: np.ndarray,
    length: np.ndarray,
) -> oracle.State:
    """Gives every prompt the true pass rate of its cell.

    Args:
        tracker_state: of the oracle.
        cell_rates: [S, W] pass rates by skill and length.
        skill: [N] int.
        length: [N] int, from 1.
    """
    return oracle.refresh(tracker_state, cell_rates[skill, length - 1])
