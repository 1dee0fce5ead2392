"""Figures of the suite that are not in its results as such."""

from typing import Any

from experiments.measured import Results, figure
from experiments.suite import live_tables, tables


@figure
def factoring(results: Results) -> dict[str, Any]:
    """What a common ability and true skills leave of the error, in simulation: visits, drift."""
    found: dict[str, Any] = {"common": {}, "skills": {}}
    for cell in results["suite"]["figures"]["simulation"]["when"]["cells"]:
        for name, by_visits in found.items():
            visits = by_visits.setdefault(f"{cell['visits']:g}", {})
            visits[f"drift {cell['drift']:g}"] = cell[name]
    return found


@figure
def suite_gains(results: Results) -> dict[str, Any]:
    """Gains in log loss on recorded runs, thousandths of a nat: run, shown, better tracker."""
    found: dict[str, Any] = {}
    for each in tables.gains(results["suite"]["figures"]):
        gain = {"mean": -1000 * each["mean"]}
        gain |= {"low": -1000 * each["high"], "high": -1000 * each["low"]}
        found.setdefault(each["run"], {}).setdefault(each["protocol"], {})[each["pair"][0]] = gain
    return found


@figure
def suite_start(results: Results) -> dict[str, Any]:
    """Moment rules and numbers of loadings: the best, and how far others are behind it.

    Returns:
        By factor, `unseen` beside it for prompts never seen: best; behind, by label, thousandths of
        a nat.
    """
    found: dict[str, Any] = {}
    for factor in ("moment rule", "K"):
        for name, protocols in ((factor, tables.VISITED), (f"{factor}, unseen", tables.UNSEEN)):
            best = tables.best(results["suite"]["figures"], factor, protocols)
            if best is not None:
                label, means = best
                behind = {each: 1000 * (mean - means[label]) for each, mean in means.items()}
                found[name] = {"best": label, "behind": behind}
    return found


@figure
def suite_order_kept(results: Results) -> dict[str, Any]:
    """Correlation of pass rates at the longest lag looked at, and that lag, by recorded run."""
    found = {}
    scales = tables.of_kind(results["suite"]["figures"], "histories", "scales")
    for run, each in scales.items():
        order, moved = each["run"]["order_kept"], each["run"]["level_moved"]
        found[run] = {"lag": each["run"]["lag"][-1], "kept": order[-1], "moved": moved[-1]}
    return found


@figure
def suite_chosen(results: Results) -> dict[str, Any]:
    """Informative share of the tenth that trackers would choose: run, shown, tracker; `all`."""
    found: dict[str, Any] = {}
    parts = tables.of_kind(results["suite"]["figures"], "histories", "parts")
    for run, each in parts.items():
        for i, entry in enumerate(each["informative_share"]):
            shares = {
                name: rows[i]["informative"]["P(informative)"]
                for name, rows in each["chosen"].items()
            }
            shown = tables.protocol_name(entry)
            found.setdefault(run, {})[shown] = shares | {"all": entry["share"]}
    return found


@figure
def suite_live(results: Results) -> dict[str, Any]:
    """In training: effective groups, validation, and their paired gaps to what a method changes."""
    found = live_tables.by_policy(results["suite"]["figures"])["tiny"]
    names = {"effective": "informative_realised", "validation": "validation_mean"}
    out: dict[str, Any] = {}
    for method, each in found.items():
        out[method] = {name: each["figures"][key] for name, key in names.items()}
        base = live_tables.base_of(method)
        out[method]["rollouts"] = each["figures"]["rollouts"]["mean"]
        gaps = base and live_tables.gaps(found, method, base, tuple(names.values()))
        if gaps:
            out[method] |= {f"{name}_gap": gap for name, gap in zip(names, gaps, strict=True)}
    return out


@figure
def suite_step(results: Results) -> dict[str, Any]:
    """Milliseconds of a tracker's step, median: pool size, tracker."""
    by_size = results["suite"]["figures"]["overhead"]["trackers"]["steps"]
    return {
        size: {"prompts": int(size)} | {name: found["median"] for name, found in steps.items()}
        for size, steps in by_size.items()
    }
