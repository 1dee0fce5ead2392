"""A recorded run as the arrays that the replay works on."""

import dataclasses
from pathlib import Path

import numpy as np

from fade_jax import histories
from fade_jax.histories import History
from fade_jax.simulated_history import simulate_history


@dataclasses.dataclass(frozen=True)
class Table:
    """A history as arrays: successes and trials [S, N], texts or None, and one group size."""

    successes: np.ndarray
    trials: np.ndarray
    texts: list[str] | None
    group_size: int
    source: str

    @property
    def informative(self) -> np.ndarray:
        """[S, N], 1 where the visit's group was neither all right nor all wrong."""
        return ((self.successes > 0) & (self.successes < self.trials)).astype(float)


def read_table(
    history_path: Path | None, prompts_path: Path | None, *, seed: int, quick: bool
) -> Table:
    """Reads the history, or simulates one."""
    if history_path is None:
        shape = (120, 24) if quick else (800, 44)
        rng = np.random.default_rng(seed)
        history, _ = simulate_history(rng, *shape, group_size=8, num_skills=6)
        source = f"a simulated run ({shape[0]} prompts, 6 skills); give --history for a real one"
    else:
        history = histories.load(history_path, prompts_path)
        source = history_path.name
    if history_path is None or history_path.suffix == ".json":
        longest = 24 if quick else 44  # visits that every prompt of the recorded run has
    else:
        longest = len(np.unique(history.step))
    return _table(history, source, longest)


def _table(history: History, source: str, longest: int) -> Table:
    successes, trials = histories.dense_array(history)
    if trials.shape[0] < 3 or trials.shape[1] < 4:
        raise ValueError(f"history: needs at least 3 steps and 4 prompts, got {trials.shape}")
    sizes, counts = np.unique(trials[trials > 0], return_counts=True)
    texts = None if history.text is None else [str(text) for text in history.text]
    return Table(
        successes[:longest].astype(np.float32),
        trials[:longest].astype(np.float32),
        texts,
        int(sizes[counts.argmax()]),
        source,
    )
