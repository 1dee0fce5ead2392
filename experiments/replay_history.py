"""Replays a recorded RLVR run: FADE and every rival tracker predict it, visit by visit.

Each tracker predicts, before every visit, the probability that the visit's rollout group is
informative (neither all right nor all wrong), then sees the outcome. Trackers with free parameters
are tuned by empirical Bayes on one half of the prompts and scored on the other, both ways round.

    python -m experiments.replay_history
    python -m experiments.replay_history --history acc_step_500.json --prompts dsr_sub.parquet
    python -m experiments.replay_history --simulated

The first replays a run of this project's own small policy that comes with the repository
(`record_history`), the last a simulated run with known skills.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from experiments import command_line, replay_figures, replay_report, run_folder
from experiments.replay_contenders import Contender, Pool, contenders
from experiments.replay_table import HISTORIES, Table, read_table
from fade_jax import calibration, replay, tuning
from fade_jax.loadings import shuffled_loadings, tag_loadings, text_loadings
from fade_jax.pool_loadings import lay_out
from fade_jax.replay import Protocol

HALVES = ("even", "odd")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Replay of a recorded RLVR run."""

    history: Path | None = None
    """history.npz, or acc_step_500.json of One-Shot-RLVR; the shipped run of tiny if not given."""
    simulated: bool = False
    """Replay a simulated run instead, made by the model that FADE assumes."""
    prompts: Path | None = None
    """dsr_sub.parquet, whose texts give the loadings; texts inside history.npz are used as well."""
    out: Path | None = None
    """Folder to write to; a folder of an interrupted run is continued."""
    num_skills: int = 16
    """K of the text loadings."""
    masks: int = 10
    """Random masks of the sparse and the cold protocol."""
    sparse_shares: tuple[float, ...] = (0.25, 0.10)
    """Shares of each step's visits that trackers are shown; they are scored on the others."""
    cold_shares: tuple[float, ...] = (0.5,)
    """Shares of the prompts that trackers are ever shown; they are scored on the others."""
    fit_steps: int = 60
    """Gradient steps of each empirical Bayes fit."""
    fit_score: Literal["informative", "counts"] = "informative"
    """What a fit maximises: the log score of the event predicted here, or of the counts."""
    bootstrap: int = 2000
    """Bootstrap samples over prompts of each paired comparison."""
    seed: int = 0
    """Of masks, shuffling, bootstrap and simulation."""
    trackers: tuple[str, ...] = ()
    """Names to run; all if empty."""
    quick: bool = False
    """A small, short version of everything, to see it work."""

    def __post_init__(self) -> None:
        """Checks the fields at the door."""
        for name in ("masks", "fit_steps", "bootstrap", "num_skills"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        for name in ("history", "prompts"):
            path = getattr(self, name)
            if path is not None and not path.exists():
                raise ValueError(f"{name}: no such file: {path}")
        for share in self.sparse_shares + self.cold_shares:
            if not 0 < share < 1:
                raise ValueError(f"shares must be in (0, 1), got {share}")
        if self.prompts is not None and self.history is None:
            raise ValueError("prompts: has no effect without history")
        if self.simulated and self.history is not None:
            raise ValueError("simulated: has no effect with history")
        known = contenders(True, True)
        unknown = set(self.trackers) - set(known)
        if unknown:
            raise ValueError(f"trackers: {sorted(unknown)} not among {sorted(known)}")

    @property
    def path(self) -> Path | None:
        """The history that is read; None for a simulated one."""
        if self.simulated:
            return None
        return HISTORIES / "tiny_uniform.npz" if self.history is None else self.history


def make_protocols(config: Config, table: Table) -> list[list[Protocol]]:
    """Dense, then sparse and cold at each share; a list of masks each."""
    last = len(table.trials) - 1
    first = min(11, max(1, last // 2))
    masks = range(2 if config.quick else config.masks)
    seeds = [config.seed + 1000 + mask for mask in masks]
    families = [[replay.dense(table.trials, 1, last)]]
    for make, shares in ((replay.sparse, config.sparse_shares), (replay.cold, config.cold_shares)):
        families += [
            [make(table.trials, share, seed, first, last) for seed in seeds] for share in shares
        ]
    # One group size is predicted; visits with another (a lost verdict, say) are absorbed unscored.
    same = table.trials == table.group_size
    return [[p._replace(scored=p.scored & same) for p in family] for family in families]


def make_loadings(config: Config, table: Table) -> dict[str, np.ndarray]:
    """Every kind of loadings that the table has something for, [N, K] each."""
    kinds = {"constant": np.zeros((table.trials.shape[1], 0), np.float32)}
    if table.texts is not None:
        text = text_loadings(table.texts, config.num_skills, seed=config.seed)
        kinds |= {"text": text, "shuffled": shuffled_loadings(text, config.seed)}
    if table.tags is not None:
        kinds["tags"] = tag_loadings(table.tags)
    return kinds


def make_pool(loadings: dict[str, np.ndarray], rows: np.ndarray) -> Pool:
    """The pool of some prompts, with every kind of loadings there is."""
    kinds = {kind: values[rows] for kind, values in loadings.items()}
    return Pool(len(rows), {kind: lay_out(jnp.asarray(a)) for kind, a in kinds.items()})


def fit_half(
    contender: Contender, pool: Pool, table: Table, rows: np.ndarray, config: Config
) -> tuple[dict[str, float], list[float]]:
    """Tunes a contender on some prompts; returns its parameters and the score's trace."""
    successes, trials = jnp.asarray(table.successes[:, rows]), jnp.asarray(table.trials[:, rows])
    informative = jnp.asarray(table.informative[:, rows], jnp.float32)
    visited = jnp.asarray(table.trials[:, rows] == table.group_size).at[0].set(False)

    def climb(start: Any, pool: Pool) -> tuning.Fit:
        def score(params: Any) -> jax.Array:
            tracker = contender.build(params, pool)
            predictions, _, _, info = replay.replay(
                tracker, tracker.init(), successes, trials, trials > 0, table.group_size
            )
            if config.fit_score == "counts":
                return info.log_evidence[1:].sum() / visited.sum()
            p = jnp.clip(predictions, 1e-6, 1 - 1e-6)
            log = informative * jnp.log(p) + (1 - informative) * jnp.log1p(-p)
            return jnp.where(visited, log, 0.0).sum() / visited.sum()

        steps = 10 if config.quick else config.fit_steps
        return tuning.fit(score, start, contender.constraints, steps=steps, learning_rate=0.1)

    start = {name: jnp.float32(value) for name, value in contender.start.items()}
    fitted = jax.jit(partial(climb, pool=pool))(start)
    params = {name: float(value) for name, value in fitted.params.items()}
    return params, np.asarray(fitted.trace).tolist()


def replayer(
    contender: Contender, pool: Pool, table: Table
) -> Callable[[dict[str, float], np.ndarray], np.ndarray]:
    """Compiles a contender's replay: `(params, observed [masks, S, N]) -> [masks, S, N]`."""
    successes, trials = jnp.asarray(table.successes), jnp.asarray(table.trials)

    @jax.jit
    def run(params: Any, observed: jax.Array) -> jax.Array:
        tracker = contender.build(params, pool)

        def one(mask: jax.Array) -> jax.Array:
            return replay.replay(
                tracker, tracker.init(), successes, trials, mask, table.group_size
            )[0]

        return jax.lax.map(one, observed)

    def call(params: dict[str, float], observed: np.ndarray) -> np.ndarray:
        arrays = {name: jnp.float32(value) for name, value in params.items()}
        return np.asarray(run(arrays, jnp.asarray(observed)))

    return call


def crossed(
    call: Callable[..., np.ndarray], fits: dict[str, dict[str, float]], observed: np.ndarray
) -> np.ndarray:
    """Predictions [masks, S, N] in which every prompt is predicted with the other half's fit."""
    by_half = {half: call(fits[half], observed) for half in HALVES}
    if fits["even"] == fits["odd"]:
        return by_half["even"]
    even = np.arange(observed.shape[2]) % 2 == 0
    return np.where(even, by_half["odd"], by_half["even"])


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


def compare(
    config: Config,
    family: list[Protocol],
    predictions: dict[str, np.ndarray],
    rivals: tuple[str, ...],
    table: Table,
) -> list[dict[str, Any]]:
    """Paired bootstrap over prompts of log loss differences, FADE's kinds minus each rival."""
    scored = np.stack([protocol.scored for protocol in family])
    outcome = np.broadcast_to(table.informative, scored.shape)[scored]
    prompts = np.broadcast_to(np.arange(scored.shape[2]), scored.shape)[scored]

    def losses(name: str) -> np.ndarray:
        p = np.clip(predictions[name][scored].astype(float), 1e-6, 1 - 1e-6)
        return -(outcome * np.log(p) + (1 - outcome) * np.log1p(-p))

    comparisons = []
    for name in (n for n in predictions if n.startswith("fade")):
        for rival in (r for r in rivals if r in predictions and r != name):
            difference = losses(name) - losses(rival)
            sums = calibration.sums_by_prompt(difference, prompts, scored.shape[2])
            interval = calibration.paired_bootstrap(
                config.seed, *sums, num_samples=config.bootstrap
            )
            comparisons.append(
                {
                    "protocol": family[0].name,
                    "observed": family[0].observed_share,
                    "tracker": name,
                    "rival": rival,
                    "log_loss_difference": interval.mean,
                    "low": interval.low,
                    "high": interval.high,
                }
            )
    return comparisons


RIVALS = ("beta_strong", "beta_tuned", "beta_tuned_free", "logit_kalman", "fade_k0")


def _fingerprint(config: Config, table: Table) -> str:
    """Of everything a fit depends on, so that an old folder's fits are reused only if equal."""
    digest = hashlib.sha256()
    for part in (table.successes, table.trials):
        digest.update(np.ascontiguousarray(part).tobytes())
    settings = (
        config.fit_steps,
        config.fit_score,
        config.num_skills,
        config.seed,
        config.quick,
        table.texts,
        table.tags,
    )
    digest.update(json.dumps(settings).encode())
    return digest.hexdigest()[:16]


def load_fits(path: Path, fingerprint: str) -> dict[str, Any]:
    """Fits of an interrupted run in the same folder, if they fit the same thing."""
    if path.exists():
        saved = json.loads(path.read_text())
        if saved["fingerprint"] == fingerprint:
            return saved
        run_folder.console.print(f"{path} belongs to another configuration; fitting anew")
    return {"fingerprint": fingerprint, "fits": {}, "traces": {}}


def main(config: Config) -> dict[str, Any]:
    """Runs the replay.

    Args:
        config: what to replay.

    Returns:
        The content of results.json.
    """
    folder = run_folder.open_folder("replay_history", config.out, config)
    table = read_table(config.path, config.prompts, seed=config.seed, quick=config.quick)
    num_prompts = table.trials.shape[1]
    loadings = make_loadings(config, table)
    table_of = contenders(with_texts="text" in loadings, with_tags="tags" in loadings)
    if config.trackers:
        missing = set(config.trackers) - set(table_of)
        if missing:
            raise ValueError(
                f"trackers: {sorted(missing)} need prompt texts (give --prompts) or several sources"
            )
        table_of = {name: table_of[name] for name in config.trackers}
    families = make_protocols(config, table)
    halves = {"even": np.arange(0, num_prompts, 2), "odd": np.arange(1, num_prompts, 2)}
    pools = {half: make_pool(loadings, rows) for half, rows in halves.items()}
    whole = make_pool(loadings, np.arange(num_prompts))
    saved = load_fits(folder / "fits.json", _fingerprint(config, table))
    run_folder.console.print(
        f"Replaying {table.source}: {num_prompts} prompts, {len(table.trials)} visits, groups of "
        f"{table.group_size}; writing to {folder}"
    )

    predictions: list[dict[str, np.ndarray]] = [{} for _ in families]
    rows: list[dict[str, Any]] = []
    with run_folder.progress() as bar:
        task = bar.add_task("trackers", total=len(table_of))
        for name, contender in table_of.items():
            bar.update(task, description=contender.label)
            if name not in saved["fits"]:
                fits, traces = {}, {}
                for half in HALVES:
                    fits[half] = dict(contender.start)
                    if contender.constraints is not None:
                        fits[half], traces[half] = fit_half(
                            contender, pools[half], table, halves[half], config
                        )
                saved["fits"][name], saved["traces"][name] = fits, traces
                run_folder.write_json(folder / "fits.json", saved)
            call = replayer(contender, whole, table)
            for family, kept in zip(families, predictions, strict=True):
                observed = np.stack([protocol.observed for protocol in family])
                kept[name] = crossed(call, saved["fits"][name], observed)
                rows += score_rows(name, family, kept[name], table)
            bar.advance(task)

    comparisons = []
    for family, kept in zip(families, predictions, strict=True):
        comparisons += compare(config, family, kept, RIVALS, table)
    results = {
        "history": {
            "source": table.source,
            "simulated": config.simulated,
            "prompts": num_prompts,
            "visits": len(table.trials),
            "group_size": table.group_size,
            "informative_share": float(table.informative[1:][table.trials[1:] > 0].mean()),
            "loadings": ", ".join(kind for kind in loadings if kind not in ("constant", "shuffled"))
            or "constant only",
        },
        "labels": {name: contender.label for name, contender in table_of.items()},
        "rows": rows,
        "comparisons": comparisons,
        "fits": saved["fits"],
    }
    run_folder.save_results(folder, config, results)  # kept even if a figure fails
    results |= replay_figures.draw(folder, table, families, predictions, results, whole)
    content = run_folder.save_results(folder, config, results)
    replay_report.write(folder, content)
    replay_report.show(content)
    run_folder.console.print(f"Report: {folder / 'report.md'}")
    return content


if __name__ == "__main__":
    command_line.run(main, lambda: tyro.cli(Config, description=__doc__))
