"""How far the filter is from exact Bayes: simulated runs, followed by any moment rule.

Worlds are well specified: abilities, difficulties and drift are drawn from the priors the filters
are given, so every gap is the filter's own. Everything runs in float64, whatever JAX's own
precision is set to: rounding is not what is measured here.

Shapes: `R` runs, `T` steps, `N` prompts, `B` rows a step, `K` skills, `D = K + 1`.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fade_jax import ability_difficulty
from fade_jax.hyperparameters import Hyperparameters
from fade_jax.moments import MomentRule
from fade_jax.reference import grid
from fade_jax.trackers import logit_kalman
from fade_jax.types import Observation

Kind = Literal["known", "factored", "joint"]
"""Which difficulties are known, and what the filter forgets."""


class Runs(NamedTuple):
    """Simulated training runs with their truth.

    Attributes:
        loadings: [R, N, K], standard normal.
        difficulty: [R, N] logits.
        ability: [R, T, D].
        prompt_ids: [R, T, B] int32, no prompt twice in a step.
        successes: [R, T, B] in 0..trials.
        trials: [R, T, B].
    """

    loadings: Float[np.ndarray, "R N K"]
    difficulty: Float[np.ndarray, "R N"]
    ability: Float[np.ndarray, "R T D"]
    prompt_ids: Int[np.ndarray, "R T B"]
    successes: Float[np.ndarray, "R T B"]
    trials: Float[np.ndarray, "R T B"]


class Moments(NamedTuple):
    """Means and covariances of the ability.

    Attributes:
        mean: [..., D].
        cov: [..., D, D].
    """

    mean: Float[np.ndarray, "*shape D"]
    cov: Float[np.ndarray, "*shape D D"]


class Followed(NamedTuple):
    """A filter's beliefs after every step.

    Attributes:
        mean: [R, T, D] of the ability.
        cov: [R, T, D, D] of the ability.
        pass_rate: [R, T, N] E[p] of every prompt.
    """

    mean: Float[np.ndarray, "R T D"]
    cov: Float[np.ndarray, "R T D D"]
    pass_rate: Float[np.ndarray, "R T N"]


class Predicted(NamedTuple):
    """Beliefs about every logit before each step's counts.

    Attributes:
        mean: [T, N] logits.
        var: [T, N] squared logits.
    """

    mean: Float[np.ndarray, "T N"]
    var: Float[np.ndarray, "T N"]


class Gap(NamedTuple):
    """How one Gaussian belief differs from the exact one.

    Attributes:
        distance: Mahalanobis distance of the means under the exact covariance: the gap in
            posterior standard deviations.
        ratios: [..., D] eigenvalues, ascending, of the covariance seen from the exact one: below 1
            over-confident, above 1 under-confident.
    """

    distance: Float[np.ndarray, "*shape"]
    ratios: Float[np.ndarray, "*shape D"]


def simulate(
    seeds: Sequence[int],
    *,
    num_prompts: int,
    steps: int,
    batch: int,
    group_size: int,
    drift: float,
    ability_sd: float,
    difficulty_sd: float,
    num_skills: int = 1,
) -> Runs:
    """Draws one run a seed: `theta_1 ~ N(0, ability_sd^2 I)`, random walk, difficulties around 0.

    Args:
        seeds: R of them.
        num_prompts: N.
        steps: T.
        batch: B <= N prompts a step, drawn without replacement.
        group_size: rollouts a prompt.
        drift: standard deviation per step of each ability.
        ability_sd: standard deviation of each ability at the first step.
        difficulty_sd: standard deviation of the difficulties.
        num_skills: K.

    Returns:
        Runs.
    """

    def one(seed: int) -> Runs:
        rng = np.random.default_rng(seed)
        loadings = rng.standard_normal((num_prompts, num_skills))
        difficulty = difficulty_sd * rng.standard_normal(num_prompts)
        moves = rng.standard_normal((steps, num_skills + 1))
        moves[0] *= ability_sd
        moves[1:] *= drift
        ability = moves.cumsum(0)
        ids = np.stack([rng.permutation(num_prompts)[:batch] for _ in range(steps)])
        logits = ability[:, :1] + (loadings[ids] * ability[:, None, 1:]).sum(-1) - difficulty[ids]
        successes = rng.binomial(group_size, 1 / (1 + np.exp(-logits))).astype(float)
        trials = np.full_like(successes, group_size)
        return Runs(loadings, difficulty, ability, ids.astype(np.int32), successes, trials)

    return Runs(*map(np.stack, zip(*map(one, seeds), strict=True)))


def pad(runs: Runs, rows: int) -> Runs:
    """Adds inert rows to every step's batch, so that worlds of different B share one compilation.

    Args:
        runs: R of them.
        rows: B afterwards.

    Returns:
        The same runs with rows of prompt 0 without trials.
    """
    extra = rows - runs.prompt_ids.shape[2]
    batch = {
        name: np.pad(getattr(runs, name), ((0, 0), (0, 0), (0, extra)))
        for name in ("prompt_ids", "successes", "trials")
    }
    return runs._replace(**batch)


def exact_ability(runs: Runs, *, drift: float, ability_sd: float, num_points: int = 201) -> Moments:
    """Moments of the ability after every step by the grid filter, difficulties known; K = 1.

    Args:
        runs: R of them.
        drift: as simulated.
        ability_sd: as simulated.
        num_points: of the grid, an axis.

    Returns:
        Moments [R, T, 2] and [R, T, 2, 2].
    """

    def one(loadings, difficulty, ability, ids, successes, trials):
        del ability  # the truth is not for filters to see
        design = np.concatenate([np.ones((*ids.shape, 1)), loadings[ids]], -1)
        prior = {"prior_mean": np.zeros(2), "prior_cov": ability_sd**2 * np.eye(2), "drift": drift}
        found = grid.ability_filter(
            design, difficulty[ids], successes, trials, **prior, num_points=num_points
        )
        return found.mean, found.cov

    found = [one(*run) for run in zip(*runs, strict=True)]
    return Moments(*map(np.stack, zip(*found, strict=True)))


def follow(
    rule: MomentRule,
    runs: Runs,
    kind: Kind,
    *,
    drift: float,
    ability_sd: float,
    difficulty_sd: float,
) -> Followed:
    """Beliefs after every step by the filter.

    Args:
        rule: moment rule of the filter.
        runs: R of them.
        kind: `known` tells the filter the difficulties, `factored` is the filter as it is used,
            `joint` keeps every cross-covariance.
        drift: as simulated.
        ability_sd: as simulated.
        difficulty_sd: as simulated; not used where the difficulties are known.

    Returns:
        Followed.
    """
    with jax.enable_x64(True):
        arrays = jax.tree.map(jnp.asarray, runs._replace(ability=np.zeros(len(runs.ability))))
        settings = (jnp.float64(x) for x in (drift, ability_sd, difficulty_sd))
        path = _follow(rule, kind, arrays, *settings)
        return Followed(*map(np.asarray, path))


@partial(jax.jit, static_argnums=(0, 1))
def _follow(rule, kind, runs, drift, ability_sd, difficulty_sd):
    """All runs of `follow`; compiled once a rule, shape and kind."""

    def one(run: Any) -> tuple[Array, ...]:  # Runs, of JAX arrays
        dim = run.loadings.shape[1] + 1
        hyper = Hyperparameters(
            ability_mean=jnp.zeros(dim),
            ability_cov=ability_sd**2 * jnp.eye(dim),
            ability_drift=drift,
            intercept_var=jnp.float64(0) if kind == "known" else difficulty_sd**2,
            intercept_drift=0.0,
        )
        joint = kind == "joint"
        tracker = ability_difficulty.build(run.loadings, hyper, rule=rule, joint=joint)
        state = tracker.init()
        if kind == "known":
            mean = state.intercept.mean.at[: run.difficulty.shape[0]].set(run.difficulty)
            state = state._replace(intercept=state.intercept._replace(mean=mean))

        def step(state: Any, row: tuple[Array, ...]) -> tuple[Any, tuple[Array, ...]]:
            state, _ = tracker.update(state, Observation(*row))
            mean, cov = state.latents if joint else state.ability
            followed = mean[:dim], cov[:dim, :dim], tracker.pass_rate(state)
            return tracker.predict(state, 1.0), followed

        return jax.lax.scan(step, state, (run.prompt_ids, run.successes, run.trials))[1]

    return jax.vmap(one)(runs)


def gap(belief: Moments | Followed, exact: Moments) -> Gap:
    """Compares Gaussian beliefs with exact moments, in units of the exact posterior.

    Args:
        belief: of a filter.
        exact: the covariance positive definite.

    Returns:
        Gap.
    """
    root = np.linalg.cholesky(exact.cov)
    shift = np.linalg.solve(root, (belief.mean - exact.mean)[..., None])[..., 0]
    half = np.linalg.solve(root, belief.cov)
    seen = np.linalg.solve(root, np.swapaxes(half, -1, -2))
    return Gap(np.sqrt((shift**2).sum(-1)), np.linalg.eigvalsh(seen))


def simulate_walks(
    seed: int,
    *,
    num_prompts: int,
    steps: int,
    group_size: int,
    prior_mean: float,
    prior_var: float,
    drift: float,
) -> tuple[Float[np.ndarray, "T N"], Float[np.ndarray, "T N"]]:
    """Draws counts of independent random walks on the logit; returns successes and trials."""
    rng = np.random.default_rng(seed)
    moves = rng.standard_normal((steps, num_prompts))
    moves[0] *= np.sqrt(prior_var)
    moves[1:] *= drift
    logits = prior_mean + moves.cumsum(0)
    successes = rng.binomial(group_size, 1 / (1 + np.exp(-logits))).astype(float)
    return successes, np.full_like(successes, group_size)


def predict_walks(
    rule: MomentRule,
    successes: Float[np.ndarray, "T N"],
    trials: Float[np.ndarray, "T N"],
    *,
    prior_mean: float,
    prior_var: float,
    drift: float,
) -> Predicted:
    """Beliefs of the per-prompt logit filter before each step's counts, no variance capped.

    Args:
        rule: moment rule of the filter.
        successes: [T, N].
        trials: [T, N].
        prior_mean: logits.
        prior_var: squared logits.
        drift: standard deviation per step.

    Returns:
        Predicted.
    """
    with jax.enable_x64(True):
        settings = (jnp.float64(x) for x in (prior_mean, prior_var, drift))
        path = _predict_walks(rule, jnp.asarray(successes), jnp.asarray(trials), *settings)
        return Predicted(*map(np.asarray, path))


@partial(jax.jit, static_argnums=0)
def _predict_walks(rule, successes, trials, prior_mean, prior_var, drift):
    """The scan of `predict_walks`, on the tracker's own functions."""
    num_prompts = successes.shape[1]
    prompt_ids = jnp.arange(num_prompts, dtype=jnp.int32)
    # An infinite cap: the tracker's usual one, the prior variance, would bind in a long walk.
    settings = {"drift": drift, "max_var": jnp.inf}

    def step(state: logit_kalman.State, row: tuple[Array, Array]):
        predicted = logit_kalman.current(state, **settings)
        seen = Observation(prompt_ids, *row)
        state, _ = logit_kalman.update(state, seen, rule=rule, **settings)
        return logit_kalman.predict(state, 1.0), predicted

    state = logit_kalman.init(num_prompts, prior_mean, prior_var)
    return jax.lax.scan(step, state, (successes, trials))[1]
