"""Schedulers of a live run by name, and the loadings FADE reads there.

Shapes: `N` prompts in the pool, `E` features of an embedding, `K` skills of a loading.
"""

from collections.abc import Callable
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
    """A scheduler, and whether its tracker reads the learner's V.

    Attributes:
        scheduler: tracker, selector, and which groups it lets train.
        reads_learner: whether the tracker's state is a copy of the learner's V, after every step.
    """

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


class Preset(NamedTuple):
    """A scheduler that a run can name.

    Attributes:
        build: `(setup, *, budget, group_size, **options) -> Scheduler`, called in compiled code;
            `setup` is a `pieces.Setup`, whose embeddings [N, E] say how many prompts there are.
        options: which of exploration, epochs, fade_selector, target and hyper it takes, see `make`.
        reads_loadings: whether it needs `setup.loadings`.
        reads_learner: whether its tracker's state is a copy of the learner's V.
    """

    build: Callable[..., Scheduler]
    options: tuple[str, ...] = ()
    reads_loadings: bool = False
    reads_learner: bool = False


def _num_prompts(setup: Any) -> int:
    return setup.embeddings.shape[0]


def _loadings(setup: Any) -> Any:
    return setup.loadings


def of_pool(preset: Callable[..., Scheduler]) -> Callable[..., Scheduler]:
    """Makes of a preset that needs only the number of prompts what `Preset.build` is.

    Args:
        preset: `(num_prompts, *, budget, group_size, **options) -> Scheduler`.
    """

    def build(setup: Any, **plan: Any) -> Scheduler:
        return preset(_num_prompts(setup), **plan)

    return build


def _fade(
    preset: Callable[..., Scheduler], given: Callable[[Any], Any]
) -> Callable[..., Scheduler]:
    def build(
        setup: Any,
        *,
        hyper: hyperparameters.Hyperparameters | None = None,
        fade_selector: FadeSelector = "top_m",
        **plan: Any,
    ) -> Scheduler:
        told = given(setup)
        hyper = live_hyperparameters(_num_skills(told)) if hyper is None else hyper
        return preset(told, hyper, selector=fade_selector, **plan)

    return build


def _paced(setup: Any, *, target: float = 0.5, **plan: Any) -> Scheduler:
    num_prompts, num_features = setup.embeddings.shape
    # The driver replaces this copy by the learner's V before the first choice.
    head = partition.init(jax.random.key(0), num_features)
    tracker = paced_tracker.build(setup.embeddings, head)
    return presets.paced(tracker, target, num_prompts=num_prompts, **plan)


def _oracle(setup: Any, *, exploration: float = 0.0, **plan: Any) -> Scheduler:
    num_prompts = _num_prompts(setup)
    tracker = oracle.build(jnp.full(num_prompts, 0.5))
    selector = weighted.build(tracker, num_prompts=num_prompts, exploration=exploration, **plan)
    return Scheduler(tracker, selector)


_EXPLORES = ("exploration",)
_FADE = ("exploration", "fade_selector", "hyper")

PRESETS: dict[str, Preset] = {
    # Those that choose at random take no exploration: a share of it would change nothing.
    "uniform": Preset(of_pool(presets.uniform), ("epochs",)),
    "mopps": Preset(of_pool(presets.mopps), _EXPLORES),
    "mapp": Preset(of_pool(presets.mapp), _EXPLORES),
    "dps": Preset(of_pool(presets.dps), _EXPLORES),
    "kgps": Preset(of_pool(presets.kgps), _EXPLORES),
    "greso": Preset(of_pool(presets.greso), _EXPLORES),
    "adarft": Preset(of_pool(presets.adarft), _EXPLORES),
    "cdas": Preset(of_pool(presets.cdas), _EXPLORES),
    "dapo": Preset(of_pool(presets.dapo)),
    "lilo": Preset(of_pool(presets.lilo)),
    "fade": Preset(_fade(presets.fade, _loadings), _FADE, reads_loadings=True),
    "fade_pg": Preset(_fade(presets.fade_pg, _loadings), _FADE, reads_loadings=True),
    "fade_k0": Preset(_fade(presets.fade_k0, _num_prompts), _FADE),
    "paced": Preset(_paced, ("exploration", "target"), reads_learner=True),
    "oracle": Preset(_oracle, _EXPLORES),
}
"""By the name that `TrainConfig.scheduler` and `--scheduler` take; a line here adds one.

`paced` reads the trainer's V. `oracle` is told the true pass rate of every skill and length between
chunks, by rollouts that are not charged, and draws prompts in proportion to P(informative): the
best of them alone would all be of one skill and length."""

OWN = "own"
"""Names a scheduler that is given to `training.prepare`, without a line in `PRESETS`."""


def make(
    name: str,
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
    check_choice("scheduler", name, (*PRESETS, OWN))
    if name == OWN:
        raise ValueError("scheduler: 'own' is built by its owner, see `training.prepare`")
    preset = PRESETS[name]
    given = {"fade_selector": fade_selector, "hyper": hyper, "target": target, "epochs": epochs}
    if exploration is not None:
        given["exploration"] = exploration
    options = {option: given[option] for option in preset.options if option in given}
    scheduler = preset.build(setup, budget=budget, group_size=group_size, **options)
    return LiveScheduler(scheduler, preset.reads_learner)


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
