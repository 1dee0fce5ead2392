"""What `history_ablation` changes in the fitted filter, one thing at a time."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from experiments.replay_contenders import RULES, Contender, Params, Pool, fade_contender
from fade_jax import dynamics, shrinkage, utility

SKILL_COUNTS = (0, 4, 16, 32)


class Variant(NamedTuple):
    """The fitted filter with one thing changed.

    Attributes:
        factor: what is changed, for example "moment rule".
        label: to what.
        contender: the filter; its `start` is where a fit of its own begins.
        change: `fitted parameters -> parameters`; None where the variant is fitted itself.
        program: variants of the same one differ in parameters alone, and compile once.
    """

    factor: str
    label: str
    contender: Contender
    change: Callable[[Params], Params] | None
    program: str


def variants(loadings: str) -> dict[str, Variant]:
    """Every variant by name.

    Moment rules and numbers of loadings are fitted themselves, since each has its own best rates;
    everything else keeps the fitted filter's other parameters.

    Args:
        loadings: kind that the fitted filter has, "text" or "constant".
    """
    table: dict[str, Variant] = {}
    plain = fade_contender("FADE", loadings)

    def add(factor: str, label: str, contender: Contender, change: Any, program: str) -> None:
        table[f"{factor}: {label}"] = Variant(factor, label, contender, change, program)

    for label, rule in RULES.items():
        contender = fade_contender(label, loadings, rule=rule)
        add("moment rule", label, contender, None, f"rule {label}")
    if loadings == "text":
        for count in SKILL_COUNTS:
            kind = f"text {count}" if count else "constant"
            add("K", f"{count}", fade_contender(f"K = {count}", kind), None, kind)
    scales = {
        "drift of abilities, times fitted": ("common_drift", "skill_drift"),
        "drift of intercepts, times fitted": ("intercept_drift",),
        "prior variance of skills, times fitted": ("skill_var",),
        "prior variance of intercepts, times fitted": ("intercept_var",),
        "trend of the common ability, times fitted": ("common_trend",),
    }
    for factor, names in scales.items():
        if loadings == "constant" and names == ("skill_var",):
            continue
        values = (0.0, 1.0) if names == ("common_trend",) else (0.1, 0.3, 1.0, 3.0, 10.0)
        values = (0.0, *values) if "drift" in names[0] else values
        for value in values:
            add(factor, f"{value:g}", plain, _scale(names, value), "plain")
    for shift in (-2.0, -1.0, 1.0, 2.0):
        add("prior mean, plus", f"{shift:g}", plain, _shift(shift), "plain")
    rates: dict[str, tuple[str, Callable[[Any], Any], tuple[float, ...]]] = {
        "Ornstein-Uhlenbeck, retention": (
            "dynamics",
            dynamics.ornstein_uhlenbeck,
            (0.999, 0.99, 0.95),
        ),
        "discount factor": ("dynamics", dynamics.discount, (0.99, 0.95, 0.9, 0.8)),
        "innovation-adaptive walk, exponent": (
            "dynamics",
            lambda rate: dynamics.adaptive(exponent=rate),
            (0.5, 1.0, 2.0),
        ),
        "ridge shrinkage, rate": ("shrinkage", shrinkage.ridge, (1e-3, 1e-2, 1e-1)),
        "Robbins-Monro, first": ("shrinkage", shrinkage.robbins_monro, (1.0, 4.0, 16.0)),
        "staged shrinkage, factor": ("shrinkage", shrinkage.staged, (0.5, 0.7, 0.9)),
    }
    for factor, (part, make, values) in rates.items():
        for value in values:
            add(factor, f"{value:g}", _with_rate(loadings, part, make), _rate(value), factor)
    return table


def _scale(names: tuple[str, ...], factor: float) -> Callable[[Params], Params]:
    return lambda params: params | {name: params[name] * factor for name in names}


def _shift(by: float) -> Callable[[Params], Params]:
    return lambda params: params | {"common_mean": params["common_mean"] + by}


def _rate(value: float) -> Callable[[Params], Params]:
    return lambda params: params | {"rate": value}


def _with_rate(loadings: str, part: str, make: Callable[[Any], Any]) -> Contender:
    """The filter with another part, whose rate is a parameter beside the others."""

    def build(params: Params, pool: Pool) -> Any:
        parts = {part: make(params["rate"])}
        return fade_contender("", loadings, **parts).build(params, pool)

    return fade_contender("", loadings)._replace(build=build)


def utilities(
    informative: jax.Array, pass_rate: jax.Array, product: jax.Array, group_size: int
) -> dict[str, jax.Array]:
    """Scores to choose prompts by, from what a tracker says of them.

    Args:
        informative: P(a group is informative).
        pass_rate: E[p].
        product: E[p (1 - p)].
        group_size: rollouts of a group.

    Returns:
        By name, arrays of the same shape.
    """
    return {
        "P(informative)": informative,
        "plug-in P(informative)": utility.informative_rate(pass_rate, group_size),
        "E[p (1 - p)]": product,
        "E[p] nearest 1/2": utility.nearness(pass_rate, 0.5),
        "P(informative) (1 - E[p])": informative * (1 - pass_rate),
    }
