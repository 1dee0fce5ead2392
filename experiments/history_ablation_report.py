"""Report of `history_ablation`."""

from pathlib import Path
from typing import Any

from experiments import run_folder

Row = tuple[Any, ...]


def protocols(content: dict[str, Any]) -> list[str]:
    """Names of the protocols for people, in order."""
    return [_name(entry) for entry in content["informative_share"]]


def _name(entry: dict[str, Any]) -> str:
    if entry["protocol"] == "dense":
        return "dense"
    of = "visits" if entry["protocol"] == "sparse" else "prompts"
    return f"{entry['protocol']}, {100 * entry['observed']:.0f} % of {of} shown"


def header(content: dict[str, Any]) -> tuple[str, ...]:
    """Of the variants' table."""
    return ("changed", "to", *(f"{name}: log loss minus fitted" for name in protocols(content)))


def variant_rows(content: dict[str, Any]) -> list[Row]:
    """A line a variant; differences in thousandths of a nat."""
    return [
        (row["factor"], row["label"], *(_gap(figure) for figure in row["figures"]))
        for row in content["variants"].values()
    ]


def _gap(figure: dict[str, Any]) -> str:
    gap = {key: 1000 * figure["minus_fitted"][key] for key in ("mean", "low", "high")}
    return f"{gap['mean']:+.1f} ({gap['low']:+.1f} to {gap['high']:+.1f}); ECE {figure['ece']:.3f}"


def chosen_rows(content: dict[str, Any], protocol: int) -> list[Row]:
    """A line a tracker: informative share of the tenth each utility picks, best first."""
    rows = [
        (content["labels"][name], *(f"{x:.3f}" for x in each[protocol]["informative"].values()))
        for name, each in content["chosen"].items()
    ]
    return sorted(rows, key=lambda row: row[1], reverse=True)


def chosen_header(content: dict[str, Any]) -> tuple[str, ...]:
    """Of the table of choices."""
    first = next(iter(content["chosen"].values()))
    return ("tracker", *first[0]["informative"])


def show(content: dict[str, Any]) -> None:
    """Prints the tables."""
    title = f"{content['history']['source']}: thousandths of a nat"
    run_folder.print_table(title, header(content), variant_rows(content))
    for i, name in enumerate(protocols(content)):
        share = content["informative_share"][i]["share"]
        title = f"{name}: informative share of the tenth chosen ({share:.3f} of all)"
        run_folder.print_table(title, chosen_header(content), chosen_rows(content, i))


def write(folder: Path, content: dict[str, Any]) -> Path:
    """Writes report.md from what results.json holds."""
    history = content["history"]
    sections = [
        f"{history['source']}: {history['prompts']:,} prompts, {history['visits']} visits, groups"
        f" of {history['group_size']}. Log loss of P(informative) before each visit, minus that of"
        " the filter as `replay_history` has fitted it, in thousandths of a nat; brackets are 95 %"
        " bootstrap intervals over prompts. Moment rules and K are fitted anew, all else moves"
        " around the fit.",
        run_folder.markdown_table(header(content), variant_rows(content)),
        "## Whom each tracker would choose\n\nInformative share of the tenth of each visit's"
        " prompts that has the highest score before the visit.",
    ]
    for i, name in enumerate(protocols(content)):
        share = content["informative_share"][i]["share"]
        sections += [
            f"### {name}; {share:.3f} of all groups were informative",
            run_folder.markdown_table(chosen_header(content), chosen_rows(content, i)),
        ]
    return run_folder.write_report(
        folder, "The filter's parts on a recorded run", sections, content["provenance"]
    )
