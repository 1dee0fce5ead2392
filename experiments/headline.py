"""What scheduling buys: all methods at equal rollouts, five seeds each, in parts.

First a learning rate is chosen for every objective, on the validation prompts, under uniform choice
(the parts tiny_rates and base_rates); then the schedulers are compared at those rates (tiny: 200
iterations of 32 prompts x 8 rollouts; base: 100 of 64 x 8). A part that is ended goes on where it
was when the command is given again; finished runs are not repeated.

    python -m experiments.headline --parts tiny_rates tiny --out runs/headline/all
    python -m experiments.headline --parts base_rates base --out runs/headline/all
    python -m experiments.headline --quick
"""

import dataclasses
from pathlib import Path
from typing import Any, get_args

import tyro

from experiments import (
    command_line,
    headline_figures,
    headline_plan,
    headline_report,
    headline_results,
    intervals,
    processes,
    run_folder,
    run_identity,
)
from experiments.headline_plan import Part, Plan
from experiments.processes import Command
from experiments.run_identity import seed_folder
from experiments.run_log import count_lines


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """The headline comparison."""

    parts: tuple[Part, ...] = ("tiny_rates", "tiny")
    """What to run, in this order; each takes 20 to 100 minutes on two cores."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Of choices and rollouts."""
    methods: tuple[str, ...] | None = None
    """Some of a part's methods; all if not given."""
    iterations: int | None = None
    """Of each run; the part's own if not given."""
    workers: int = 2
    """Processes at once, one core each."""
    out: Path | None = None
    """Folder to write to, runs/headline/<time> if not given; finished runs in it are not repeated,
    unfinished ones go on."""
    report_only: bool = False
    """Run nothing; write the report of what is finished."""
    quick: bool = False
    """Three methods, two seeds, 20 iterations, to see everything work."""

    def __post_init__(self) -> None:
        """Refuses an empty comparison, naming the field."""
        for name in ("parts", "seeds"):
            values = getattr(self, name)
            if len(set(values)) != len(values) or not values:
                raise ValueError(f"{name} must be distinct, at least one, got {values}")
        if self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers}")
        if self.iterations is not None and (self.iterations < 10 or self.iterations % 10):
            raise ValueError(f"iterations must be a multiple of 10, got {self.iterations}")


def chosen_rates(folder: Path, part: Part) -> dict[str, float]:
    """The learning rate of each objective, as the part of the rates has found.

    Args:
        folder: of the experiment.
        part: of the comparison, tiny or base.

    Raises:
        ValueError: that part has not been run.
    """
    path = folder / f"{part}_rates" / "rates.json"
    if not path.exists():
        raise ValueError(f"parts: {part} needs {part}_rates first; there is no {path}")
    return {name: entry["rate"] for name, entry in run_folder.read_json(path).items()}


def choose_rates(folder: Path, plan: Plan) -> dict[str, Any]:
    """Takes the rate of the best mean validation pass rate at the end; writes rates.json."""
    ends: dict[str, dict[float, Any]] = {}
    for name, config in plan.methods.items():
        summaries = [
            run_folder.read_json(seed_folder(folder, name, seed) / "summary.json")
            for seed in plan.seeds
        ]
        found = intervals.of([s["validation"][-1]["pass_at_1"] for s in summaries])
        ends.setdefault(config.objective, {})[config.policy_learning_rate] = found
    chosen = {
        objective: {
            "rate": max(found, key=lambda rate: found[rate]["mean"]),
            "validation_end": {f"{rate:g}": value for rate, value in found.items()},
        }
        for objective, found in ends.items()
    }
    run_folder.write_json(folder / "rates.json", chosen)
    return chosen


def run_jobs(folder: Path, plan: Plan, workers: int) -> None:
    """Runs a part's jobs, one process a core, under a progress bar.

    Raises:
        RuntimeError: a process failed; names its log. The others are finished first.
    """
    headline_plan.save(folder, plan)
    commands = []
    for method, seeds in plan.jobs():
        words = (method, *map(str, seeds))
        name = "_".join(words)
        log = folder / "logs" / f"{name}.txt"
        commands.append(Command(name, "experiments.headline_job", (str(folder), *words), log))
    total = sum(config.iterations for config in plan.methods.values()) * len(plan.seeds)
    seen = 0
    with run_folder.task(plan.part, total) as advance:

        def tick() -> None:
            nonlocal seen
            now = _iterations_done(folder, plan)
            advance(plan.part, now - seen)
            seen = now

        # Methods share most of their programs; what one has compiled the others load.
        compiled = {"JAX_COMPILATION_CACHE_DIR": str(folder.absolute() / "compiled")}
        done = processes.run_all(commands, workers, environment=compiled, tick=tick)
    failed = [command.log for command in commands if done[command.name].code != 0]
    if failed:
        raise RuntimeError(f"{len(failed)} of the processes failed, see {failed[0]}")


def _iterations_done(folder: Path, plan: Plan) -> int:
    """Lines in the logs of all runs."""
    return sum(
        count_lines(seed_folder(folder, method, seed))
        for method in plan.methods
        for seed in plan.seeds
    )


def main(config: Config) -> dict[str, Any]:
    """Runs the parts and reports on them.

    Args:
        config: which parts.

    Returns:
        What results.json holds.
    """
    if config.quick:
        config = dataclasses.replace(
            config, iterations=20, seeds=config.seeds[:2], methods=("uniform", "fade", "paced")
        )
    folder = run_folder.open_folder("headline", config.out, config)
    for part in () if config.report_only else config.parts:
        plan = plan_of(folder, config, part)
        runs = [
            (plan.config(method, seed), seed_folder(folder / part, method, seed))
            for method in plan.methods
            for seed in plan.seeds
        ]
        run_identity.check_runs(runs, plan.watch)  # before a process starts
        run_folder.console.print(
            f"{part}: {run_folder.counted(len(plan.methods), 'method')} x"
            f" {run_folder.counted(len(plan.seeds), 'seed')}; in {folder / part}"
        )
        with command_line.same_command(folder):
            run_jobs(folder / part, plan, config.workers)
        if part in headline_plan.OBJECTIVES:
            choose_rates(folder / part, plan)
    return report(folder, config)


def report(folder: Path, config: Config) -> dict[str, Any]:
    """Prints and writes what the finished seeds of every part in a folder came to.

    Returns:
        What results.json holds.

    Raises:
        ValueError: there is nothing to report on.
    """
    results: dict[str, Any] = {}
    for part in (part for part in get_args(Part) if (folder / part / "plan.json").exists()):
        plan = headline_plan.load(folder / part)
        if part in headline_plan.OBJECTIVES:
            if (folder / part / "rates.json").exists():
                chosen = results[part] = run_folder.read_json(folder / part / "rates.json")
                rows = [(name, f"{entry['rate']:g}") for name, entry in chosen.items()]
                run_folder.print_table(f"{part}: chosen", ("objective", "rate"), rows)
            continue
        seeds = headline_results.finished_seeds(folder / part, plan)
        if not seeds:
            continue
        runs = headline_results.read(folder / part, plan, seeds)
        found = results[part] = {
            "seeds": list(seeds),
            "setting": plan.setting(),
            **headline_results.compare(runs),
        }
        headline_figures.draw(folder, part, runs)
        run_folder.print_table(f"{part}, seeds {list(seeds)}", *headline_report.bought(found))
    if not results:
        raise ValueError(f"out: no part in {folder} has a seed that all its methods have finished")
    content = run_folder.save_results(folder, config, results)
    headline_report.write(folder, content)
    run_folder.console.print(f"report: {folder / 'report.md'}")
    return content


def plan_of(folder: Path, config: Config, part: Part) -> Plan:
    """The plan of a part, with the rates that were chosen before it."""
    comparison = part not in headline_plan.OBJECTIVES
    return headline_plan.make(
        part,
        rates=chosen_rates(folder, part) if comparison else {},
        seeds=config.seeds,
        iterations=config.iterations,
        methods=config.methods if comparison else None,
    )


if __name__ == "__main__":
    command_line.run(main, lambda: tyro.cli(Config, description=__doc__))
