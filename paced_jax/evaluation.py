"""How good a policy is on held-out prompts: pass@k, distinct answers, by skill and length.

Shapes: `N` prompts, `G` rollouts of each, `R` rollouts in all, `T` response tokens, `M` rollout
groups, `K` values of k, `S` skills, `W` the greatest length.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Bool, Float, Int, Key, Num

from paced_jax.policy.decoder import GraphDef, Params
from paced_jax.policy.sampling import sample
from paced_jax.tasks.skills import Problems, verify
from paced_jax.tasks.tokens import EOS, SKILLS


class Evaluation(NamedTuple):
    """What the rollouts of each prompt came to.

    Attributes:
        successes: [N] int32, in 0..trials.
        trials: [N] int32, rollouts with a verdict.
        distinct_correct: [N] int32, different right responses among them, in 0..successes.
        response_tokens: [N] int32, sampled by all G rollouts together, end of sequence included.
        cut_off: [N] int32, rollouts that reached T tokens without an end of sequence.
    """

    successes: Int[Array, " N"]
    trials: Int[Array, " N"]
    distinct_correct: Int[Array, " N"]
    response_tokens: Int[Array, " N"]
    cut_off: Int[Array, " N"]


class CellMeans(NamedTuple):
    """Means over the rows of each cell.

    Attributes:
        mean: [S, W]; 0 where count is 0, which means missing.
        count: [S, W] int32, rows in the cell.
    """

    mean: Float[Array, "S W"]
    count: Int[Array, "S W"]


def _one_more(chance, share):
    # A share of 1: those left are all right. Above 1 there is none left to be wrong.
    chance = jnp.where(share >= 1, 1.0, chance + (1 - chance) * share)
    return chance, chance


def pass_at_k(
    successes: Num[Array, "*N"],
    trials: int | Num[Array, "*N"],
    k: int | Sequence[int] | Int[np.ndarray, "*K"],
) -> Float[Array, "..."]:
    """Unbiased estimate of the chance that at least one of k rollouts is right.

    `1 - C(trials - successes, k) / C(trials, k)` (arXiv 2107.03374, equation 1), the chance that k
    rollouts drawn without replacement are not all wrong. One more rollout after j adds
    `(1 - p_j) successes / (trials - j)` to it; in this sum nothing cancels, so that small chances
    keep their digits.

    Args:
        successes: whole numbers in 0..trials.
        trials: whole numbers, one for all or one each.
        k: static; one, or K of them; each in 1..trials.

    Returns:
        [*K, *N], in 0..1: for a single k the shape of successes, for several with K in front.

    Raises:
        ValueError: for a k out of range. Where `trials` is traced it can't be looked at, and a k
            above it gives NaN.

    Example:
        >>> pass_at_k(jnp.array([0, 1, 7, 8]), 8, [1, 2]).tolist()
        [[0.0, 0.125, 0.875, 1.0], [0.0, 0.25, 1.0, 1.0]]
    """
    ks = np.asarray(k)
    if ks.size == 0 or ks.dtype.kind != "i" or ks.min() < 1:
        raise ValueError(f"k must be whole numbers of at least 1, got {k}")
    highest = int(ks.max())
    if not isinstance(trials, Tracer):
        fewest = np.min(np.asarray(trials, float), initial=np.inf)
        if highest > fewest:
            raise ValueError(f"k must be at most trials = {fewest:g}, got {highest}")
    floating = jnp.result_type(float)
    right = jnp.asarray(successes, floating)[None]
    total = jnp.broadcast_to(jnp.asarray(trials, floating), right.shape)
    left = total - jnp.arange(highest, dtype=floating).reshape(-1, *[1] * (right.ndim - 1))
    share = jnp.where(left > 0, right / left, jnp.nan)

    _, chances = jax.lax.scan(_one_more, jnp.zeros_like(share[0]), share)
    return chances[ks - 1]


def distinct_correct(
    tokens: Int[Array, "R T"],
    action_mask: Bool[Array, "R T"],
    correct: Bool[Array, " R"],
    group: Int[Array, " R"],
    num_groups: int,
) -> Int[Array, " M"]:
    """Counts the different right responses of every group, by exact comparison of their tokens.

    Rows are sorted by group and tokens, T + 1 stable sorts; a row that differs from the one before
    it is new.

    Args:
        tokens: [R, T] >= 0; those outside the mask are ignored.
        action_mask: [R, T]; responses of different length differ.
        correct: [R], rows that count.
        group: [R] int32; rows outside 0..M-1 are dropped.
        num_groups: M, static.

    Returns:
        [M] int32; 0 for a group without right responses.
    """
    group = jnp.where(correct & (group >= 0), group, num_groups)
    columns = jnp.concatenate([group[None], jnp.where(action_mask, tokens, -1).T])
    rows = jnp.arange(group.shape[0], dtype=jnp.int32)

    def by_column(order, column):
        return order[jnp.argsort(column[order], stable=True)], None

    order, _ = jax.lax.scan(by_column, rows, columns, reverse=True)
    ordered = columns[:, order]
    new = (ordered != jnp.roll(ordered, 1, axis=1)).any(axis=0) | (rows == 0)
    return jax.ops.segment_sum(new.astype(jnp.int32), ordered[0], num_groups)


def by_cell(
    values: Num[Array, " N"],
    skill: Int[Array, " N"],
    length: Int[Array, " N"],
    num_skills: int,
    max_length: int,
) -> CellMeans:
    """Averages values over the prompts of each skill and length.

    Args:
        values: [N], of any meaning.
        skill: [N], in 0..S-1.
        length: [N], in 1..W. Rows with a skill or length out of range are dropped.
        num_skills: S, static.
        max_length: W, static.

    Returns:
        CellMeans of [S, W].
    """
    cells = num_skills * max_length
    known = (skill >= 0) & (skill < num_skills) & (length >= 1) & (length <= max_length)
    cell = jnp.where(known, skill * max_length + length - 1, cells)
    count = jax.ops.segment_sum(jnp.ones_like(cell), cell, cells)
    total = jax.ops.segment_sum(values.astype(jnp.result_type(float)), cell, cells)
    mean = total / jnp.maximum(count, 1).astype(total.dtype)
    shape = (num_skills, max_length)
    return CellMeans(mean.reshape(shape), count.reshape(shape))


def standard_error(values: Num[ArrayLike, " N"]) -> float:
    """Standard error of the mean of one value a prompt, for example its pass rate.

    `sd(values) / sqrt(N)`. Rollouts of one prompt are dependent, so prompts are the unit
    (clustered by prompt): it covers the noise of the rollouts and the choice of the prompts.
    `sqrt(p (1 - p) / (N G))`, for independent rollouts, is too small.

    Args:
        values: [N].

    Returns:
        In units of the values; NaN for fewer than two prompts.
    """
    values = np.asarray(values, float)
    if len(values) < 2:
        return float("nan")
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))


def evaluate(
    graphdef: GraphDef,
    params: Params,
    problems: Problems,
    key: Key[Array, ""],
    *,
    group_size: int,
    batch_size: int,
    eos_id: int = EOS,
    temperature: float = 1.0,
) -> Evaluation:
    """Samples a rollout group for each prompt of a pool and counts what is right. Consumes `key`.

    Prompts are taken in batches of equal size, batch b with `fold_in(key, b)`. The same key and
    batch size give the same rollouts; another batch size gives other ones of the same
    distribution. (A key for each prompt, by a `vmap` of the sampler, would avoid that; measured on
    CPU it takes 20 to 40 % more time.)

    Args:
        graphdef: static half of the decoder.
        params: its parameters.
        problems: [N] prompts and answers, `Problems(*pool[:4])` of a pool; T is the width of the
            answers.
        key: for all rollouts.
        group_size: G, static.
        batch_size: most prompts at once, static; it bounds memory.
        eos_id: the token that ends a response; by default that of the skill tasks.
        temperature: of the sampler, static; 0 takes the likeliest token.

    Returns:
        Evaluation of [N].

    Raises:
        ValueError: for group_size, batch_size or a number of prompts below 1.
    """
    problems = jax.tree.map(jnp.asarray, problems)
    num_prompts, max_tokens = problems.answer_tokens.shape
    for name, size in (
        ("group_size", group_size),
        ("batch_size", batch_size),
        ("number of prompts", num_prompts),
    ):
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
    num_batches = -(-num_prompts // batch_size)
    batch = -(-num_prompts // num_batches)
    # The last batch is filled up with the last prompt; what that adds is cut off below.
    ids = jnp.minimum(jnp.arange(num_batches * batch, dtype=jnp.int32), num_prompts - 1)
    slot = jnp.repeat(jnp.arange(batch, dtype=jnp.int32), group_size)

    def one(batch_of):
        prompts, number = batch_of
        tokens, _, mask = sample(
            graphdef,
            params,
            problems.prompt_tokens[prompts],
            problems.prompt_mask[prompts],
            slot,
            jax.random.fold_in(key, number),
            max_tokens=max_tokens,
            eos_id=eos_id,
            temperature=temperature,
        )
        verdict = verify(
            problems.answer_tokens, problems.answer_lengths, prompts[slot], tokens, mask
        )

        def count(rows):
            return rows.astype(jnp.int32).reshape(batch, group_size).sum(axis=1)

        return Evaluation(
            successes=count(verdict == 1),
            trials=count(verdict >= 0),
            distinct_correct=distinct_correct(tokens, mask, verdict == 1, slot, batch),
            response_tokens=count(mask.sum(axis=1)),
            cut_off=count(mask[:, -1] & (tokens[:, -1] != eos_id)),
        )

    numbers = jnp.arange(num_batches, dtype=jnp.int32)
    counts = jax.lax.map(one, (ids.reshape(num_batches, batch), numbers))
    return jax.tree.map(lambda x: x.reshape(-1)[:num_prompts], counts)


def summarise(
    evaluation: Evaluation,
    skill: Int[ArrayLike, " N"],
    length: Int[ArrayLike, " N"],
    *,
    ks: Sequence[int] = (1, 2, 4, 8, 16, 32),
    skills: Sequence[str] = SKILLS,
    rollouts: int | None = None,
) -> dict[str, float]:
    """Turns an evaluation into named scalars, on the host. Every prompt weighs the same.

    Args:
        evaluation: of N prompts. Those without a single verdict are left out; where a verifier
            gave none for some rollouts, trials differ.
        skill: [N], index into `skills`.
        length: [N] >= 1.
        ks: values of k; those above the smallest number of trials are left out.
        skills: names of the skills.
        rollouts: G, of each prompt; the largest number of trials by default.

    Returns:
        `pass_at_{k}` and its `pass_at_{k}_standard_error`; `no_verdict`, share of rollouts;
        `distinct_correct`, a prompt; `response_tokens`, a rollout; `cut_off`, share of rollouts;
        and pass@1 of the parts that have prompts: `skill/{name}`, `length/{length}`,
        `cell/{name}/{length}`.

    Raises:
        ValueError: without a verdict on any prompt, and for a skill or length out of range, naming
            the prompt.
    """
    skill, length = np.asarray(skill), np.asarray(length)
    for name, values, low, high in (
        ("skill", skill, 0, len(skills) - 1),
        ("length", length, 1, np.inf),
    ):
        bad = np.flatnonzero((values < low) | (values > high))
        if bad.size:
            raise ValueError(
                f"{name} must be in {low}..{high}, prompt {bad[0]} has {values[bad[0]]}"
            )
    judged = np.asarray(evaluation.trials) > 0
    if not judged.any():
        raise ValueError(f"trials: no verdict on any of the {len(judged)} prompts")
    skill, length = skill[judged], length[judged]
    successes, trials, distinct, tokens, cut_off = (np.asarray(x)[judged] for x in evaluation)
    rollouts = int(trials.max()) if rollouts is None else rollouts
    ks = [k for k in ks if k <= trials.min()]
    counts = jnp.asarray(successes), jnp.asarray(trials)
    chances = np.asarray(pass_at_k(*counts, ks), float) if ks else []
    summary: dict[str, float] = {}
    for k, chance in zip(ks, chances, strict=True):
        summary[f"pass_at_{k}"] = float(chance.mean())
        summary[f"pass_at_{k}_standard_error"] = standard_error(chance)
    summary["no_verdict"] = 1 - float(np.mean(evaluation.trials)) / rollouts
    summary["distinct_correct"] = float(distinct.mean())
    summary["response_tokens"] = float(tokens.mean() / rollouts)
    summary["cut_off"] = float(cut_off.mean() / rollouts)
    cells = by_cell(
        jnp.asarray(successes / trials, jnp.float32),
        jnp.asarray(skill, jnp.int32),
        jnp.asarray(length, jnp.int32),
        len(skills),
        int(length.max()),
    )
    mean, count = (np.asarray(x, float) for x in cells)
    lengths = [str(place) for place in range(1, mean.shape[1] + 1)]
    for axis, part, names in ((1, "skill", skills), (0, "length", lengths)):
        total, right = count.sum(axis), (mean * count).sum(axis)
        for name, share, prompts in zip(names, right, total, strict=True):
            if prompts:
                summary[f"{part}/{name}"] = float(share / prompts)
    for index, place in np.argwhere(count):
        summary[f"cell/{skills[index]}/{place + 1}"] = float(mean[index, place])
    return summary
