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
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro

from experiments import command_line, replay_figures, replay_report, run_folder
from experiments.replay_bench import (
    HALVES,
    crossed,
    difference,
    fit_half,
    make_loadings,
    make_pool,
    make_protocols,
    replayer,
    score_rows,
)
from experiments.replay_contenders import contenders
from experiments.replay_table import HISTORIES, Table, read_table
from fade_jax.replay import Protocol


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


def compare(
    config: Config, family: list[Protocol], predictions: dict[str, np.ndarray], table: Table
) -> list[dict[str, Any]]:
    """Log loss differences with intervals, FADE's kinds minus each rival."""
    comparisons = []
    for name in (n for n in predictions if n.startswith("fade")):
        for rival in (r for r in RIVALS if r in predictions and r != name):
            interval = difference(
                family,
                predictions[name],
                predictions[rival],
                table,
                seed=config.seed,
                samples=config.bootstrap,
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
    loadings = make_loadings(table, config.num_skills, config.seed)
    table_of = contenders(with_texts="text" in loadings, with_tags="tags" in loadings)
    if config.trackers:
        missing = set(config.trackers) - set(table_of)
        if missing:
            raise ValueError(
                f"trackers: {sorted(missing)} need prompt texts (give --prompts) or several sources"
            )
        table_of = {name: table_of[name] for name in config.trackers}
    families = make_protocols(
        table,
        seed=config.seed,
        masks=2 if config.quick else config.masks,
        sparse_shares=config.sparse_shares,
        cold_shares=config.cold_shares,
    )
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
                            contender,
                            pools[half],
                            table,
                            halves[half],
                            steps=10 if config.quick else config.fit_steps,
                            maximise=config.fit_score,
                        )
                saved["fits"][name], saved["traces"][name] = fits, traces
                run_folder.write_json(folder / "fits.json", saved)
            call = replayer(contender, whole, table)
            for family, kept in zip(families, predictions, strict=True):
                observed = np.stack([protocol.observed for protocol in family])
                kept[name] = crossed(call, saved["fits"][name], observed).informative
                rows += score_rows(name, family, kept[name], table)
            bar.advance(task)

    comparisons = []
    for family, kept in zip(families, predictions, strict=True):
        comparisons += compare(config, family, kept, table)
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
