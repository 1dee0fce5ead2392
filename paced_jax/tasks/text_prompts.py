"""Pools of prompts in plain text, as a language model reads them, and their gold answers.

Shapes: `N` prompts of `P` slots.
"""

from typing import NamedTuple

import numpy as np

from fade_jax.pool import SPLITS
from fade_jax.pool_files import LoadedPool
from paced_jax.policy.text import Tokenizer, pad
from paced_jax.tasks.skill_pool import SkillPool, SkillPools


class Encoded(NamedTuple):
    """What became of a pool of texts.

    Attributes:
        pools: prompts; `skill` is their source, `length` 1, answers are in `gold`.
        too_long: how many prompts had more tokens than allowed, and were left out.
    """

    pools: SkillPools
    too_long: int


def prompt_ids(
    text: str,
    tokenizer: Tokenizer,
    *,
    system: str | None = None,
    instruction: str = "",
    chat: bool = True,
) -> list[int]:
    """Tokens of a prompt.

    Args:
        text: what the user says.
        tokenizer: of the model.
        system: message before it.
        instruction: follows it, on a line of its own; none if empty.
        chat: write it by the model's chat template; else the text is taken as it is, after the
            system message and an empty line.

    Raises:
        ValueError: chat for a model without a template.
    """
    if instruction:
        text = f"{text}\n{instruction}"
    if not chat:
        return tokenizer.encode(text if system is None else f"{system}\n\n{text}")
    messages = [] if system is None else [{"role": "system", "content": system}]
    return tokenizer.encode(tokenizer.chat([*messages, {"role": "user", "content": text}]))


def encode_pools(
    loaded: LoadedPool,
    tokenizer: Tokenizer,
    seed: int,
    *,
    instruction: str = "",
    chat: bool = True,
    max_prompt_tokens: int = 256,
    num_train: int = 8192,
    num_held_out: int = 128,
) -> Encoded:
    """Tokenises a pool; each prompt is in the split that its content says.

    Args:
        loaded: from `fade_jax.pool_files.load_pool`, with answers.
        tokenizer: of the model.
        seed: which prompts are taken where there are more, and their order.
        instruction: as `prompt_ids`.
        chat: as `prompt_ids`.
        max_prompt_tokens: longer prompts are left out; P is the longest of those left.
        num_train: most training prompts.
        num_held_out: most validation prompts, and most test prompts.

    Returns:
        The pools.

    Raises:
        ValueError: a pool without answers, or a split without a prompt, naming it.
    """
    pool = loaded.pool
    if pool.answers is None:
        raise ValueError("answer: the prompts need answers, for the verifier")
    order = np.random.default_rng(seed).permutation(len(pool.keys))
    form = {"system": loaded.system, "instruction": instruction, "chat": chat}
    parts, too_long = [], 0
    for split, most in zip(SPLITS, (num_train, num_held_out, num_held_out), strict=True):
        rows = []
        for i in order[pool.split[order] == split]:
            if len(rows) == most:
                break
            ids = prompt_ids(pool.texts[i], tokenizer, **form)
            if len(ids) > max_prompt_tokens:
                too_long += 1
            else:
                rows.append((ids, pool.sources[i], pool.texts[i], pool.answers[i]))
        if not np.any(pool.split == split):
            raise ValueError(
                f"prompts: of {len(pool.keys)} none falls into the split {split}; splits are drawn"
                " by content, so give more prompts"
            )
        if not rows:
            raise ValueError(
                f"prompts: none of at most {max_prompt_tokens} tokens for {split};"
                f" {len(pool.keys)} were read, {too_long} were too long"
            )
        parts.append(rows)
    width = max(len(row[0]) for rows in parts for row in rows)
    return Encoded(SkillPools(*(_lay_out(rows, width) for rows in parts)), too_long)


def encode_all(
    loaded: LoadedPool,
    tokenizer: Tokenizer,
    *,
    instruction: str = "",
    chat: bool = True,
    max_prompt_tokens: int = 2048,
    limit: int | None = None,
) -> SkillPool:
    """Tokenises every prompt in order, whatever its split, for an evaluation.

    Args:
        loaded: from `fade_jax.pool_files.load_pool`, with answers.
        tokenizer: of the model.
        instruction: as `prompt_ids`.
        chat: as `prompt_ids`.
        max_prompt_tokens: P is the longest prompt.
        limit: only the first so many.

    Returns:
        The prompts.

    Raises:
        ValueError: a pool without answers, or a prompt that is too long, naming it.
    """
    pool = loaded.pool
    if pool.answers is None:
        raise ValueError("answer: the prompts need answers, for the verifier")
    rows = []
    for i, text in enumerate(pool.texts[:limit]):
        ids = prompt_ids(text, tokenizer, system=loaded.system, instruction=instruction, chat=chat)
        if len(ids) > max_prompt_tokens:
            raise ValueError(
                f"max_prompt_tokens: prompt {i} has {len(ids)} tokens, at most {max_prompt_tokens}"
                " are allowed"
            )
        rows.append((ids, pool.sources[i], text, pool.answers[i]))
    return _lay_out(rows, max(len(row[0]) for row in rows))


def _lay_out(rows, width: int) -> SkillPool:
    ids, source, text, gold = zip(*rows, strict=True)
    tokens, mask = pad(ids, width)
    count = len(rows)
    return SkillPool(
        prompt_tokens=tokens,
        prompt_mask=mask,
        answer_tokens=np.zeros((count, 0), np.int32),
        answer_lengths=np.zeros(count, np.int32),
        skill=np.array(source, np.int32),
        length=np.ones(count, np.int32),
        # As objects: numpy's own strings are all as wide as the longest, and lose a NUL at the end.
        text=np.array(text, object),
        gold=np.array(gold, object),
    )
