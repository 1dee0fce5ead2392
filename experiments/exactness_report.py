"""Tables and figures of `verify_exactness`."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from rich.markup import escape

from experiments import figures
from experiments.exactness_checks import Result
from experiments.run_folder import markdown_table, print_table, write_report

SECTIONS = (
    "identities",
    "one_dimensional",
    "known_difficulties",
    "unknown_difficulties",
    "saturation",
)

NOT_KEPT = "**Some limits were not kept**, see Claims."

Table = tuple[str, tuple[str, ...], list[list[Any]]]


def tables(results: dict[str, Result]) -> list[tuple[Table, str]]:
    """All tables with the words that go above them."""
    makers = (_identities, _one_dimensional, _known, _unknown, _saturation)
    made = [
        entry
        for name, make in zip(SECTIONS, makers, strict=True)
        if name in results
        for entry in make(results)
    ]
    return [(_checks(results), "Every claim, its limit, and whether it held."), *made]


def show(results: dict[str, Result]) -> None:
    """Prints all tables."""
    first, *others = tables(results)
    for (title, header, rows), _ in [*others, first]:
        # "E[p]" would be read as markup.
        safe = [[escape(x) if isinstance(x, str) else x for x in row] for row in rows]
        print_table(title, header, safe)


def verdict(results: dict[str, Any]) -> str:
    """Whether every limit was kept, in words."""
    return "Every limit was kept." if results["held"] else NOT_KEPT


def write(folder: Path, content: dict[str, Any]) -> Path:
    """Writes report.md of what results.json holds: all tables, then the figures."""
    written = [f"## {t[0]}\n\n{words}\n\n{markdown_table(*t[1:])}" for t, words in tables(content)]
    written += [f"![{Path(name).stem}]({name})" for name in _figures(content)]
    return write_report(
        folder, "How exact the filter is", [verdict(content), *written], content["provenance"]
    )


def _checks(results: dict[str, Result]) -> Table:
    rows = [
        [section, c["name"], _measured(c["value"]), c["limit"], "yes" if c["held"] else "NO"]
        for section in SECTIONS
        if section in results
        for c in results[section]["checks"]
    ]
    return "Claims", ("section", "what", "measured", "limit", "held"), rows


def _measured(value: float | None) -> float | str:
    """JSON has no infinity: a method that breaks down leaves nothing to compare with."""
    return "not finite" if value is None or not np.isfinite(value) else value


def _identities(results: dict[str, Result]) -> list[tuple[Table, str]]:
    rows = [[r["identity"], r["difference"]] for r in results["identities"]["rows"]]
    words = "Largest relative difference in float64, given the same omega."
    return [
        (("Exact: one Gaussian step, reached two ways", ("identity", "difference"), rows), words)
    ]


def _one_dimensional(results: dict[str, Result]) -> list[tuple[Table, str]]:
    header = ("case", "quantity", "quadrature", "NUTS", "MCSE", "Gibbs", "MCSE")
    keys = ("quadrature", "NUTS", "NUTS MCSE", "Gibbs", "Gibbs MCSE")
    rows = [
        [r["case"], r["quantity"], *(_digits(r.get(key)) for key in keys)]
        for r in results["one_dimensional"]["rows"]
    ]
    words = (
        "One prompt whose logit has prior N(0, 1). Gibbs draws come from the filter's own update "
        "with sampled Pólya-Gamma variables, the logit split into ability minus difficulty."
    )
    return [(("Exact in distribution: one count", header, rows), words)]


def _digits(value: float | None) -> str | None:
    return None if value is None else f"{value:.6f}"


def _known(results: dict[str, Result]) -> list[tuple[Table, str]]:
    rows = results["known_difficulties"]["rows"]
    made = []
    for place, world in enumerate(_distinct([r["world"] for r in rows])):
        here = [r for r in rows if r["world"] == world]
        header = ("rule", "mean", "99 %", "max", "var ratio", "min", "max", "first step")
        body = [
            [r["rule"]]
            + [r[f"distance_{k}"] for k in ("mean", "p99", "max")]
            + [r[f"ratio_{k}"] for k in ("mean", "min", "max")]
            + [r["first_step_mean"]]
            for r in here
        ]
        title = (
            f"Rules against the exact filter: B = {world['batch']}, drift {world['drift']:g}, "
            f"prior variance {world['ability_sd'] ** 2:.3g}"
        )
        words = (
            "Difficulties known, two abilities, G = 8. Distance of the means in posterior standard "
            "deviations (Mahalanobis) from step 6 on: mean, 99th percentile and largest over all "
            "runs; eigenvalues of the covariance seen from the exact one; mean distance after the "
            "first step, from the widest prior. "
        )
        words += (
            "This world is held to limits."
            if place == 0
            else "Harder, and not held to limits: the largest distances come from single runs far "
            "from the prior mean, where `adf` has yet to forget its first, widest steps; the "
            "sweeps of `ep` correct them."
        )
        if any(r["noted"] for r in here):
            header += ("noted: mean / max / ratio / min",)
            body = [[*cells, _noted(r["noted"])] for cells, r in zip(body, here, strict=True)]
            words += " Noted: by other code on a world of the same kind, before this was written."
        made.append(((title, header, body), words))
    return made


def _noted(values: tuple[float | None, ...] | None) -> str | None:
    if values is None:
        return None
    return " / ".join("–" if x is None else f"{x:g}" for x in values)


def _distinct(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [x for i, x in enumerate(items) if x not in items[:i]]


def _unknown(results: dict[str, Result]) -> list[tuple[Table, str]]:
    result = results["unknown_difficulties"]
    header = ("filter", "rule", "mean", "max", "sd ratio", "min", "max", "E[p] mean", "max")
    keys = ("distance_mean", "distance_max", "sd_ratio_mean", "sd_ratio_min", "sd_ratio_max")
    keys += ("pass_rate_gap_mean", "pass_rate_gap_max")
    rows = [[r["filter"], r["rule"], *(r[key] for key in keys)] for r in result["rows"]]
    words = (
        f"{result['world']['prompts']} prompts, all visited at every step, difficulties with prior "
        "sd 2: a hard case for forgetting how errors about ability and difficulty hang together. "
        "Ability after the last step against NUTS: distance in posterior standard deviations, and "
        "sd by sd; then how far expected pass rates of the prompts are off. `factored` is the "
        "filter as it is used, `joint` keeps every cross-covariance and must agree within .05 sd "
        "beside four standard errors of NUTS. Monte Carlo error of the truth: "
        f"{result['mcse_mean_in_sd']:.3f} sd in a mean, {result['mcse_sd_in_sd']:.3f} in an sd, "
        f"{result['mcse_pass_rate']:.4f} in a pass rate."
    )
    return [(("Unknown difficulties, repeated visits", header, rows), words)]


def _saturation(results: dict[str, Result]) -> list[tuple[Table, str]]:
    result = results["saturation"]
    drifts = sorted({r["drift"] for r in result["rows"]})
    names = [r["method"] for r in result["rows"] if r["drift"] == drifts[0]]
    cells = {(r["method"], r["drift"]): r for r in result["rows"]}
    header = ("method", *(f"drift sd {d:.4g}" for d in drifts), *("above grid",) * len(drifts))
    noted = any(r["noted"] for r in result["rows"])
    rows = [
        [name]
        + [_finite(cells[name, d]["nll"], ".4f") for d in drifts]
        + [_finite(cells[name, d]["excess"], "+.4f") for d in drifts]
        + ([_noted(tuple(cells[name, d]["noted"] for d in drifts))] if noted else [])
        for name in names
    ]
    worlds = len(cells[names[0], drifts[0]]["nll_seeds"])
    words = (
        f"Independent random walks on the logit, mean of {worlds} simulated worlds; negative log "
        "probability of each count under the method's prediction, by one function for all methods. "
        "The noted figures are one other draw of the world: compare differences. Peers: "
        + (", ".join(result["peers"]) or "none installed")
        + "."
    )
    if noted:
        header += ("noted",)
    return [(("Saturation: nats per step", header, rows), words)]


def _finite(value: float | None, form: str) -> str:
    return f"{value:{form}}" if value is not None and np.isfinite(value) else "NaN"


def _figures(results: dict[str, Any]) -> list[str]:
    """Names of the figures that there is something to draw for."""
    gaps = {"known_difficulties", "unknown_difficulties"} & set(results)
    return ["gaps.png"] * bool(gaps) + ["saturation.png"] * ("saturation" in results)


def draw(results: dict[str, Result], folder: Path) -> None:
    """Draws what there is to draw."""
    figures.style()
    makers = {"gaps.png": _draw_gaps, "saturation.png": _draw_saturation}
    for name in _figures(results):
        makers[name](results, folder / name)


def _draw_gaps(results: dict[str, Result], path: Path) -> Path:
    widths = {"known_difficulties": 5.5, "unknown_difficulties": 4.1}
    there = [width for name, width in widths.items() if name in results]
    figure, axes = plt.subplots(
        1, len(there), figsize=(sum(there), 3.9), width_ratios=there, squeeze=False
    )
    left, right = axes[0, 0], axes[0, -1]
    if "known_difficulties" in results:
        rows = [r for r in results["known_difficulties"]["rows"] if "distance_quantiles" in r]
        for i, row in enumerate(rows):
            low, *_, high = row["distance_quantiles"]
            style = {"color": figures.COLOURS[3 if row["rule"] == "adf" else 0]}
            left.plot([low, high], [i, i], lw=5, alpha=0.35, solid_capstyle="butt", **style)
            left.plot(row["distance_mean"], i, "o", ms=6, **style)
            left.plot(row["distance_max"], i, "|", ms=12, mew=2.2, **style)
        left.axvline(0.05, color="k", lw=1, ls="--")
        left.axvline(0.3, color="k", lw=1, ls=":")
        top = left.get_xaxis_transform()
        for x, words in ((0.05, "mean ≤ .05"), (0.3, "max ≤ .3")):
            left.text(x, 1.01, words, transform=top, ha="center", va="bottom", fontsize=8)
        left.set(xscale="log", xlabel="distance from the exact mean, posterior sd")
        left.set_yticks(range(len(rows)), [r["rule"] for r in rows])
        left.invert_yaxis()
        left.set_title(
            "Difficulties known\n(● mean, ▬ 5–95 %, | largest; limits are of adf)", pad=16
        )
    if "unknown_difficulties" in results:
        rows = results["unknown_difficulties"]["rows"]
        names = list(dict.fromkeys(r["rule"] for r in rows))
        for k, kind in enumerate(("factored", "joint")):
            here = [r for r in rows if r["filter"] == kind]
            middle = np.array([r["sd_ratio_mean"] for r in here])
            ends = np.array([[r["sd_ratio_min"], r["sd_ratio_max"]] for r in here]).T
            right.errorbar(
                middle,
                np.arange(len(here)) + 0.3 * k - 0.15,
                xerr=np.abs(ends - middle),
                fmt=figures.MARKERS[k],
                color=figures.COLOURS[k],
                label=kind,
                capsize=2,
            )
        right.axvline(1, color="k", lw=1)
        right.set_yticks(range(len(names)), names)
        right.invert_yaxis()
        right.set(xlabel="sd of the ability / exact sd", xlim=(0, 1.25))
        right.set_title("Difficulties unknown\n(8 prompts, seen at every step)", pad=16)
        right.legend(loc="upper center", bbox_to_anchor=(0.62, 1.0))
    return figures.save(figure, path)


def _draw_saturation(results: dict[str, Result], path: Path) -> Path:
    result = results["saturation"]
    figure, axes = plt.subplots(figsize=(7.0, 3.9))
    drifts = sorted({r["drift"] for r in result["rows"]})
    names = dict.fromkeys(r["method"] for r in result["rows"] if r["method"] != "grid")
    for i, name in enumerate(names):
        rows = [r for r in result["rows"] if r["method"] == name and np.isfinite(r["excess"])]
        broken = "" if len(rows) == len(drifts) else " (then NaN)"
        axes.plot(
            [r["drift"] for r in rows],
            [max(r["excess"], 1e-5) for r in rows],
            marker=figures.MARKERS[i % len(figures.MARKERS)],
            color="k" if name == "adf" else figures.COLOURS[i % 6],
            lw=3 if name == "adf" else 1.5,
            ls="--" if name in result["peers"] else "-",
            label=name + broken,
        )
    axes.axhline(0.0012, color="k", lw=1, ls=":")
    axes.text(1.0, 0.0012, "limit of adf ", va="bottom", ha="right", fontsize=8)
    axes.set(yscale="log", xlabel="drift, sd per step (logits)")
    axes.set_ylabel("nats per step above the exact filter")
    axes.set_title("Where pass rates saturate" + (" (dashed: peers)" if result["peers"] else ""))
    figure.legend(loc="outside right center")
    return figures.save(figure, path)
