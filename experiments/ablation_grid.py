"""What `fade_ablation` compares: trackers, filter variants, paradigms, presets, utilities."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments import replay_contenders
from experiments.ablation_world import Case, Kind, Setting, pool_of
from experiments.replay_contenders import (
    RULES,
    Contender,
    Params,
    contenders,
    fade_hyperparameters,
)
from fade_jax import (
    dynamics,
    moments,
    presets,
    shrinkage,
    tuning,
    utility,
)
from fade_jax.selectors import (
    allocation,
    curriculum,
    one_of,
    skip,
    thompson,
    threshold,
    top_m,
    uniform,
    weighted,
)
from fade_jax.trackers import ema, markov, oracle
from fade_jax.types import Scheduler, Tracker
from paced_jax import paced_tracker, partition


class Entry(NamedTuple):
    """A tracker in the simulation.

    Attributes:
        contender: how it is built and what of it is tuned.
        program: entries of the same one differ in parameters and loadings alone.
        loadings: what it is told of the skills.
        tuned_as: the entry whose parameters it runs with; its own by default.
    """

    contender: Contender
    program: str
    loadings: Kind = "informative"
    tuned_as: str | None = None


FADE_START: Params = {
    "common_mean": 0.0,
    "common_drift": 0.08,
    "common_trend": 0.01,
    "skill_var": 1.0,
    "skill_drift": 0.08,
    "intercept_mean": 0.5,
    "intercept_var": 2.25,
    "intercept_drift": 0.02,
}


def fade_contender(label: str, loadings: str = "text", **parts: Any) -> Contender:
    """FADE with these parts, started where the worlds are."""
    return replay_contenders.fade_contender(label, loadings, FADE_START, **parts)


def trackers() -> dict[str, Entry]:
    """Every tracker by name; each is tuned on other seeds than it is scored on."""
    table = contenders(with_texts=True, with_tags=False)
    counter = table["beta_strong"]._replace(
        label="Beta counter (no drift)", start=table["beta_strong"].start | {"discount": 1.0}
    )
    free = dict(table["beta_tuned"].constraints or {})
    counter = counter._replace(constraints=free | {"discount": tuning.fixed()})
    kalman = table["logit_kalman"]
    still = kalman._replace(
        label="logit Kalman, no drift",
        start=kalman.start | {"drift": 0.0, "prior_var": 2.25},
        constraints=dict(kalman.constraints or {}) | {"drift": tuning.fixed()},
    )
    positive = tuning.unit_interval()
    own = {
        "ema": Contender(
            "EMA",
            lambda p, pool: ema.build(pool.num_prompts, **p),
            {"rate": 0.3, "start": 0.4},
            {"rate": positive, "start": positive},
        ),
        "beta_counter": counter,
        "beta": table["beta_tuned_free"]._replace(label="discounted Beta"),
        "markov": Contender(
            "Markov chain (DPS)",
            lambda p, pool: markov.build(pool.num_prompts, **p),
            {"discount": 0.7},
            {"discount": positive},
        ),
        "cdas": table["cdas"],
        "kalman_still": still,
        "kalman": kalman._replace(
            label="logit Kalman, drift", start=kalman.start | {"prior_var": 2.25}
        ),
    }
    # A Beta prior of a and b near 1 is where the strong prior of a recorded run is not.
    own = {
        name: c._replace(start=c.start | {"prior_successes": 0.6, "prior_failures": 0.9})
        if "prior_successes" in c.start
        else c
        for name, c in own.items()
    }
    entries = {name: Entry(contender, name) for name, contender in own.items()}
    entries["fade_k0"] = Entry(fade_contender("FADE, K = 0", "constant"), "fade_k0")
    fade = fade_contender("FADE")
    entries["fade"] = Entry(fade, "fade")
    entries["fade_weak"] = Entry(fade._replace(label="FADE, weak loadings"), "fade", "weak")
    entries["fade_shuffled"] = Entry(
        fade._replace(label="FADE, shuffled loadings"), "fade", "shuffled"
    )
    entries["fade_trusting"] = Entry(
        fade._replace(label="FADE, shuffled loadings believed in"), "fade", "shuffled", "fade"
    )
    entries["fade_pg"] = Entry(fade_contender("FADE, pg rule", rule=moments.pg()), "fade_pg")
    return entries


ZERO_DRIFT = ("beta_counter", "kalman_still")
"""Per-prompt trackers that hold the truth to be still."""


class Variant(NamedTuple):
    """A change of one thing in the tuned filter.

    Attributes:
        factor: what is changed, for example "moment rule".
        label: to what.
        change: `tuned parameters -> parameters`.
        parts: `parameters -> parts of the filter` other than the default.
        program: variants of the same one differ in parameters alone.
    """

    factor: str
    label: str
    change: Callable[[Params], Params] = dict
    parts: Callable[[Params], dict[str, Any]] = lambda params: {}
    program: str = "fade"


def variants() -> dict[str, Variant]:
    """One factor at a time around the tuned filter, whose parameters are kept otherwise."""
    out: dict[str, Variant] = {}
    for label, rule in RULES.items():
        program = "fade" if label == "adf" else f"rule {label}"
        out[f"rule {label}"] = Variant(
            "moment rule", label, parts=lambda p, rule=rule: {"rule": rule}, program=program
        )

    def sweep(name: str, factor: str, values: tuple[float, ...], change=None, parts=None) -> None:
        """Values of one number: a tuned parameter, or the rate of another part."""
        for value in values:
            made = change or (lambda p, rate: p | {"rate": rate})
            more: dict[str, Any] = {} if parts is None else {"parts": parts, "program": name}
            out[f"{name} {value:g}"] = Variant(
                factor, f"{value:g}", lambda p, v=value, made=made: made(p, v), **more
            )

    sweep(
        "walk",
        "random walk, sd per step",
        (0.0, 0.02, 0.04, 0.08, 0.16, 0.32),
        lambda p, rate: p | {"common_drift": rate, "skill_drift": rate},
    )
    for name, factor, values, make in (
        (
            "ou",
            "Ornstein-Uhlenbeck, retention",
            (0.999, 0.995, 0.98, 0.9),
            dynamics.ornstein_uhlenbeck,
        ),
        ("discount", "discount factor", (0.99, 0.97, 0.9, 0.7), dynamics.discount),
        (
            "adaptive",
            "innovation-adaptive walk, exponent",
            (0.5, 1.0, 2.0),
            lambda rate: dynamics.adaptive(exponent=rate),
        ),
    ):
        sweep(name, factor, values, parts=lambda p, make=make: {"dynamics": make(p["rate"])})
    sweep(
        "intercept",
        "bayes shrinkage, intercept drift",
        (0.0, 0.01, 0.02, 0.05, 0.1, 0.2),
        lambda p, rate: p | {"intercept_drift": rate},
    )
    for name, factor, values, rule in (
        ("ridge", "ridge shrinkage, rate", (1e-3, 1e-2, 1e-1), shrinkage.ridge),
        ("robbins_monro", "Robbins-Monro, first", (1.0, 4.0, 16.0), shrinkage.robbins_monro),
        ("staged", "staged shrinkage, factor", (0.5, 0.7, 0.9), shrinkage.staged),
    ):
        sweep(name, factor, values, parts=lambda p, rule=rule: {"shrinkage": rule(p["rate"])})
    sweep(
        "skill_var",
        "prior variance of skills, times tuned",
        (0.1, 0.3, 1.0, 3.0, 10.0),
        lambda p, factor: p | {"skill_var": p["skill_var"] * factor},
    )
    sweep(
        "intercept_var",
        "prior variance of intercepts, times tuned",
        (0.1, 0.3, 1.0, 3.0, 10.0),
        lambda p, factor: p | {"intercept_var": p["intercept_var"] * factor},
    )
    sweep(
        "mean",
        "prior mean of the common ability, plus",
        (-2.0, -1.0, 0.0, 1.0, 2.0),
        lambda p, shift: p | {"common_mean": p["common_mean"] + shift},
    )
    return out


SKILL_COUNTS = (0, 4, 8, 16, 32, 64)
TRUE_SKILLS = 16


def paradigms(setting: Setting) -> dict[str, Callable[..., Any]]:
    """Selectors by name, `(tracker, **sizes) -> Selector`, each with a tenth drawn at random."""
    wanted = setting.groups / 2
    table: dict[str, Callable[..., Any]] = {
        "uniform": uniform.build,
        "top_m": partial(top_m.build, exploration=0.1),
        "thompson": partial(thompson.build, rule="informative", exploration=0.1),
        "threshold": partial(threshold.build, wanted=wanted, exploration=0.1),
        "skip": partial(skip.build, rule="tracker", exploration=0.1),
        "curriculum": partial(curriculum.build, exploration=0.1),
        "weighted": partial(weighted.build, exploration=0.1),
        "allocation": partial(allocation.build, exploration=0.1),
    }
    return table


LOOP_TRACKERS = (
    "ema",
    "beta_counter",
    "beta",
    "markov",
    "cdas",
    "kalman",
    "fade_k0",
    "fade",
    "fade_pg",
    "fade_shuffled",
)


Build = Callable[[Params, Any, jax.Array, Case], Scheduler]
"""`(params, choice, loadings, case) -> Scheduler`, called inside compiled code."""


def published(setting: Setting) -> dict[str, Build]:
    """Published schedulers with their published settings; FADE's and PACED's beside them."""
    n = setting.num_prompts
    sized: dict[str, Any] = {"budget": setting.budget, "group_size": setting.group_size}
    simple = ("uniform", "mopps", "mapp", "dps", "kgps", "greso", "adarft", "cdas", "dapo", "lilo")

    def fade(selector: Any, build: Any = presets.fade) -> Build:
        def made(params, choice, loadings, case):
            hyper = fade_hyperparameters(params, loadings.shape[1])
            return build(loadings, hyper, selector=selector, **sized)

        return made

    def paced(params, choice, loadings, case: Case) -> Scheduler:
        # The head reads true loadings and difficulty: what prompt embeddings are at their best.
        features = jnp.concatenate([case.world.loadings, case.world.difficulty[:, None]], 1)
        features = partition.standardise(features)
        head = partition.init(jax.random.fold_in(case.key, 2), features.shape[1])
        tracker = paced_tracker.build(features, head, fit=True, learning_rate=1e-2)
        return presets.paced(tracker, num_prompts=n, **sized)

    def truth(params, choice, loadings, case: Case) -> Scheduler:
        tracker = oracle.build(case.exposure.pass_rate[0])
        return Scheduler(tracker, top_m.build(tracker, num_prompts=n, exploration=0.0, **sized))

    def as_published(name: str) -> Build:
        return lambda params, choice, loadings, case: getattr(presets, name)(n, **sized)

    table = {name: as_published(name) for name in simple}
    for selector in ("top_m", "weighted", "thompson"):
        table[f"fade, {selector}"] = fade(selector)
    table["fade_pg, top_m"] = fade("top_m", presets.fade_pg)
    table["paced (fitted)"] = paced
    table["truth at the start"] = truth
    return table


def utilities(group_size: int) -> dict[str, Callable[[Tracker, Any], jax.Array]]:
    """Scores `(tracker, state) -> [N]` by name."""

    def plug_in(tracker, state):
        return utility.informative_rate(tracker.pass_rate(state), group_size)

    def knapsack(tracker, state):
        return tracker.informative(state, group_size) * (1 - tracker.pass_rate(state))

    return {
        "P(informative)": lambda tracker, state: tracker.informative(state, group_size),
        "plug-in P(informative)": plug_in,
        "E[p (1 - p)]": lambda tracker, state: tracker.informative(state, 2) / 2,
        "E[p] nearest 1/2": lambda tracker, state: (
            1 + utility.nearness(tracker.pass_rate(state), 0.5)
        ),
        "P(informative) (1 - E[p])": knapsack,
    }


def sizes_of(setting: Setting) -> dict[str, Any]:
    """Keywords of every selector."""
    return {
        "num_prompts": setting.num_prompts,
        "budget": setting.budget,
        "group_size": setting.group_size,
    }


def any_paradigm(entry: Entry, setting: Setting) -> Build:
    """A tracker under the paradigm that `choice` counts to."""

    def build(params, choice, loadings, case) -> Scheduler:
        tracker = entry.contender.build(params, pool_of(loadings))
        rules = [make(tracker, **sizes_of(setting)) for make in paradigms(setting).values()]
        return Scheduler(tracker, one_of.build(rules, choice))

    return build


SCORED = ("top_m", "weighted")


def any_utility(entry: Entry, setting: Setting) -> Build:
    """A tracker chosen from by each utility under each rule of SCORED, in that order."""

    def build(params, choice, loadings, case) -> Scheduler:
        tracker = entry.contender.build(params, pool_of(loadings))
        rules = [
            paradigms(setting)[rule](tracker, score=partial(score, tracker), **sizes_of(setting))
            for score in utilities(setting.group_size).values()
            for rule in SCORED
        ]
        return Scheduler(tracker, one_of.build(rules, choice))

    return build
