"""Textbook forms of the filter's Gaussian step, written without any of its code.

Given the same sites (for a Pólya-Gamma Gibbs half-step: the same omega), eliminating the intercepts
and taking one K-dimensional step is exact. Two independent ways to see it: one site at a time, and
one big system over the ability and every intercept.

Shapes: `D` ability dimensions, `N` prompts, `L = D + N` latents, `B` rows.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fade_jax.linear_gaussian import Gaussian
from fade_jax.moments import Site
from fade_jax.types import Estimate


def condition(
    prior: Gaussian,
    design: Float[Array, "B D"],
    precision: Float[Array, " B"],
    shift: Float[Array, " B"],
) -> Gaussian:
    """Conditions on sites one at a time by Sherman-Morrison, O(D^2) each.

    `cov <- cov - w (cov a) (cov a)^T / (1 + w a . cov a)`,
    `mean <- mean + cov a (shift - w a . mean) / (1 + w a . cov a)`: the reading under which the
    FADE summary's "O(K^3) to O(K^2)" is literally true. Same contract as
    `linear_gaussian.condition`.

    Args:
        prior: over the D latents.
        design: [B, D] rows `a`.
        precision: [B] `w` >= 0.
        shift: [B] natural parameter of each site.

    Returns:
        The posterior, the same in whatever order the sites come.
    """

    def absorb(belief: Gaussian, row: tuple[Array, ...]) -> tuple[Gaussian, None]:
        a, w, r = row
        along = belief.cov @ a
        spread = 1 + w * (a @ along)
        mean = belief.mean + along * ((r - w * (a @ belief.mean)) / spread)
        cov = belief.cov - (w / spread) * along[:, None] * along[None, :]
        return Gaussian(mean, cov), None

    return jax.lax.scan(absorb, prior, (design, precision, shift))[0]


def joint_step(
    ability: Gaussian,
    intercept: Estimate,
    design: Float[Array, "N D"],
    prompt_ids: Int[Array, " B"],
    site: Site,
) -> Gaussian:
    """Conditions the ability and all N intercepts at once, by inverting the whole information.

    `information' = blockdiag(cov, diag(var))^-1 + H^T diag(precision) H`,
    `mean' = information'^-1 (information mean + H^T shift)`, with one row of H a site:
    `[design_i, -e_i]`.

    Args:
        ability: belief about theta before the sites.
        intercept: [N] moments before the sites, var > 0, independent of the ability.
        design: [N, D] of the whole pool, the constant loading included.
        prompt_ids: [B] int32 in 0..N-1; repeated ids are fine here.
        site: [B] Gaussian sites on `design_i . theta - d_i`.

    Returns:
        The posterior of (theta, d), [L], with every cross-covariance.
    """
    dim = ability.mean.shape[0]
    rows = jnp.concatenate([design, -jnp.eye(design.shape[0], dtype=design.dtype)], 1)[prompt_ids]
    information = jnp.diag(jnp.concatenate([jnp.zeros_like(ability.mean), 1 / intercept.var]))
    information = information.at[:dim, :dim].set(jnp.linalg.inv(ability.cov))
    mean = jnp.concatenate([ability.mean, intercept.mean])
    natural = information @ mean + rows.T @ site.shift
    information = information + rows.T @ (site.precision[:, None] * rows)
    return Gaussian(jnp.linalg.solve(information, natural), jnp.linalg.inv(information))
