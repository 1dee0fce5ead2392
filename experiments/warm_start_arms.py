"""The second run of `warm_start` as it happened, and what each way to start says of it."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from experiments.replay_contenders import Params, fade_hyperparameters
from fade_jax import ability_difficulty, shrinkage, warm_start
from fade_jax.histories import History
from fade_jax.pool_loadings import PoolLoadings
from fade_jax.replay import Batches, replay_batches, to_batches
from fade_jax.types import Estimate


@dataclasses.dataclass(frozen=True)
class Second:
    """The run that is predicted: batches as they happened, and what became of each group."""

    history: History
    batches: Batches
    group_size: int

    @property
    def epoch(self) -> int:
        """Batches in which every prompt is visited once."""
        return round(len(self.history.prompt_key) / self.batches.prompt_ids.shape[1])

    @property
    def scored(self) -> np.ndarray:
        """[I, B] whole groups."""
        return np.asarray(self.batches.trials) == self.group_size


def open_second(history: History) -> Second:
    """Lays a run out in batches; time is counted in epochs."""
    width = int(np.unique(history.step, return_counts=True)[1].max())
    batches = to_batches(history, steps_per_unit=len(history.prompt_key) / width)
    sizes, counts = np.unique(history.trials, return_counts=True)
    return Second(history, batches, int(sizes[counts.argmax()]))


def reordered(second: Second, seed: int) -> Batches:
    """The same groups with each epoch's in another order; outcomes stay in their epoch."""
    rng = np.random.default_rng(seed)
    columns = [np.array(column) for column in second.batches[:3]]
    ids, successes, trials = columns
    for start in range(0, len(columns[0]), second.epoch):
        part = slice(start, start + second.epoch)
        order = rng.permutation(columns[0][part].size)
        for column in columns:
            column[part] = column[part].reshape(-1)[order].reshape(column[part].shape)
    return Batches(ids, successes, trials, second.batches.elapsed)


@partial(jax.jit, static_argnames=("frozen", "group_size"))
def follow(
    loadings: PoolLoadings,
    params: Params,
    known: Estimate | None,
    batches: Batches,
    *,
    frozen: bool = False,
    group_size: int,
) -> tuple[jax.Array, Estimate]:
    """Replays a run from the prior, or from known intercepts; returns what was said of each group.

    Returns:
        [I, B] P(informative), and the intercepts at the end, [N].
    """
    rule = shrinkage.frozen() if frozen else shrinkage.bayes()
    hyper = fade_hyperparameters(params, loadings.num_skills)
    model = ability_difficulty.assemble(loadings, hyper, shrinkage=rule)
    tracker = ability_difficulty.build(loadings, hyper, shrinkage=rule)
    state = tracker.init() if known is None else warm_start.init(model, known)
    predictions, _, state, _ = replay_batches(tracker, state, batches, group_size)
    return predictions, ability_difficulty.intercepts(model, state)


def losses(predictions: np.ndarray, batches: Batches) -> dict[str, np.ndarray]:
    """[I, B] log loss and squared error of every group's prediction."""
    y = informative(batches)
    p = np.clip(predictions.astype(float), 1e-6, 1 - 1e-6)
    return {"log loss": -(y * np.log(p) + (1 - y) * np.log1p(-p)), "Brier": (p - y) ** 2}


def informative(batches: Batches) -> np.ndarray:
    """[I, B], 1 where the group was neither all right nor all wrong."""
    successes, trials = np.asarray(batches.successes), np.asarray(batches.trials)
    return ((successes > 0) & (successes < trials)).astype(float)


def replay_arms(
    loadings: PoolLoadings,
    params: dict[str, float],
    known: Estimate,
    second: Second,
    batches: Batches,
    *,
    widened: tuple[float, ...],
    shuffles: int,
    seed: int,
) -> dict[str, list[np.ndarray]]:
    """Predictions of each way to start.

    Args:
        loadings: of the second run's prompts.
        params: fitted.
        known: intercepts of the first run, [N].
        second: the run.
        batches: of it, in the order to be replayed.
        widened: shares of the prior variance to add, an arm each.
        shuffles: permutations of the controls.
        seed: of these.

    Returns:
        Arm -> predictions [I, B], several where there are permutations; "cold" comes first.
    """
    arrays = {name: jnp.float32(value) for name, value in params.items()}
    run = partial(follow, loadings, arrays, group_size=second.group_size)

    def predict(intercepts: Estimate | None, frozen: bool = False) -> np.ndarray:
        return np.asarray(run(intercepts, batches, frozen=frozen)[0])

    hyper = fade_hyperparameters(arrays, loadings.num_skills)
    means = warm_start.widen(known, jnp.inf, hyper)
    rng = np.random.default_rng(seed)
    permutations = [rng.permutation(len(known.mean)) for _ in range(shuffles)]

    def shuffled(intercepts: Estimate) -> list[np.ndarray]:
        return [predict(Estimate(*(x[order] for x in intercepts))) for order in permutations]

    wider = {
        f"warm, + {100 * share:g} %": [
            predict(warm_start.widen(known, share * hyper.intercept_var, hyper))
        ]
        for share in widened
    }
    return {
        "cold": [predict(None)],
        "warm": [predict(known)],
        **wider,
        "warm, means": [predict(means)],
        "warm, frozen": [predict(known, frozen=True)],
        "shuffled": shuffled(known),
        "shuffled means": shuffled(means),
    }
