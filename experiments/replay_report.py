"""The report of `replay_history`, as Markdown and as tables on the terminal."""

from pathlib import Path
from typing import Any

from experiments import run_folder

HEADER = ("tracker", "Brier", "log loss", "ECE", "odd: Brier", "odd: log loss", "odd: ECE")


def _families(content: dict[str, Any]) -> list[tuple[str, float]]:
    seen: list[tuple[str, float]] = []
    for row in content["rows"]:
        family = (row["protocol"], row["observed"])
        if family not in seen:
            seen.append(family)
    return seen


def _title(content: dict[str, Any], family: tuple[str, float]) -> str:
    protocol, observed = family
    row = next(r for r in content["rows"] if (r["protocol"], r["observed"]) == family)
    share = f"{100 * observed:.0f} %"
    if protocol == "dense":
        what = "every visit shown, every visit predicted first"
    elif protocol == "sparse":
        what = f"{share} of each step's visits shown, the others predicted; {row['masks']} masks"
    else:
        what = f"{share} of the prompts ever shown, the others predicted; {row['masks']} masks"
    floor = f"ECE noise floor {row['ece_noise_floor']:.4f}"
    return f"{protocol}: {what} ({row['count']:,} predictions, {floor})"


def _rows(content: dict[str, Any], family: tuple[str, float]) -> list[tuple[Any, ...]]:
    """One line a tracker, best log loss first."""
    by_tracker: dict[str, dict[str, Any]] = {}
    for row in content["rows"]:
        if (row["protocol"], row["observed"]) == family:
            by_tracker.setdefault(row["tracker"], {})[row["split"]] = row
    lines = []
    for name, splits in sorted(by_tracker.items(), key=lambda item: item[1]["all"]["log_loss"]):
        cells = [splits[s][m] for s in ("all", "odd") for m in ("brier", "log_loss", "ece")]
        lines.append((content["labels"][name], *(f"{value:.4f}" for value in cells)))
    return lines


def _comparisons(content: dict[str, Any], family: tuple[str, float]) -> list[tuple[str, ...]]:
    return [
        (
            content["labels"][c["tracker"]],
            content["labels"][c["rival"]],
            f"{c['log_loss_difference']:+.4f}",
            f"[{c['low']:+.4f}, {c['high']:+.4f}]",
        )
        for c in content["comparisons"]
        if (c["protocol"], c["observed"]) == family
    ]


def show(content: dict[str, Any]) -> None:
    """Prints the main tables."""
    for family in _families(content):
        run_folder.print_table(_title(content, family), HEADER, _rows(content, family))


def write(folder: Path, content: dict[str, Any]) -> Path:
    """Writes report.md."""
    history = content["history"]
    what = (
        "**This is a simulated run**, whose generator is the model FADE "
        "assumes. It shows that the machinery works, nothing about language models."
        if history["simulated"]
        else "A recorded RLVR run."
    )
    sections = [
        f"{what} Source: {history['source']}. {history['prompts']:,} prompts, {history['visits']} "
        f"visits of {history['group_size']} rollouts; {history['informative_share']:.4f} of the "
        f"groups after the first visit were informative. Loadings: {history['loadings']}.",
        "Every number scores P(the visit's group is informative), predicted before the visit. "
        "Trackers marked *tuned*, and FADE, were fitted by empirical Bayes on one half of the "
        "prompts (even or odd index) and scored on the other; the first three columns join both "
        "halves, the *odd* columns score odd prompts with the fit of the even ones. ECE has 10 "
        "bins of equal width.",
    ]
    for family in _families(content):
        sections.append(f"## {_title(content, family)}")
        sections.append(run_folder.markdown_table(HEADER, _rows(content, family)))
        header = ("tracker", "rival", "log loss difference", "95 % interval")
        comparisons = _comparisons(content, family)
        if comparisons:
            sections.append(
                "Paired bootstrap over prompts, tracker minus rival (negative: the tracker wins):"
            )
            sections.append(run_folder.markdown_table(header, comparisons))
    sections += [
        "## Figures",
        "![Reliability](reliability.png)",
        "![Error by evidence](error_by_evidence.png)",
    ]
    if "abilities" in content:
        sections.append("![Abilities over time](abilities.png)")
    sections.append("## Fitted parameters")
    fits = [
        (content["labels"][name], half, ", ".join(f"{k} {v:.4g}" for k, v in params.items()))
        for name, halves in content["fits"].items()
        if name in content["labels"]
        for half, params in halves.items()
        if params
    ]
    sections.append(run_folder.markdown_table(("tracker", "fitted on", "parameters"), fits))
    return run_folder.write_report(
        folder, "Replay of a recorded run", sections, content["provenance"]
    )
