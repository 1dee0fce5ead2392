"""The suite's report: what pays, what to start with, and everything behind it."""

import statistics
from pathlib import Path
from typing import Any

from experiments import intervals, run_folder, when_to_factor
from experiments.suite import live_tables, pictures, tables
from experiments.suite.tables import Figures

START = ("moment rule", "K")
RATES = (
    "drift of abilities, times fitted",
    "drift of intercepts, times fitted",
    "trend of the common ability, times fitted",
)
DRIFTS = {"common_drift": RATES[0], "intercept_drift": RATES[1]}
PRIORS = (
    "prior variance of skills, times fitted",
    "prior variance of intercepts, times fitted",
    "prior mean, plus",
)
DYNAMICS = (
    "Ornstein-Uhlenbeck, retention",
    "discount factor",
    "innovation-adaptive walk, exponent",
)
SHRINKAGE = ("ridge shrinkage, rate", "Robbins-Monro, first", "staged shrinkage, factor")


def _range(gaps: list[dict[str, Any]]) -> str:
    sizes = sorted(-1000 * each["mean"] for each in gaps)
    if len(sizes) == 1:
        return f"{sizes[0]:.1f}"
    return f"{sizes[0]:.1f} to {sizes[-1]:.1f}"


def _where(word: str, gaps: list[dict[str, Any]]) -> str:
    """The places, or their number where they are many."""
    if len(gaps) > 3:
        return f"{word} in {len(gaps)}"
    places = (f"{gap['name']} {gap['protocol']}" for gap in gaps)
    sizes = (f" ({1000 * gap['mean']:.1f})" if word == "costs" else "" for gap in gaps)
    return f"{word}: " + ", ".join(map("".join, zip(places, sizes, strict=True)))


def when_it_pays(figures: Figures) -> list[str]:
    """Sentences, each from an interval: where a common ability and loadings pay, and where not."""
    lines = []
    for pair, what in tables.GAINS.items():
        found = [each for each in tables.gains(figures) if each["pair"] == pair]
        if not found:
            continue
        by_word: dict[str, list[dict[str, Any]]] = {}
        for each in found:
            by_word.setdefault(tables.verdict(each), []).append(each)
        said = [f"pays in {len(by_word.get('pays', []))} of {len(found)}"]
        if "pays" in by_word:
            said[0] += f" ({_range(by_word['pays'])})"
        for word in ("costs", "nothing shown"):
            if word in by_word:
                said.append(_where(word, by_word[word]))
        lines.append(f"* **{what[0].upper() + what[1:]}** {'; '.join(said)}.")
    when = figures.get("simulation", {}).get("when")
    if when is not None:
        for name, what in (
            ("common", "A common ability (K = 0 over a logit Kalman filter a prompt)"),
            ("skills", "True skills (over K = 0)"),
        ):
            cells = sorted(when["cells"], key=lambda cell: cell[name]["mean"])
            known = [cell for cell in cells if cell[name]["low"] is not None]
            lines.append(
                f"* In simulation, {what[0].lower() + what[1:]} pays in"
                f" {sum(cell[name]['high'] < 1 for cell in known)} of {len(cells)} worlds, costs in"
                f" {sum(cell[name]['low'] > 1 for cell in known)}: it leaves"
                f" {_left(cells[0], name)}; {_left(cells[-1], name)}."
            )
    return lines + live_tables.answers(figures)


def _left(cell: dict[str, Any], name: str) -> str:
    """What is left of the error in a simulated world."""
    return (
        f"{intervals.show(cell[name])} of the error at {cell['visits']:g} visits a prompt and a"
        f" drift of {cell['drift']:g} logits an iteration"
    )


def _at_the_edge(label: str, average: dict[str, float]) -> str:
    """Says so where the best is the largest that was tried."""
    if not all(name.isdigit() for name in average):
        return ""
    return "; it is the largest tried" if int(label) == max(map(int, average)) else ""


def what_to_start_with(figures: Figures) -> list[str]:
    """Sentences: the best moment rule and K, and the fitted rates, over the recorded runs."""
    lines = []
    for factor in START:
        for protocols, where in (
            (tables.VISITED, "on prompts that are visited, mean over runs, dense and sparse"),
            (tables.UNSEEN, "on prompts never seen before (cold)"),
        ):
            found = tables.best(figures, factor, protocols)
            if found is not None:
                label, average = found
                others = ", ".join(
                    f"{name} {1000 * (value - average[label]):+.1f}"
                    for name, value in sorted(average.items(), key=lambda item: item[1])
                    if name != label
                )
                lines.append(
                    f"* {factor[0].upper() + factor[1:]}: **{label}** has the least log loss"
                    f" {where}{_at_the_edge(label, average)} (others, thousandths of a nat behind:"
                    f" {others})."
                )
    header, rows = tables.fitted(figures)
    for name, factor in DRIFTS.items():
        values = sorted(float(row[header.index(name)]) for row in rows)
        off = {
            "three": tables.cost_of_being_off(figures, factor, ("0.3", "3")),
            "ten": tables.cost_of_being_off(figures, factor, ("0.1", "10")),
        }
        if values and all(off.values()):
            lines.append(
                f"* {name}: **fit it** (`fade_jax.tuning.fit`). {len(values)} fits say"
                f" {values[0]:.2g} to {values[-1]:.2g} logits a visit, median"
                f" {statistics.median(values):.2g}. "
                + ", ".join(
                    f"{times} times off changes log loss by {1000 * costs[0]:+.1f} to"
                    f" {1000 * costs[-1]:+.1f}"
                    for times, costs in off.items()
                )
                + " thousandths of a nat."
            )
    return lines


def _section(title: str, text: str, table: tuple[Any, Any], level: int = 2) -> list[str]:
    if not table[1]:
        return []
    return [f"{'#' * level} {title}\n\n{text}", run_folder.markdown_table(*table)]


def sections(content: dict[str, Any]) -> list[str]:
    """The report's sections."""
    figures = content["figures"]
    drawn = pictures.known(figures)
    out = []
    gains = tables.gain_rows(figures)
    if pays := when_it_pays(figures):
        out += [
            "## When does factoring ability from difficulty pay?\n\nDifferences of log loss of"
            " P(informative), thousandths of a nat a prediction, over recorded runs and how much of"
            " each is shown; *pays* and *costs* where a 95 % bootstrap interval over prompts"
            " excludes 0. One run each, so the intervals are of prompts, not of runs: what shuffled"
            " loadings seem to gain or cost is how far to trust a small difference.\n\n"
            + "\n".join(pays),
        ]
        if gains[1]:
            out.append(run_folder.markdown_table(*gains))
            out.append("Paired over prompts, 95 % intervals; **bold** pays, *italic* costs.")
        out += [drawn[name] for name in ("gains", "when") if name in drawn]
    if starts := what_to_start_with(figures):
        out += [
            "## Which moment rule, K and drift should I start with?\n\n" + "\n".join(starts),
        ]
        out += _section(
            "Fitted rates",
            "By empirical Bayes on half of the prompts; logits a visit, variances in square"
            " logits.",
            tables.fitted(figures),
            3,
        )
    if "scales" in drawn:
        out += [
            "## Two time scales\n\nThe order of the prompts lasts, their level moves: a tracker of"
            " one number a prompt pays for one with the other. Trackers are shown 25 % of the"
            " visits; each curve goes from the longest memory to the shortest.",
            drawn["scales"],
        ]
    out += _section(
        "Every tracker on every recorded run",
        "Log loss of P(informative) before each visit, and its calibration error. *Sparse*: 10 % of"
        " each step's visits shown, the others predicted; *cold*: half of the prompts never shown,"
        " and predicted.",
        tables.trackers(figures),
    )
    when = figures.get("simulation", {}).get("when")
    if when is not None:
        out += _section(
            "In simulation: drift and visits",
            f"RMSE of E[p], {when['seeds']} worlds a cell, trackers tuned on others; brackets are"
            " 95 % t-intervals over worlds.",
            (when_to_factor.HEADER, when_to_factor.rows(when)),
        )
    titles = {
        "The filter's moment rule and K": START,
        "Drift": RATES,
        "Priors": PRIORS,
        "Other dynamics": DYNAMICS,
        "Other shrinkage of intercepts": SHRINKAGE,
    }
    text = (
        "Log loss minus the fitted filter's, thousandths of a nat, dense / sparse / cold; a star"
        " where the 95 % interval excludes 0. Moment rules and K are fitted anew. An intercept's"
        " variance never grows beyond the prior's, so larger drifts of it come to the same."
    )
    if "parts" in drawn:
        out.append(drawn["parts"])
    for title, factors in titles.items():
        out += _section(title, text, tables.factor_rows(figures, factors))
        text = "As above."
    ablation = figures.get("simulation", {}).get("ablation")
    if ablation is not None:
        out += _section(
            "The filter's parts in simulation",
            f"Error of E[p] on the same uniform run of {ablation['worlds']} simulated worlds, where"
            " the best rates are known; a star where the 95 % t-interval of the paired difference"
            " over worlds excludes 0.",
            tables.simulated(figures),
        )
    out += _section(
        "Whom would they choose?",
        "Informative share of the tenth of each visit's prompts that a tracker's P(informative)"
        " ranks first, before the visit.",
        tables.chosen(figures, "P(informative)"),
    )
    if tables.of_kind(figures, "histories", "parts"):
        out += _section(
            "By which utility?", "The same for FADE.", tables.utilities(figures, "fade"), 3
        )
    steps = figures.get("overhead", {}).get("trackers")
    if steps is not None:
        from experiments.benchmarks import tracker_step

        out += _section(
            "What a step costs",
            "Milliseconds to age, absorb 128 groups and score the pool, one compiled step on CPU;"
            " median and quartiles.",
            (tracker_step.header(steps), tracker_step.rows_of(steps)),
        )
    text = (
        "Both methods' ablations, at equal rollouts; means over seeds with 95 % t-intervals."
        " *Effective*: share of the generated groups that were informative. Validation pass rates"
        " are on held-out prompts. Gaps are paired over seeds, **bold** where their interval"
        " excludes 0: of a whole method to uniform choice, of an ablation to the whole method."
    )
    for policy, found in live_tables.by_policy(figures).items():
        out += _section(
            "In training" if policy == "tiny" else f"In training: {policy}",
            text,
            live_tables.rows(found),
        )
        out += [drawn[name] for name in [pictures.live_name(policy)] if name in drawn]
        text = "As above."
    out += _section(
        "The runs",
        "One line each; a plus: with changes beside that commit.",
        tables.states(content["runs"]),
    )
    return out


def write(folder: Path, content: dict[str, Any]) -> Path:
    """Writes report.md from what results.json holds."""
    title = "The suite, in small: what it looks like" if content["config"]["quick"] else "The suite"
    return run_folder.write_report(folder, title, sections(content), content["provenance"])


def show(content: dict[str, Any]) -> None:
    """Prints the answers and the state of the runs."""
    figures = content["figures"]
    for line in [*when_it_pays(figures), *what_to_start_with(figures)]:
        run_folder.console.print(line.replace("**", ""), markup=False, highlight=False)
    run_folder.print_table("runs", *tables.states(content["runs"]))
