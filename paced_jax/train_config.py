"""What decides a training run: one configuration, checked at the door."""

import dataclasses
from typing import Literal

from fade_jax.types import Scheduler
from fade_jax.utility import check_group_size
from paced_jax import off_policy, schedulers
from paced_jax.host_judge import VerifierName
from paced_jax.objectives import OBJECTIVES, LossOptions, Objective, TrajectoryBalance
from paced_jax.objectives.named import teaches_pass_rate, trains_value
from paced_jax.policy.base_policies import known_policies
from paced_jax.policy.language_model import is_language_model
from paced_jax.tasks.named import TASKS
from paced_jax.types import check_choice, check_switches

TEXT_OPTIONS = (
    "prompt_column",
    "answer_column",
    "source_column",
    "verifier",
    "instruction",
    "chat",
    "max_prompt_tokens",
    "max_tokens",
    "num_held_out",
)
"""Options that say something about `prompts` alone."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A training run."""

    scheduler: str = "paced"
    """Which prompts are trained on: a name in `schedulers.PRESETS`; or "own", see
    `training.prepare`."""
    objective: str = "paced"
    """The loss: a name in `objectives.OBJECTIVES`."""
    policy: str = "tiny"
    """Policy to start from: tiny or base, shipped and asked about digits; or a language model:
    smollm2, of 135 million parameters, a model directory of the Llama or Qwen2 family, or a .gguf
    file. It is asked `prompts`, or to calculate."""
    task: str = "auto"
    """What it is asked: a name in `tasks.named.TASKS`; "auto" is digits for the shipped policies,
    and for a language model `prompts`, or arithmetic where there are none."""
    prompts: str = ""
    """File or folder of prompts for a language model, see `fade_jax.pool_files.load_pool`."""
    prompt_column: str = "prompt"
    """Column of the prompts."""
    answer_column: str = "answer"
    """Column of the gold answers; nested ones by a dotted path, reward_model.ground_truth."""
    source_column: str = ""
    """Column that says where a prompt comes from; none if empty."""
    verifier: VerifierName = "math"
    """What judges answers to `prompts`: mathematics, programs, or tasks of reasoning-gym."""
    instruction: str = ""
    """Follows every one of `prompts`, on a line of its own, such as "Put your final answer within
    \\boxed{}.": the verifier of mathematics reads boxes, `####`, "answer: 4", and bare answers."""
    chat: Literal["auto", "on", "off"] = "auto"
    """Write `prompts` by the model's chat template; auto: if it has one."""
    max_prompt_tokens: int = 256
    """Longer `prompts` are left out."""
    max_tokens: int = 256
    """Longest response to `prompts`."""
    num_held_out: int = 128
    """Most validation and most test prompts, of `prompts`."""
    iterations: int = 100
    """Iterations; each generates num_prompts x group_size rollouts, whatever the method."""
    num_prompts: int = 32
    """Prompts chosen by an iteration."""
    group_size: int = 8
    """Rollouts of a chosen prompt."""
    chunk: int = 10
    """Iterations compiled into one call; logs and checkpoints come between."""
    buckets: int = 1
    """Widths of prompts that are compiled apart, so that short ones are not padded to the longest;
    more than one needs chunk 1."""
    seed: int = 0
    """Of choices, rollouts and V's initial weights."""
    pool_seed: int = 0
    """Of the prompts."""
    num_train: int = 8192
    """Distinct training prompts; of `prompts` at most as many."""
    policy_learning_rate: float = 2e-4
    """Of the policy, AdamW; what the comparisons' setting has."""
    partition_learning_rate: float = 1e-3
    """Of V = beta log Z, in a group of its own."""
    weight_decay: float = 0.0
    """Of the policy's matrices."""
    warmup: int = 0
    """Steps over which the policy's learning rate rises."""
    minibatches: int = 1
    """Optimiser steps an iteration, each on its share of the prompts; with more than one, V comes
    to overstate the pass rate by beta KL."""
    accumulate: int = 1
    """Parts that the gradient of a step is summed over, to need the memory of one."""
    clip_norm: float = 1.0
    """Largest gradient norm, of policy and V apart."""
    beta: float | None = None
    """Strength of the KL penalty of trajectory balance; None for the named setting's own."""
    admit: Literal["preset", "all", "drop_degenerate", "best_of"] = "preset"
    """Which generated groups reach the gradient: the scheduler's own rule (all, but for dapo and
    lilo), all, informative ones until a batch is full, or the best quarter."""
    overlong_buffer: int = 0
    """Tokens before the limit over which a response loses up to 1 of its reward; 0 for none."""
    mask_overlong: bool = False
    """Responses that were cut off teach nothing."""
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
        check_choice("scheduler", self.scheduler, (*schedulers.PRESETS, schedulers.OWN))
        check_choice("objective", self.objective, tuple(OBJECTIVES))
        check_choice("task", self.task, ("auto", *TASKS))
        positive = ("iterations", "num_prompts", "chunk", "num_train", "num_skills", "clip_norm")
        positive += ("max_prompt_tokens", "max_tokens", "num_held_out")
        positive += ("minibatches", "accumulate", "buckets")
        for name in (*positive, "policy_learning_rate", "partition_learning_rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("weight_decay", "warmup", "overlong_buffer"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}")
        for name, share in (("target", self.target), ("exploration", self.exploration)):
            if share is not None and not 0 <= share <= 1:
                raise ValueError(f"{name} must be in 0..1, got {share}")
        if self.num_prompts > self.num_train:
            raise ValueError(
                f"num_prompts must be at most num_train = {self.num_train}, got {self.num_prompts}"
            )
        if self.num_prompts < self.minibatches * self.accumulate:
            raise ValueError(
                "minibatches x accumulate must be at most"
                f" num_prompts = {self.num_prompts}, got {self.minibatches} x {self.accumulate}"
            )
        check_group_size(self.group_size)
        for name in ("seed", "pool_seed"):
            if not 0 <= getattr(self, name) < 2**31:
                raise ValueError(f"{name} must be in 0..2^31 - 1, got {getattr(self, name)}")
        shipped = self.policy in known_policies()
        if not shipped and not is_language_model(self.policy):
            raise ValueError(
                f"policy: must be one of {known_policies()}, 'smollm2', or a model directory or"
                f" .gguf file that is there, got {self.policy!r}"
            )
        if self.task_name != "digits" and self.scheduler == "oracle":
            raise ValueError("scheduler: 'oracle' is told the true rates of digit skills alone")
        if self.prompts and shipped:
            raise ValueError(f"prompts: {self.policy!r} reads no text; take a language model")
        if self.prompts and self.chunk != 1:
            raise ValueError(f"chunk must be 1 where the host judges `prompts`, got {self.chunk}")
        if self.iterations % self.chunk:
            raise ValueError(
                f"iterations must be a multiple of chunk = {self.chunk}, got {self.iterations}"
            )
        if self.buckets > 1 and self.prompts:
            raise ValueError(f"buckets: must be 1 where the host judges, got {self.buckets}")
        if self.buckets > 1 and self.chunk != 1:
            raise ValueError(
                f"buckets: {self.buckets} need chunk 1, since the host picks one every iteration,"
                f" got {self.chunk}"
            )
        if self.beta is not None and not self.beta > 0:
            raise ValueError(f"beta must be positive, got {self.beta}")
        objective = make_objective(self, 1)
        preset = schedulers.PRESETS.get(self.scheduler)
        if preset is not None and preset.reads_learner and not teaches_pass_rate(objective):
            raise ValueError(
                f"scheduler: {self.scheduler!r} reads V as the pass rate, which the objective"
                f" {self.objective!r} doesn't teach it; 'paced' does"
            )
        for name in ("overlong_buffer", "mask_overlong"):
            if getattr(self, name) and teaches_pass_rate(objective):
                raise ValueError(
                    f"{name}: got {getattr(self, name)!r}, but the objective"
                    f" {self.objective!r} teaches V the pass rate, from rewards of 0 and 1 of every"
                    " response"
                )
        if self.uses_replay:
            off_policy.check_objective(objective)
        defaults = {field.name: field.default for field in dataclasses.fields(TrainConfig)}
        for name, works in self._effects().items():
            if not works and getattr(self, name) != defaults[name]:
                raise ValueError(
                    f"{name}: {getattr(self, name)!r} has no effect with prompts"
                    f" {self.prompts!r}, scheduler"
                    f" {self.scheduler!r}, objective {self.objective!r}, loadings"
                    f" {self.loadings!r} and replay {'on' if self.uses_replay else 'off'}"
                )

    def _effects(self) -> dict[str, bool]:
        """Whether each option that is not always used is used here."""
        objective = make_objective(self, 1)
        own = schedulers.Preset(Scheduler)  # takes none of the options
        preset = schedulers.PRESETS.get(self.scheduler, own)
        embedded = self.loadings in ("embeddings", "shuffled")
        return {
            **dict.fromkeys(TEXT_OPTIONS, bool(self.prompts)),
            "loadings": preset.reads_loadings,
            "num_skills": preset.reads_loadings and embedded,
            "fade_selector": "fade_selector" in preset.options,
            "target": "target" in preset.options,
            "exploration": "exploration" in preset.options,
            "epochs": "epochs" in preset.options,
            "beta": isinstance(objective, TrajectoryBalance),
            "partition_learning_rate": trains_value(objective),
            "replay_partition": self.uses_replay,
            "correction": self.uses_replay,
        }

    @property
    def task_name(self) -> str:
        """The task that "auto" stands for, or the one that is named."""
        if self.task != "auto":
            return self.task
        if self.policy in known_policies():
            return "digits"
        return "prompts" if self.prompts else "arithmetic"

    @property
    def uses_replay(self) -> bool:
        """Whether successes are replayed."""
        return self.replay == "on" or (self.replay == "preset" and self.scheduler == "paced")

    @property
    def budget(self) -> int:
        """R, rollouts of an iteration."""
        return self.num_prompts * self.group_size


def make_objective(config: TrainConfig, max_tokens: int) -> Objective:
    """The named loss, with the configured beta.

    Args:
        config: of the run.
        max_tokens: T, longest response.
    """
    return OBJECTIVES[config.objective](LossOptions(config.beta, max_tokens))
