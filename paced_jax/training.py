"""A training run on the skill tasks, put together from one configuration.

Shapes: `N` prompts in the pool, `E` features of an embedding, `K` skills of a loading.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from fade_jax import driver
from fade_jax.driver import Pieces, RunState
from fade_jax.types import Admission, Scheduler
from fade_jax.utility import check_group_size
from paced_jax import admit, off_policy, optimizers, partition, pieces, replay, schedulers
from paced_jax.learning import LearnOptions, reads_reference
from paced_jax.objectives import (
    PolicyGradient,
    TrajectoryBalance,
    dapo,
    dr_grpo,
    flowrl,
    gflowrl,
    grpo,
    paced,
    rloo,
    vargrad,
)
from paced_jax.pieces import Setup
from paced_jax.policy.base_policies import BasePolicy, known_policies, load_base_policy
from paced_jax.policy.forward import prompt_embeddings
from paced_jax.schedulers import LiveScheduler
from paced_jax.tasks.skill_pool import SkillPools, build_pool
from paced_jax.tasks.tokens import EOS
from paced_jax.types import Admit, check_switches

ObjectiveName = Literal["paced", "flowrl", "vargrad", "gflowrl", "grpo", "dapo", "dr_grpo", "rloo"]
BALANCE = {"paced": paced, "flowrl": flowrl, "vargrad": vargrad, "gflowrl": gflowrl}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A training run on the skill tasks."""

    scheduler: schedulers.SchedulerName = "paced"
    """Which prompts are trained on."""
    objective: ObjectiveName = "paced"
    """The loss."""
    policy: str = "tiny"
    """Base policy shipped with the package: tiny or base."""
    iterations: int = 100
    """Iterations; each generates num_prompts x group_size rollouts, whatever the method."""
    num_prompts: int = 32
    """Prompts chosen by an iteration."""
    group_size: int = 8
    """Rollouts of a chosen prompt."""
    chunk: int = 10
    """Iterations compiled into one call; logs and checkpoints come between."""
    seed: int = 0
    """Of choices, rollouts and V's initial weights."""
    pool_seed: int = 0
    """Of the prompts."""
    num_train: int = 8192
    """Distinct training prompts."""
    policy_learning_rate: float = 2e-4
    """Of the policy, AdamW; what the comparisons' setting has."""
    partition_learning_rate: float = 1e-3
    """Of V = beta log Z, in a group of its own."""
    weight_decay: float = 0.0
    """Of the policy's matrices."""
    warmup: int = 0
    """Steps over which the policy's learning rate rises."""
    clip_norm: float = 1.0
    """Largest gradient norm, of policy and V apart."""
    beta: float | None = None
    """Strength of the KL penalty of trajectory balance; None for the named setting's own."""
    admit: Literal["preset", "all", "drop_degenerate", "best_of"] = "preset"
    """Which generated groups reach the gradient: the scheduler's own rule (all, but for dapo and
    lilo), all, informative ones until a batch is full, or the best quarter."""
    replay: Literal["preset", "on", "off"] = "preset"
    """Prioritised replay of successes; "preset": on for the scheduler paced."""
    replay_partition: Literal["full", "off", "group_mean"] = "full"
    """What replayed successes teach V."""
    correction: off_policy.Correction = "current_anchor"
    """What log pi_old is for replayed rows."""
    loadings: schedulers.LoadingsName = "embeddings"
    """What FADE knows of a prompt beforehand."""
    num_skills: int = 16
    """K of FADE's loadings from embeddings."""
    fade_selector: schedulers.FadeSelector = "top_m"
    """How FADE chooses by P(informative)."""
    exploration: float | None = None
    """Share of the prompts chosen at random; None for the scheduler's own."""
    epochs: bool = False
    """Uniform choice that sees every prompt once before any twice."""
    target: float = 0.5
    """Pass rate the paced scheduler aims at."""
    measure_kl: bool = True
    """Measure the KL of every step, by one more forward pass."""

    def __post_init__(self) -> None:
        """Refuses impossible values, naming the field."""
        check_switches(self)
        positive = ("iterations", "num_prompts", "chunk", "num_train", "num_skills", "clip_norm")
        for name in (*positive, "policy_learning_rate", "partition_learning_rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("weight_decay", "warmup"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}")
        for name, share in (("target", self.target), ("exploration", self.exploration)):
            if share is not None and not 0 <= share <= 1:
                raise ValueError(f"{name} must be in 0..1, got {share}")
        if self.num_prompts > self.num_train:
            raise ValueError(
                f"num_prompts must be at most num_train = {self.num_train}, got {self.num_prompts}"
            )
        check_group_size(self.group_size)
        for name in ("seed", "pool_seed"):
            if not 0 <= getattr(self, name) < 2**31:
                raise ValueError(f"{name} must be in 0..2^31 - 1, got {getattr(self, name)}")
        if self.policy not in known_policies():
            raise ValueError(f"policy: must be one of {known_policies()}, got {self.policy!r}")
        if self.iterations % self.chunk:
            raise ValueError(
                f"iterations must be a multiple of chunk = {self.chunk}, got {self.iterations}"
            )
        if self.beta is not None and not self.beta > 0:
            raise ValueError(f"beta must be positive, got {self.beta}")
        if self.scheduler == "paced" and self.objective != "paced":
            raise ValueError(
                "scheduler: 'paced' reads V as the pass rate, which only the objective 'paced'"
                f" teaches it; got the objective {self.objective!r}"
            )
        if self.uses_replay:
            off_policy.check_objective(make_objective(self, 1))
        defaults = {field.name: field.default for field in dataclasses.fields(TrainConfig)}
        for name, works in self._effects().items():
            if not works and getattr(self, name) != defaults[name]:
                raise ValueError(
                    f"{name}: {getattr(self, name)!r} has no effect with scheduler"
                    f" {self.scheduler!r}, objective {self.objective!r}, loadings"
                    f" {self.loadings!r} and replay {'on' if self.uses_replay else 'off'}"
                )

    def _effects(self) -> dict[str, bool]:
        """Whether each option that is not always used is used here."""
        fade = self.scheduler in ("fade", "fade_pg")
        return {
            "loadings": fade,
            "num_skills": fade and self.loadings in ("embeddings", "shuffled"),
            "fade_selector": fade or self.scheduler == "fade_k0",
            "target": self.scheduler == "paced",
            "exploration": self.scheduler not in schedulers.RANDOM,
            "epochs": self.scheduler == "uniform",
            "beta": self.objective in BALANCE,
            "partition_learning_rate": self.objective in ("paced", "flowrl"),
            "replay_partition": self.uses_replay,
            "correction": self.uses_replay,
        }

    @property
    def uses_replay(self) -> bool:
        """Whether successes are replayed."""
        return self.replay == "on" or (self.replay == "preset" and self.scheduler == "paced")

    @property
    def budget(self) -> int:
        """R, rollouts of an iteration."""
        return self.num_prompts * self.group_size


def make_objective(config: TrainConfig, max_tokens: int) -> TrajectoryBalance | PolicyGradient:
    """The named loss, with the configured beta."""
    if config.objective in BALANCE:
        setting = BALANCE[config.objective]
        return setting() if config.beta is None else setting(config.beta)
    if config.objective == "dr_grpo":
        return dr_grpo(float(max_tokens))
    return {"grpo": grpo, "dapo": dapo, "rloo": rloo}[config.objective]()


def admission_of(config: TrainConfig, scheduler: Scheduler) -> Admission:
    """Which groups reach the gradient: as configured, or the scheduler's own rule."""
    quarter = max(config.num_prompts // 4, 1)
    own = {
        "preset": scheduler.admission,
        "all": Admission(),
        "drop_degenerate": Admission("drop_degenerate"),
        "best_of": Admission("best_of", quarter),
    }
    return own[config.admit]


def make_admit(config: TrainConfig, scheduler: Scheduler, max_tokens: int) -> Admit:
    """The rule itself; replay holds R / 4 rows and adds R / 8 to a batch."""
    admission, groups = admission_of(config, scheduler), scheduler.selector.max_groups
    wanted = config.num_prompts if admission.groups is None else admission.groups
    if admission.rule == "all":
        base = admit.all_groups(config.budget, groups)
    elif admission.rule == "drop_degenerate":
        base = admit.drop_degenerate(
            wanted * config.group_size,
            groups,
            max_tokens,
            max_iterations=admission.max_iterations,
        )
    else:
        base = admit.best_of(wanted * config.group_size, groups)
    if not config.uses_replay:
        return base
    eighth = max(base.num_rows // 8, 1)
    buffer = replay.build(
        max_tokens,
        capacity=2 * eighth,
        additions=eighth,
        num_drawn=eighth,
        correction=config.correction,
        partition=config.replay_partition,
    )
    return admit.with_replay(base, buffer)


class Run(NamedTuple):
    """A run ready to start.

    Attributes:
        config: what it was made from.
        pools: training, validation and test prompts.
        base: the policy it starts from.
        setup: constants.
        make: builds the pieces from the setup, inside compiled code.
        init: `(setup, key) -> RunState`, compiled.
    """

    config: TrainConfig
    pools: SkillPools
    base: BasePolicy
    setup: Setup
    make: Callable[[Setup], Pieces]
    init: Callable[[Setup, Key[Array, ""]], RunState]


class Ground(NamedTuple):
    """What runs on the same policy and pool share, computed once.

    Attributes:
        policy: its name.
        pool_seed: of the prompts.
        num_train: training prompts.
        base: the policy.
        pools: prompts.
        embeddings: [N, E] standardised, of the training prompts.
    """

    policy: str
    pool_seed: int
    num_train: int
    base: BasePolicy
    pools: SkillPools
    embeddings: Array


def prepare_ground(config: TrainConfig) -> Ground:
    """Loads the policy, builds the pools, embeds the training prompts once."""
    base = load_base_policy(config.policy)
    pools = build_pool(config.pool_seed, num_train=config.num_train)
    embed = jax.jit(partial(prompt_embeddings, base.graphdef))
    raw = embed(base.params, pools.train.prompt_tokens, pools.train.prompt_mask)
    return Ground(
        config.policy,
        config.pool_seed,
        config.num_train,
        base,
        pools,
        jax.jit(partition.standardise)(raw),
    )


def prepare(
    config: TrainConfig,
    ground: Ground | None = None,
    *,
    scheduler: Callable[[Setup], Scheduler | LiveScheduler] | None = None,
) -> Run:
    """Puts a run together.

    Args:
        config: of the run.
        ground: shared by several runs of one comparison; made if not given.
        scheduler: your own, built inside compiled code, in place of the configured one; its
            tracker has one belief a training prompt, its budget is `config.budget`. A
            LiveScheduler where the tracker reads the learner's V.

    Returns:
        A Run.

    Raises:
        ValueError: an unknown policy, a ground of another policy or pool, or a scheduler of
            another budget.
    """
    ground = prepare_ground(config) if ground is None else ground
    for name in ("policy", "pool_seed", "num_train"):
        if getattr(ground, name) != getattr(config, name):
            raise ValueError(
                f"{name}: the ground has {getattr(ground, name)!r}, the config "
                f"{getattr(config, name)!r}"
            )
    base, train = ground.base, ground.pools.train
    max_tokens = train.answer_tokens.shape[1]
    objective = make_objective(config, max_tokens)
    optimizer = optimizers.make_optimizer(
        config.policy_learning_rate,
        config.partition_learning_rate,
        policy_warmup=config.warmup,
        policy_weight_decay=config.weight_decay,
        clip_norm=config.clip_norm,
    )
    loadings: Any = ()
    if config.scheduler in ("fade", "fade_pg") or scheduler is not None:
        loadings = jnp.asarray(
            schedulers.prompt_loadings(
                config.loadings,
                np.asarray(ground.embeddings),
                train.skill,
                train.length,
                num_skills=config.num_skills,
                seed=config.pool_seed,
            ),
            jnp.float32,
        )
    setup = Setup(
        *(jnp.asarray(x) for x in train[:4]),
        embeddings=ground.embeddings,
        loadings=loadings,
        reference=base.params if reads_reference(objective) else (),
    )
    options = LearnOptions(
        objective=objective,
        correction=config.correction,
        clip_norm=config.clip_norm,
        measure_kl=config.measure_kl,
    )

    def build_scheduler(setup: Setup) -> LiveScheduler:
        if scheduler is not None:
            built = scheduler(setup)
            return built if isinstance(built, LiveScheduler) else LiveScheduler(built, False)
        return schedulers.make(
            config.scheduler,
            setup,
            budget=config.budget,
            group_size=config.group_size,
            exploration=config.exploration,
            fade_selector=config.fade_selector,
            target=config.target,
            epochs=config.epochs,
        )

    def make(setup: Setup) -> Pieces:
        built, reads_learner = build_scheduler(setup)
        if built.selector.budget != config.budget:
            raise ValueError(
                f"scheduler: its budget is {built.selector.budget}, num_prompts x group_size is"
                f" {config.budget}"
            )
        rule = make_admit(config, built, max_tokens)
        return pieces.build(
            built,
            rule,
            graphdef=base.graphdef,
            options=options,
            optimizer=optimizer,
            max_tokens=max_tokens,
            eos_id=EOS,
            reads_learner=reads_learner,
        )

    def init(policy, setup: Setup, key: Key[Array, ""]) -> RunState:
        run_key, head_key = jax.random.split(key)
        head = partition.init(head_key, setup.embeddings.shape[1])
        learner = pieces.init_learner(policy, head, optimizer)
        return driver.init(make(setup), setup, learner, run_key)

    return Run(config, ground.pools, base, setup, make, partial(jax.jit(init), base.params))


def rollouts_of(config: TrainConfig) -> int:
    """Rollouts of the whole run, evaluation apart."""
    return config.iterations * config.budget


def base_rates(run: Run) -> np.ndarray:
    """[N] pass rate of each training prompt's cell under the base policy, from its metadata."""
    table = np.array(list(run.base.metadata["pass_rate"].values()))
    return table[run.pools.train.skill, run.pools.train.length - 1]
