"""Every part of the filter on a recorded run, changed one at a time; and whom it would choose.

Starts from a replay (`replay_history`): the same run, protocols and fitted parameters. Moment rules
and numbers of loadings are fitted anew; drift, shrinkage and priors move around the fit. Beside
that, every tracker and utility picks a tenth of each visit's prompts before it happens: how many of
those groups turned out informative?

    python -m experiments.history_ablation
    python -m experiments.history_ablation --replayed FOLDER --history FILE.json --prompts FILE
"""

import dataclasses
import hashlib
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import tyro

from experiments import cells, command_line, history_ablation_report, replay_bench, run_folder
from experiments.history_variants import SKILL_COUNTS, Variant, utilities, variants
from experiments.replay_bench import HALVES
from experiments.replay_contenders import Contender, contenders
from experiments.replay_table import Table
from experiments.replayed_run import PATHS, ReplayedRun
from fade_jax.loadings import text_loadings
from fade_jax.replay import Protocol

SHARE_CHOSEN = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(ReplayedRun):
    """The filter's parts on a recorded run."""

    masks: int = 3
    """Random masks of the sparse and the cold protocol."""
    observed_share: float = 0.1
    """Of each step's visits that the sparse protocol shows."""
    fit_steps: int = 12
    """Gradient steps of each fit, which starts from the filter's as replayed."""
    bootstrap: int = 1000
    """Bootstrap samples over prompts of each difference."""
    seed: int = 0
    """Of masks and bootstrap."""
    out: Path | None = None
    """Folder to write to, runs/history_ablation/<time> if not given; finished variants are kept."""
    quick: bool = False
    """Some variants and two masks, to see it work."""

    def __post_init__(self) -> None:
        """Checks the fields at the door."""
        for name in ("masks", "fit_steps", "bootstrap"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        if not 0 < self.observed_share < 1:
            raise ValueError(f"observed_share must be in (0, 1), got {self.observed_share}")
        self.check_files()


def main(config: Config) -> dict[str, Any]:
    """Runs what is missing and reports.

    Args:
        config: which run.

    Returns:
        What results.json holds.
    """
    table, replayed = config.read()
    identity = _identity(config, table, replayed["fits"])
    folder = run_folder.open_folder(
        "history_ablation", config.out, config, check=lambda folder: cells.check(folder, identity)
    )
    lab, store = Lab(config, table, replayed), cells.Cells(folder, identity)
    wanted = _quick(lab.variants) if config.quick else lab.variants
    rows: dict[str, Any] = {}
    total = len(wanted) + len(lab.contenders)
    with run_folder.task(f"history_ablation: {table.source}", total) as advance:
        for name, variant in wanted.items():
            rows[name] = store.get("variants", name, partial(lab.score, variant))
            advance(name, 1)
        chosen = {}
        for name in lab.contenders:
            chosen[name] = store.get("chosen", name, partial(lab.choose, name))["protocols"]
            advance(name, 1)
    results = {
        "history": replayed["history"],
        "labels": {name: each.label for name, each in lab.contenders.items()},
        "informative_share": lab.base_rates(),
        "variants": rows,
        "chosen": chosen,
    }
    content = run_folder.save_results(folder, config, results)
    history_ablation_report.write(folder, content)
    history_ablation_report.show(content)
    run_folder.console.print(f"Report: {folder / 'report.md'}")
    return content


def _identity(config: Config, table: Table, fits: dict[str, Any]) -> dict[str, Any]:
    """What cells must have in common: configuration, outcomes and fits, wherever they lie."""
    settings = dataclasses.asdict(config)
    settings = {k: v for k, v in settings.items() if k not in ("out", *PATHS)}
    digest = hashlib.sha256(np.ascontiguousarray(table.successes).tobytes())
    return {**settings, "fits": fits, "run": digest.hexdigest()[:16]}


def _quick(table: dict[str, Variant]) -> dict[str, Variant]:
    """A variant of each kind: fitted, with other parameters, with another part."""
    names = ["moment rule: laplace", "drift of abilities, times fitted: 0"]
    return {name: table[name] for name in [*names, "discount factor: 0.9"]}


class Lab:
    """Scores variants of one recorded run; each program compiles once."""

    def __init__(self, config: Config, table: Table, replayed: dict[str, Any]):
        self.config, self.table = config, table
        self.steps = 5 if config.quick else config.fit_steps
        settings = replayed["config"]
        loadings = replay_bench.make_loadings(table, settings["num_skills"], settings["seed"])
        self.kind = "text" if "text" in loadings else "constant"
        if table.texts is not None:
            for count in SKILL_COUNTS[1:]:
                loadings[f"text {count}"] = text_loadings(table.texts, count, seed=settings["seed"])
        self.loadings = loadings
        everyone = np.arange(table.trials.shape[1])
        self.rows = {"even": everyone[::2], "odd": everyone[1::2]}
        self.whole = replay_bench.make_pool(loadings, everyone)
        self.fits = replayed["fits"]
        self.base = self.fits["fade" if "fade" in self.fits else "fade_k0"]
        known = contenders(with_texts="text" in loadings, with_tags="tags" in loadings)
        self.contenders = {name: known[name] for name in replayed["fits"] if name in known}
        if config.quick:
            self.contenders = {name: self.contenders[name] for name in ("beta_tuned", "fade")}
        self.variants = variants(self.kind)
        self.families = replay_bench.make_protocols(
            table,
            seed=config.seed,
            masks=2 if config.quick else config.masks,
            sparse_shares=(config.observed_share,),
            cold_shares=(0.5,),
        )
        self.programs: dict[str, replay_bench.Replayer] = {}
        self.fitted: list[np.ndarray] | None = None

    def base_rates(self) -> list[dict[str, Any]]:
        """Share of informative groups among what each protocol scores."""
        return [
            {"protocol": f[0].name, "observed": f[0].observed_share, "share": _hits(f, self.table)}
            for f in self.families
        ]

    def said(self, program: str, contender: Contender, fits: Any) -> list[replay_bench.Said]:
        """What a contender says under every protocol."""
        if program not in self.programs:
            self.programs[program] = replay_bench.replayer(contender, self.whole, self.table)
        # All masks at once: one program, one call.
        shown = np.stack([p.observed for family in self.families for p in family])
        said = replay_bench.crossed(self.programs[program], fits, shown)
        ends = np.cumsum([len(family) for family in self.families])[:-1]
        parts = zip(*(np.split(values, ends) for values in said), strict=True)
        return [replay_bench.Said(*part) for part in parts]

    def predictions(self, variant: Variant, fits: Any) -> list[np.ndarray]:
        """P(informative) of a variant under every protocol."""
        return [s.informative for s in self.said(variant.program, variant.contender, fits)]

    def reference(self) -> list[np.ndarray]:
        """Those of the fitted filter."""
        if self.fitted is None:
            plain = next(v for v in self.variants.values() if v.program == "plain")
            self.fitted = self.predictions(plain, self.base)
        return self.fitted

    def score(self, variant: Variant) -> dict[str, Any]:
        """Figures of a variant, and its difference from the fitted filter."""
        reference = self.reference()
        if variant.change is None:
            fit = replay_bench.fitter(variant.contender, steps=self.steps)
            fits = {}
            for half, rows in self.rows.items():
                pool = replay_bench.make_pool(self.loadings, rows)
                fits[half] = fit(self.base[half], pool, self.table, rows)[0]
        else:
            fits = {half: variant.change(self.base[half]) for half in HALVES}
        figures = []
        said = self.predictions(variant, fits)
        for family, mine, fitted in zip(self.families, said, reference, strict=True):
            row = replay_bench.score_rows(variant.label, family, mine, self.table)[0]
            gap = replay_bench.difference(
                family,
                mine,
                fitted,
                self.table,
                seed=self.config.seed,
                samples=self.config.bootstrap,
            )
            names = ("protocol", "observed", "log_loss", "brier", "ece", "ece_noise_floor")
            figures.append({k: row[k] for k in names} | {"minus_fitted": gap._asdict()})
        return {
            "factor": variant.factor,
            "label": variant.label,
            "fits": fits,
            "figures": figures,
        }

    def choose(self, name: str) -> dict[str, Any]:
        """Informative share of the tenth that each utility ranks first, by protocol."""
        contender, fits = self.contenders[name], self.fits[name]
        # E[p (1 - p)] is half of P(a group of two is informative).
        both = []
        for group_size in (self.table.group_size, 2):
            asked = dataclasses.replace(self.table, group_size=group_size)
            self.programs["asked"] = replay_bench.replayer(contender, self.whole, asked)
            both.append(self.said("asked", contender, fits))
        rows = []
        for family, said, pairs in zip(self.families, *both, strict=True):
            scores = utilities(
                *map(jnp.asarray, (said.informative, said.pass_rate, pairs.informative / 2)),
                group_size=self.table.group_size,
            )
            hits = {u: _hits(family, self.table, np.asarray(x)) for u, x in scores.items()}
            rows.append(
                {
                    "protocol": family[0].name,
                    "observed": family[0].observed_share,
                    "informative": hits,
                }
            )
        return {"protocols": rows}


def _hits(family: list[Protocol], table: Table, score: np.ndarray | None = None) -> float:
    """Informative share of the tenth of each step's scored visits with the highest scores.

    Args:
        family: protocol, a mask each.
        table: with what came of them.
        score: [masks, S, N]; the share among all scored visits if not given. Ties go to chance.
    """
    rng = np.random.default_rng(0)
    shares = []
    for mask, protocol in enumerate(family):
        for step in np.flatnonzero(protocol.scored.any(axis=1)):
            ids = np.flatnonzero(protocol.scored[step])
            if score is not None:
                count = max(1, round(SHARE_CHOSEN * len(ids)))
                ids = rng.permutation(ids)
                ids = ids[np.argsort(-score[mask, step, ids], kind="stable")[:count]]
            shares.append(table.informative[step, ids].mean())
    return float(np.mean(shares))


if __name__ == "__main__":
    command_line.run(main, lambda: tyro.cli(Config, description=__doc__))
