"""The tasks that a run can name: what a policy is asked, and who judges it."""

import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

from fade_jax.pool_files import load_pool
from paced_jax.host_judge import Judge, check_golds, open_verifier
from paced_jax.policy.language_model import LanguageModel
from paced_jax.tasks import arithmetic as plain_arithmetic
from paced_jax.tasks import text_prompts
from paced_jax.tasks.skill_pool import SkillPools, build_pool
from paced_jax.tasks.task import SKILL_TASK, Task

BuildTask: TypeAlias = Callable[[Any, LanguageModel | None], tuple[Task, SkillPools]]
"""`(config, model) -> (task, pools)`: a TrainConfig, and the policy with its tokenizer where it is
a language model; None for a shipped policy, whose tokens are those of `tasks.tokens`."""


def digits(config: Any, model: LanguageModel | None) -> tuple[Task, SkillPools]:
    """The eight digit skills that the shipped policies know.

    Args:
        config: a TrainConfig.
        model: None.

    Returns:
        (task, pools).

    Raises:
        ValueError: a language model.
    """
    if model is not None:
        raise ValueError(f"task: 'digits' is for the shipped policies, not for {config.policy!r}")
    return SKILL_TASK, build_pool(config.pool_seed, num_train=config.num_train)


def arithmetic(config: Any, model: LanguageModel | None) -> tuple[Task, SkillPools]:
    """Arithmetic in plain text, answers compared token by token.

    Args:
        config: a TrainConfig.
        model: a language model.

    Returns:
        (task, pools).

    Raises:
        ValueError: no language model, or a tokenizer that joins prompt and answer.
    """
    model = _language_model("arithmetic", config, model)
    pools = plain_arithmetic.build_pool(
        model.tokenizer, config.pool_seed, num_train=config.num_train
    )
    names, end = tuple(plain_arithmetic.ARITHMETIC), plain_arithmetic.end_id(model.tokenizer)
    return Task("arithmetic", names, plain_arithmetic.MAX_LENGTH, end), pools


def prompts(config: Any, model: LanguageModel | None) -> tuple[Task, SkillPools]:
    """The file or folder `config.prompts`, judged on the host by `config.verifier`.

    Args:
        config: a TrainConfig.
        model: a language model.

    Returns:
        (task, pools).

    Raises:
        ValueError: no language model, no file, or prompts and golds that are not whole.
    """
    model = _language_model("prompts", config, model)
    if not config.prompts:
        raise ValueError("prompts: the task 'prompts' needs a file, got none")
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
        instruction=config.instruction,
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
    if config.num_prompts > len(pools.train.skill):  # before a verifier's processes start
        raise ValueError(
            f"num_prompts must be at most the {len(pools.train.skill)} training prompts of"
            f" {config.prompts}, got {config.num_prompts}"
        )
    judge = Judge(model.tokenizer, open_verifier(config.verifier))
    names = loaded.source_names or ("all",)
    return Task(config.verifier, names, 1, model.tokenizer.eos_id, judge, config.max_tokens), pools


TASKS: dict[str, BuildTask] = {"digits": digits, "arithmetic": arithmetic, "prompts": prompts}
"""By the name that `TrainConfig.task` and `--task` take; a line here adds one."""


def _language_model(name: str, config: Any, model: LanguageModel | None) -> LanguageModel:
    if model is None:
        raise ValueError(f"task: {name!r} is for language models, not for {config.policy!r}")
    return model
