"""The report of `fade_ablation`, as Markdown and as tables on the terminal."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments import intervals, run_folder
from experiments.ablation_grid import LOOP_TRACKERS, ZERO_DRIFT

Cells = dict[str, dict[str, Any]]
Header = tuple[str, ...]
Row = tuple[Any, ...]

AS_PUBLISHED = (
    "uniform",
    "mopps",
    "mapp",
    "dps",
    "kgps",
    "greso",
    "adarft",
    "cdas",
    "dapo",
    "lilo",
)


def interval(values: Sequence[float | None], digits: int = 3) -> str:
    """Mean and 95 % interval over the worlds."""
    known = [x for x in values if x is not None and not np.isnan(x)]
    return intervals.show(intervals.of(known), digits) if known else "–"


def brief(values: Sequence[float | None], digits: int = 3) -> str:
    """Mean and half the 95 % interval over the worlds in which it was measured."""
    known = [x for x in values if x is not None and not np.isnan(x)]
    if not known:
        return "–"
    found = intervals.of(known)
    if found["low"] is None:
        return f"{found['mean']:.{digits}f}"
    return f"{found['mean']:.{digits}f} ± {found['mean'] - found['low']:.{digits}f}"


def difference(cell: dict[str, Any], other: dict[str, Any], key: str) -> str:
    """Paired difference over the worlds, with its 95 % interval."""
    return interval(np.subtract(cell[key], other[key]).tolist(), 4)


def best_still(cells: Cells) -> str | None:
    """The zero-drift per-prompt tracker of smallest error."""
    there = [name for name in ZERO_DRIFT if name in cells]
    return min(there, key=lambda name: float(np.mean(cells[name]["rmse"]))) if there else None


def claims(cells: Cells) -> dict[str, Any]:
    """FADE's error over that of others, world by world; shuffled loadings against none."""
    still = best_still(cells)
    if still is None or not {"fade", "fade_k0", "fade_shuffled"} <= set(cells):
        return {}
    out: dict[str, Any] = {"best_zero_drift": still, "ratios": {}}
    for rival in (still, "kalman", "beta", "fade_k0"):
        if rival in cells:
            ratio = np.divide(cells["fade"]["rmse"], cells[rival]["rmse"])
            of_means = float(np.mean(cells["fade"]["rmse"]) / np.mean(cells[rival]["rmse"]))
            out["ratios"][rival] = {"of_means": of_means, **intervals.of(ratio)}
    for name in ("fade_shuffled", "fade_trusting"):
        if name in cells:
            out[f"{name}_minus_k0"] = intervals.of(
                np.subtract(cells[name]["rmse"], cells["fade_k0"]["rmse"])
            )
    return out


def _tracking_table(cells: Cells, labels: dict[str, str]) -> tuple[Header, list[Row]]:
    header = (
        "tracker",
        "RMSE of E[p]",
        "Spearman",
        "true P(informative) of its top 16",
        "log loss",
        "ECE",
    )
    rows = [
        (
            labels[name],
            interval(cells[name]["rmse"], 4),
            interval(cells[name]["spearman"]),
            interval(cells[name]["top_informative"]),
            interval(cells[name]["log_loss"]),
            cells[name]["ece"],
        )
        for name in _by_error(cells)
    ]
    return header, rows


def _by_error(cells: Cells) -> list[str]:
    """The trackers, best first."""
    return sorted(cells, key=lambda name: float(np.mean(cells[name]["rmse"])))


def _tracking(cells: Cells, labels: dict[str, str]) -> list[str]:
    order = _by_error(cells)
    sections = [
        "## Tracking: the same uniform run, every tracker but CDAS tuned on other worlds",
        run_folder.markdown_table(*_tracking_table(cells, labels)),
        f"ECE of a perfect prediction here: about {cells[order[0]]['ece_noise_floor']:.4f}.",
    ]
    said = claims(cells)
    if said:
        named = "; ".join(
            f"{ratio['of_means']:.3f} of that of {labels[rival]} (world by world"
            f" {intervals.show(ratio)})"
            for rival, ratio in said["ratios"].items()
        )
        lines = [
            f"FADE's error is {named}. The first is the best per-prompt tracker that holds the"
            " truth to be still; the last, the filter itself without loadings: only that ratio is"
            " the loadings' own."
        ]
        for name, words in (
            ("fade_shuffled", "Shuffled loadings, tuned"),
            ("fade_trusting", "Shuffled loadings, with the parameters of informative ones"),
        ):
            key = f"{name}_minus_k0"
            if key in said:
                lines.append(f"{words}: {intervals.show(said[key], 4)} RMSE over K = 0.")
        sections.append(" ".join(lines))
    for key, title in (
        ("by_visits", "RMSE by visits so far"),
        ("by_age", "RMSE by iterations since the last visit"),
    ):
        bins = list(cells[order[0]][key])
        table = [(labels[n], *(brief(cells[n][key][b]) for b in bins)) for n in order]
        sections += [
            f"### {title}",
            "Over the whole run, its first iterations included; ± half a 95 % interval.",
            run_folder.markdown_table(("tracker", *bins), table),
        ]
    return sections


def _filter(cells: Cells, reference: dict[str, Any] | None) -> list[str]:
    header = ("changed", "to", "RMSE", "minus tuned FADE", "log loss", "ECE")
    rows = [
        (
            cell["factor"],
            cell["label"],
            interval(cell["rmse"], 4),
            difference(cell, reference, "rmse") if reference else None,
            interval(cell["log_loss"]),
            cell["ece"],
        )
        for cell in cells.values()
    ]
    return [
        "## The filter: one thing changed at a time",
        "All else as tuned. Differences are paired over the worlds.",
        run_folder.markdown_table(header, rows),
    ]


def _skills(cells: Cells) -> list[str]:
    header = ("told", "RMSE", "Spearman", "log loss", "ECE")
    rows = [
        (name, interval(c["rmse"], 4), interval(c["spearman"]), interval(c["log_loss"]), c["ece"])
        for name, c in cells.items()
    ]
    return [
        "## How many loadings: 16 true skills, K told (beyond 16: noise)",
        run_folder.markdown_table(header, rows),
    ]


def _jump(cells: Cells) -> list[str]:
    steps = [1, 2, 5, 10, 20]
    header = ("tracker", *(f"after {s}" for s in steps), "others after 2")
    rows = [
        (
            name,
            *(brief(np.array(c["followed"])[:, s].tolist(), 2) for s in steps),
            brief(np.array(c["others"])[:, 2].tolist()),
        )
        for name, c in cells.items()
    ]
    return [
        "## A leap of one skill by 2 logits: share of it followed, by iterations",
        "Mean over the prompts of that skill, seen since or not; *others*: mean change of E[p] of"
        " all other prompts, against the same run without the leap. Drift rates are set by hand.",
        run_folder.markdown_table(header, rows),
    ]


def _grid(cells: Cells, labels: dict[str, str]) -> dict[tuple[str, ...], dict[str, Any]]:
    """Cells of the closed loops by tracker and paradigm."""
    grid = {tuple(name.split(" x ")): c for name, c in cells.items() if " x " in name}
    return {key: c for key, c in grid.items() if key[0] in labels}


def _grid_tables(cells: Cells, labels: dict[str, str]) -> list[tuple[str, Header, list[Row]]]:
    """Title, header and rows of the tables of trackers x paradigms."""
    tables = []
    grid = _grid(cells, labels)
    names = [t for t in LOOP_TRACKERS if any(key[0] == t for key in grid)]
    rules = list(dict.fromkeys(key[1] for key in grid))
    for key, title in (
        ("effective", "Effective groups: share neither all right nor all wrong"),
        ("gain", "Gain of the true mean pass rate over the run, minus uniform choice's"),
        ("rmse", "RMSE of E[p] over the whole pool"),
        ("distinct", "Distinct prompts chosen"),
    ):
        digits = 0 if key == "distinct" else 3

        def entry(tracker: str, rule: str, key: str = key, digits: int = digits) -> str | None:
            if (tracker, rule) not in grid:
                return None
            values = np.asarray(grid[tracker, rule][key])
            if key == "gain":
                if rule == "uniform" or (tracker, "uniform") not in grid:
                    return None
                values = values - np.asarray(grid[tracker, "uniform"][key])
            return brief(values.tolist(), digits)

        rows = [(labels[t], *(entry(t, r) for r in rules)) for t in names]
        tables.append((title, ("tracker", *rules), rows))
    return tables if grid else []


def _loops(cells: Cells, labels: dict[str, str]) -> list[str]:
    tables = _grid_tables(cells, labels)
    sections = []
    if tables:
        sections = [
            "## Closed loops: trackers x paradigms",
            "Mean ± half a 95 % interval over worlds; a tenth of the prompts is drawn at random."
            " Differences from uniform choice are paired. *allocation* makes larger groups of fewer"
            " prompts, so its share of effective groups is not comparable.",
        ]
    for title, header, rows in tables:
        sections += [f"### {title}", run_folder.markdown_table(header, rows)]
    grid = _grid(cells, labels)
    names = [t for t in LOOP_TRACKERS if any(key[0] == t for key in grid)]
    yields = [(t, grid[t, "threshold"]) for t in names if (t, "threshold") in grid]
    if yields:
        header = (
            "tracker",
            "planned groups",
            "informative, planned",
            "realised",
            "realised / planned",
        )
        rows = [
            (
                labels[t],
                interval(c["planned_groups"], 2),
                interval(c["planned_expected"], 2),
                interval(c["planned_realised"], 2),
                interval(np.divide(c["planned_realised"], c["planned_expected"]).tolist()),
            )
            for t, c in yields
        ]
        sections += [
            "### The threshold rule: planned against realised yield",
            "It plans the smallest set expected to hold 8 informative groups of 16 generated.",
            run_folder.markdown_table(header, rows),
        ]
    for title, note, header, rows in _scheduler_tables(cells):
        sections += [f"## {title}", note, run_folder.markdown_table(header, rows)]
    return sections


def _scheduler_tables(cells: Cells) -> list[tuple[str, str, Header, list[Row]]]:
    """Title, note, header and rows of the tables of whole schedulers."""
    tables = []
    presets = {n.removeprefix("preset "): c for n, c in cells.items() if n.startswith("preset ")}
    told = [name for name in presets if name not in AS_PUBLISHED]
    utilities = {
        n.removeprefix("utility "): c for n, c in cells.items() if n.startswith("utility ")
    }
    for title, note, chosen in (
        (
            "Published schedulers, with their published settings, at equal rollouts",
            "Nothing of them is tuned to these worlds. A simulated step is the mean push of its"
            " batch and gets no noisier if the batch is small: that flatters the gain of dapo and"
            " lilo, which train on a part of what they generate.",
            {name: presets[name] for name in presets if name in AS_PUBLISHED},
        ),
        (
            "Schedulers told more than those",
            "FADE has true loadings and rates tuned on other worlds of this kind; PACED's head"
            " reads true loadings *and true difficulties*, and is fitted online; the last knows"
            " every pass rate at the start, and learns nothing after.",
            {name: presets[name] for name in told},
        ),
        ("FADE under other utilities", "A tenth of the prompts is drawn at random.", utilities),
    ):
        if not chosen:
            continue
        uniform = presets.get("uniform")
        header = ("scheduler", "effective", "predicted", "gain - uniform's", "RMSE")
        header = (*header, "distinct", "updates")
        rows = [
            (
                name,
                brief(c["effective"]),
                brief(c["predicted"]),
                brief(np.subtract(c["gain"], uniform["gain"]).tolist()) if uniform else None,
                brief(c["rmse"]),
                brief(c["distinct"], 0),
                brief(c["updates"], 0),
            )
            for name, c in chosen.items()
        ]
        tables.append((title, note, header, rows))
    return tables


def show(content: dict[str, Any]) -> None:
    """Prints the main tables."""
    cells, labels = content["cells"], content["labels"]
    if cells.get("tracking"):
        table = _tracking_table(cells["tracking"], labels)
        run_folder.print_table("Tracking the same uniform run", *table)
    if cells.get("loops"):
        for title, header, rows in _grid_tables(cells["loops"], labels):
            run_folder.print_table(title, header, rows)
        for title, _, header, rows in _scheduler_tables(cells["loops"]):
            run_folder.print_table(title, header, rows)


def write(folder: Path, content: dict[str, Any]) -> Path:
    """Writes report.md."""
    cells, labels = content["cells"], content["labels"]
    setting = content["config"]["setting"]
    sections = [
        f"Simulated worlds of {setting['num_prompts']} prompts and {setting['num_skills']} skills;"
        f" {setting['groups']} groups of {setting['group_size']} an iteration,"
        f" {setting['iterations']} iterations, scored from iteration {setting['first_scored']};"
        f" abilities wander by {setting['drift']} logits an iteration and rise with what is trained"
        f" on. {content['config']['seeds']} worlds; brackets are 95 % t-intervals over worlds. The"
        " worlds are of the filter's own family: this shows correctness and the size of effects"
        " under ideal loadings, nothing about language models."
    ]
    if cells.get("tracking"):
        sections += _tracking(cells["tracking"], labels)
    if cells.get("filter"):
        sections += _filter(cells["filter"], cells.get("tracking", {}).get("fade"))
    if cells.get("skills"):
        sections += _skills(cells["skills"])
    if cells.get("jump"):
        sections += _jump(cells["jump"])
    if cells.get("loops"):
        sections += _loops(cells["loops"], labels)
    return run_folder.write_report(
        folder, "Ablations in simulation", sections, content["provenance"]
    )
