"""Where the filter must be exact: the same Gaussian step, reached by ways that share no algebra.

Shapes: `N` prompts, `B` visited, `K` skills, `D = K + 1`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fade_jax import ability_difficulty, joint_filter, linear_gaussian
from fade_jax.hyperparameters import Hyperparameters
from fade_jax.linear_gaussian import Gaussian
from fade_jax.moments import MomentRule, Site
from fade_jax.outcomes import merge_duplicates
from fade_jax.reference import gibbs, sequential
from fade_jax.types import Estimate, Observation


def identities(
    seed: int, *, num_prompts: int = 12, batch: int = 7, num_skills: int = 3
) -> dict[str, float]:
    """Largest relative differences between computations that are equal on paper, in float64.

    One random belief, one random batch with a repeated prompt and an empty row, and one omega drawn
    for it. Each difference is the largest of `|a - b| / (1 + |b|)`.

    Args:
        seed: of everything random.
        num_prompts: N.
        batch: B, 4..N.
        num_skills: K.

    Returns:
        By name of the identity.
    """
    rng = np.random.default_rng(seed)
    dim = num_skills + 1
    factor = rng.standard_normal((dim, dim))
    ability = (rng.standard_normal(dim), factor @ factor.T + 0.1 * np.eye(dim))
    intercept = (rng.standard_normal(num_prompts), rng.uniform(0.2, 3.0, num_prompts))
    ids = rng.permutation(num_prompts)[:batch].astype(np.int32)
    ids[1] = ids[0]
    trials = rng.integers(1, 9, batch).astype(float)
    trials[2] = 0
    successes = rng.binomial(trials.astype(int), 0.4).astype(float)
    with (
        jax.enable_x64(True),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        found = jax.jit(_identities)(
            jnp.asarray(rng.standard_normal((num_prompts, num_skills))),
            Gaussian(*map(jnp.asarray, ability)),
            Estimate(*map(jnp.asarray, intercept)),
            Observation(*map(jnp.asarray, (ids, successes, trials))),
            jnp.asarray(rng.gamma(2.0, 0.5, batch)),
            jnp.asarray(rng.standard_normal(dim)),
        )
        return {name: float(value) for name, value in found.items()}


def _identities(
    loadings: Float[Array, "N K"],
    ability: Gaussian,
    known: Estimate,
    seen: Observation,
    omega: Float[Array, " B"],
    shock: Float[Array, " D"],
) -> dict[str, Float[Array, ""]]:
    """Everything after the random numbers; compiled in one go."""
    num_prompts, dim = loadings.shape[0], ability.mean.shape[0]
    pool = jnp.concatenate([jnp.ones((num_prompts, 1)), loadings], 1)
    hyper = Hyperparameters(
        ability_mean=ability.mean, ability_cov=ability.cov, intercept_var=jnp.float64(4.0)
    )
    merged = merge_duplicates(seen, num_prompts)
    omega = jnp.where(merged.trials > 0, omega, 0.0)
    site = Site(omega, merged.successes - merged.trials / 2)
    rule = MomentRule(lambda prior, current, successes, trials: site)

    model = ability_difficulty.assemble(loadings, hyper, rule=rule)
    state = ability_difficulty.init(model)
    intercept = jax.tree.map(lambda x, y: x.at[:num_prompts].set(y), state.intercept, known)
    state = state._replace(intercept=intercept)
    live = jnp.minimum(merged.prompt_ids, num_prompts - 1)  # rows without trials carry no weight
    exact = sequential.joint_step(state.ability, known, pool, live, site)

    found: dict[str, Float[Array, ""]] = {}
    step = (pool[live], omega, site.shift)
    one_by_one = sequential.condition(state.ability, *step)
    for form in ("cholesky", "woodbury", "qr"):
        solved = linear_gaussian.condition(state.ability, *step, form)
        found[f"{form} solve = one site at a time"] = _difference(solved, one_by_one)

    for form in ("cholesky", "woodbury", "qr"):
        after, _ = ability_difficulty.update(model._replace(form=form), state, seen)
        found[f"update ({form}), ability = joint step over all intercepts"] = _difference(
            after.ability, Gaussian(exact.mean[:dim], exact.cov[:dim, :dim])
        )
        found[f"update ({form}), intercepts = joint step over all intercepts"] = _difference(
            ability_difficulty.intercepts(model, after),
            Estimate(exact.mean[dim:], jnp.diagonal(exact.cov)[dim:]),
        )

    full = joint_filter.assemble(loadings, hyper, rule=rule)
    start = joint_filter.init(full)
    blocks = jnp.diag(jnp.concatenate([jnp.zeros(dim), known.var]))
    blocks = blocks.at[:dim, :dim].set(state.ability.cov)
    mean = jnp.concatenate([state.ability.mean, known.mean])
    after_full, _ = joint_filter.update(full, start._replace(latents=Gaussian(mean, blocks)), seen)
    found["joint=True, everything = joint step over all intercepts"] = _difference(
        after_full.latents, exact
    )

    half = gibbs.half_step(model, state, merged, omega)
    found["Gibbs half-step, theta given omega = joint step"] = _difference(
        half, Gaussian(exact.mean[:dim], exact.cov[:dim, :dim])
    )
    # d | theta of the joint Gaussian, by the textbook formula, at a theta far from its mean.
    theta = exact.mean[:dim] + shock
    gain = jnp.linalg.solve(exact.cov[:dim, :dim], exact.cov[:dim, dim:]).T
    given_mean = exact.mean[dim:] + gain @ (theta - exact.mean[:dim])
    given_cov = exact.cov[dim:, dim:] - gain @ exact.cov[:dim, dim:]
    # The site of every prompt of the pool; silent where there was no visit.
    spread = Site(*(jnp.zeros(num_prompts).at[live].add(x) for x in site))
    law = gibbs.intercepts_given(known, pool @ theta, *spread)
    found["Gibbs half-step, d given theta and omega = joint step"] = _difference(
        (law.mean, jnp.diag(law.var)), (given_mean, given_cov)
    )
    return found


def _difference(
    found: tuple | Float[Array, "..."], exact: tuple | Float[Array, "..."]
) -> Float[Array, ""]:
    """Largest `|found - exact| / (1 + |exact|)` over all arrays."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True)
    return jnp.stack([jnp.max(jnp.abs(a - b) / (1 + jnp.abs(b))) for a, b in pairs]).max()
