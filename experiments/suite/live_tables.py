"""What the suite's report tells of training: both methods' ablations, a table a policy."""

from typing import Any

from experiments import intervals
from experiments.suite.tables import Figures, Row

Found = dict[str, dict[str, Any]]
"""Figures of a policy's runs, by method."""

SHOWN = ("informative_realised", "validation_mean", "validation_end")

ANSWERS = (
    ("fade_k0", "mopps", "a common ability (K = 0 over a discounted Beta a prompt)"),
    ("fade_thompson", "fade_k0", "text loadings (over K = 0)"),
    ("fade_thompson", "fade_shuffled", "the right loadings (over shuffled ones)"),
)
"""What the report answers from training: (method, rival, what the first has)."""


def by_policy(figures: Figures) -> dict[str, Found]:
    """The training runs of each policy by method; policies are never compared."""
    found: dict[str, Found] = {}
    for each in figures.get("live", {}).values():
        found.setdefault(each["policy"], {})[each["method"]] = each
    return found


def base_of(method: str) -> str | None:
    """What a method is held against: uniform, or the method that it changes one part of."""
    if method == "uniform":
        return None
    for whole in ("fade_thompson", "paced"):
        if method != whole and method.startswith(whole.partition("_")[0] + "_"):
            return whole
    return "uniform"


def gaps(
    found: Found, method: str, base: str, names: tuple[str, ...]
) -> list[dict[str, Any]] | None:
    """Intervals of paired differences over seeds.

    Args:
        found: runs of a policy.
        method: what is compared.
        base: to what.
        names: of the figures.

    Returns:
        An interval a figure; None where one of both is not there, or where seeds or rollouts are
        not the same.
    """
    if base not in found or method not in found:
        return None
    one, other = found[method], found[base]
    if one["seeds"] != other["seeds"] or realised(one) != realised(other):
        return None
    values = [[each["figures"][name]["values"] for name in names] for each in (one, other)]
    return [
        intervals.of([a - b for a, b in zip(*pair, strict=True)])
        for pair in zip(*values, strict=True)
    ]


def realised(each: dict[str, Any]) -> list[float]:
    """Rollouts that a run generated, a seed each."""
    return each["figures"]["rollouts"]["values"]


def rows(found: Found) -> tuple[Row, list[Row]]:
    """Each method of a policy, and its paired gap to its base."""
    table = []
    bases = (None, "uniform", "fade_thompson", "paced")
    for method in sorted(found, key=lambda name: (bases.index(base_of(name)), name)):
        base = base_of(method)
        cells = [method]
        cells += [intervals.show(found[method]["figures"][name]) for name in SHOWN]
        cells.append(f"{found[method]['figures']['distinct_prompts']['mean']:,.0f}")
        known = None if base is None else gaps(found, method, base, SHOWN[:2])
        cells += ["–", "–", "–"] if known is None else [str(base), *map(_signed, known)]
        table.append(tuple(cells))
    header = (
        *("method", "effective", "validation, mean", "validation, end", "distinct prompts"),
        *("against", "effective, gap", "validation mean, gap"),
    )
    return header, table


def answers(figures: Figures) -> list[str]:
    """Sentences, each from two intervals: what factoring gains in training."""
    lines = []
    for policy, found in by_policy(figures).items():
        for method, rival, what in ANSWERS:
            known = gaps(found, method, rival, SHOWN[:2])
            if known is None or known[0]["low"] is None:
                continue
            said = [
                f"{_word(gap)} {name} ({_signed(gap).strip('*')})"
                for gap, name in zip(
                    known, ("effective groups", "validation pass rate"), strict=True
                )
            ]
            seeds = len(found[method]["seeds"])
            lines.append(
                f"* In training (`{policy}`, {seeds} seeds), {what}: {said[0]}; {said[1]}."
            )
    return lines


def _word(gap: dict[str, Any]) -> str:
    if gap["low"] > 0:
        return "**more**"
    return "**less**" if gap["high"] < 0 else "nothing shown in"


def _signed(gap: dict[str, Any]) -> str:
    if gap["low"] is None:
        return f"{gap['mean']:+.3f}"
    said = f"{gap['mean']:+.3f} ({gap['low']:+.3f} to {gap['high']:+.3f})"
    return f"**{said}**" if intervals.excludes_zero(gap) else said
