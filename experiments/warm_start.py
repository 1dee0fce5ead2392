"""Does a second run need fewer rollouts if the first one's intercepts are kept?

Two recorded runs of different policies on the same prompts. FADE follows the first to its end; the
second is then replayed batch by batch, in the order it happened, with a *cold* start (the prior),
a *warm* one (the first run's intercepts, `fade_jax.warm_start`), warm ones that allow for what the
policies disagree on (variances widened; means alone), a warm one with the intercepts *frozen*, and
with the intercepts *shuffled* over prompts, the control. Before every batch each arm states
P(the group is informative). Priors and drift rates are fitted on the first run only, for
all arms alike: nothing of the second run is known beforehand.

    python -m experiments.warm_start

The measure: cold start reaches some log loss once it has seen every prompt once (twice, ...);
after how many rollouts does a warm start predict as well, and stay there?
"""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import tyro

from experiments import (
    command_line,
    replay_bench,
    replay_history,
    run_folder,
    warm_start_report,
)
from experiments.replay_contenders import Contender, contenders, fade_hyperparameters
from experiments.replay_table import HISTORIES, read_table
from experiments.warm_start_arms import (
    Second,
    follow,
    informative,
    losses,
    open_second,
    reordered,
    replay_arms,
)
from fade_jax import calibration, histories, warm_start
from fade_jax.catch_up import catch_up, moving_means, prompt_samples
from fade_jax.histories import History
from fade_jax.pool_loadings import PoolLoadings, lay_out
from fade_jax.replay import Batches

KINDS = {"constant": "fade_k0", "tags": "fade_tags", "text": "fade"}
"""Loadings, and the contender of `replay_history` that is fitted with them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Warm-started FADE on a second policy's run."""

    histories: tuple[Path, Path] | None = None
    """Two runs on the same prompts, each first and second in turn; the shipped ones by default."""
    out: Path | None = None
    """Folder to write to; a folder of an interrupted run is continued."""
    num_skills: int = 16
    """K of the text loadings."""
    fit_steps: int = 60
    """Gradient steps of the empirical Bayes fit on the first run."""
    epochs: tuple[int, ...] = (1, 2, 4)
    """Epochs after which the cold start's loss is the mark to reach."""
    widened: tuple[float, ...] = (0.1, 0.3)
    """Shares of the prior variance added to that of the first run's intercepts; each is an arm."""
    orders: int = 3
    """Replays of the second run: as it happened, then with each epoch's groups in another order."""
    shuffles: int = 3
    """Permutations of the intercepts over which a control is averaged."""
    bootstrap: int = 2000
    """Bootstrap samples over prompts."""
    seed: int = 0
    """Of orders, shuffles and bootstrap."""
    quick: bool = False
    """Few fit steps, to see it work."""

    def __post_init__(self) -> None:
        """Checks the fields at the door."""
        for name in ("num_skills", "fit_steps", "orders", "shuffles", "bootstrap"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        for path in self.paths:
            if not path.exists():
                raise ValueError(f"histories: no such file: {path}")
        if not self.epochs or min(self.epochs) < 1:
            raise ValueError(f"epochs must be 1 or more each, got {self.epochs}")
        if not all(0 < share < 1 for share in self.widened):
            raise ValueError(f"widened must be in (0, 1), got {self.widened}")

    @property
    def paths(self) -> tuple[Path, Path]:
        """The two histories that are read."""
        shipped = HISTORIES / "tiny_uniform.npz", HISTORIES / "base_uniform.npz"
        return shipped if self.histories is None else self.histories


def fit_first(config: Config, path: Path, saved: dict[str, Any], file: Path) -> None:
    """Empirical Bayes on the first run, by visits, for each kind of loadings it has.

    Args:
        config: of the fits.
        path: of the first run.
        saved: as of `load_fits`; gets the fits it lacks.
        file: written after each fit.
    """
    fits = saved["fits"]
    table = read_table(path, None, seed=config.seed, quick=False)
    loadings = replay_bench.make_loadings(table, config.num_skills, config.seed)
    everybody = np.arange(table.trials.shape[1])
    pool = replay_bench.make_pool(loadings, everybody)
    known: dict[str, Contender] = contenders("text" in loadings, "tags" in loadings)
    steps = 10 if config.quick else config.fit_steps
    for kind, name in KINDS.items():
        if kind in loadings and kind not in fits:
            contender = known[name]
            fit = replay_bench.fitter(contender, steps=steps)
            fits[kind], _ = fit(contender.start, pool, table, everybody)
            run_folder.write_json(file, saved)


def score_epochs(
    arms: dict[str, list[np.ndarray]], second: Second, batches: Batches
) -> list[dict[str, Any]]:
    """Log loss, Brier and ECE of each arm in each epoch of the second run."""
    rows = []
    y, scored = informative(batches), second.scored
    for start in range(0, len(y) - second.epoch + 1, second.epoch):
        part = slice(start, start + second.epoch)
        mask = scored[part]
        for arm, replays in arms.items():
            figures: dict[str, list[float]] = {"log_loss": [], "brier": [], "ece": [], "floor": []}
            for p in replays:
                q, outcome = p[part][mask].astype(float), y[part][mask]
                figures["log_loss"].append(calibration.log_loss(q, outcome))
                figures["brier"].append(calibration.brier(q, outcome))
                figures["ece"].append(calibration.expected_calibration_error(q, outcome))
                figures["floor"].append(calibration.ece_noise_floor(q))
            means = {name: float(np.mean(values)) for name, values in figures.items()}
            rows.append({"epoch": start // second.epoch + 1, "arm": arm, **means})
    return rows


def marks(
    config: Config, curves: dict[str, np.ndarray], second: Second, score: str
) -> list[dict[str, Any]]:
    """Rollouts after which each arm predicts as cold start did after so many epochs."""
    rows = []
    rollouts = second.batches.prompt_ids.shape[1] * second.group_size
    for epochs in config.epochs:
        start = epochs * second.epoch
        if start >= curves["cold"].shape[1]:
            continue
        for arm in list(curves)[1:]:
            got = catch_up(curves[arm], curves["cold"], start)
            rows.append(
                {
                    "score": score,
                    "cold_epochs": epochs,
                    "cold_rollouts": start * rollouts,
                    "cold_score": float(curves["cold"][0, start]),
                    "arm": arm,
                    "rollouts": got.batches * rollouts,
                    "low": got.low * rollouts,
                    "high": got.high * rollouts,
                    "reached": got.reached,
                }
            )
    return rows


def compare(
    arms: dict[str, list[np.ndarray]], second: Second, batches: Batches, samples: np.ndarray
) -> dict[str, dict[str, np.ndarray]]:
    """Moving means [samples, W] over an epoch's batches, by score and arm."""
    curves: dict[str, dict[str, np.ndarray]] = {"log loss": {}, "Brier": {}}
    ids = np.asarray(batches.prompt_ids)
    for arm, replays in arms.items():
        by_replay = [losses(p, batches) for p in replays]
        for score in curves:
            mean = np.mean([each[score] for each in by_replay], axis=0)
            curves[score][arm] = moving_means(mean, ids, second.scored, samples, second.epoch)
    return curves


def whole_run(curves: dict[str, np.ndarray], second: Second) -> list[dict[str, Any]]:
    """Each arm's mean log loss minus the cold one's, over the first epoch and over all of them."""
    rows = []
    steps = range(0, curves["cold"].shape[1], second.epoch)
    for arm in list(curves)[1:]:
        difference = curves[arm] - curves["cold"]
        for what, values in (
            ("first epoch", difference[:, 0]),
            ("whole run", difference[:, list(steps)].mean(1)),
        ):
            low, high = np.quantile(values[1:], [0.025, 0.975])
            rows.append(
                {"arm": arm, "over": what, "mean": float(values[0]), "low": low, "high": high}
            )
    return rows


def direction(
    config: Config, first_path: Path, second_path: Path, fits: dict[str, Any]
) -> dict[str, Any]:
    """One way round: follow the first run, then predict the second."""
    first, second = histories.load(first_path), open_second(histories.load(second_path))
    before = open_second(first)
    samples = prompt_samples(
        np.random.default_rng(config.seed), config.bootstrap, len(second.history.prompt_key)
    )
    kinds = {}
    for kind, params in fits.items():
        pools = [_lay_out(config, path, kind) for path in (first_path, second_path)]
        arrays = {name: jnp.float32(value) for name, value in params.items()}
        _, learnt = follow(pools[0], arrays, None, before.batches, group_size=before.group_size)
        hyper = fade_hyperparameters(arrays, pools[1].num_skills)
        known = warm_start.match(learnt, first.prompt_key, second.history.prompt_key, hyper)
        orders = []
        for order in range(config.orders):
            batches = second.batches if order == 0 else reordered(second, config.seed + order)
            arms = replay_arms(
                pools[1],
                params,
                known,
                second,
                batches,
                widened=config.widened,
                shuffles=config.shuffles,
                seed=config.seed,
            )
            chosen = samples if order == 0 else samples[:2]  # other orders: without an interval
            curves = compare(arms, second, batches, chosen)
            found = [row for score in curves for row in marks(config, curves[score], second, score)]
            orders.append([row["rollouts"] for row in found])
            if order == 0:
                rows, table = found, score_epochs(arms, second, batches)
                kept, differences = curves["log loss"], whole_run(curves["log loss"], second)
        for place, row in enumerate(rows):
            row["orders"] = [each[place] for each in orders]
        kinds[kind] = {
            "params": params,
            "marks": rows,
            "epochs": table,
            "differences": differences,
            "curves": {arm: _band(curve, 8 * second.epoch) for arm, curve in kept.items()},
        }
    return {
        "first": first.meta.get("policy", first_path.stem),
        "second": second.history.meta.get("policy", second_path.stem),
        "prompts": len(second.history.prompt_key),
        "shared_prompts": int(np.isin(second.history.prompt_key, first.prompt_key).sum()),
        "batches": len(second.batches.prompt_ids),
        "epoch_batches": second.epoch,
        "rollouts_a_batch": second.batches.prompt_ids.shape[1] * second.group_size,
        "pass_rate_correlation": rate_correlation(first, second.history),
        "kinds": kinds,
    }


def rate_correlation(first: History, second: History) -> float:
    """Correlation over shared prompts of the pass rates that the two runs saw in all."""
    rates = []
    for history in (first, second):
        right, tried = (table.sum(0) for table in histories.dense_array(history))
        rates.append(dict(zip(history.prompt_key.tolist(), right / tried, strict=True)))
    shared = sorted(rates[0].keys() & rates[1].keys())
    return float(np.corrcoef([[rate[key] for key in shared] for rate in rates])[0, 1])


def _lay_out(config: Config, path: Path, kind: str) -> PoolLoadings:
    table = read_table(path, None, seed=config.seed, quick=False)
    loadings = replay_bench.make_loadings(table, config.num_skills, config.seed)
    return lay_out(jnp.asarray(loadings[kind]))


def _band(curve: np.ndarray, longest: int) -> dict[str, Any]:
    """Every fourth point of a curve's beginning, for the figure."""
    shown = np.arange(0, min(longest, curve.shape[1]), 4)
    low, high = np.quantile(curve[1:, shown], [0.025, 0.975], axis=0)
    return {"batch": shown, "mean": curve[0, shown], "low": low, "high": high}


def _fingerprint(config: Config, path: Path) -> str:
    """Of what a fit depends on, so that an old folder's fits are reused only if equal."""
    settings = [config.num_skills, config.fit_steps, config.seed, config.quick]
    return hashlib.sha256(json.dumps(settings).encode() + path.read_bytes()).hexdigest()[:16]


def main(config: Config) -> dict[str, Any]:
    """Replays both runs both ways round.

    Args:
        config: what to replay.

    Returns:
        The content of results.json.
    """
    folder = run_folder.open_folder("warm_start", config.out, config)
    run_folder.console.print(f"Writing to {folder}")
    directions = []
    with run_folder.task("warm start", 2) as advance:
        for first, second in (config.paths, config.paths[::-1]):
            advance(f"{first.stem}, then {second.stem}", 0)
            path = folder / f"fits_{first.stem}.json"
            saved = replay_history.load_fits(path, _fingerprint(config, first))
            fit_first(config, first, saved, path)
            directions.append(direction(config, first, second, saved["fits"]))
            advance("done", 1)
    content = run_folder.save_results(folder, config, {"directions": directions})
    warm_start_report.write(folder, content)
    warm_start_report.draw(folder / "warm_start.png", content)
    warm_start_report.show(content)
    run_folder.console.print(f"Report: {folder / 'report.md'}")
    return content


if __name__ == "__main__":
    command_line.run(main, lambda: tyro.cli(Config, description=__doc__))
