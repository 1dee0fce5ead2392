"""Trains a small policy under four schedulers at equal rollouts and shows what each choice bought.

The tasks are eight digit skills at lengths 1 to 10, verified exactly; the policy (131,008
parameters) comes pre-trained with the package. Every scheduler gets the same policy, prompts, loss
(PACED-RL's trajectory balance) and number of rollouts. Ends with a table, figures and a report.

    python -m experiments.quickstart
    python -m experiments.quickstart --methods uniform fade fade_thompson fade_shuffled
"""

import dataclasses
from collections.abc import Iterable, Sequence
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
from experiments.settings import METHODS, TINY, MethodName


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Four schedulers at equal rollouts."""

    methods: tuple[MethodName, ...] = ("uniform", "mopps", "fade", "paced")
    """Which prompts are trained on. `fade_thompson` and `fade_weighted` choose by draws instead of
    the best; `fade_skill`, `fade_skill_length` and `fade_shuffled` are Thompson too, with loadings
    that say more, or nothing. `oracle`: its looking is not charged."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Of choices and rollouts; intervals need two at least."""
    iterations: int = TINY.iterations
    """Of each run, 32 prompts x 8 rollouts each."""
    out: Path | None = None
    """Folder to write to, runs/quickstart/<time> if not given; finished runs in it are not
    repeated. Report and figures are of this call's methods and seeds."""
    quick: bool = False
    """20 iterations of one seed, to see everything work."""
    watch: live_run.Watch = dataclasses.field(default_factory=live_run.Watch)
    """What is looked at on the way."""

    def __post_init__(self) -> None:
        """Refuses an empty comparison, naming the field."""
        for name in ("methods", "seeds"):
            values = getattr(self, name)
            if len(set(values)) != len(values) or not values:
                raise ValueError(f"{name} must be distinct, at least one, got {values}")
        if self.iterations < 10 or self.iterations % 10:
            raise ValueError(f"iterations must be a multiple of 10, got {self.iterations}")


def main(config: Config) -> dict[str, Any]:
    """Runs every method on every seed, compares them, draws figures.

    Args:
        config: what to compare.

    Returns:
        What results.json holds.
    """
    if config.quick:
        config = dataclasses.replace(config, iterations=20, seeds=config.seeds[:1])
    setting = dataclasses.replace(TINY, iterations=config.iterations)
    run_identity.check_cadence(setting, config.watch)
    methods = {name: METHODS[name] for name in config.methods}

    check = partial(
        run_identity.check_methods,
        setting=setting,
        methods=methods,
        seeds=config.seeds,
        watch=config.watch,
    )
    folder = run_folder.open_folder("quickstart", config.out, config, check)
    run_folder.console.print(
        f"{run_folder.counted(len(config.methods), 'method')} x"
        f" {run_folder.counted(len(config.seeds), 'seed')} x {config.iterations} iterations of"
        f" {setting.budget} rollouts; results in {folder}"
    )
    with command_line.same_command(folder):
        bench = live_run.open_bench(setting, config.watch)
        runs = live_run.execute_methods(bench, folder, setting, methods, config.seeds)
    results = compare(runs)
    content = run_folder.save_results(
        folder, config, {"setting": dataclasses.asdict(setting), **results}
    )
    quickstart_figures.draw(folder, runs, bench.ground.pools.train)
    title = f"After {setting.budget * config.iterations:,} rollouts each, {of_seeds(config.seeds)}"
    run_folder.print_table(title, header(config.watch.test_group_size), table(results))
    for line in (*notes(results, len(config.seeds)), LEGEND):
        run_folder.console.print(line, markup=False)
    write(folder, content)
    run_folder.console.print(f"report: {folder / 'report.md'}")
    return results


def header(test_group_size: int) -> tuple[str, ...]:
    """Names of the columns of `table`, from the rollouts of a test prompt."""
    most = max(k for k in (1, 2, 4, 8, 16, 32) if k <= test_group_size)
    return (
        "method",
        "effective",
        "val end",
        "val mean",
        "test pass@1",
        f"test pass@{most}",
        "ECE (floor)",
        "p rmse",
        "prompts",
        "beta KL",
        "s/iter",
    )


LEGEND = (
    "effective: share of the generated groups that were neither all right nor all wrong. val, "
    "test: pass rate on 512 held-out prompts each, uniform over skills and lengths, not charged; "
    "at the end, averaged over the run; pass@1 and pass@k of the last policy. ECE: calibration "
    "error of the predicted P(informative) of the chosen groups (in brackets what a perfect one "
    "would show). p rmse: error of their predicted pass rates, the groups' own noise subtracted. "
    "prompts: distinct ones trained on. beta KL: how far a step moved the policy, which is one "
    "(small) part of the error of V as a pass rate; the rest is what the head has not learnt. "
    "s/iter: median wall time of an iteration on this machine, whatever else it was doing."
)


def of_seeds(seeds: Sequence[int]) -> str:
    """Which seeds a row stands for."""
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"means of seeds {list(seeds)}"


def replays(methods: Iterable[str], most: int) -> str:
    """What to know of the methods that replay, where one of them was run.

    Args:
        methods: that were run.
        most: earlier successes that are replayed in a step.
    """
    words = {
        "paced": f"`paced` also replays up to {most} earlier successes a step, which are no"
        " rollouts but are gradient",
        "paced_no_replay": "`paced_no_replay` replays nothing",
    }
    said = [words[name] for name in words if name in methods]
    return f" {'; '.join(said)}." if said else ""


def compare(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Means over seeds with 95 % t-intervals, and paired differences from uniform choice.

    Args:
        runs: summaries of every seed by method.

    Returns:
        JSON values.
    """
    figures: dict[str, dict[str, np.ndarray]] = {}
    for name, summaries in runs.items():
        curves = np.array([[point["pass_at_1"] for point in s["validation"]] for s in summaries])
        most = max(k for k in (1, 2, 4, 8, 16, 32) if f"pass_at_{k}" in summaries[0]["test"])
        figures[name] = {
            "validation_start": curves[:, 0],
            "validation_end": curves[:, -1],
            "validation_mean": curves.mean(axis=1),
            "test_pass_at_1": np.array([s["test"]["pass_at_1"] for s in summaries]),
            "test_pass_at_most": np.array([s["test"][f"pass_at_{most}"] for s in summaries]),
        }
        figures[name] |= {
            key: np.array([s[key] for s in summaries], float)
            for key in (
                "rollouts",
                "tokens",
                "informative_realised",
                "informative_predicted",
                "informative_brier",
                "informative_ece",
                "informative_ece_floor",
                "pass_rate_rmse",
                "distinct_prompts",
                "mean_beta_kl",
                "greatest_log_prob_gap",
                "iteration_seconds",
            )
        }
    results: dict[str, Any] = {
        "methods": {
            name: {key: intervals.of(values) for key, values in columns.items()}
            for name, columns in figures.items()
        }
    }
    if "uniform" in figures:
        results["minus_uniform"] = {
            name: {
                key: intervals.of(columns[key] - figures["uniform"][key])
                for key in ("informative_realised", "validation_end", "validation_mean")
            }
            for name, columns in figures.items()
            if name != "uniform"
        }
    return results


def table(results: dict[str, Any]) -> list[tuple[Any, ...]]:
    """The rows of the final table."""
    rows = []
    for name, columns in results["methods"].items():
        mean = {key: value["mean"] for key, value in columns.items()}
        rows.append(
            (
                name,
                f"{mean['informative_realised']:.3f}",
                f"{mean['validation_end']:.3f}",
                f"{mean['validation_mean']:.3f}",
                f"{mean['test_pass_at_1']:.3f}",
                f"{mean['test_pass_at_most']:.3f}",
                f"{mean['informative_ece']:.3f} ({mean['informative_ece_floor']:.3f})",
                f"{mean['pass_rate_rmse']:.3f}",
                f"{mean['distinct_prompts']:,.0f}",
                f"{mean['mean_beta_kl']:.4f}",
                f"{mean['iteration_seconds']:.3f}",
            )
        )
    return rows


def notes(results: dict[str, Any], num_seeds: int) -> list[str]:
    """Differences from uniform choice, in words."""
    lines = []
    for name, columns in results.get("minus_uniform", {}).items():
        lines.append(
            f"{name} minus uniform: effective groups "
            f"{intervals.show(columns['informative_realised'])}, validation pass rate at the end "
            f"{intervals.show(columns['validation_end'])}, averaged over the run "
            f"{intervals.show(columns['validation_mean'])}"
        )
    if lines:
        lines.append(
            f"95 % t-intervals of paired differences, {num_seeds} seeds."
            if num_seeds > 1
            else "One seed: no interval, so no claim."
        )
    return lines


def write(folder: Path, content: dict[str, Any]) -> Path:
    """Writes report.md of what results.json holds."""
    config, setting = content["config"], content["setting"]
    budget = setting["num_prompts"] * setting["group_size"]
    sections = [
        f"{config['iterations']} iterations of {setting['num_prompts']} prompts x"
        f" {setting['group_size']} rollouts a run, policy `{setting['policy']}`,"
        f" {of_seeds(config['seeds'])}." + replays(config["methods"], budget // 8),
        run_folder.markdown_table(header(config["watch"]["test_group_size"]), table(content)),
        LEGEND,
        *notes(content, len(config["seeds"])),
    ]
    captions = quickstart_figures.captions(len(config["seeds"]))
    sections += [run_folder.markdown_figure(folder / name, words) for name, words in captions]
    return run_folder.write_report(
        folder, "What scheduling bought: quickstart", sections, content["provenance"]
    )


if __name__ == "__main__":
    command_line.run(main, lambda: tyro.cli(Config, description=__doc__))
