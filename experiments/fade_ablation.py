"""Ablations in simulation: trackers, paradigms, and every part of the filter, against known truth.

Five parts, each of many cells; every cell is 20 worlds in one `vmap`, and is kept when it is done:

* tracking: each tracker, tuned on other seeds, shown the same uniform run;
* filter: one part of FADE changed at a time (moment rule, drift, shrinkage, priors), same run;
* skills: FADE told 0 to 64 loadings of a world of 16 skills;
* jump: one skill leaps; who notices, and how soon;
* loops: trackers x paradigms, published presets and utilities, each choosing for itself.

    python -m experiments.fade_ablation
"""

import dataclasses
import functools
import hashlib
from pathlib import Path
from typing import Any

import jax
import tyro

from experiments import ablation_figures, ablation_report, cells, command_line, run_folder
from experiments.ablation_grid import (
    LOOP_TRACKERS,
    SCORED,
    SKILL_COUNTS,
    TRUE_SKILLS,
    any_paradigm,
    any_utility,
    fade_contender,
    paradigms,
    published,
    trackers,
    utilities,
    variants,
)
from experiments.ablation_world import Bench, Case, Kind, Setting, first_skills, make_cases, told
from experiments.cells import Cells
from experiments.jump import JUMPERS, jump_cell
from experiments.replay_contenders import fade_tracker

FIRST_TUNING_SEED = 1000
"""Trackers are tuned on worlds from here on, and scored on those before."""

SOURCES = (
    *("fade_ablation.py", "ablation_grid.py", "ablation_world.py", "jump.py"),
    "replay_contenders.py",
)
"""What decides a cell, beside the packages."""

PARTS = ("tracking", "filter", "skills", "jump", "loops")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Ablations in a simulated world."""

    parts: tuple[str, ...] = PARTS
    """Which parts to run; "filter" and "loops" need what "tracking" has tuned."""
    seeds: int = 20
    """Worlds that every cell is scored on."""
    tuning_seeds: int = 8
    """Other worlds, that trackers are tuned on."""
    fit_steps: int = 80
    """Gradient steps of each fit."""
    setting: Setting = dataclasses.field(default_factory=Setting)
    """The world."""
    out: Path | None = None
    """Folder to write to, runs/fade_ablation/<time> if not given; finished cells are kept."""
    quick: bool = False
    """Few seeds, short runs, some of the cells, to see it work; sizes can't be given then."""

    def __post_init__(self) -> None:
        """Refuses what measures nothing."""
        unknown = [part for part in self.parts if part not in PARTS]
        if unknown or not self.parts:
            raise ValueError(f"parts must be among {PARTS}, got {self.parts}")
        for name in ("seeds", "tuning_seeds", "fit_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.seeds > FIRST_TUNING_SEED:
            raise ValueError(
                f"seeds must be at most {FIRST_TUNING_SEED}, got {self.seeds}: those beyond are"
                " tuned on"
            )
        if self.quick:
            for name in ("seeds", "tuning_seeds", "fit_steps", "setting"):
                if getattr(self, name) != getattr(Config(), name):
                    raise ValueError(f"{name}: has no effect with quick")
        if not 0 <= self.setting.first_scored < self.setting.iterations:
            raise ValueError(
                f"setting.first_scored must be in 0..{self.setting.iterations - 1}, got"
                f" {self.setting.first_scored}"
            )

    @property
    def effective(self) -> "Config":
        """What is run: itself, or the small version."""
        if not self.quick:
            return self
        small = Setting(num_prompts=60, groups=6, iterations=30, first_scored=5)
        return Config(
            parts=self.parts, out=self.out, seeds=3, tuning_seeds=2, fit_steps=3, setting=small
        )


def identity(config: Config) -> dict[str, Any]:
    """What cells must have in common to stand in one table: configuration, jax, and the code."""
    digest = hashlib.sha256()
    here = Path(__file__).resolve().parent
    sources = [here / name for name in SOURCES]
    for package in ("fade_jax", "paced_jax"):
        sources += sorted((here.parent / package).rglob("*.py"))
    for source in sources:
        digest.update(source.read_bytes())
    settings = dataclasses.asdict(config)
    settings = {k: v for k, v in settings.items() if k not in ("out", "parts")}
    return {**settings, "jax": jax.__version__, "code": digest.hexdigest()[:16]}


def plan(config: Config, quick: bool = False) -> dict[str, list[str]]:
    """Names of the cells of each part; some of them if quick."""
    setting = config.setting
    names = {
        "tracking": list(trackers()),
        "filter": list(variants()),
        "skills": [f"K = {k}" for k in SKILL_COUNTS],
        "jump": list(JUMPERS),
        "loops": [f"{t} x {p}" for t in LOOP_TRACKERS for p in paradigms(setting)]
        + [f"preset {name}" for name in published(setting)]
        + [f"utility {u} x {p}" for u in utilities(setting.group_size) for p in SCORED],
    }
    if quick:
        names["tracking"] = ["beta_counter", "fade_k0", "fade", "fade_shuffled"]
        names["filter"] = ["walk 0", "walk 0.08", "walk 0.32"]
        names["skills"] = names["skills"][:1]
        names["jump"] = names["jump"][:1]
        names["loops"] = ["fade x uniform", "fade x threshold", "preset uniform", "preset dapo"]
    return {part: names[part] for part in config.parts}


def main(config: Config) -> dict[str, Any]:
    """Runs every cell that is missing, then writes report and figures.

    Args:
        config: which parts, how many worlds.

    Returns:
        What results.json holds.
    """
    quick, config = config.quick, config.effective
    folder = run_folder.open_folder(
        "fade_ablation",
        config.out,
        {**dataclasses.asdict(config), "quick": quick},
        check=lambda folder: cells.check(folder, identity(config)),
    )
    lab = Lab(config, Cells(folder, identity(config)))
    wanted = plan(config, quick)
    with run_folder.task("fade_ablation", sum(map(len, wanted.values()))) as advance:
        for part, names in wanted.items():
            for name in names:
                advance(f"{part}: {name}", 0)
                lab.store.get(part, name, lambda part=part, name=name: getattr(lab, part)(name))
                advance(f"{part}: {name}", 1)
    # Everything there is, also what an earlier call has made.
    everything = plan(dataclasses.replace(config, parts=PARTS), quick)
    results = {
        part: {
            name: run_folder.read_json(lab.store.path(part, name))
            for name in names
            if lab.store.path(part, name).exists()
        }
        for part, names in everything.items()
    }
    content = run_folder.save_results(folder, config, {"cells": results, "labels": labels()})
    ablation_report.write(folder, content)
    ablation_report.show(content)
    ablation_figures.draw(folder, content)
    run_folder.console.print(f"report and figures in {folder}")
    return content


class Lab:
    """Computes cells; worlds and programs are made when first needed and shared."""

    def __init__(self, config: Config, store: Cells):
        self.config, self.setting, self.store = config, config.setting, store
        self.bench = Bench(config.setting)
        self.entries = trackers()

    @functools.cache  # noqa: B019 - one Lab a process
    def cases(self, num_skills: int | None = None, tuning: bool = False) -> Case:
        """Worlds to score on, or the other worlds to tune on."""
        first, count = 0, self.config.seeds
        if tuning:
            first, count = FIRST_TUNING_SEED, self.config.tuning_seeds
        return make_cases(self.setting, range(first, first + count), num_skills)

    @functools.cache  # noqa: B019
    def loadings(self, kind: Kind, tuning: bool = False) -> jax.Array:
        """What is told of them."""
        return told(kind, self.cases(tuning=tuning))

    def tuned(self, name: str) -> dict[str, float]:
        """Parameters of a tracker, tuned on other worlds."""
        name = self.entries[name].tuned_as or name
        entry = self.entries[name]

        def compute() -> dict[str, Any]:
            cases, loadings = self.cases(tuning=True), self.loadings(entry.loadings, True)
            steps = self.config.fit_steps
            params = self.bench.tune(entry.program, entry.contender, loadings, cases, steps)
            return {"params": params}

        return self.store.get("tuned", name, compute)["params"]

    def tracking(self, name: str) -> dict[str, Any]:
        """A tracker on the uniform runs."""
        entry, params = self.entries[name], self.tuned(name)
        loadings = self.loadings(entry.loadings)
        scores = self.bench.shadow(entry.program, entry.contender, params, loadings, self.cases())
        return {"params": params, **scores}

    def filter(self, name: str) -> dict[str, Any]:
        """The tuned filter with one thing changed."""
        variant = variants()[name]
        params = variant.change(self.tuned("fade"))

        def build(params, pool):
            return fade_tracker(params, pool, **variant.parts(params))

        contender = self.entries["fade"].contender._replace(build=build)
        scores = self.bench.shadow(
            f"{variant.program} {sorted(params)}",
            contender,
            params,
            self.loadings("informative"),
            self.cases(),
        )
        return {"factor": variant.factor, "label": variant.label, **scores}

    def skills(self, name: str) -> dict[str, Any]:
        """FADE told K of 16 true skills, or 16 and K - 16 columns of noise; tuned for it."""
        count = int(name.removeprefix("K = "))
        contender = fade_contender(name)
        cases, others = (self.cases(TRUE_SKILLS, tuning) for tuning in (False, True))
        params = self.bench.tune(
            name, contender, first_skills(count, others), others, self.config.fit_steps
        )
        scores = self.bench.shadow(name, contender, params, first_skills(count, cases), cases)
        return {"params": params, **scores}

    def jump(self, name: str) -> dict[str, Any]:
        """A tracker after one skill has leapt."""
        return jump_cell(name, self.config.seeds, self.setting)

    def loops(self, name: str) -> dict[str, Any]:
        """A scheduler that chooses for itself."""
        kind, _, rest = name.partition(" ")
        entry, choice = self.entries["fade"], 0
        if kind == "preset":
            build, program = published(self.setting)[rest], name
        elif kind == "utility":
            build, program = any_utility(entry, self.setting), "utility"
            names = [f"{u} x {p}" for u in utilities(self.setting.group_size) for p in SCORED]
            choice = names.index(rest)
        else:
            tracker, paradigm = name.split(" x ")
            entry = self.entries[tracker]
            build, program = any_paradigm(entry, self.setting), entry.program
            choice = list(paradigms(self.setting)).index(paradigm)
            return dict(
                self.bench.loop(
                    program,
                    build,
                    self.tuned(tracker),
                    choice,
                    self.loadings(entry.loadings),
                    self.cases(),
                )
            )
        params, loadings = self.tuned("fade"), self.loadings("informative")
        return dict(self.bench.loop(program, build, params, choice, loadings, self.cases()))


def labels() -> dict[str, str]:
    """Names of trackers for people."""
    return {name: entry.contender.label for name, entry in trackers().items()}


if __name__ == "__main__":
    command_line.run(main, lambda: tyro.cli(Config, description=__doc__))
