"""A simulated training run with known truth, for those without a recorded one.

Shapes: `S` steps, `N` prompts, `K` skills. Abilities rise and wander, prompts differ in difficulty,
and the words of a prompt tell which skills it draws on. Host code, numpy.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from fade_jax.histories import History, check_history
from fade_jax.loadings import apply_whitening, whiten
from fade_jax.pool import content_key

_SYLLABLES = tuple(consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou")
_WORDS_A_TOPIC = 12


class Truth(NamedTuple):
    """What produced a simulated history.

    Attributes:
        pass_rate: [S, N] `sigmoid(theta_0 + loading . theta - intercept)`.
        ability: [S, K+1] logits; the constant theta_0 comes first.
        intercept: [N] logits, larger is harder.
        loadings: [N, K], whitened.
    """

    pass_rate: Float[np.ndarray, "S N"]
    ability: Float[np.ndarray, "S K_1"]
    intercept: Float[np.ndarray, " N"]
    loadings: Float[np.ndarray, "N K"]


def simulate_history(
    rng: np.random.Generator,
    num_prompts: int,
    num_steps: int,
    group_size: int,
    num_skills: int,
    *,
    visit_share: float = 1.0,
    start: float = -0.5,
    trend: float = 0.02,
    drift_sd: float = 0.05,
    intercept_sd: float = 1.5,
    words: int = 20,
) -> tuple[History, Truth]:
    """Simulates a run: every prompt mixes K + 1 topics, which its words and its loadings show.

    The constant ability starts at `start` and rises by `trend` a step; skills start at N(0, 1) and
    rise at their own pace, uniform in 0..2 trend. All wander by `drift_sd` a step. Outcomes are
    binomial.

    Args:
        rng: consumed.
        num_prompts: N > K + 1.
        num_steps: S.
        group_size: G, rollouts a visit.
        num_skills: K >= 0.
        visit_share: probability that a prompt is visited at a step.
        start: logit of the constant ability before step 0.
        trend: logits a step.
        drift_sd: standard deviation of a step of each ability, logits.
        intercept_sd: standard deviation of the intercepts over prompts, logits.
        words: length of a prompt's text.

    Returns:
        The history, with texts, and the truth behind it.
    """
    topics = num_skills + 1
    mixture = rng.dirichlet(np.full(topics, 0.3), num_prompts)
    loadings = apply_whitening(whiten(mixture, num_skills), mixture).astype(np.float64)
    intercept = rng.normal(0, intercept_sd, num_prompts)
    first = np.append(start, rng.normal(0, 1, num_skills))
    pace = np.append(trend, rng.uniform(0, 2 * trend, num_skills))
    moves = pace + drift_sd * rng.standard_normal((num_steps, topics))
    ability = first + np.cumsum(moves, axis=0)
    logits = ability[:, :1] + ability[:, 1:] @ loadings.T - intercept
    pass_rate = 1 / (1 + np.exp(-logits))
    step, prompt_id = np.nonzero(rng.random(pass_rate.shape) < visit_share)
    texts = _texts(rng, mixture, words)
    history = History(
        step=step,
        prompt_id=prompt_id,
        successes=rng.binomial(group_size, pass_rate[step, prompt_id]),
        trials=np.full(len(step), group_size),
        policy_step=step,
        prompt_key=np.array([content_key(text) for text in texts]),
        text=np.array(texts),
        source=np.zeros(num_prompts, np.int32),
        meta={"simulated": True, "group_size": group_size, "num_skills": num_skills},
    )
    return check_history(history), Truth(pass_rate, ability, intercept, loadings)


def _texts(rng: np.random.Generator, mixture: np.ndarray, words: int) -> list[str]:
    """Draws each prompt's words from its topics' own vocabularies of made-up words."""
    num_prompts, topics = mixture.shape
    codes = rng.choice(len(_SYLLABLES) ** 3, (topics, _WORDS_A_TOPIC), replace=False)
    digits = np.stack(np.unravel_index(codes, (len(_SYLLABLES),) * 3), -1)
    vocabulary = [["".join(_SYLLABLES[d] for d in word) for word in topic] for topic in digits]
    texts: list[str] = []
    for row in range(num_prompts):
        drawn = zip(
            rng.choice(topics, words, p=mixture[row]),
            rng.integers(_WORDS_A_TOPIC, size=words),
            strict=True,
        )
        texts.append(f"{row}: " + " ".join(vocabulary[topic][word] for topic, word in drawn))
    return texts
