import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fade_jax import ability_difficulty as fade
from fade_jax import hyperparameters, moments
from fade_jax.types import Observation


def evidence(successes, ability_var, intercept_var, rule=None):
    hyper = hyperparameters.default(
        0,
        ability_mean=jnp.asarray([0.3]),
        ability_cov=jnp.asarray([[ability_var]]),
        intercept_var=intercept_var,
        intercept_mean=0.1,
    )
    model = fade.assemble(jnp.zeros((2, 0)), hyper, rule=moments.adf(32) if rule is None else rule)
    start = fade.init(model)

    def one(successes):
        batch = Observation(jnp.arange(2), successes, jnp.full((2,), 8.0))
        return fade.update(model, start, batch)[1].log_evidence

    return np.asarray(jax.jit(jax.vmap(one))(jnp.asarray(successes, float).reshape(-1, 2)))


def by_quadrature(successes, ability_var, intercept_var):
    """Both counts integrated over theta and the two intercepts, which are independent given it."""
    theta = np.linspace(0.3 - 10 * np.sqrt(ability_var), 0.3 + 10 * np.sqrt(ability_var), 801)
    d = np.linspace(0.1 - 10 * np.sqrt(intercept_var), 0.1 + 10 * np.sqrt(intercept_var), 801)
    psi = theta[:, None] - d

    def normal(x, mean, var):
        return np.exp(-((x - mean) ** 2) / (2 * var)) / np.sqrt(2 * np.pi * var)

    weight = normal(d, 0.1, intercept_var) * (d[1] - d[0])
    total = normal(theta, 0.3, ability_var) * (theta[1] - theta[0])
    for y in successes:
        choose = np.prod(np.arange(8 - y + 1, 9)) / np.prod(np.arange(1, y + 1))
        pmf = choose * np.exp(y * psi - 8 * np.logaddexp(0, psi))
        total = total * (pmf @ weight)
    return np.log(total.sum())


@pytest.mark.parametrize("successes", [(3.0, 5.0), (8.0, 0.0), (8.0, 7.0)])
def test_joint_evidence_of_two_prompts(x64, successes):
    # Independent prompts: exact. Sharing the ability: close, and far closer than their sum.
    assert abs(evidence(successes, 1e-12, 1.5)[0] - by_quadrature(successes, 1e-6, 1.5)) < 1e-4
    shared, exact = evidence(successes, 1.0, 0.3)[0], by_quadrature(successes, 1.0, 0.3)
    # Measured: .003, .16 (prompts that contradict each other) and .006 nats.
    assert abs(shared - exact) < (0.2 if successes == (8.0, 0.0) else 0.01)
    alone = sum(
        float(
            moments.log_marginal(
                fade.Estimate(jnp.asarray([0.2]), jnp.asarray([1.3])),
                jnp.asarray([y]),
                jnp.asarray([8.0]),
                nodes=32,
            )[0]
        )
        for y in successes
    )
    assert abs(shared - exact) < 0.35 * abs(alone - exact)


def test_evidence_sums_to_one_over_all_outcomes(x64):
    outcomes = np.stack(np.meshgrid(np.arange(9), np.arange(9)), -1)
    total = np.exp(evidence(outcomes, 0.5, 0.3)).sum()
    assert abs(total - 1) < 0.02
