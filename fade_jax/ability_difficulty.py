"""FADE: a Bayesian filter that splits a prompt's success logit into ability and difficulty.

    successes_i ~ Binomial(trials_i, sigmoid(psi_i)),
    psi_i = theta_0 + loading_i . theta_1..K - d_i,

with the ability theta a fast-drifting Gaussian vector shared by all prompts, and one slow Gaussian
intercept d_i a prompt (its difficulty). One update eliminates the intercepts analytically and takes
one K-dimensional Gaussian step, so evidence about a skill reaches every prompt that loads on it.
A reconstruction from a published summary; derivation in the comments of `update`.

Shapes: `N` prompts (`P` with the padding of `pool_loadings`), `K` skills, `D = K + 1`, `B` rows.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from fade_jax import linear_gaussian, moments, utility
from fade_jax.dynamics import Dynamics, move, random_walk
from fade_jax.evidence import log_evidence
from fade_jax.hyperparameters import Hyperparameters
from fade_jax.linear_gaussian import Form, Gaussian
from fade_jax.moments import MomentRule, Site
from fade_jax.outcomes import merge_duplicates, normalised_innovation
from fade_jax.pool_loadings import PoolLoadings, lay_out, linear, quadratic, rows
from fade_jax.sharded_pool import split
from fade_jax.shrinkage import Shrinkage, bayes
from fade_jax.types import Elapsed, Estimate, GroupSize, Info, Observation, Tracker


class State(NamedTuple):
    """What the filter believes.

    Attributes:
        ability: mean [D] and covariance [D, D] of theta, now.
        intercept: mean and variance [P] of each d, as of its last visit.
        last_visit: [P], the clock at that visit.
        visits: [P], updates that carried trials for the prompt.
        clock: time passed, in steps.
        nis: normalised innovation squared of the last update; 1 before any.
    """

    ability: Gaussian
    intercept: Estimate
    last_visit: Float[Array, " P"]
    visits: Float[Array, " P"]
    clock: Float[Array, ""]
    nis: Float[Array, ""]


class Model(NamedTuple):
    """Everything fixed during a run: loadings, hyperparameters and the exchangeable parts.

    Attributes:
        loadings, hyper, rule, dynamics, shrinkage, form: as `build` takes them.
    """

    loadings: PoolLoadings
    hyper: Hyperparameters
    rule: MomentRule
    dynamics: Dynamics
    shrinkage: Shrinkage
    form: Form


def init(model: Model) -> State:
    """The prior, before any outcome."""
    hyper = model.hyper
    # Copies, and one buffer a field: a donated state must not take the hyperparameters with it.
    mean = jnp.array(hyper.ability_mean)
    shape = model.loadings.features.shape[1:]
    pool = jnp.zeros(shape, mean.dtype)
    return State(
        ability=Gaussian(mean, jnp.array(hyper.ability_cov)),
        intercept=Estimate(pool + hyper.intercept_mean, pool + hyper.intercept_var),
        last_visit=pool,
        visits=jnp.zeros(shape, mean.dtype),
        clock=jnp.zeros((), mean.dtype),
        nis=jnp.ones((), mean.dtype),
    )


@jax.default_matmul_precision("highest")
def predict(model: Model, state: State, elapsed: Elapsed) -> State:
    """Lets `elapsed` steps pass: the ability drifts now, intercepts age when next read."""
    transition = model.dynamics(model.hyper, state.ability, elapsed, state.nis)
    ability = move(state.ability, transition)
    return state._replace(ability=ability, clock=state.clock + elapsed)


class Step(NamedTuple):
    """A belief after one Gaussian step.

    Attributes:
        ability, intercept, logits: moments [D], and [B] and [B] of the batch's prompts.
    """

    ability: Gaussian
    intercept: Estimate
    logits: Estimate


def gaussian_step(
    ability: Gaussian,
    intercept: Estimate,
    design: Float[Array, "B D"],
    site: Site,
    form: Form = "cholesky",
) -> Step:
    """Conditions ability and intercepts on one Gaussian site per logit, exactly.

    With `psi_i = design_i . theta - d_i` and sites `exp(shift_i psi_i - precision_i psi_i^2 / 2)`,
    d_i is integrated out, theta takes one D-dimensional step, and d_i follows given theta.

    Args:
        ability: predicted belief about theta.
        intercept: [B] predicted moments of the d_i, each prompt once.
        design: [B, D] rows `[1, loading_i]`.
        site: [B].
        form: of the D-dimensional step.

    Returns:
        Exact marginals of theta, of each d_i and of each psi_i.
    """
    # Integrating d out of a site leaves an observation of theta alone, of precision w.
    q = 1 / (1 + site.precision * intercept.var)
    w = q * site.precision
    r = q * (site.shift + site.precision * intercept.mean)
    ability = linear_gaussian.condition(ability, design, w, r, form)
    along = linear_gaussian.marginal(ability, design)  # design . theta, after the step
    # Given theta, d is Gaussian with precision 1 / var + site.precision.
    gain = q * intercept.var
    mean = intercept.mean + gain * (site.precision * (along.mean - intercept.mean) - site.shift)
    var = gain + jnp.square(gain * site.precision) * along.var
    # 1 - gain * precision = q is the part of design . theta that d does not absorb.
    logits = Estimate(along.mean - mean, q**2 * along.var + gain)
    return Step(ability, Estimate(mean, var), logits)


@jax.default_matmul_precision("highest")
def update(model: Model, state: State, observation: Observation) -> tuple[State, Info]:
    """Conditions on the outcomes of a batch.

    Each pass of the moment rule puts one Gaussian site on every logit and conditions the
    *predicted* belief on it; the next pass sees the logits that come out.

    Args:
        model: the fixed parts.
        state: predicted to the time of the observation.
        observation: [B] rows; repeated prompts are merged, rows without trials inert.

    Returns:
        The new state, and Info.
    """
    rule = model.rule
    prompt_ids, successes, trials = merge_duplicates(observation, model.loadings.num_prompts)
    design = _design(model, prompt_ids)
    intercept = _intercepts_of(model, state, prompt_ids)
    prior = _logits(linear_gaussian.marginal(state.ability, design), intercept)
    condition = partial(gaussian_step, state.ability, intercept, design, form=model.form)

    def one_pass(carry: tuple[Site, Estimate], _) -> tuple[tuple[Site, Estimate], None]:
        site, logits = carry
        seen = moments.cavity(logits, site) if rule.cavity else logits
        site = rule.site(prior, seen, successes, trials)
        return (site, condition(site).logits), None

    site = rule.site(prior, prior, successes, trials)
    step = condition(site)
    if rule.passes > 1:
        start = (site, step.logits)
        (site, _), _ = jax.lax.scan(one_pass, start, None, length=rule.passes - 1)
        step = condition(site)
    if rule.final_site is not None:
        sharper = condition(rule.final_site(prior, step.logits, successes, trials))
        step = Step(
            step.ability._replace(cov=sharper.ability.cov),
            step.intercept._replace(var=sharper.intercept.var),
            sharper.logits,
        )

    rate, spread = utility.expected_pass_rate(*prior), utility.pass_rate_variance(*prior)
    info = Info(
        log_evidence(state.ability, intercept, prior, design, site, successes, trials),
        normalised_innovation(rate, spread, successes, trials),
    )
    surprise = rate - successes / jnp.maximum(trials, 1)
    visits = state.visits.at[prompt_ids].get(mode="clip")
    kept = model.shrinkage.settle(model.hyper, intercept, step.intercept, surprise, visits)
    settled = _settle(model, state, prompt_ids, trials > 0, kept)
    # A batch without trials says nothing: keep the ability bit for bit, rounding included. The
    # pool is left alone anyway; a select over it would cost a tenth of the step.
    seen_any = jnp.any(trials > 0)
    ability, nis = jax.tree.map(
        partial(jnp.where, seen_any), (step.ability, info.nis), (state.ability, state.nis)
    )
    return settled._replace(ability=ability, nis=nis), info


def predictive(model: Model, state: State) -> Estimate:
    """Moments of every prompt's logit, [N]: `a . mean - delta` and `a^T cov a + var`."""
    return Estimate(
        _over_pool(model, state, lambda logits: logits.mean),
        _over_pool(model, state, lambda logits: logits.var),
    )


def intercepts(model: Model, state: State) -> Estimate:
    """Moments of every prompt's intercept (its difficulty), [N], aged to now."""
    age = state.clock - state.last_visit
    aged = model.shrinkage.age(model.hyper, state.intercept, age)
    return jax.tree.map(lambda x: x[: model.loadings.num_prompts], aged)


def ability_information(model: Model, state: State, trials: int) -> Float[Array, " N"]:
    """Expected information, in nats, that `trials` rollouts of each prompt give about the ability.

    `utility.information_gain` at the predictive moments; large where the ability is uncertain
    along the prompt's loading and the intercept is known.
    """
    logits = predictive(model, state)
    known = logits.var - intercepts(model, state).var
    return utility.information_gain(logits.mean, logits.var, known, trials)


def build(
    loadings: PoolLoadings | Float[Array, "N K"],
    hyper: Hyperparameters,
    *,
    rule: MomentRule = moments.adf(),  # noqa: B008 - functions only, nothing is allocated
    dynamics: Dynamics = random_walk,
    shrinkage: Shrinkage = bayes(),  # noqa: B008
    form: Form = "cholesky",
    joint: bool = False,
) -> Tracker:
    """The filter as a tracker. Call it inside the function being compiled.

    Args:
        loadings: of the pool; `pool_loadings.lay_out` them outside the compiled step for speed.
        hyper: priors and rates.
        rule: moment rule, `moments.adf()` if not given.
        dynamics: of the ability.
        shrinkage: intercept rule, `shrinkage.bayes()` if not given.
        form: of the Gaussian step, see `linear_gaussian`.
        joint: keep the full covariance of abilities and intercepts, [D + N, D + N]: the reference
            for small pools, see `joint_filter`.

    Returns:
        A Tracker.

    Raises:
        ValueError: if the loadings and `hyper.ability_mean` disagree on K.

    Example:
        >>> import jax.numpy as jnp
        >>> from fade_jax import Observation, ability_difficulty, hyperparameters
        >>> loadings = jnp.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        >>> tracker = build(loadings, hyperparameters.default(num_skills=2))
        >>> seen = Observation(jnp.array([0]), jnp.array([8.0]), jnp.array([8.0]))
        >>> state, info = tracker.update(tracker.init(), seen)
        >>> print(tracker.pass_rate(state).round(2))  # the skill it shares lifts prompt 1
        [0.89 0.65 0.57]
    """
    if joint:
        from fade_jax import joint_filter  # it builds on this module

        if shrinkage.age is not bayes().age:
            raise ValueError("shrinkage: joint=True has the bayes() rule only")

        return joint_filter.build(loadings, hyper, rule=rule, dynamics=dynamics, form=form)
    model = assemble(loadings, hyper, rule=rule, dynamics=dynamics, shrinkage=shrinkage, form=form)

    def pass_rate(state: State) -> Float[Array, " N"]:
        return _over_pool(model, state, lambda logits: utility.expected_pass_rate(*logits))

    def informative(state: State, group_size: GroupSize) -> Float[Array, " N"]:
        one_each = not isinstance(group_size, int) and group_size.ndim > 0
        if one_each:
            num_prompts = model.loadings.num_prompts
            sizes = jnp.broadcast_to(group_size, (num_prompts,))
            group_size = jnp.pad(sizes, (0, state.visits.shape[0] - num_prompts))
        score = partial(utility.informative_logit, group_size=group_size)
        # Who has a size for each prompt has chosen already, and will read a few.
        return _over_pool(model, state, lambda logits: score(*logits), few=one_each)

    return Tracker(
        init=partial(init, model),
        predict=partial(predict, model),
        update=partial(update, model),
        pass_rate=pass_rate,
        informative=informative,
        draw=partial(_draw, model),
    )


def assemble(
    loadings: PoolLoadings | Float[Array, "N K"],
    hyper: Hyperparameters,
    *,
    rule: MomentRule = moments.adf(),  # noqa: B008 - functions only, nothing is allocated
    dynamics: Dynamics = random_walk,
    shrinkage: Shrinkage = bayes(),  # noqa: B008
    form: Form = "cholesky",
) -> Model:
    """The fixed parts as a Model, for use with the functions of this module; see `build`."""
    laid_out = loadings if isinstance(loadings, PoolLoadings) else lay_out(loadings)
    num_skills, dim = laid_out.num_skills, hyper.ability_mean.shape[0]
    if dim != num_skills + 1:
        raise ValueError(
            f"ability_mean must have K + 1 = {num_skills + 1} entries for loadings of K = "
            f"{num_skills} skills, got {dim}"
        )
    return Model(laid_out, hyper, rule, dynamics, shrinkage, form)


def _design(model: Model, prompt_ids: Int[Array, " B"]) -> Float[Array, "B D"]:
    """Rows `a_i = [1, loading_i]`."""
    loadings = rows(model.loadings, prompt_ids) * model.hyper.loading_scale
    return jnp.concatenate([jnp.ones_like(loadings, shape=(loadings.shape[0], 1)), loadings], 1)


def _logits(along: Estimate, intercept: Estimate) -> Estimate:
    """Moments of `a . theta - d`, the two held independent."""
    return Estimate(along.mean - intercept.mean, along.var + intercept.var)


def _intercepts_of(model: Model, state: State, prompt_ids: Int[Array, " B"]) -> Estimate:
    """Intercepts of some prompts, aged to now."""
    held = state.intercept, state.last_visit
    intercept, last_visit = jax.tree.map(lambda x: x.at[prompt_ids].get(mode="clip"), held)
    return model.shrinkage.age(model.hyper, intercept, state.clock - last_visit)


def _over_pool(
    model: Model,
    state: State,
    function: Callable[[Estimate], Float[Array, " P"]],
    *,
    few: bool = False,
) -> Float[Array, " N"]:
    """Evaluates an elementwise function of every prompt's predictive logit.

    With `few`, the compiler evaluates only those that are read by index.
    """
    scale = jnp.ones_like(state.ability.mean).at[1:].set(model.hyper.loading_scale)

    def padded() -> Float[Array, " P"]:
        root = scale[:, None] * jnp.linalg.cholesky(state.ability.cov)
        gap = state.clock - state.last_visit
        intercept = model.shrinkage.age(model.hyper, state.intercept, gap)
        mean = linear(model.loadings, scale * state.ability.mean)
        along = Estimate(mean, quadratic(model.loadings, root))
        return split(function(_logits(along, intercept)))

    if few:
        return padded()[: model.loadings.num_prompts]
    # The branch is always taken. Without it XLA fuses the cut to [N] into the loop over the pool,
    # whose length is then no multiple of the vector width, and the loop runs 5 times slower.
    taken = ~(state.clock == -jnp.inf)
    scores = jax.lax.cond(taken, padded, lambda: jnp.zeros_like(state.last_visit))
    return scores[: model.loadings.num_prompts]


def _settle(
    model: Model,
    state: State,
    prompt_ids: Int[Array, " B"],
    live: Bool[Array, " B"],
    kept: Estimate,
) -> State:
    """Writes the intercepts of the live rows back; all others keep theirs bit for bit."""
    target = jnp.where(live, prompt_ids, state.visits.shape[0])
    # A value that depends on what was read lets XLA write the donated pool in place: no copy.
    before = state.last_visit.at[prompt_ids].get(mode="clip")
    now = jnp.where(live, state.clock, before)

    def write(pool: Float[Array, " P"], values: Float[Array, "*#B"]) -> Float[Array, " P"]:
        return pool.at[target].set(values, mode="drop")

    return state._replace(
        intercept=Estimate(*map(write, state.intercept, kept)),
        last_visit=write(state.last_visit, now),
        visits=state.visits.at[target].add(1, mode="drop"),
    )


def _draw(model: Model, key: Key[Array, ""], state: State) -> Float[Array, " N"]:
    """One joint draw: one ability for all prompts, one intercept each."""
    ability_key, intercept_key = jax.random.split(key)
    root = jnp.linalg.cholesky(state.ability.cov)
    noise = jax.random.normal(ability_key, state.ability.mean.shape, root.dtype)
    ability = Gaussian(state.ability.mean + root @ noise, jnp.zeros_like(root))
    drawn = state._replace(ability=ability)
    intercept = intercepts(model, state)
    shocks = jax.random.normal(intercept_key, intercept.mean.shape, root.dtype)
    return jax.nn.sigmoid(predictive(model, drawn).mean - jnp.sqrt(intercept.var) * shocks)
