"""Tables of the suite's report, each from what results.json holds."""

from typing import Any

from experiments import intervals

Row = tuple[str, ...]
Figures = dict[str, Any]

RUNS = ("real", "tiny", "base")
"""Recorded runs by the last word of a job's name, in the order of the tables."""

VISITED, UNSEEN = ("dense", "sparse"), ("cold",)
"""Protocols: predictions of prompts that are visited, and of prompts never seen before."""

NAMES = {
    "acc_step_500.json": "Qwen2.5-Math-1.5B (public)",
    "tiny_uniform.npz": "tiny (ours)",
    "base_uniform.npz": "base (ours)",
}
"""Recorded runs for people, by their files; others are called by theirs."""

GAINS = {
    ("fade_k0", "logit_kalman"): "a common ability: K = 0 over a logit Kalman filter a prompt",
    ("fade", "fade_k0"): "text loadings over K = 0",
    ("fade_tags", "fade_k0"): "tags (sources) over K = 0",
    ("fade_shuffled", "fade_k0"): "shuffled loadings over K = 0 (control)",
}
"""Differences that the report tells: (tracker, rival)."""


def of_kind(figures: Figures, part: str, kind: str) -> dict[str, Any]:
    """Figures of the runs of a kind, by the rest of their names, in the order of RUNS."""
    found = {
        name.partition("_")[2]: value
        for name, value in figures.get(part, {}).items()
        if name.startswith(f"{kind}_")
    }
    order = [name for name in RUNS if name in found]
    return {name: found[name] for name in [*order, *sorted(set(found) - set(order))]}


def run_names(figures: Figures) -> dict[str, str]:
    """Recorded runs for people, by the last word of their jobs' names."""
    names = {}
    for job, found in figures.get("histories", {}).items():
        source = found["history"]["source"]
        names[job.partition("_")[2]] = NAMES.get(source, source)
    return names


def protocol_name(entry: dict[str, Any]) -> str:
    """dense; sparse or cold with the share shown."""
    if entry["protocol"] == "dense":
        return "dense"
    return f"{entry['protocol']} {100 * entry['observed']:.0f} %"


def states(runs: dict[str, Any]) -> tuple[Row, list[Row]]:
    """Every run and what has become of it."""
    rows = []
    for part, each in runs.items():
        for name, state in each.items():
            seconds = state.get("seconds")
            said = state["state"].upper() if state["state"] == "crashed" else state["state"]
            rollouts = state.get("rollouts_realised")
            rows.append(
                (
                    part,
                    name,
                    said + (f": {state['last_line']}" if state.get("last_line") else ""),
                    "–" if seconds is None else f"{seconds / 60:.1f}",
                    "–" if rollouts is None else _rollouts(rollouts),
                    _commit(state.get("commit")),
                )
            )
    return ("part", "run", "state", "minutes", "rollouts x seeds", "commit"), rows


def _commit(commit: str | None) -> str:
    if commit is None:
        return "–"
    return commit[:7] + ("+" if " " in commit else "")


def _rollouts(realised: list[float]) -> str:
    if len(set(realised)) == 1:
        return f"{realised[0]:,.0f} x {len(realised)}"
    return "UNEQUAL: " + ", ".join(f"{each:,.0f}" for each in realised)


def trackers(figures: Figures) -> tuple[Row, list[Row]]:
    """Log loss (and ECE) of every tracker on every recorded run."""
    replays = of_kind(figures, "histories", "replay")
    columns: list[tuple[str, str]] = []
    cells: dict[str, dict[tuple[str, str], str]] = {}
    labels: dict[str, str] = {}
    order: dict[str, float] = {}
    for run, found in replays.items():
        labels |= found["labels"]
        for row in found["rows"]:
            if row["protocol"] == "sparse" and row["observed"] != 0.1:
                continue
            column = (run, protocol_name(row))
            if column not in columns:
                columns.append(column)
            cells.setdefault(row["tracker"], {})[column] = (
                f"{row['log_loss']:.4f} ({row['ece']:.3f})"
            )
            if column == columns[0]:
                order[row["tracker"]] = row["log_loss"]
    called = run_names(figures)
    header = ("tracker", *(f"{called[run]}, {protocol}" for run, protocol in columns))
    rows = [
        (labels[name], *(cells[name].get(column, "–") for column in columns))
        for name in sorted(cells, key=lambda name: order.get(name, 99.0))
    ]
    return header, rows


def gains(figures: Figures) -> list[dict[str, Any]]:
    """Log loss differences of GAINS by run and protocol, nats a prediction."""
    found, called = [], run_names(figures)
    for run, replay in of_kind(figures, "histories", "replay").items():
        for each in replay["comparisons"]:
            pair = (each["tracker"], each["rival"])
            if pair in GAINS:
                found.append(
                    {
                        "run": run,
                        "name": called[run],
                        "protocol": protocol_name(each),
                        "pair": pair,
                        "mean": each["log_loss_difference"],
                        "low": each["low"],
                        "high": each["high"],
                    }
                )
    return found


def verdict(gap: dict[str, Any]) -> str:
    """What an interval of a loss difference says."""
    if gap["high"] < 0:
        return "pays"
    return "costs" if gap["low"] > 0 else "nothing shown"


def gain_rows(figures: Figures) -> tuple[Row, list[Row]]:
    """Gains in thousandths of a nat, a column a protocol; bold pays, italic costs."""
    found = gains(figures)
    columns = list(dict.fromkeys(each["protocol"] for each in found))
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for each in sorted(found, key=lambda each: list(GAINS).index(each["pair"])):
        said = "{:+.1f} ({:+.1f} to {:+.1f})".format(
            *(1000 * each[key] for key in ("mean", "low", "high"))
        )
        mark = {"pays": "**", "costs": "*"}.get(verdict(each), "")
        row = cells.setdefault((GAINS[each["pair"]], each["name"]), {})
        row[each["protocol"]] = f"{mark}{said}{mark}"
    rows = [(*names, *(row.get(name, "–") for name in columns)) for names, row in cells.items()]
    return ("what", "run", *columns), rows


def factor_rows(figures: Figures, factors: tuple[str, ...]) -> tuple[Row, list[Row]]:
    """Variants of some factors: thousandths of a nat over the fitted filter, by protocol."""
    parts = of_kind(figures, "histories", "parts")
    keys: list[tuple[str, str]] = []
    for found in parts.values():
        for row in found["variants"].values():
            key = (row["factor"], row["label"])
            if row["factor"] in factors and key not in keys:
                keys.append(key)
    rows = []
    for factor, label in keys:
        cells = [factor, label]
        for found in parts.values():
            row = found["variants"].get(f"{factor}: {label}")
            cells.append(
                "–"
                if row is None
                else " / ".join(_starred(f["minus_fitted"]) for f in row["figures"])
            )
        rows.append(tuple(cells))
    called = run_names(figures)
    header = (
        *("changed", "to"),
        *(f"{called[run]}: dense / sparse / cold" for run in parts),
    )
    return header, rows


def _starred(gap: dict[str, Any]) -> str:
    """A difference in thousandths, with a star where its interval excludes 0."""
    return f"{1000 * gap['mean']:+.1f}" + ("*" if intervals.excludes_zero(gap) else "")


def simulated(figures: Figures) -> tuple[Row, list[Row]]:
    """Every variant of the filter in simulation: RMSE over the tuned filter's; K by its RMSE."""
    ablation = figures.get("simulation", {}).get("ablation", {})
    rows: list[Row] = [
        ("K, tuned anew", name.removeprefix("K = "), "–", intervals.show(each["rmse"]))
        for name, each in ablation.get("skills", {}).items()
    ]
    for each in ablation.get("variants", {}).values():
        gap = each["minus_tuned"]
        if gap is not None:
            rows.append((each["factor"], each["label"], _starred(gap), "–"))
    return ("changed", "to", "RMSE minus tuned, thousandths", "RMSE"), rows


def best(
    figures: Figures, factor: str, protocols: tuple[str, ...] = VISITED
) -> tuple[str, dict[str, float]] | None:
    """The choice of a factor with the least mean log loss over runs and protocols.

    Args:
        figures: of the suite.
        factor: what is chosen.
        protocols: VISITED or UNSEEN.

    Returns:
        (label, mean difference from the fitted filter in nats by label); None if unknown.
    """
    means = _minus_fitted(figures, factor, protocols)
    if len(means) < 2:
        return None
    average = {label: sum(values) / len(values) for label, values in means.items()}
    return min(average, key=lambda label: average[label]), average


def cost_of_being_off(figures: Figures, factor: str, labels: tuple[str, ...]) -> list[float]:
    """What variants of a factor cost on prompts that are visited, nats, in order."""
    found = _minus_fitted(figures, factor, VISITED)
    return sorted(cost for label in labels for cost in found.get(label, ()))


def _minus_fitted(
    figures: Figures, factor: str, protocols: tuple[str, ...]
) -> dict[str, list[float]]:
    """Log loss of a factor's variants minus the fitted filter's, by label."""
    found: dict[str, list[float]] = {}
    for run in of_kind(figures, "histories", "parts").values():
        for row in run["variants"].values():
            if row["factor"] == factor:
                found.setdefault(row["label"], []).extend(
                    each["minus_fitted"]["mean"]
                    for each in row["figures"]
                    if each["protocol"] in protocols
                )
    return found


def chosen(figures: Figures, utility: str) -> tuple[Row, list[Row]]:
    """Informative share of the tenth each tracker would have chosen, by run and protocol."""
    parts = of_kind(figures, "histories", "parts")
    columns = _columns(parts, run_names(figures))
    if not parts:
        return ("tracker",), []
    names: dict[str, str] = {}
    for found in parts.values():
        names |= {name: found["labels"][name] for name in found["chosen"]}
    rows = []
    for name, label in names.items():
        cells = [label]
        for run, i in columns:
            each = parts[run]["chosen"].get(name)
            cells.append("–" if each is None else f"{each[i]['informative'][utility]:.3f}")
        rows.append(tuple(cells))
    shares = (parts[run]["informative_share"][i]["share"] for run, i in columns)
    rows.sort(key=lambda row: row[1], reverse=True)
    everyone = ("(all groups)", *(f"{share:.3f}" for share in shares))
    return ("tracker", *columns.values()), [*rows, everyone]


def _columns(parts: dict[str, Any], called: dict[str, str]) -> dict[tuple[str, int], str]:
    """Every run and protocol of `parts` jobs, with its name for people."""
    return {
        (run, i): f"{called[run]}, {protocol_name(entry)}"
        for run, found in parts.items()
        for i, entry in enumerate(found["informative_share"])
    }


def utilities(figures: Figures, tracker: str) -> tuple[Row, list[Row]]:
    """The same for one tracker, by what it ranks prompts by."""
    parts = of_kind(figures, "histories", "parts")
    columns = _columns(parts, run_names(figures))
    known = {run: found["chosen"][tracker] for run, found in parts.items()}
    names = list(next(iter(known.values()))[0]["informative"]) if known else []
    rows = [
        (name, *(f"{known[run][i]['informative'][name]:.3f}" for run, i in columns))
        for name in names
    ]
    return ("ranked by", *columns.values()), rows


def fitted(figures: Figures) -> tuple[Row, list[Row]]:
    """Fitted rates of FADE on every run, both halves."""
    names = (
        *("common_drift", "skill_drift", "intercept_drift"),
        *("common_trend", "skill_var", "intercept_var", "common_mean"),
    )
    rows, called = [], run_names(figures)
    for run, replay in of_kind(figures, "histories", "replay").items():
        for tracker in ("fade_k0", "fade"):
            for half, params in replay["fits"].get(tracker, {}).items():
                rows.append(
                    (
                        called[run],
                        f"{replay['labels'][tracker]}, {half} half",
                        *(
                            "–"  # K = 0 has no skills; what the file holds was not fitted
                            if tracker == "fade_k0" and name.startswith("skill_")
                            else f"{params[name]:.3g}"
                            for name in names
                        ),
                    )
                )
    return ("run", "tracker", *names), rows
