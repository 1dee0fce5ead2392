"""One random walk a prompt on the logit of its pass rate (after KGPS, arXiv 2607.27610).

`psi_i ~ N(mean_i, var_i)`, `var_i <- var_i + drift^2` per step, counts absorbed by a moment rule.
It is the FADE filter without a shared ability: nothing learned on one prompt reaches another.

Shapes: `N` prompts in the pool, `B` observed rows.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from fade_jax import moments, outcomes, utility
from fade_jax.moments import MomentRule
from fade_jax.sharded_pool import split
from fade_jax.types import Elapsed, Estimate, GroupSize, Info, Observation, Tracker


class State(NamedTuple):
    """Beliefs, each as of the time its prompt was last observed.

    Attributes:
        mean: [N] logits.
        var: [N] squared logits, > 0.
        touched: [N] clock at the last visit, steps.
        clock: steps since the start.
    """

    mean: Float[Array, " N"]
    var: Float[Array, " N"]
    touched: Float[Array, " N"]
    clock: Float[Array, ""]


def init(
    num_prompts: int, prior_mean: float | Float[Array, ""], prior_var: float | Float[Array, ""]
) -> State:
    """Returns the prior for every prompt, at clock 0."""
    return State(
        mean=jnp.full(num_prompts, prior_mean, float),
        var=jnp.full(num_prompts, prior_var, float),
        touched=jnp.zeros(num_prompts, float),
        clock=jnp.zeros((), float),
    )


def predict(state: State, elapsed: Elapsed) -> State:
    """Moves the clock. Variances are aged where they are read, so a step costs O(1), not O(N)."""
    return state._replace(clock=state.clock + elapsed)


def current(
    state: State, drift: float | Float[Array, ""], max_var: float | Float[Array, ""]
) -> Estimate:
    """Beliefs as of now: `var + drift^2 (clock - touched)`, at most `max_var`.

    Args:
        state: beliefs as of each prompt's last visit.
        drift: standard deviation of the walk over one step, logits.
        max_var: squared logits; the walk forgets no further than this.

    Returns:
        Estimate of [N] logits.
    """
    aged = state.var + drift**2 * (state.clock - state.touched)
    return Estimate(state.mean, jnp.minimum(aged, max_var))


def absorb(
    prior: Estimate, rule: MomentRule, successes: Float[Array, " B"], trials: Float[Array, " B"]
) -> Estimate:
    """Multiplies scalar beliefs by the sites of a moment rule.

    `1 / var' = 1 / var + precision`, `mean' = var' (mean / var + shift)`. Every pass starts from
    `prior`; a pass only moves the point at which the next site is made.

    Args:
        prior: [B] predicted moments of the logit.
        rule: how counts become sites.
        successes: [B], in 0..trials.
        trials: [B] >= 0.

    Returns:
        [B] posterior moments; `prior` itself where trials = 0.
    """

    def multiply(site):
        var = prior.var / (1 + prior.var * site.precision)
        return Estimate(prior.mean + var * (site.shift - site.precision * prior.mean), var)

    posterior = prior
    # With one latent a prompt, the belief without its own site is the prior: one pass is all.
    for _ in range(1 if rule.cavity else rule.passes):
        posterior = multiply(rule.site(prior, posterior, successes, trials))
    if rule.final_site is not None:
        spread = multiply(rule.final_site(prior, posterior, successes, trials))
        posterior = posterior._replace(var=spread.var)
    return posterior


def update(
    state: State,
    observation: Observation,
    drift: float | Float[Array, ""],
    max_var: float | Float[Array, ""],
    rule: MomentRule,
) -> tuple[State, Info]:
    """Ages the observed prompts to now, then absorbs their counts.

    Args:
        state: beliefs held before.
        observation: [B] rows; all groups of one prompt count as one.
        drift: standard deviation of the walk over one step, logits.
        max_var: cap of the aged variance, squared logits.
        rule: how counts become Gaussian sites.

    Returns:
        The new state, and Info of the old one, whatever the rule: log of the Gaussian average of
        the binomial probability (`moments.log_marginal`).
    """
    rows = outcomes.merge_duplicates(observation, state.mean.shape[0])
    ids, successes, trials = rows
    gathered = state._replace(
        mean=state.mean.at[ids].get(mode="clip"),
        var=state.var.at[ids].get(mode="clip"),
        touched=state.touched.at[ids].get(mode="clip"),
    )
    prior = current(gathered, drift, max_var)
    posterior = absorb(prior, rule, successes, trials)
    new = state._replace(
        mean=state.mean.at[ids].set(posterior.mean, mode="drop"),
        var=state.var.at[ids].set(posterior.var, mode="drop"),
        touched=state.touched.at[ids].set(state.clock, mode="drop"),
    )
    log_pmf = moments.log_marginal(prior, successes, trials)
    rate = utility.expected_pass_rate(prior.mean, prior.var)
    variance = utility.pass_rate_variance(*prior)
    nis = outcomes.normalised_innovation(rate, variance, successes, trials)
    return new, Info(jnp.where(trials > 0, log_pmf, 0.0).sum(), nis)


def build(
    num_prompts: int,
    *,
    drift: float | Float[Array, ""] = 0.2,
    prior_mean: float | Float[Array, ""] = 0.0,
    prior_var: float | Float[Array, ""] = 4.0,
    max_var: float | Float[Array, ""] | None = None,
    rule: MomentRule | None = None,
) -> Tracker:
    """Builds the logit Kalman tracker.

    KGPS itself observes `logit(s / k)` with noise variance `1 / (k p (1 - p))` (delta method);
    `rule=moments.ekf()` is that Gaussian step, linearised at the predicted p so that 0 / k and
    k / k stay finite. Where p saturates it is thrown far by one surprise; the default,
    `moments.adf()`, is not. KGPS ties the walk to the size of the policy update: pass that as
    `elapsed` to `predict`.

    Args:
        num_prompts: N.
        drift: standard deviation of the walk over one step, logits.
        prior_mean: logits.
        prior_var: squared logits, > 0.
        max_var: cap of the aged variance, squared logits. `prior_var` if None: a prompt long unseen
            is never less known than one never seen. `jnp.inf` leaves a pure random walk.
        rule: how counts become Gaussian sites; `moments.adf()` if None.

    Returns:
        A Tracker.

    >>> tracker = build(2, prior_var=1.0)
    >>> group = Observation(jnp.array([1]), jnp.array([3.0]), jnp.array([8.0]))
    >>> state, _ = tracker.update(tracker.init(), group)
    >>> state.mean.round(3)  # exact: -.3536
    Array([ 0.   , -0.354], dtype=float32)
    """
    chosen = moments.adf() if rule is None else rule
    cap = prior_var if max_var is None else max_var

    def now(state: State) -> Estimate:
        return current(state, drift, cap)

    def pass_rate(state: State) -> Float[Array, " N"]:
        return split(utility.expected_pass_rate(*now(state)))

    def informative(state: State, group_size: GroupSize) -> Float[Array, " N"]:
        return split(utility.informative_logit(*now(state), group_size))

    def draw(key: Key[Array, ""], state: State) -> Float[Array, " N"]:
        mean, var = now(state)
        noise = jax.random.normal(key, mean.shape, mean.dtype)
        return jax.nn.sigmoid(mean + jnp.sqrt(var) * noise)

    return Tracker(
        init=partial(init, num_prompts, prior_mean, prior_var),
        predict=predict,
        update=lambda state, observation: update(state, observation, drift, cap, chosen),
        pass_rate=pass_rate,
        informative=informative,
        draw=draw,
    )
