"""Tasks of reasoning-gym as a verifier, in worker processes.

A gold is a JSON object with the task's name and the entry its data set made:
`{"dataset": "chain_sum", "entry": {"question": ..., "answer": ..., "metadata": {...}}}`; `gold`
writes one. The score is the data set's own `score_answer`. A score of 1 is right and any other
wrong: many tasks give 0.01 for any answer at all, and partial credit would blur whether a rollout
group disagrees.
"""

import json
from functools import cache
from importlib import import_module
from typing import Any

from paced_jax.verifiers.math_text import find_answer
from paced_jax.verifiers.pool import WorkerPool
from paced_jax.verifiers.verdicts import RIGHT, WRONG


def load() -> None:
    """Imports reasoning-gym; ImportError names the extra where it is missing."""
    try:
        import_module("reasoning_gym")
    except ImportError as error:
        raise ImportError("reasoning tasks need the extra fade-jax[reasoning]") from error


def gold(dataset: str, entry: dict[str, Any]) -> str:
    """Writes a prompt's gold: the data set's registered name and its entry."""
    return json.dumps({"dataset": dataset, "entry": entry}, default=str)


def check_gold(gold: str) -> None:
    """Refuses what `gold` has not written.

    Raises:
        ValueError: naming the gold.
    """
    try:
        task = json.loads(gold)
    except ValueError:
        task = None
    if not isinstance(task, dict) or not {"dataset", "entry"} <= set(task):
        raise ValueError(
            f'gold: must be {{"dataset": ..., "entry": ...}} in JSON, got {gold!r:.80}'
        )


@cache
def _dataset(name: str) -> Any:
    return import_module("reasoning_gym").create_dataset(name, size=1, seed=0)


def grade(response: str, gold: str) -> tuple[int, str]:
    """Scores the content of `<answer>...</answer>`, else what `math_text.find_answer` finds.

    Args:
        response: the model's text.
        gold: as `gold` writes it.

    Returns:
        (verdict, reason): 1 for a score of 1, else 0.
    """
    task = json.loads(gold)
    answer = response.rpartition("<answer>")[2].partition("</answer>")[0].strip()
    answer = answer if "<answer>" in response else find_answer(response)
    if not answer:
        return WRONG, "no answer"
    score = _dataset(task["dataset"]).score_answer(answer, task["entry"])
    return (RIGHT, "right") if score >= 1 else (WRONG, "wrong")


class ReasoningVerifier(WorkerPool):
    """Judges answers to tasks of reasoning-gym; `gold` writes the golds.

    Right for a score of 1; none where scoring fails.

    Args:
        workers: number of processes, >= 1.
        limit: seconds of wall clock a response may take, > 0.

    Raises:
        ValueError: naming the field; also without the extra `fade-jax[reasoning]`.
    """

    def __init__(self, *, workers: int = 4, limit: float = 10.0):
        super().__init__(f"{__name__}:grade", workers=workers, limit=limit)
