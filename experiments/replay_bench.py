"""What replays of a recorded run share: protocols, fits, predictions across halves, scores."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.replay_contenders import Contender, Pool
from experiments.replay_table import Table
from fade_jax import calibration, replay, tuning
from fade_jax.calibration import Interval
from fade_jax.loadings import shuffled_loadings, tag_loadings, text_loadings
from fade_jax.pool_loadings import lay_out
from fade_jax.replay import Protocol

HALVES = ("even", "odd")


def make_protocols(
    table: Table,
    *,
    seed: int,
    masks: int,
    sparse_shares: tuple[float, ...],
    cold_shares: tuple[float, ...],
) -> list[list[Protocol]]:
    """Dense, then sparse and cold at each share; a list of masks each."""
    last = len(table.trials) - 1
    first = min(11, max(1, last // 2))
    seeds = [seed + 1000 + mask for mask in range(masks)]
    families = [[replay.dense(table.trials, 1, last)]]
    for make, shares in ((replay.sparse, sparse_shares), (replay.cold, cold_shares)):
        families += [
            [make(table.trials, share, each, first, last) for each in seeds] for share in shares
        ]
    # One group size is predicted; visits with another (a lost verdict, say) are absorbed unscored.
    same = table.trials == table.group_size
    return [[p._replace(scored=p.scored & same) for p in family] for family in families]


def make_loadings(table: Table, num_skills: int, seed: int) -> dict[str, np.ndarray]:
    """Every kind of loadings that the table has something for, [N, K] each."""
    kinds = {"constant": np.zeros((table.trials.shape[1], 0), np.float32)}
    if table.texts is not None:
        text = text_loadings(table.texts, num_skills, seed=seed)
        kinds |= {"text": text, "shuffled": shuffled_loadings(text, seed)}
    if table.tags is not None:
        kinds["tags"] = tag_loadings(table.tags)
    return kinds


def make_pool(loadings: dict[str, np.ndarray], rows: np.ndarray) -> Pool:
    """The pool of some prompts, with every kind of loadings there is."""
    kinds = {kind: values[rows] for kind, values in loadings.items()}
    return Pool(len(rows), {kind: lay_out(jnp.asarray(a)) for kind, a in kinds.items()})


def fit_half(
    contender: Contender,
    pool: Pool,
    table: Table,
    rows: np.ndarray,
    *,
    steps: int,
    maximise: Literal["informative", "counts"] = "informative",
) -> tuple[dict[str, float], list[float]]:
    """Tunes a contender on some prompts, by the log score of the event predicted, or of counts.

    Returns:
        Its parameters, and the score's trace.
    """
    successes, trials = jnp.asarray(table.successes[:, rows]), jnp.asarray(table.trials[:, rows])
    informative = jnp.asarray(table.informative[:, rows], jnp.float32)
    visited = jnp.asarray(table.trials[:, rows] == table.group_size).at[0].set(False)

    def climb(start: Any, pool: Pool) -> tuning.Fit:
        def score(params: Any) -> jax.Array:
            tracker = contender.build(params, pool)
            predictions, _, _, info = replay.replay(
                tracker, tracker.init(), successes, trials, trials > 0, table.group_size
            )
            if maximise == "counts":
                return info.log_evidence[1:].sum() / visited.sum()
            p = jnp.clip(predictions, 1e-6, 1 - 1e-6)
            log = informative * jnp.log(p) + (1 - informative) * jnp.log1p(-p)
            return jnp.where(visited, log, 0.0).sum() / visited.sum()

        return tuning.fit(score, start, contender.constraints, steps=steps, learning_rate=0.1)

    start = {name: jnp.float32(value) for name, value in contender.start.items()}
    fitted = jax.jit(partial(climb, pool=pool))(start)
    params = {name: float(value) for name, value in fitted.params.items()}
    return params, np.asarray(fitted.trace).tolist()


class Said(NamedTuple):
    """What a tracker said before every visit.

    Attributes:
        informative: [masks, S, N] P(the visit's group is informative).
        pass_rate: [masks, S, N] E[p].
    """

    informative: np.ndarray
    pass_rate: np.ndarray


Replayer = Callable[[dict[str, float], np.ndarray], Said]
"""`(params, observed [masks, S, N]) -> Said`."""


def replayer(contender: Contender, pool: Pool, table: Table) -> Replayer:
    """Compiles a contender's replay; other parameters and masks of that number compile nothing."""
    successes, trials = jnp.asarray(table.successes), jnp.asarray(table.trials)

    @jax.jit
    def run(params: Any, observed: jax.Array) -> tuple[jax.Array, jax.Array]:
        tracker = contender.build(params, pool)

        def one(mask: jax.Array) -> tuple[jax.Array, jax.Array]:
            return replay.replay(
                tracker, tracker.init(), successes, trials, mask, table.group_size
            )[:2]

        return jax.lax.map(one, observed)

    def call(params: dict[str, float], observed: np.ndarray) -> Said:
        arrays = {name: jnp.float32(value) for name, value in params.items()}
        return Said(*jax.device_get(run(arrays, jnp.asarray(observed))))

    return call


def crossed(call: Replayer, fits: dict[str, dict[str, float]], observed: np.ndarray) -> Said:
    """What is said of every prompt with the parameters fitted on the other half."""
    by_half = {half: call(fits[half], observed) for half in HALVES}
    if fits["even"] == fits["odd"]:
        return by_half["even"]
    even = np.arange(observed.shape[2]) % 2 == 0
    pairs = zip(by_half["odd"], by_half["even"], strict=True)
    return Said(*(np.where(even, odd, own) for odd, own in pairs))


def score_rows(
    name: str, family: list[Protocol], predictions: np.ndarray, table: Table
) -> list[dict[str, Any]]:
    """Brier, log loss and calibration of one tracker under one protocol, for each split."""
    rows = []
    prompts = np.arange(table.trials.shape[1])
    outcome = np.broadcast_to(table.informative, predictions.shape)
    scored = np.stack([protocol.scored for protocol in family])
    for split, chosen in (
        ("all", prompts >= 0),
        ("even", prompts % 2 == 0),
        ("odd", prompts % 2 == 1),
    ):
        mask = scored & chosen
        p, y = predictions[mask], outcome[mask]
        rows.append(
            {
                "protocol": family[0].name,
                "observed": family[0].observed_share,
                "split": split,
                "tracker": name,
                "brier": calibration.brier(p, y),
                "log_loss": calibration.log_loss(p, y),
                "ece": calibration.expected_calibration_error(p, y, num_bins=10),
                "ece_noise_floor": calibration.ece_noise_floor(p, num_bins=10),
                "count": int(mask.sum()),
                "masks": len(family),
            }
        )
    return rows


def difference(
    family: list[Protocol],
    mine: np.ndarray,
    other: np.ndarray,
    table: Table,
    *,
    seed: int,
    samples: int,
) -> Interval:
    """Paired bootstrap over prompts of the difference of two trackers' log losses.

    Args:
        family: protocol, a mask each.
        mine: [masks, S, N] predictions.
        other: [masks, S, N] of another tracker; it is worse where the difference is negative.
        table: with what came of them.
        seed: of the bootstrap.
        samples: of it.
    """
    scored = np.stack([protocol.scored for protocol in family])
    outcome = np.broadcast_to(table.informative, scored.shape)[scored]
    prompts = np.broadcast_to(np.arange(scored.shape[2]), scored.shape)[scored]

    def losses(predictions: np.ndarray) -> np.ndarray:
        p = np.clip(predictions[scored].astype(float), 1e-6, 1 - 1e-6)
        return -(outcome * np.log(p) + (1 - outcome) * np.log1p(-p))

    sums = calibration.sums_by_prompt(losses(mine) - losses(other), prompts, scored.shape[2])
    return calibration.paired_bootstrap(seed, *sums, num_samples=samples)
