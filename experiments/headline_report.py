"""The report of the headline comparison."""

from pathlib import Path
from typing import Any, get_args

from experiments import headline_figures, intervals, run_folder
from experiments.headline_plan import OBJECTIVES, Part
from experiments.headline_results import COMPARED, COSTS

SOON = {"rollouts": "rollouts", "tokens": "sampled tokens", "seconds": "seconds of training"}


def bought(results: dict[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows: what equal rollouts bought."""
    header = (
        "method",
        "effective groups",
        "validation, end",
        "over the run",
        "test pass@1",
        "test pass@k",
    )
    rows = []
    for name, column in results["methods"].items():
        shown = COMPARED[:5]  # a prompt has one right answer: distinct ones are pass@k
        rows.append((name, *(f"{column[key]['mean']:.3f}" for key in shown)))
    return header, rows


def differences(results: dict[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows: paired differences from uniform choice under the same objective."""
    header = ("minus uniform", "effective groups", "validation, end", "over the run", "test pass@k")
    keys = ("informative_realised", "validation_end", "validation_mean", "test_pass_at_most")
    rows = [
        (name, *(intervals.show(column[key]) for key in keys))
        for name, column in results.get("minus_uniform", {}).items()
    ]
    return header, rows


def soon(results: dict[str, Any], target: str) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows: what it costs to get where the target ends."""
    header = ("method", *(SOON[cost] for cost in COSTS), "by the mean curve, rollouts", "seeds")
    costs = results["cost_to"][target]
    rows = []
    for name in results["methods"]:
        cells = []
        for cost in COSTS:
            entry = costs[cost][name]
            bound = "" if entry["reached"] == entry["seeds"] else ">= "
            cells.append(bound + intervals.show(entry["ratio"], 2))
        entry = costs["rollouts"][name]
        mean = "never" if entry["mean_curve"] is None else f"{entry['mean_curve']:.2f}"
        rows.append((name, *cells, mean, f"{entry['reached']} of {entry['seeds']}"))
    return header, rows


def how(results: dict[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows: predictions, steps and choices."""
    header = (
        "method",
        "predicted",
        "realised",
        "ECE (floor)",
        "p rmse",
        "p bias",
        "beta KL",
        "prompts",
        "pass rate of the chosen",
        "under the base policy",
        "generated / trained",
        "s / iteration",
    )
    rows = []
    for name, column in results["methods"].items():
        mean = {key: value["mean"] for key, value in column.items()}
        kl = mean.get("mean_beta_kl")
        rows.append(
            (
                name,
                f"{mean['informative_predicted']:.3f}",
                f"{mean['informative_realised']:.3f}",
                f"{mean['informative_ece']:.3f} ({mean['informative_ece_floor']:.3f})",
                f"{mean['pass_rate_rmse']:.3f}",
                f"{mean['pass_rate_bias']:+.3f}",
                "–" if kl is None else f"{kl:.4f}",
                f"{mean['distinct_prompts']:.0f}",
                f"{mean['pass_rate_generated']:.3f}",
                f"{mean['chosen_base_rate']:.3f}",
                f"{mean['generated_per_trained']:.2f}",
                f"{mean['iteration_seconds']:.2f}",
            )
        )
    return header, rows


def shares(results: dict[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows: the gain over uniform as a share of the oracle's."""
    header = ("method", "of", "gain", "the oracle's gain", "share")
    words = {
        "informative_realised": "effective groups",
        "validation_end": "validation, end",
        "validation_mean": "validation over the run",
    }
    rows = [
        (
            name,
            words[key],
            intervals.show(entry["gain"]),
            intervals.show(entry["oracle_gain"]),
            "–" if entry["share"] is None else f"{entry['share']:.2f}",
        )
        for name, column in results.get("oracle_share", {}).items()
        for key, entry in column.items()
    ]
    return header, rows


def rates_sections(part: str, chosen: dict[str, Any]) -> list[str]:
    """How the learning rates were chosen."""
    rows = [
        (
            objective,
            *(
                f"{rate}: {intervals.show(found)}"
                for rate, found in entry["validation_end"].items()
            ),
            f"{entry['rate']:g}",
        )
        for objective, entry in chosen.items()
    ]
    width = max(len(row) for row in rows) - 2
    header = ("objective", *(f"rate {i + 1}" for i in range(width)), "chosen")
    return [
        f"## {part}: the learning rate of each objective",
        "Validation pass rate at the end under uniform choice, by the policy's learning rate; seeds"
        " other than the comparison's, the same for every objective. Nothing else was tuned.",
        run_folder.markdown_table(header, rows),
    ]


def sections(part: str, results: dict[str, Any]) -> list[str]:
    """Sections of one part that compares methods."""
    setting = results["setting"]
    total = setting["iterations"] * setting["num_prompts"] * setting["group_size"]
    parts = [
        f"## {part}",
        f"{setting['iterations']} iterations of {setting['num_prompts']} prompts x"
        f" {setting['group_size']} rollouts, {total:,} rollouts a run; seeds {results['seeds']},"
        " the same for every method. "
        "Intervals are 95 % t-intervals over seeds, of paired differences where there is a minus. "
        f"pass@k: k = {setting['test_group_size']}; a prompt has one right answer, so it is the "
        "number of distinct right answers too. The oracle's looking is not charged.",
        run_folder.markdown_table(*bought(results)),
        run_folder.markdown_table(*differences(results)),
    ]
    for target in results["cost_to"]:
        parts += [
            f"### What it costs to get where {target} ends",
            f"In units of what {target}'s own run costs; a run that does not get there counts with"
            " all it cost, so `>=` marks a lower bound. Evaluation noise lets a curve cross its end"
            f" early: compare with {target}'s own row.",
            run_folder.markdown_table(*soon(results, target)),
        ]
    if results.get("oracle_share"):
        parts += ["### Share of the oracle's gain", run_folder.markdown_table(*shares(results))]
    parts += [
        "### Predictions, steps and choices",
        run_folder.markdown_table(*how(results)),
        "predicted, realised: P(informative) of the chosen groups and the share that was; ECE: its"
        " calibration error, in brackets what a perfect one would show. p rmse, p bias: of the"
        " predicted pass rates, the groups' own noise subtracted. prompts: distinct ones chosen."
        " generated / trained: groups generated for each that reached the gradient. s / iteration:"
        " one core, while another run had the other.",
    ]
    parts += [
        run_folder.markdown_figure(Path(name), words)
        for name, words in headline_figures.captions(part)
    ]
    return parts


def write(folder: Path, content: dict[str, Any]) -> Path:
    """Writes report.md of what results.json holds."""
    parts = []
    for part in get_args(Part):
        if part in content:
            make = rates_sections if part in OBJECTIVES else sections
            parts += make(part, content[part])
    return run_folder.write_report(folder, "What scheduling buys", parts, content["provenance"])
