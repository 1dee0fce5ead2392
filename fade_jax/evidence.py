"""Log evidence of a batch: what the filter's prediction said about all of its counts at once.

Each prompt alone is scored exactly (one-dimensional quadrature of its binomial likelihood under its
predicted logit). What the prompts say *together* differs from the sum of these, because their
logits share the ability; the Gaussian sites measure by how much:

    log p(y_1..y_B) ~= sum_i log p(y_i) + log ∫ N(psi) prod_i site_i - sum_i log ∫ N(psi_i) site_i

exact for one prompt and for independent ones; for the `adf` rule it is the evidence of expectation
propagation after its first sweep (Minka 2001).

Shapes: `B` rows, `D` ability dimensions.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from fade_jax import linear_gaussian
from fade_jax.linear_gaussian import Gaussian
from fade_jax.moments import Site, log_marginal, log_site_mass
from fade_jax.types import Estimate


def log_evidence(
    ability: Gaussian,
    intercept: Estimate,
    prior: Estimate,
    design: Float[Array, "B D"],
    site: Site,
    successes: Float[Array, " B"],
    trials: Float[Array, " B"],
) -> Float[Array, ""]:
    """Log probability of a batch of counts under the predicted belief.

    Args:
        ability: predicted belief about theta.
        intercept: [B] predicted moments of the intercepts, each prompt once.
        prior: [B] moments of `design @ theta - d` that follow from the two.
        design: [B, D].
        site: [B] Gaussian sites that stood in for the counts.
        successes: [B].
        trials: [B]; rows without trials add nothing.

    Returns:
        A scalar, nats.
    """
    alone = jnp.sum(log_marginal(prior, successes, trials))
    # Given theta, each site meets N(d; mean, var) alone: integrate d out, leaving a site on theta.
    absorbed = log_site_mass(Estimate(-intercept.mean, intercept.var), site)
    q = 1 / (1 + site.precision * intercept.var)
    precision, shift = q * site.precision, q * (site.shift + site.precision * intercept.mean)
    posterior = linear_gaussian.condition(ability, design, precision, shift)
    together = linear_gaussian.log_normaliser(ability, posterior, design, precision, shift)
    return alone + jnp.sum(absorbed) + together - jnp.sum(log_site_mass(prior, site))
