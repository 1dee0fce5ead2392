"""Pólya-Gamma Gibbs sampling built from the filter's own update: a test of its code, not a rival.

Given `omega_i ~ PG(trials_i, psi_i)` the binomial likelihood is the Gaussian site
`(omega_i, successes_i - trials_i / 2)`, so `ability_difficulty.update`, handed that site, is exact
(Polson, Scott & Windle 2013; Jiang & Templin 2019 for item response models). Alternating

    omega | theta, d        and        theta, d | omega        (theta first, then d given theta)

therefore samples the exact posterior with no approximation left anywhere but in the update's code:
draws that disagree with quadrature mean a fault in it.

Shapes: `C` chains, `S` draws, `D` ability dimensions, `B` rows of the batch.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from fade_jax import ability_difficulty, polya_gamma
from fade_jax.ability_difficulty import Model, State
from fade_jax.linear_gaussian import Gaussian
from fade_jax.moments import MomentRule, Site
from fade_jax.outcomes import merge_duplicates
from fade_jax.pool_loadings import rows
from fade_jax.types import Estimate, Observation


class Draws(NamedTuple):
    """Posterior draws.

    Attributes:
        prompt_ids: [B] int32, the batch's prompts in ascending order; N in rows without trials.
        ability: [C, S, D] draws of theta.
        intercept: [C, S, B] draws of the intercepts of `prompt_ids`; the prior mean in rows
            without trials.
    """

    prompt_ids: Int[Array, " B"]
    ability: Float[Array, "C S D"]
    intercept: Float[Array, "C S B"]


def half_step(
    model: Model, state: State, observation: Observation, omega: Float[Array, " B"]
) -> Gaussian:
    """The law of the ability given omega, by the filter's own update.

    Args:
        model: of the filter; its moment rule is replaced.
        state: the prior.
        observation: [B] rows as `merge_duplicates` returns them.
        omega: [B] Pólya-Gamma variables of these rows; 0 without trials.

    Returns:
        `theta | omega`.
    """
    given = MomentRule(
        lambda prior, current, successes, trials: Site(omega, successes - trials / 2)
    )
    return ability_difficulty.update(model._replace(rule=given), state, observation)[0].ability


def intercepts_given(
    intercept: Estimate,
    along: Float[Array, " B"],
    omega: Float[Array, " B"],
    kappa: Float[Array, " B"],
) -> Estimate:
    """The law of each intercept given the ability and omega.

    `var' = var / (1 + omega var)`, `mean' = mean + var' (omega (along - mean) - kappa)`.

    Args:
        intercept: [B] prior moments.
        along: [B] `a . theta`.
        omega: [B].
        kappa: [B] `successes - trials / 2`.

    Returns:
        [B] moments.
    """
    var = intercept.var / (1 + omega * intercept.var)
    return Estimate(intercept.mean + var * (omega * (along - intercept.mean) - kappa), var)


def sample(
    key: Key[Array, ""],
    model: Model,
    state: State,
    observation: Observation,
    *,
    num_chains: int,
    num_warmup: int,
    num_samples: int,
    num_terms: int = 50,
) -> Draws:
    """Draws from the exact posterior of the ability and of the batch's intercepts.

    Args:
        key: consumed.
        model: of the filter.
        state: the prior, predicted to the time of the batch.
        observation: [B] rows; repeated prompts are merged.
        num_chains: C, started from independent prior draws and run side by side.
        num_warmup: sweeps thrown away, each chain.
        num_samples: S.
        num_terms: of `polya_gamma.sample`; 50 lack 2e-7 of omega's variance and none of its mean.

    Returns:
        Draws.
    """
    merged = merge_duplicates(observation, model.loadings.num_prompts)
    prompt_ids, successes, trials = merged
    loadings = rows(model.loadings, prompt_ids) * model.hyper.loading_scale
    design = jnp.concatenate([jnp.ones_like(successes)[:, None], loadings], 1)
    pool = ability_difficulty.intercepts(model, state)
    live = trials > 0
    intercept = Estimate(
        pool.mean.at[prompt_ids].get(mode="clip"),
        jnp.where(live, pool.var.at[prompt_ids].get(mode="clip"), 0.0),
    )
    kappa = successes - trials / 2

    def draw(key: Key[Array, ""], ability: Gaussian, omega: Float[Array, " B"], kappa):
        ability_key, intercept_key = jax.random.split(key)
        shape, dtype = ability.mean.shape, ability.mean.dtype
        root = jnp.linalg.cholesky(ability.cov)
        theta = ability.mean + root @ jax.random.normal(ability_key, shape, dtype)
        # Given theta, not from its marginal: that would break the chain.
        law = intercepts_given(intercept, design @ theta, omega, kappa)
        shocks = jax.random.normal(intercept_key, law.mean.shape, dtype)
        return theta, law.mean + jnp.sqrt(law.var) * shocks

    def sweep(carry: tuple[Array, Array], key: Key[Array, ""]):
        theta, d = carry
        omega_key, draw_key = jax.random.split(key)
        omega = polya_gamma.sample(omega_key, trials, design @ theta - d, num_terms=num_terms)
        carry = draw(draw_key, half_step(model, state, merged, omega), omega, kappa)
        return carry, carry

    def chain(key: Key[Array, ""]) -> tuple[Array, Array]:
        start_key, sweep_key = jax.random.split(key)
        nothing = jnp.zeros_like(kappa)
        start = draw(start_key, state.ability, nothing, nothing)
        keys = jax.random.split(sweep_key, num_warmup + num_samples)
        return jax.lax.scan(sweep, start, keys)[1]

    theta, d = jax.vmap(chain)(jax.random.split(key, num_chains))
    return Draws(prompt_ids, theta[:, num_warmup:], d[:, num_warmup:])
