"""Runs some seeds of one method of the headline comparison, in a process of its own.

    python -m experiments.headline_job runs/headline/demo/tiny fade 0 1 2

Started by `experiments.headline`, which keeps one such process a core busy.
"""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from experiments import command_line, headline_plan, live_run, run_identity


@dataclasses.dataclass(frozen=True)
class Job:
    """Some seeds of one method."""

    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FOLDER")]
    """Of the part, with plan.json."""
    method: tyro.conf.Positional[str]
    """One of the plan's."""
    seeds: tyro.conf.Positional[tuple[int, ...]]
    """Some of the plan's."""


def main(job: Job) -> None:
    """Runs what is not finished yet."""
    plan = headline_plan.load(job.folder)
    configs = [plan.config(job.method, seed) for seed in job.seeds]
    folders = [run_identity.seed_folder(job.folder, job.method, seed) for seed in job.seeds]
    bench = live_run.open_bench(configs[0], plan.watch)
    live_run.execute(bench, job.method, configs, folders, lambda what, done: None)


if __name__ == "__main__":
    command_line.run(main, lambda: tyro.cli(Job, description=__doc__))
