"""A training run, put together from one configuration.

Shapes: `N` prompts in the pool, `E` features of an embedding, `K` skills of a loading.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from fade_jax import driver
from fade_jax.driver import Pieces, RunState
from fade_jax.types import Admission, Scheduler, check_admission
from paced_jax import admit, buckets, optimizers, overlong, partition, pieces, replay, schedulers
from paced_jax.ground import GROUND_OPTIONS, Ground, prepare_ground
from paced_jax.learning import LearnOptions
from paced_jax.objectives.named import reads_reference
from paced_jax.pieces import Setup, verify_skills
from paced_jax.policy.base_policies import BasePolicy
from paced_jax.schedulers import LiveScheduler
from paced_jax.tasks.skill_pool import SkillPools
from paced_jax.tasks.task import Task
from paced_jax.tasks.tokens import EOS
from paced_jax.train_config import TrainConfig, make_objective
from paced_jax.types import Admit, Rollouts

__all__ = [
    "Ground",
    "Run",
    "TrainConfig",
    "admission_of",
    "base_rates",
    "compile_step",
    "host_verify",
    "make_admit",
    "make_objective",
    "prepare",
    "prepare_ground",
    "rollouts_of",
]


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


def make_admit(
    config: TrainConfig, scheduler: Scheduler, max_tokens: int, eos_id: int = EOS
) -> Admit:
    """The rule itself; replay holds R / 4 rows and adds R / 8 to a batch.

    Rows are replayed in the next two batches, whatever steps each of them makes.
    """
    groups = scheduler.selector.max_groups
    admission = check_admission(admission_of(config, scheduler), groups)
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
    if config.overlong_buffer or config.mask_overlong:
        base = overlong.adjust(
            base, buffer=config.overlong_buffer, masked=config.mask_overlong, eos_id=eos_id
        )
    if not config.uses_replay:
        return base
    eighth = max(base.num_rows // 8, 1)
    buffer = replay.build(
        max_tokens,
        capacity=2 * eighth,
        additions=eighth,
        num_drawn=eighth,
        max_staleness=2 * config.minibatches,
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
        task: what it is asked.
        max_tokens: T, longest response.
        setup: constants.
        make: builds the pieces from the setup, inside compiled code.
        init: `(setup, key) -> RunState`, compiled.
    """

    config: TrainConfig
    pools: SkillPools
    base: BasePolicy
    task: Task
    max_tokens: int
    setup: Setup
    make: Callable[[Setup], Pieces]
    init: Callable[[Setup, Key[Array, ""]], RunState]


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
        scheduler: `(setup) -> Scheduler` of your own, built inside compiled code; goes with
            `config.scheduler = "own"`; one that has a line in `schedulers.PRESETS` needs none.
            Its tracker has one belief a training prompt, its budget is
            `config.budget`. A LiveScheduler where the tracker reads the learner's V.

    Returns:
        A Run.

    Raises:
        ValueError: an unknown policy, a ground of another policy or pool, "own" without a
            scheduler or the reverse; and, when it is built, a scheduler of another budget or pool.
    """
    if (config.scheduler == "own") != (scheduler is not None):
        raise ValueError(
            f"scheduler: the config says {config.scheduler!r}, and prepare was given"
            f" {'none' if scheduler is None else 'one'}; 'own' goes with prepare(scheduler=...)"
        )
    ground = prepare_ground(config) if ground is None else ground
    for name in GROUND_OPTIONS:
        if getattr(ground.config, name) != getattr(config, name):
            raise ValueError(
                f"{name}: the ground has {getattr(ground.config, name)!r}, the config "
                f"{getattr(config, name)!r}"
            )
    base, train = ground.base, ground.pools.train
    task = ground.task
    max_tokens = task.max_tokens or train.answer_tokens.shape[1]
    if task.judge is not None and (config.chunk != 1 or config.buckets != 1):
        raise ValueError(
            f"chunk and buckets must be 1 where the host judges, as in the task {task.name!r}, got"
            f" {config.chunk} and {config.buckets}"
        )
    if config.overlong_buffer > max_tokens:
        raise ValueError(
            f"overlong_buffer must be at most the longest response = {max_tokens}, got"
            f" {config.overlong_buffer}"
        )
    objective = make_objective(config, max_tokens)
    optimizer = optimizers.make_optimizer(
        config.policy_learning_rate,
        config.partition_learning_rate,
        policy_warmup=config.warmup,
        policy_weight_decay=config.weight_decay,
        clip_norm=config.clip_norm,
    )
    preset = schedulers.PRESETS.get(config.scheduler)
    loadings: Any = ()
    if preset is None or preset.reads_loadings:
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
        minibatches=config.minibatches,
        accumulate=config.accumulate,
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
        driver.check_size(built.tracker, setup.embeddings.shape[0])
        rule = make_admit(config, built, max_tokens, task.eos_id)
        return pieces.build(
            built,
            rule,
            graphdef=base.graphdef,
            options=options,
            optimizer=optimizer,
            max_tokens=max_tokens,
            eos_id=task.eos_id,
            verify=verify_skills if task.judge is None else None,
            reads_learner=reads_learner,
        )

    def init(policy, setup: Setup, key: Key[Array, ""]) -> RunState:
        run_key, head_key = jax.random.split(key)
        head = partition.init(head_key, setup.embeddings.shape[1])
        learner = pieces.init_learner(policy, head, optimizer)
        return driver.init(make(setup), setup, learner, run_key)

    return Run(
        config,
        ground.pools,
        base,
        task,
        max_tokens,
        setup,
        make,
        partial(jax.jit(init), base.params),
    )


def compile_step(run: Run, state: RunState) -> driver.Step:
    """Compiles a chunk of a run ahead of time; also for other seeds.

    Args:
        run: what to compile, with the chunk and the buckets of its configuration.
        state: one of the run, or its shapes; not run.

    Returns:
        A Step. Where the host judges, its two halves are compiled when first run.
    """
    judge = host_verify(run)
    if judge is not None:
        return driver.compile_step(run.make, chunk=1, host_verify=judge)
    if run.config.buckets > 1:
        lengths = np.asarray(run.setup.prompt_mask).sum(axis=1)
        widths = buckets.choose_widths(lengths, run.config.buckets)
        return buckets.compile_step(run.make, run.setup, state, widths)
    step: Any = driver.compile_step(run.make, chunk=run.config.chunk)
    return step.lower(run.setup, state).compile()


def rollouts_of(config: TrainConfig) -> int:
    """Rollouts of the whole run, evaluation apart."""
    return config.iterations * config.budget


def host_verify(run: Run) -> Callable[[Setup, Rollouts], np.ndarray] | None:
    """What `driver.compile_step` judges with on the host; None where compiled code does."""
    judge, golds = run.task.judge, run.pools.train.gold
    if judge is None:
        return None

    def verify(setup: Setup, rollouts: Rollouts) -> np.ndarray:
        del setup
        tokens, mask, ids = jax.device_get(
            (rollouts.tokens, rollouts.action_mask, rollouts.prompt_ids)
        )
        return judge.verdicts(tokens, mask, golds[np.maximum(ids, 0)].tolist())

    return verify


def base_rates(run: Run) -> np.ndarray | None:
    """[N] pass rate of each training prompt's cell under the base policy, from its metadata.

    None where nobody has measured them.
    """
    if "pass_rate" not in run.base.metadata:
        return None
    table = np.array(list(run.base.metadata["pass_rate"].values()))
    return table[run.pools.train.skill, run.pools.train.length - 1]
