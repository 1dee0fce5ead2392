"""FADE with nothing dropped: one Gaussian over the ability and every intercept.

`ability_difficulty` forgets, after every update, how its errors about the ability and about the
intercepts hang together. This module keeps the full [D + N, D + N] covariance, at a cost that
limits it to small pools; it is there to measure what forgetting costs.

Shapes: `N` prompts, `D` ability dimensions, `L = D + N` latents, `B` rows.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from fade_jax import linear_gaussian, moments, utility
from fade_jax.dynamics import Dynamics, move, random_walk
from fade_jax.hyperparameters import Hyperparameters
from fade_jax.linear_gaussian import Form, Gaussian
from fade_jax.moments import MomentRule, Site
from fade_jax.outcomes import merge_duplicates, normalised_innovation
from fade_jax.pool_loadings import PoolLoadings, lay_out
from fade_jax.types import Elapsed, Estimate, GroupSize, Info, Observation, Tracker


class State(NamedTuple):
    """What the joint filter believes.

    Attributes:
        latents: mean [L] and covariance [L, L] of (theta, d).
        nis: normalised innovation squared of the last update; 1 before any.
    """

    latents: Gaussian
    nis: Float[Array, ""]


class Model(NamedTuple):
    """The fixed parts.

    Attributes:
        design: [N, L], rows `[1, loading_i, -e_i]`.
        hyper: priors and drift rates.
        rule: how counts become Gaussian sites.
        dynamics: how the ability drifts.
        form: how the Gaussian step is solved.
    """

    design: Float[Array, "N L"]
    hyper: Hyperparameters
    rule: MomentRule
    dynamics: Dynamics
    form: Form


def init(model: Model) -> State:
    """The prior, before any outcome."""
    hyper = model.hyper
    num_prompts, dim = model.design.shape[0], hyper.ability_mean.shape[0]
    ones = jnp.ones((num_prompts,), model.design.dtype)
    mean = jnp.concatenate([hyper.ability_mean, hyper.intercept_mean * ones])
    cov = jnp.diag(jnp.concatenate([jnp.zeros((dim,), ones.dtype), hyper.intercept_var * ones]))
    cov = cov.at[:dim, :dim].set(hyper.ability_cov)
    return State(Gaussian(mean, cov), jnp.ones((), mean.dtype))


@jax.default_matmul_precision("highest")
def predict(model: Model, state: State, elapsed: Elapsed) -> State:
    """The ability drifts; intercepts diffuse (without the cap of the factored filter)."""
    dim = model.hyper.ability_mean.shape[0]
    mean, cov = state.latents
    transition = model.dynamics(
        model.hyper, Gaussian(mean[:dim], cov[:dim, :dim]), elapsed, state.nis
    )
    moved = move(Gaussian(mean[:dim], cov[:dim, :dim]), transition)
    across = transition.matrix @ cov[:dim, dim:]
    drift = jnp.square(model.hyper.intercept_drift) * elapsed
    below = cov[dim:, dim:] + drift * jnp.eye(cov.shape[0] - dim, dtype=cov.dtype)
    cov = jnp.block([[moved.cov, across], [across.T, below]])
    return state._replace(latents=Gaussian(jnp.concatenate([moved.mean, mean[dim:]]), cov))


@jax.default_matmul_precision("highest")
def update(model: Model, state: State, observation: Observation) -> tuple[State, Info]:
    """Conditions on a batch; every pass starts from the predicted belief."""
    rule = model.rule
    prompt_ids, successes, trials = merge_duplicates(observation, model.design.shape[0])
    design = model.design.at[prompt_ids].get(mode="clip")
    prior = linear_gaussian.marginal(state.latents, design)

    def condition(site: Site) -> Gaussian:
        return linear_gaussian.condition(state.latents, design, *site, model.form)

    site, logits, posterior = Site(*map(jnp.zeros_like, prior)), prior, state.latents
    for _ in range(rule.passes):
        seen = moments.cavity(logits, site) if rule.cavity else logits
        site = rule.site(prior, seen, successes, trials)
        posterior = condition(site)
        logits = linear_gaussian.marginal(posterior, design)
    if rule.final_site is not None:
        sharper = condition(rule.final_site(prior, logits, successes, trials))
        posterior = posterior._replace(cov=sharper.cov)

    alone = moments.log_marginal(prior, successes, trials) - moments.log_site_mass(prior, site)
    together = linear_gaussian.log_normaliser(state.latents, condition(site), design, *site)
    rate, spread = utility.expected_pass_rate(*prior), utility.pass_rate_variance(*prior)
    info = Info(jnp.sum(alone) + together, normalised_innovation(rate, spread, successes, trials))
    absorbed = State(posterior, info.nis)
    return jax.tree.map(partial(jnp.where, jnp.any(trials > 0)), absorbed, state), info


def predictive(model: Model, state: State) -> Estimate:
    """Moments of every prompt's logit, [N]."""
    return linear_gaussian.marginal(state.latents, model.design)


def assemble(
    loadings: PoolLoadings | Float[Array, "N K"],
    hyper: Hyperparameters,
    *,
    rule: MomentRule = moments.adf(),  # noqa: B008 - functions only, nothing is allocated
    dynamics: Dynamics = random_walk,
    form: Form = "cholesky",
) -> Model:
    """The fixed parts as a Model; arguments as in `build`."""
    laid_out = loadings if isinstance(loadings, PoolLoadings) else lay_out(loadings)
    num_prompts, dim = laid_out.num_prompts, hyper.ability_mean.shape[0]
    if dim != laid_out.num_skills + 1:
        raise ValueError(
            f"ability_mean must have K + 1 = {laid_out.num_skills + 1} entries, got {dim}"
        )
    features = hyper.loading_scale * laid_out.features[:, :num_prompts].T
    ones = jnp.ones((num_prompts, 1), features.dtype)
    design = jnp.concatenate([ones, features, -jnp.eye(num_prompts, dtype=features.dtype)], 1)
    return Model(design, hyper, rule, dynamics, form)


def build(
    loadings: PoolLoadings | Float[Array, "N K"],
    hyper: Hyperparameters,
    *,
    rule: MomentRule = moments.adf(),  # noqa: B008
    dynamics: Dynamics = random_walk,
    form: Form = "cholesky",
) -> Tracker:
    """The joint filter as a tracker.

    Args:
        loadings: of the pool, N up to a few thousand.
        hyper: priors and rates.
        rule: moment rule.
        dynamics: of the ability.
        form: of the Gaussian step.

    Returns:
        A Tracker.
    """
    model = assemble(loadings, hyper, rule=rule, dynamics=dynamics, form=form)

    def pass_rate(state: State) -> Float[Array, " N"]:
        return utility.expected_pass_rate(*predictive(model, state))

    def informative(state: State, group_size: GroupSize) -> Float[Array, " N"]:
        return utility.informative_logit(*predictive(model, state), group_size)

    def draw(key: Key[Array, ""], state: State) -> Float[Array, " N"]:
        mean, cov = state.latents
        noise = jax.random.normal(key, mean.shape, mean.dtype)
        return jax.nn.sigmoid(model.design @ (mean + jnp.linalg.cholesky(cov) @ noise))

    return Tracker(
        init=partial(init, model),
        predict=partial(predict, model),
        update=partial(update, model),
        pass_rate=pass_rate,
        informative=informative,
        draw=draw,
    )
