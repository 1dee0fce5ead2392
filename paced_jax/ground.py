"""What runs on the same policy and pool share: policy, task, prompts and their embeddings.

Shapes: `N` training prompts, `E` features of an embedding.
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
from jaxtyping import Array

from fade_jax.json_files import read_json
from paced_jax import partition
from paced_jax.policy import language_model
from paced_jax.policy.base_policies import WEIGHTS, BasePolicy, known_policies, load_base_policy
from paced_jax.policy.forward import prompt_embeddings
from paced_jax.policy.language_model import LanguageModel
from paced_jax.tasks.named import TASKS
from paced_jax.tasks.skill_pool import SkillPools
from paced_jax.tasks.task import Task
from paced_jax.train_config import TEXT_OPTIONS, TrainConfig

GROUND_OPTIONS = ("policy", "task", "pool_seed", "num_train", "prompts", *TEXT_OPTIONS)
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


def load_task(
    config: TrainConfig,
) -> tuple[BasePolicy, Task, SkillPools, LanguageModel | None]:
    """The policy, and the task of `config.task_name`.

    Args:
        config: of the run.

    Returns:
        (policy, task, prompts, the language model if it is one).

    Raises:
        ValueError: a policy, prompts or a verifier that are not there or not whole; more prompts
            than exist.
    """
    name, shipped = config.task_name, config.policy in known_policies()
    model = None if shipped else language_model.load(config.policy)
    task, pools = TASKS[name](config, model)
    if config.num_prompts > len(pools.train.skill):
        raise ValueError(
            f"num_prompts must be at most the {len(pools.train.skill)} training prompts of the task"
            f" {name!r}, got {config.num_prompts}"
        )
    if model is None:
        base = load_base_policy(config.policy)
        if name != "digits":  # its measured pass rates are of the digit skills
            kept = {key: value for key, value in base.metadata.items() if key != "pass_rate"}
            base = base._replace(metadata=kept)
        return base, task, pools, None
    metadata: dict[str, Any] = {"decoder": dataclasses.asdict(model.config)}
    if name == "arithmetic" and config.policy == language_model.SMOLLM2:
        metadata |= read_json(WEIGHTS / "smollm2_rates.json")
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
