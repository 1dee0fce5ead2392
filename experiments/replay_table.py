"""A recorded run as the arrays that the replay works on."""

import dataclasses
from pathlib import Path

import numpy as np

from fade_jax import histories
from fade_jax.histories import History
from fade_jax.simulated_history import simulate_history

HISTORIES = Path(__file__).resolve().parent / "data" / "histories"
"""Histories that come with the repository, made by `record_history`."""


@dataclasses.dataclass(frozen=True)
class Table:
    """A history as arrays: successes and trials [S, N], texts and tags [N] or None, group size."""

    successes: np.ndarray
    trials: np.ndarray
    texts: list[str] | None
    group_size: int
    source: str
    tags: list[str] | None = None

    @property
    def informative(self) -> np.ndarray:
        """[S, N], 1 where the visit's group was neither all right nor all wrong."""
        return ((self.successes > 0) & (self.successes < self.trials)).astype(float)


def read_table(
    history_path: Path | None, prompts_path: Path | None, *, seed: int, quick: bool
) -> Table:
    """Reads a history by visits, or simulates one.

    Args:
        history_path: .npz, or acc_step_500.json of One-Shot-RLVR; None for a simulated run.
        prompts_path: the texts of a .json.
        seed: of the simulation.
        quick: fewer prompts and visits.

    Returns:
        The table; row k holds the k-th visit of every prompt.
    """
    if history_path is None:
        shape = (120, 24) if quick else (800, 44)
        rng = np.random.default_rng(seed)
        history, _ = simulate_history(rng, *shape, group_size=8, num_skills=6)
        source = f"a simulated run ({shape[0]} prompts, 6 skills); give --history for a real one"
        return _table(history, source)
    history = histories.load(history_path, prompts_path)
    if history_path.suffix == ".json":
        # Visits that every prompt of the recorded run has.
        return _table(history, history_path.name, 24 if quick else 44)
    history = histories.by_visit(history)
    if quick:
        return _table(history, history_path.name, 12, 200)
    return _table(history, history_path.name)


def _table(
    history: History, source: str, longest: int | None = None, first: int | None = None
) -> Table:
    """The table of the `longest` first visits of the `first` prompts; of all where None."""
    successes, trials = (table[:, :first] for table in histories.dense_array(history))
    if trials.shape[0] < 3 or trials.shape[1] < 4:
        raise ValueError(f"history: needs at least 3 steps and 4 prompts, got {trials.shape}")
    sizes, counts = np.unique(trials[trials > 0], return_counts=True)
    texts = None if history.text is None else [str(text) for text in history.text[:first]]
    sources = history.source[:first]
    return Table(
        successes[:longest].astype(np.float32),
        trials[:longest].astype(np.float32),
        texts,
        int(sizes[counts.argmax()]),
        source,
        [str(each) for each in sources] if len(np.unique(sources)) > 1 else None,
    )
