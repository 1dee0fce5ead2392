"""What runs on the same policy and pool share: policy, task, prompts and their embeddings.

Shapes: `N` training prompts, `E` features of an embedding.
"""

import dataclasses
import json
from functools import partial
from typing import NamedTuple

import jax
from jaxtyping import Array

from paced_jax import partition
from paced_jax.policy import smollm2
from paced_jax.policy.base_policies import WEIGHTS, BasePolicy, known_policies, load_base_policy
from paced_jax.policy.forward import prompt_embeddings
from paced_jax.tasks import arithmetic
from paced_jax.tasks.skill_pool import SkillPools, build_pool
from paced_jax.tasks.task import SKILL_TASK, Task
from paced_jax.train_config import TrainConfig


class Ground(NamedTuple):
    """What runs on the same policy and pool share, computed once.

    Attributes:
        policy: its name.
        pool_seed: of the prompts.
        num_train: training prompts.
        base: the policy.
        task: what it is asked.
        pools: prompts.
        embeddings: [N, E] standardised, of the training prompts.
    """

    policy: str
    pool_seed: int
    num_train: int
    base: BasePolicy
    task: Task
    pools: SkillPools
    embeddings: Array


def load_task(config: TrainConfig) -> tuple[BasePolicy, Task, SkillPools]:
    """The policy, and the task that goes with it: digit skills, or arithmetic in plain text.

    Raises:
        ValueError: a policy that is not there, more training prompts than exist.
    """
    if config.policy in known_policies():
        pools = build_pool(config.pool_seed, num_train=config.num_train)
        return load_base_policy(config.policy), SKILL_TASK, pools
    graphdef, params, decoder, tokenizer = smollm2.load()
    measured = json.loads((WEIGHTS / "smollm2_rates.json").read_text())
    base = BasePolicy(graphdef, params, {"decoder": dataclasses.asdict(decoder), **measured})
    pools = arithmetic.build_pool(tokenizer, config.pool_seed, num_train=config.num_train)
    end = arithmetic.end_id(tokenizer)
    task = Task("arithmetic", tuple(arithmetic.ARITHMETIC), arithmetic.MAX_LENGTH, end)
    return base, task, pools


def prepare_ground(config: TrainConfig) -> Ground:
    """Loads the policy, builds the pools, embeds the training prompts once.

    Raises:
        ValueError: as `load_task`.
    """
    base, task, pools = load_task(config)
    embed = jax.jit(partial(prompt_embeddings, base.graphdef))
    raw = embed(base.params, pools.train.prompt_tokens, pools.train.prompt_mask)
    return Ground(
        config.policy,
        config.pool_seed,
        config.num_train,
        base,
        task,
        pools,
        jax.jit(partition.standardise)(raw),
    )
