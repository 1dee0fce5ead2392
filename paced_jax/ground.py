"""What runs on the same policy and pool share: policy, task, prompts and their embeddings.

Shapes: `N` training prompts, `E` features of an embedding.
"""

import dataclasses
import json
import warnings
from functools import partial
from typing import Any, NamedTuple

import jax
from jaxtyping import Array

from fade_jax.pool_files import load_pool
from paced_jax import partition
from paced_jax.host_judge import Judge, check_golds, open_verifier
from paced_jax.policy import language_model
from paced_jax.policy.base_policies import WEIGHTS, BasePolicy, known_policies, load_base_policy
from paced_jax.policy.forward import prompt_embeddings
from paced_jax.policy.language_model import LanguageModel
from paced_jax.tasks import arithmetic, text_prompts
from paced_jax.tasks.skill_pool import SkillPools, build_pool
from paced_jax.tasks.task import SKILL_TASK, Task
from paced_jax.train_config import TEXT_OPTIONS, TrainConfig

GROUND_OPTIONS = ("policy", "pool_seed", "num_train", "prompts", *TEXT_OPTIONS)
"""Fields of a TrainConfig that a ground is made from."""


class Ground(NamedTuple):
    """What runs on the same policy and pool share, computed once.

    Attributes:
        config: what it was made from; of its fields `GROUND_OPTIONS` matter here.
        base: the policy.
        task: what it is asked.
        pools: prompts.
        embeddings: [N, E] standardised, of the training prompts.
        model: the policy and its tokenizer where it is a language model.
    """

    config: TrainConfig
    base: BasePolicy
    task: Task
    pools: SkillPools
    embeddings: Array
    model: LanguageModel | None = None

    def close(self) -> None:
        """Ends the verifier's processes, if there are any."""
        if self.task.judge is not None:
            self.task.judge.verifier.close()


def _arithmetic(model: LanguageModel, config: TrainConfig) -> tuple[Task, SkillPools]:
    pools = arithmetic.build_pool(model.tokenizer, config.pool_seed, num_train=config.num_train)
    end = arithmetic.end_id(model.tokenizer)
    return Task("arithmetic", tuple(arithmetic.ARITHMETIC), arithmetic.MAX_LENGTH, end), pools


def _prompt_file(model: LanguageModel, config: TrainConfig) -> tuple[Task, SkillPools]:
    loaded = load_pool(
        config.prompts,
        prompt=config.prompt_column,
        answer=config.answer_column,
        source=config.source_column or None,
    )
    check_golds(config.verifier, loaded.pool.answers or ())
    template = model.tokenizer.chat_template is not None
    pools, too_long = text_prompts.encode_pools(
        loaded,
        model.tokenizer,
        config.pool_seed,
        chat=template if config.chat == "auto" else config.chat == "on",
        max_prompt_tokens=config.max_prompt_tokens,
        num_train=config.num_train,
        num_held_out=config.num_held_out,
    )
    if too_long:
        warnings.warn(
            f"prompts: {too_long} of more than {config.max_prompt_tokens} tokens are left out",
            stacklevel=2,
        )
    if config.num_prompts > len(pools.train.skill):
        raise ValueError(
            f"num_prompts must be at most the {len(pools.train.skill)} training prompts of"
            f" {config.prompts}, got {config.num_prompts}"
        )
    judge = Judge(model.tokenizer, open_verifier(config.verifier))
    names = loaded.source_names or ("all",)
    return Task(config.verifier, names, 1, model.tokenizer.eos_id, judge, config.max_tokens), pools


def load_task(
    config: TrainConfig,
) -> tuple[BasePolicy, Task, SkillPools, LanguageModel | None]:
    """The policy, and the task that goes with it.

    Digit skills for the shipped policies; for a language model the prompts of `config.prompts`, or
    arithmetic in plain text where there is no file.

    Returns:
        (policy, task, prompts, the language model if it is one).

    Raises:
        ValueError: a policy, prompts or a verifier that are not there or not whole; more prompts
            than exist.
    """
    if config.policy in known_policies():
        pools = build_pool(config.pool_seed, num_train=config.num_train)
        return load_base_policy(config.policy), SKILL_TASK, pools, None
    model = language_model.load(config.policy)
    task, pools = (_prompt_file if config.prompts else _arithmetic)(model, config)
    metadata: dict[str, Any] = {"decoder": dataclasses.asdict(model.config)}
    if task.name == "arithmetic" and config.policy == language_model.SMOLLM2:
        metadata |= json.loads((WEIGHTS / "smollm2_rates.json").read_text())
    return BasePolicy(model.graphdef, model.params, metadata), task, pools, model


def prepare_ground(config: TrainConfig) -> Ground:
    """Loads policy and task, embeds the training prompts once.

    Raises:
        ValueError: as `load_task`.
    """
    base, task, pools, model = load_task(config)
    embed = jax.jit(partial(prompt_embeddings, base.graphdef))
    raw = embed(base.params, pools.train.prompt_tokens, pools.train.prompt_mask)
    embeddings = jax.jit(partition.standardise)(raw)
    return Ground(config, base, task, pools, embeddings, model)
