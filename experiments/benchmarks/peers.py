"""The pool job that other filtering libraries can run too, and how they are asked to run it.

    x_i(0) ~ N(prior_mean, prior_var),  x_i(t) = x_i(t-1) + N(0, drift_var),
    successes ~ Binomial(trials, sigmoid(x_i(t))) for the B prompts visited at step t,

filtered by one Newton step from the predicted mean (an extended Kalman filter), in float64: the
rule all of them share, so that the answers must agree and only the work differs.

Shapes: `N` prompts, `B` visited per step, `T` steps.
"""

import dataclasses
import importlib.metadata
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from experiments.benchmarks.timing import interleave, summary
from fade_jax import moments
from fade_jax.trackers import logit_kalman
from fade_jax.types import Estimate, Observation

INSTALL = "pip install 'fade-jax[bench]'"


class Visits(NamedTuple):
    """What happened to the pool.

    Attributes:
        prompt_ids: [T, B], distinct within a step.
        gap: [T, B] steps since the prompt's last visit, or since the start.
        successes: [T, B], in 0..trials.
    """

    prompt_ids: Int[Array, "T B"]
    gap: Float[Array, "T B"]
    successes: Float[Array, "T B"]


Run: TypeAlias = Callable[[Visits], Estimate]
"""Filters all visits; moments [N] of every logit as of its last visit, or [N, T] at every step."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PoolJob:
    """A pool of independent random walks.

    Attributes:
        prompts: N.
        batch: B.
        steps: T.
        trials: rollouts a visit.
        prior_mean: logits.
        prior_var: squared logits.
        drift_var: squared logits a step.
    """

    prompts: int
    batch: int
    steps: int
    trials: int = 8
    prior_mean: float = -0.5
    prior_var: float = 2.0
    drift_var: float = 0.05


def simulate(job: PoolJob, seed: int) -> Visits:
    """Draws visits, uniformly over the pool, and their outcomes; float64."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(job.prior_mean, np.sqrt(job.prior_var), job.prompts)
    last = np.zeros(job.prompts)
    ids, gaps, successes = [], [], []
    for step in range(1, job.steps + 1):
        logits += rng.normal(0, np.sqrt(job.drift_var), job.prompts)
        visited = rng.choice(job.prompts, job.batch, replace=False)
        ids.append(visited)
        gaps.append(step - last[visited])
        last[visited] = step
        successes.append(rng.binomial(job.trials, 1 / (1 + np.exp(-logits[visited]))))
    as_float = (np.asarray(rows, np.float64) for rows in (gaps, successes))
    return Visits(jnp.asarray(np.stack(ids), jnp.int32), *map(jnp.asarray, as_float))


def fade_tracker(job: PoolJob) -> Run:
    """`logit_kalman` through the public tracker: clock, merging of repeated ids, all of it."""

    def run(visits: Visits) -> Estimate:
        tracker = logit_kalman.build(
            job.prompts,
            drift=jnp.sqrt(job.drift_var),
            prior_mean=job.prior_mean,
            prior_var=job.prior_var,
            max_var=jnp.inf,
            rule=moments.ekf(),
        )

        def step(state: Any, visit: Visits) -> tuple[Any, None]:
            trials = jnp.full_like(visit.successes, job.trials)
            seen = Observation(visit.prompt_ids, visit.successes, trials)
            return tracker.update(tracker.predict(state, 1.0), seen)[0], None

        state, _ = jax.lax.scan(step, tracker.init(), visits)
        return Estimate(state.mean, state.var)

    return run


def fade_distinct(job: PoolJob) -> Run:
    """The same rule where ids are known to be distinct, as cuthbert takes for granted."""

    def run(visits: Visits) -> Estimate:
        def step(pool: Estimate, visit: Visits) -> tuple[Estimate, None]:
            mean, var = pool.mean[visit.prompt_ids], pool.var[visit.prompt_ids]
            prior = Estimate(mean, var + job.drift_var * visit.gap)
            trials = jnp.full_like(visit.successes, job.trials)
            kept = logit_kalman.absorb(prior, moments.ekf(), visit.successes, trials)
            return jax.tree.map(lambda x, y: x.at[visit.prompt_ids].set(y), pool, kept), None

        prior = Estimate(
            jnp.full(job.prompts, job.prior_mean), jnp.full(job.prompts, job.prior_var)
        )
        return jax.lax.scan(step, prior, visits)[0]

    return run


def cuthbert_factorial(job: PoolJob) -> Run:
    """The `factorial` filter of cuthbert 0.1.1 over its linearised-moments Kalman filter.

    The visited factors are joined into one B-dimensional square-root step and marginalised after.
    Factors do not age by themselves, so each visit brings its gap.
    """
    from cuthbert import factorial  # pyright: ignore[reportMissingImports]
    from cuthbert.gaussian import moments as linearised  # pyright: ignore[reportMissingImports]

    def dynamics(state: Any, visit: Visits) -> tuple[Callable, Array]:
        root = jnp.diag(jnp.sqrt(job.drift_var * visit.gap))
        return (lambda x: (x, root)), state.mean

    def outcome(state: Any, visit: Visits) -> tuple[Callable, Array, Array]:
        def counts(x: Array) -> tuple[Array, Array]:
            p = jax.nn.sigmoid(x)
            return job.trials * p, jnp.diag(jnp.sqrt(job.trials * p * jax.nn.sigmoid(-x)))

        return counts, state.mean, visit.successes

    def run(visits: Visits) -> Estimate:
        built = linearised.build_filter(
            jnp.full((job.prompts, 1), job.prior_mean),
            jnp.full((job.prompts, 1, 1), jnp.sqrt(job.prior_var)),
            dynamics,
            outcome,
        )
        factors = factorial.gaussian.build_factorializer(lambda visit: visit.prompt_ids)
        *_, last = factorial.filter(
            built, factors, visits, built.init_prepare(), output_factorial=False
        )
        return Estimate(last.mean[:, 0], last.chol_cov[:, 0, 0] ** 2)

    return run


def dynamax_cmgf(job: PoolJob) -> Run:
    """The conditional-moments filter of dynamax 1.0.3, EKF integrals, vmapped over prompts.

    It has no pool: all N filters take all T steps, with 0 trials where there was no visit. It
    conditions before it predicts, so its prior is one step of drift wider.
    """
    from dynamax import generalized_gaussian_ssm as ggssm  # pyright: ignore[reportMissingImports]

    params = ggssm.ParamsGGSSM(
        initial_mean=jnp.array([job.prior_mean]),
        initial_covariance=jnp.array([[job.prior_var + job.drift_var]]),
        dynamics_function=lambda x, trials: x,
        dynamics_covariance=jnp.array([[job.drift_var]]),
        emission_mean_function=lambda x, trials: trials * jax.nn.sigmoid(x),
        emission_cov_function=lambda x, trials: jnp.diag(
            trials * jax.nn.sigmoid(x) * jax.nn.sigmoid(-x)
        ),
    )

    def one(successes: Float[Array, " T"], trials: Float[Array, " T"]) -> tuple[Array, Array]:
        filtered = ggssm.conditional_moments_gaussian_filter(
            params, ggssm.EKFIntegrals(), successes[:, None], inputs=trials[:, None]
        )
        return filtered.filtered_means[:, 0], filtered.filtered_covariances[:, 0, 0]

    def run(visits: Visits) -> Estimate:
        step = jnp.arange(job.steps)[:, None]
        empty = jnp.zeros((job.prompts, job.steps))
        successes = empty.at[visits.prompt_ids, step].set(visits.successes)
        trials = empty.at[visits.prompt_ids, step].set(job.trials)
        return Estimate(*jax.vmap(one)(successes, trials))

    return run


# Name, what builds it, the largest difference that still counts as the same answer (dynamax adds
# 1e-9 to every matrix it solves with).
PEERS: dict[str, tuple[Callable[[PoolJob], Run], float]] = {
    "cuthbert": (cuthbert_factorial, 1e-8),
    "dynamax": (dynamax_cmgf, 1e-5),
}


def installed() -> dict[str, str]:
    """Versions of the peers that can be imported."""
    found = {}
    for name in PEERS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def at_last_visit(estimate: Estimate, visits: Visits) -> np.ndarray:
    """[2, prompts visited]: mean and variance as of each prompt's last visit."""
    last = {int(i): t for t, row in enumerate(np.asarray(visits.prompt_ids)) for i in row}
    ids, steps = np.array(sorted(last)), np.array([last[i] for i in sorted(last)])
    index = (ids, steps) if estimate.mean.ndim == 2 else ids
    return np.stack([np.asarray(x)[index] for x in estimate])


def race(job: PoolJob, seed: int, repetitions: int) -> dict[str, dict[str, Any]]:
    """Runs the job on the filter and on every installed peer, interleaved, in float64.

    Args:
        job: to run.
        seed: of the visits and of the order of the runs.
        repetitions: of each.

    Returns:
        By name: `ms` (a `timing.summary`), `compile_seconds`, and the largest `difference` of mean
        or variance from the public tracker, over the prompts visited.
    """
    builders = {"tracker": fade_tracker, "distinct": fade_distinct}
    builders |= {name: PEERS[name][0] for name in installed()}
    with jax.enable_x64(True):
        visits = simulate(job, seed)
        runs = {name: jax.jit(build(job)) for name, build in builders.items()}
        times, first = interleave(
            {name: (lambda run=run: run(visits)) for name, run in runs.items()}, repetitions, seed
        )
        answers = {name: at_last_visit(run(visits), visits) for name, run in runs.items()}
    return {
        name: {
            "ms": summary(times[name]),
            "compile_seconds": first[name],
            "difference": float(np.abs(answers[name] - answers["tracker"]).max()),
        }
        for name in runs
    }


def compare(jobs: list[PoolJob], seed: int, repetitions: int) -> dict[str, Any]:
    """Every installed peer beside the filter.

    Args:
        jobs: the first is the one that is quoted.
        seed: of the visits.
        repetitions: of each run.

    Returns:
        By peer: `version`, `ms_median`, `ours_ms_median`, `ratio` (how many times slower than the
        public tracker), `difference`, `tolerance`, `equal` for the first job, and all `jobs`. Empty
        where no peer is installed.
    """
    found = installed()
    if not found:
        return {}
    raced = [race(job, seed, repetitions) for job in jobs]
    results = {}
    for name, version in found.items():
        tolerance = PEERS[name][1]
        rows = []
        for job, timed in zip(jobs, raced, strict=True):
            peer, tracker, distinct = (timed[key] for key in (name, "tracker", "distinct"))
            rows.append(
                {
                    "job": dataclasses.asdict(job),
                    "ms_median": peer["ms"]["median"],
                    "ours_ms_median": tracker["ms"]["median"],
                    "ours_distinct_ms_median": distinct["ms"]["median"],
                    "ratio": peer["ms"]["median"] / tracker["ms"]["median"],
                    "ratio_distinct": peer["ms"]["median"] / distinct["ms"]["median"],
                    "difference": peer["difference"],
                    "tolerance": tolerance,
                    "equal": peer["difference"] <= tolerance,
                    "compile_seconds": peer["compile_seconds"],
                    "ours_compile_seconds": tracker["compile_seconds"],
                    "ms": peer["ms"],
                    "ours_ms": tracker["ms"],
                }
            )
        quoted = {key: rows[0][key] for key in rows[0] if key not in ("job", "ms", "ours_ms")}
        results[name] = {"version": version, **quoted, "jobs": rows}
    return results
