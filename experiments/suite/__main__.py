r"""Runs the project's comparisons from one list, keeps their results in one store, and reports.

    python -m experiments.suite
    python -m experiments.suite --parts live --policy base
    python -m experiments.suite --parts histories --history acc_step_500.json \
        --prompts dsr_sub.parquet
    python -m experiments.suite --quick
    python -m experiments.suite --dry-run  # the list, as commands

A run that is done is not repeated, one that was ended goes on, one that crashed is shown as crashed
(and the exit status is 1) and tried again by the next call. Parts of at most two hours each on two
cores.
"""

import dataclasses
import shlex
import sys
from pathlib import Path
from typing import Any, get_args

import tyro

from experiments import command_line, processes, run_folder
from experiments.processes import Command, Ended
from experiments.suite import live, pictures, plan, report, store
from experiments.suite.plan import Job, Part


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """The suite."""

    parts: tuple[Part, ...] = get_args(Part)
    """What to run, in this order."""
    policy: live.Policy = "tiny"
    """Of the live part."""
    history: Path | None = None
    """A recorded run of your own for the histories part, beside those that are shipped."""
    prompts: Path | None = None
    """Its texts, where it has none."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Of the live part."""
    workers: int = 2
    """Processes at once, a core each; the overhead part takes one."""
    out: Path | None = None
    """Folder of store and report, runs/suite/<time> if not given; finished runs are kept."""
    report_only: bool = False
    """Run nothing; report on what the store holds, or where there is no store on results.json:
    `--out experiments/results/suite` draws and writes what is published from its numbers."""
    dry_run: bool = False
    """Print the list of runs as commands, with their state, and stop."""
    quick: bool = False
    """A small version of everything, to see it work: under 15 minutes."""

    def __post_init__(self) -> None:
        """Checks the fields at the door."""
        for name in ("parts", "seeds"):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                raise ValueError(f"{name} must be distinct, at least one, got {values}")
        if self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers}")
        for name in ("history", "prompts"):
            path = getattr(self, name)
            if path is not None and not path.is_file():
                raise ValueError(f"{name}: no such file: {path}")
        if self.prompts is not None and self.history is None:
            raise ValueError("prompts: has no effect without history")
        if self.report_only and self.out is None:
            raise ValueError("report_only: needs out, the folder of the suite")


Jobs = dict[Part, list[Job]]


def jobs_of(config: Config, folder: Path) -> Jobs:
    """The list of runs, by part.

    Raises:
        ValueError: as `plan.check_budgets`.
    """
    table: Jobs = {
        "histories": plan.histories(folder, config.history, config.prompts, config.quick),
        "simulation": plan.simulation(config.quick),
        "overhead": plan.overhead(config.quick),
        "live": plan.live_jobs(config.policy, config.seeds, config.quick),
    }
    wanted: Jobs = {part: table[part] for part in config.parts}
    plan.check_budgets(job for jobs in wanted.values() for job in jobs)
    return wanted


def main(config: Config) -> dict[str, Any]:
    """Runs what is missing, part by part, and reports.

    Args:
        config: which parts.

    Returns:
        What results.json holds.
    """
    folder = run_folder.folder_of("suite", config.out)
    if config.report_only:
        return report_again(config, folder)
    wanted = jobs_of(config, folder)
    waiting: Jobs = {
        part: [job for job in jobs if not job.finished(folder)] for part, jobs in wanted.items()
    }
    if config.dry_run:
        _print_plan(wanted, waiting, folder)
        return {}
    with run_folder.alone(folder), command_line.same_command(folder):
        run_folder.open_folder("suite", folder, config)
        for part, jobs in waiting.items():
            if jobs:
                run_part(part, jobs, folder, 1 if part == "overhead" else config.workers)
        return report_on_store(config, folder)


def report_on_store(config: Config, folder: Path) -> dict[str, Any]:
    """Gathers what the runs of the store came to, and publishes it."""
    content = run_folder.save_results(folder, config, store.digest(folder))
    publish(folder, content)
    return content


def report_again(config: Config, folder: Path) -> dict[str, Any]:
    """Reports without running anything.

    Raises:
        ValueError: there is neither a store nor results.
    """
    results = folder / "results.json"
    if (folder / "runs").is_dir():
        with run_folder.alone(folder):
            return report_on_store(config, folder)
    if not results.exists():
        raise ValueError(f"out: {folder} holds neither runs nor results.json to report on")
    content = run_folder.read_json(results)
    publish(folder, content)
    return content


def publish(folder: Path, content: dict[str, Any]) -> None:
    """Draws the figures, writes the report, prints its answers."""
    pictures.draw(folder, content["figures"])
    report.write(folder, content)
    report.show(content)
    run_folder.console.print(f"report: {folder / 'report.md'}")


def run_part(part: Part, jobs: list[Job], folder: Path, workers: int) -> None:
    """Runs jobs side by side; one that crashes is noted and stops no other."""
    commands = [
        Command(
            name=job.name,
            module=job.module,
            arguments=job.arguments(folder),
            log=job.folder(folder) / "log.txt",
            after=job.after,
        )
        for job in jobs
    ]
    by_name = {job.name: job for job in jobs}
    with run_folder.task(part, len(jobs)) as advance:

        def started(command: Command) -> None:
            store.note(folder, by_name[command.name], "running")
            advance(f"{part}: {command.name}", 0)

        def ended(command: Command, how: Ended) -> None:
            state = {0: "done", None: "not started"}.get(how.code, "crashed")
            store.note(folder, by_name[command.name], state, how)
            if state != "done":
                run_folder.console.print(f"{part}: {command.name} {state}, see {command.log}")
            advance(f"{part}: {command.name} {state}", 1)

        processes.run_all(
            commands,
            workers,
            environment={"JAX_COMPILATION_CACHE_DIR": str(folder.absolute() / "compiled")},
            started=started,
            ended=ended,
        )


def _print_plan(
    wanted: dict[Part, list[Job]], waiting: dict[Part, list[Job]], folder: Path
) -> None:
    for part, jobs in wanted.items():
        run_folder.console.print(f"{part}: about {plan.HOURS[part]:g} hours on two cores")
        for job in jobs:
            state = "to run" if job in waiting[part] else "done"
            line = f"python -m {job.module} {shlex.join(job.arguments(folder))}"
            run_folder.console.print(f"  {state}: {line}", markup=False, highlight=False)


def crashed(content: dict[str, Any]) -> bool:
    """Whether a run of the store has crashed."""
    runs = content.get("runs", {}).values()
    return any(state["state"] == "crashed" for part in runs for state in part.values())


if __name__ == "__main__":
    told = command_line.run(main, lambda: tyro.cli(Config, description=__doc__))
    sys.exit(1 if crashed(told) else 0)
