"""The list of runs: what each is, what it costs, and which others it needs."""

import dataclasses
import importlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypeAlias

from experiments import run_folder
from experiments.replay_table import HISTORIES
from experiments.suite import live

Part: TypeAlias = Literal["histories", "simulation", "overhead", "live"]

STATE = "state.json"
"""In a run's folder: what has become of it."""

HOURS: dict[Part, float] = {"histories": 1.5, "simulation": 2.0, "overhead": 0.1, "live": 1.0}
"""Of each part on two cores, about; live for the policy tiny."""


@dataclasses.dataclass(frozen=True)
class Job:
    """One run: an experiment and its options.

    Attributes:
        part: it belongs to.
        name: distinct within the part.
        module: the experiment.
        options: fields of its Config that differ from their defaults; `out` is the store's.
        after: names of jobs of the part whose results it reads.
        rollouts: it generates, where rollouts are what is compared.
    """

    part: Part
    name: str
    module: str
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    after: tuple[str, ...] = ()
    rollouts: int | None = None

    def folder(self, store: Path) -> Path:
        """Where its results lie."""
        return store / "runs" / self.part / self.name

    def arguments(self, store: Path) -> tuple[str, ...]:
        """Its command line."""
        words = []
        for name, value in {**self.options, "out": self.folder(store)}.items():
            flag = "--" + name.replace("_", "-")
            if value is True:
                words += [flag]
            elif isinstance(value, tuple):
                words += [flag, *map(str, value)]
            else:
                words += [flag, str(value)]
        return tuple(words)

    def config(self, store: Path) -> dict[str, Any]:
        """The whole configuration, as its results.json holds it."""
        experiment = importlib.import_module(self.module)
        config = experiment.Config(**self.options, out=self.folder(store))
        config = getattr(config, "effective", config)
        return json.loads(json.dumps(dataclasses.asdict(config), default=str))

    def finished(self, store: Path) -> bool:
        """Whether its results are there, and it did not crash after them.

        Raises:
            ValueError: the folder holds results of another configuration; names what differs.
        """
        path = self.folder(store) / "results.json"
        if not path.exists():
            return False
        stored, wanted = run_folder.read_json(path).get("config"), self.config(store)
        if not isinstance(stored, dict):
            raise ValueError(f"out: {path} holds no results of a run")
        free = ("out", "replayed")  # where files lie
        for content in (stored, wanted):
            for name in ("history", "prompts"):  # the same file from another folder is the same
                if content.get(name) is not None:
                    content[name] = Path(content[name]).name
        # Results older than an option had what is its default now.
        known = json.loads(json.dumps(_defaults(self.module), default=str)) | stored
        differ = [k for k in wanted if k not in free and known.get(k) != wanted[k]]
        if differ:
            raise ValueError(
                f"out: {self.folder(store)} holds results of another {', '.join(differ)}; take"
                " another --out"
            )
        state = self.folder(store) / STATE
        return not state.exists() or run_folder.read_json(state)["state"] != "crashed"


def _defaults(module: str) -> dict[str, Any]:
    """Default of every field of an experiment's Config that has one."""
    fields = dataclasses.fields(importlib.import_module(module).Config)
    return {f.name: f.default for f in fields if f.default is not dataclasses.MISSING}


def histories(store: Path, history: Path | None, prompts: Path | None, quick: bool) -> list[Job]:
    """Trackers, the filter's parts and the time scales, on every recorded run there is."""
    runs: dict[str, dict[str, Any]] = {"tiny": {}}
    if not quick:
        runs["base"] = {"history": Path(os.path.relpath(HISTORIES / "base_uniform.npz"))}
    if history is not None:
        runs["real"] = {"history": history} | ({"prompts": prompts} if prompts else {})
    jobs = []
    small = {"quick": True} if quick else {}
    for name, where in runs.items():
        replay = Job("histories", f"replay_{name}", "experiments.replay_history", where | small)
        if quick:  # of a few prompts alone, which the others could not follow
            jobs.append(replay)
            continue
        fitted = {"replayed": replay.folder(store)} | where
        jobs += [
            replay,
            Job("histories", f"scales_{name}", "experiments.time_scales", fitted, (replay.name,)),
            Job(
                "histories", f"parts_{name}", "experiments.history_ablation", fitted, (replay.name,)
            ),
        ]
    return jobs


def simulation(quick: bool) -> list[Job]:
    """The filter's ablations where the truth is known, and when factoring pays."""
    small = {"quick": True} if quick else {}
    return [
        Job("simulation", "when", "experiments.when_to_factor", small),
        Job("simulation", "ablation", "experiments.fade_ablation", small),
    ]


def overhead(quick: bool) -> list[Job]:
    """What a step of each tracker costs."""
    small = {"quick": True} if quick else {}
    return [Job("overhead", "trackers", "experiments.benchmarks.tracker_step", small)]


def live_jobs(policy: live.Policy, seeds: tuple[int, ...], quick: bool) -> list[Job]:
    """Both papers' ablations in training, a job a method."""
    jobs = []
    for method in ("uniform", "paced") if quick else live.methods(policy):
        options: dict[str, Any] = {"policy": policy, "method": method, "seeds": seeds}
        if quick:
            options |= {"seeds": seeds[:1], "iterations": 10}
        config = live.Config(**options)
        rollouts = config.setting.budget * config.setting.iterations
        jobs.append(
            Job("live", f"{policy}_{method}", "experiments.suite.live", options, rollouts=rollouts)
        )
    return jobs


def check_budgets(jobs: Iterable[Job]) -> None:
    """Refuses a list in which what is compared at equal rollouts has unequal ones.

    Raises:
        ValueError: naming two jobs.
    """
    first: dict[Part, Job] = {}
    for job in jobs:
        if job.rollouts is None:
            continue
        other = first.setdefault(job.part, job)
        if other.rollouts != job.rollouts:
            raise ValueError(
                f"rollouts: {other.name} generates {other.rollouts:,}, {job.name}"
                f" {job.rollouts:,}; they are compared at equal rollouts"
            )
