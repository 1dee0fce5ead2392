"""NumPyro's NUTS on the exact model: truth that shares no code and no conjugacy with the filter.

Non-centred throughout, float64 inside whatever JAX's own precision is set to, all chains side by
side on one device. A run that diverges or whose chains disagree raises instead of answering.

Shapes: `C` chains, `S` draws a chain, `T` steps, `N` prompts, `B` rows, `D` ability dimensions.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from fade_jax.reference.monte_carlo import split_r_hat

Numbers = Float[Array, "..."] | Float[np.ndarray, "..."]
"""Arrays of either library."""


class SamplingError(RuntimeError):
    """A run that must not be taken for the truth."""


class Draws(NamedTuple):
    """Posterior draws, float64; `monte_carlo.summarise` gives moments and their errors.

    Attributes:
        ability: [C, S, D] of a static run, [C, S, T, D] of a dynamic one.
        intercept: [C, S, N], one a row of the design.
        divergences: [C] divergent transitions; all zero.
        r_hat: largest split R-hat over all coordinates; below the limit asked for.
    """

    ability: Float[np.ndarray, "C S ..."]
    intercept: Float[np.ndarray, "C S N"]
    divergences: Int[np.ndarray, " C"]
    r_hat: float


def static(
    key: Key[Array, ""],
    design: Numbers,
    successes: Numbers,
    trials: Numbers,
    *,
    ability: tuple[Numbers, Numbers],
    intercept: tuple[Numbers, Numbers],
    num_chains: int = 32,
    num_warmup: int = 400,
    num_samples: int = 1000,
    max_r_hat: float = 1.01,
) -> Draws:
    """Samples `theta, d | counts` for one batch.

    `theta ~ N(mean, cov)` of `ability`, `d_b ~ N(mean_b, var_b)` of `intercept`,
    `successes_b ~ Binomial(trials_b, sigmoid(design_b . theta - d_b))`.

    Args:
        key: consumed.
        design: [B, D], the constant loading included; each prompt once.
        successes: [B] whole numbers in 0..trials.
        trials: [B].
        ability: prior mean [D] and covariance [D, D] of theta.
        intercept: prior means [B] and variances [B]; variance 0 holds an intercept at its mean.
        num_chains: C.
        num_warmup: adaptation steps, each chain.
        num_samples: S.
        max_r_hat: limit on the split R-hat.

    Returns:
        Draws; ability [C, S, D], intercept [C, S, B].

    Raises:
        SamplingError: at a divergence, or an R-hat at or above the limit.
    """
    rows = np.arange(np.shape(design)[0])[None, :]
    counts = [np.asarray(x)[None, :] for x in (successes, trials)]
    draws = dynamic(
        key,
        design,
        rows,
        *counts,
        ability=ability,
        intercept=intercept,
        drift=0.0,
        num_chains=num_chains,
        num_warmup=num_warmup,
        num_samples=num_samples,
        max_r_hat=max_r_hat,
    )
    return draws._replace(ability=draws.ability[:, :, 0])


def dynamic(
    key: Key[Array, ""],
    design: Numbers,
    prompt_ids: Int[Array, "T B"] | Int[np.ndarray, "T B"],
    successes: Numbers,
    trials: Numbers,
    *,
    ability: tuple[Numbers, Numbers],
    intercept: tuple[Numbers, Numbers],
    drift: float,
    num_chains: int = 32,
    num_warmup: int = 500,
    num_samples: int = 500,
    max_r_hat: float = 1.01,
) -> Draws:
    """Samples the whole path of the ability and every intercept, given all counts.

    `theta_1 ~ N(mean, cov)` of `ability`, `theta_{t+1} = theta_t + N(0, drift^2 I)`,
    `d_i ~ N(mean_i, var_i)` of `intercept` for ever, binomial counts at every visit. The marginal
    of the last step is the exact answer to what a filter believes after its last update.

    Args:
        key: consumed.
        design: [N, D] of the pool, the constant loading included.
        prompt_ids: [T, B] in 0..N-1; repeated visits share their intercept.
        successes: [T, B] whole numbers in 0..trials.
        trials: [T, B]; rows without trials are inert.
        ability: prior mean [D] and covariance [D, D] of theta at the first step.
        intercept: prior means [N] and variances [N]; variance 0 holds an intercept at its mean.
        drift: standard deviation per step of each ability.
        num_chains: C.
        num_warmup: adaptation steps, each chain.
        num_samples: S.
        max_r_hat: limit on the split R-hat.

    Returns:
        Draws; ability [C, S, T, D], intercept [C, S, N].

    Raises:
        SamplingError: at a divergence, or an R-hat at or above the limit.
    """
    import numpyro
    import numpyro.distributions as dist

    steps = np.shape(successes)[0]
    ids = np.asarray(prompt_ids)
    free = np.flatnonzero(np.asarray(intercept[1]) > 0)
    data = tuple(
        np.asarray(x, np.float64) for x in (design, successes, trials, *ability, *intercept)
    )

    def model() -> None:
        a, y, n, mean, cov, d_mean, d_var = map(jnp.asarray, data)
        dim, num_prompts = mean.shape[0], a.shape[0]
        white = numpyro.sample("white", dist.Normal(0.0, 1.0).expand([dim]).to_event(1))
        path = jnp.broadcast_to(mean + jnp.linalg.cholesky(cov) @ white, (steps, dim))
        if steps > 1 and drift > 0:
            shape = [steps - 1, dim]
            moves = numpyro.sample("moves", dist.Normal(0.0, 1.0).expand(shape).to_event(2))
            path = path.at[1:].add(drift * jnp.cumsum(moves, 0))
        d = d_mean
        if free.size:
            shocks = numpyro.sample("shocks", dist.Normal(0.0, 1.0).expand([free.size]).to_event(1))
            d = d_mean.at[free].add(jnp.sqrt(d_var[free]) * shocks)
        numpyro.deterministic("ability", path)
        numpyro.deterministic("intercept", jnp.broadcast_to(d, (num_prompts,)))
        logits = jnp.sum(a[ids] * path[:, None, :], -1) - d[ids]
        numpyro.factor("counts", jnp.sum(y * logits - n * jax.nn.softplus(logits)))

    return _run(key, model, num_chains, num_warmup, num_samples, max_r_hat)


def _run(
    key: Key[Array, ""],
    model: Callable[[], None],
    num_chains: int,
    num_warmup: int,
    num_samples: int,
    max_r_hat: float,
) -> Draws:
    """Runs NUTS in float64 and refuses what cannot be trusted."""
    from numpyro.infer import MCMC, NUTS

    # NumPyro relies on JAX's default promotion; callers may be stricter.
    with (
        jax.enable_x64(True),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        mcmc = MCMC(
            NUTS(model, target_accept_prob=0.8, dense_mass=True),
            num_warmup=num_warmup,
            num_samples=num_samples,
            num_chains=num_chains,
            chain_method="vectorized",
            progress_bar=False,
        )
        mcmc.run(key, extra_fields=("diverging",))
        chains = jax.tree.map(np.asarray, mcmc.get_samples(group_by_chain=True))
        diverging = np.asarray(mcmc.get_extra_fields(group_by_chain=True)["diverging"])
    latents = [chains[name] for name in ("white", "moves", "shocks") if name in chains]
    r_hat = max(float(split_r_hat(x).max()) for x in latents)
    divergences = diverging.sum(1)
    require_agreement(divergences, r_hat, max_r_hat)
    return Draws(chains["ability"], chains["intercept"], divergences, r_hat)


def require_agreement(divergences: Int[np.ndarray, " C"], r_hat: float, max_r_hat: float) -> None:
    """Refuses chains that diverged or that do not agree.

    Args:
        divergences: [C] divergent transitions.
        r_hat: largest split R-hat.
        max_r_hat: it has to be below this.

    Raises:
        SamplingError: names what is wrong.
    """
    if divergences.any():
        raise SamplingError(f"NUTS diverged: {divergences.tolist()} transitions in the chains")
    if not r_hat < max_r_hat:
        raise SamplingError(
            f"NUTS chains disagree: R-hat {r_hat:.4f}, the limit is {max_r_hat}; draw more"
        )
