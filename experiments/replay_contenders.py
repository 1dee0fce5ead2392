"""The trackers that `replay_history` lets compete: how each is built, and what of it is tuned."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fade_jax import ability_difficulty, hyperparameters, moments, tuning
from fade_jax.moments import MomentRule
from fade_jax.pool_loadings import PoolLoadings
from fade_jax.trackers import cdas, discounted_beta, ema, logit_kalman, markov
from fade_jax.types import Tracker

Params = dict[str, Any]

RULES = {
    "adf": moments.adf(),
    "ep": moments.ep(),
    "pg, 1 pass": moments.pg(1),
    "pg, 4 passes": moments.pg(4),
    "pg_laplace": moments.pg_laplace(),
    "laplace": moments.laplace(),
    "ekf": moments.ekf(),
}
"""Moment rules that ablations compare."""


class Pool(NamedTuple):
    """The prompts a tracker is built for, or half of them.

    Attributes:
        num_prompts: N.
        loadings: laid-out loadings by name: "constant" (K = 0); with texts "text", "shuffled"; with
            sources "tags".
    """

    num_prompts: int
    loadings: dict[str, PoolLoadings]


class Contender(NamedTuple):
    """One tracker in the comparison.

    Attributes:
        label: for people.
        build: `(params, pool) -> Tracker`, called inside compiled code.
        start: parameters as published or set by hand; also where a fit starts.
        constraints: like `start`, for what is tuned by empirical Bayes; None runs `start` as it is.
        loadings: which loadings it needs.
    """

    label: str
    build: Callable[[Params, Pool], Tracker]
    start: Params
    constraints: Params | None = None
    loadings: str = "constant"


def _ema(rate: float) -> Callable[[Params, Pool], Tracker]:
    def build(params: Params, pool: Pool) -> Tracker:
        return ema.build(pool.num_prompts, **{"rate": rate, **params})

    return build


def _beta(params: Params, pool: Pool) -> Tracker:
    return discounted_beta.build(pool.num_prompts, **params)


def _kalman(rule: MomentRule) -> Callable[[Params, Pool], Tracker]:
    def build(params: Params, pool: Pool) -> Tracker:
        return logit_kalman.build(pool.num_prompts, rule=rule, **params)

    return build


def fade_hyperparameters(params: Params, num_skills: int) -> hyperparameters.Hyperparameters:
    """Spreads the tuned scalars over the constant ability and the skills."""

    def spread(common: Any, skill: Any) -> jax.Array:
        return jnp.concatenate([jnp.full((1,), common), jnp.full((num_skills,), skill)])

    return hyperparameters.Hyperparameters(
        ability_mean=spread(params["common_mean"], 0.0),
        ability_cov=jnp.diag(spread(1.0, params["skill_var"])),
        ability_drift=spread(params["common_drift"], params["skill_drift"]),
        ability_trend=spread(params["common_trend"], 0.0),
        intercept_mean=params.get("intercept_mean", 0.0),
        intercept_var=params["intercept_var"],
        intercept_drift=params["intercept_drift"],
    )


_FADE_START = {
    "common_mean": -1.0,
    "common_drift": 0.05,
    "common_trend": 0.02,
    "skill_var": 0.5,
    "skill_drift": 0.02,
    "intercept_var": 9.0,
    "intercept_drift": 0.15,
}


def fade_tracker(params: Params, pool: Pool, loadings: str = "text", **parts: Any) -> Tracker:
    """The filter with these scalars and parts, and loadings of a kind."""
    laid_out = pool.loadings[loadings]
    return ability_difficulty.build(
        laid_out, fade_hyperparameters(params, laid_out.num_skills), **parts
    )


def fade_contender(
    label: str, loadings: str = "text", start: Params | None = None, **parts: Any
) -> Contender:
    """FADE with loadings of a kind and these parts of the filter; all its scalars are tuned.

    Args:
        label: for people.
        loadings: kind.
        start: scalars, where they do not start as a recorded run's.
        **parts: as `ability_difficulty.build` takes them.
    """
    start = _FADE_START if start is None else start
    free = {name: tuning.positive() for name in start}
    free |= {"common_mean": tuning.real(), "common_trend": tuning.real()}
    if "intercept_mean" in start:
        free["intercept_mean"] = tuning.fixed()  # the gauge: common_mean moves instead
    if loadings == "constant":
        free |= {"skill_var": tuning.fixed(), "skill_drift": tuning.fixed()}
    build = partial(fade_tracker, loadings=loadings, **parts)
    return Contender(label, build, start, free, loadings)


def contenders(with_texts: bool, with_tags: bool) -> dict[str, Contender]:
    """All trackers of the comparison, by the names that results.json uses.

    Args:
        with_texts: whether text loadings exist; without them FADE has the constant loading only.
        with_tags: whether prompts come from several sources, whose names are loadings too.

    Returns:
        Name -> Contender.
    """
    beta_free = {
        "discount": tuning.unit_interval(),
        "prior_successes": tuning.positive(),
        "prior_failures": tuning.positive(),
        "pull": tuning.fixed(),
    }
    strong = {"discount": 0.9, "prior_successes": 0.35, "prior_failures": 0.65, "pull": 1.0}
    walk = {"drift": 0.2, "prior_mean": -1.0, "prior_var": 9.0}
    walk_free = {
        "drift": tuning.positive(),
        "prior_mean": tuning.real(),
        "prior_var": tuning.positive(),
    }
    table = {
        "ema_0.1": Contender("EMA, gain .1", _ema(0.1), {}),
        "ema_0.3": Contender("EMA, gain .3", _ema(0.3), {}),
        "beta_counter": Contender("Beta(1,1) counter", _beta, {"discount": 1.0}),
        "beta_0.9": Contender("Beta(1,1) discount .9", _beta, {"discount": 0.9}),
        "beta_strong": Contender("Beta(.35,.65) discount .9", _beta, strong),
        "beta_tuned": Contender("Beta, tuned", _beta, strong, beta_free),
        "beta_tuned_free": Contender(
            "Beta, tuned, pull to the prior tuned too",
            _beta,
            strong | {"pull": 0.5},
            beta_free | {"pull": tuning.unit_interval()},
        ),
        "markov": Contender(
            "Markov chain (DPS)", lambda p, pool: markov.build(pool.num_prompts), {}
        ),
        "cdas": Contender("CDAS", lambda p, pool: cdas.build(pool.num_prompts), {}),
        "logit_kalman_ekf": Contender(
            "logit Kalman (KGPS), EKF step, tuned", _kalman(moments.ekf()), walk, walk_free
        ),
        "logit_kalman": Contender(
            "logit Kalman, ADF step, tuned", _kalman(moments.adf()), walk, walk_free
        ),
        "fade_k0": fade_contender("FADE, K = 0", "constant"),
        "fade_k0_pg": fade_contender("FADE, K = 0, pg rule", "constant", rule=moments.pg()),
    }
    if with_texts:
        table["fade"] = fade_contender("FADE, text loadings", "text")
        table["fade_pg"] = fade_contender("FADE, text loadings, pg rule", "text", rule=moments.pg())
        table["fade_shuffled"] = fade_contender("FADE, shuffled loadings (control)", "shuffled")
    else:
        table["fade"] = table["fade_k0"]._replace(label="FADE (no texts given: K = 0)")
    if with_tags:
        label = "FADE, told each prompt's source (tags)"
        table["fade_tags"] = fade_contender(label, "tags")
    return table
