import jax
import jax.numpy as jnp
import numpy as np

from fade_jax import hyperparameters
from fade_jax.dynamics import Transition, move, ornstein_uhlenbeck
from fade_jax.linear_gaussian import Gaussian, condition
from fade_jax.smoother import smooth


def test_smoothing_equals_the_dense_joint_gaussian(x64):
    """All steps as one big Gaussian, conditioned at once in numpy."""
    rng = np.random.default_rng(0)
    steps, dim, batch = 6, 3, 2
    hyper = hyperparameters.default(2, ability_mean=jnp.asarray([0.5, 0.0, -1.0]))
    walk = ornstein_uhlenbeck(0.8)
    design = rng.normal(size=(steps, batch, dim))
    precision = rng.gamma(2.0, 1.0, (steps, batch))
    shift = rng.normal(size=(steps, batch))

    ability = Gaussian(hyper.ability_mean, 2.0 * jnp.eye(dim))
    first, filtered, moves = ability, [], []
    for t in range(steps):
        rows, w, r = map(jnp.asarray, (design[t], precision[t], shift[t]))
        ability = condition(ability, rows, w, r)
        filtered.append(ability)
        moves.append(walk(hyper, ability, 1.0, jnp.ones(())))
        ability = move(ability, moves[-1])
    stack = jax.tree.map(lambda *leaves: jnp.stack(leaves), *filtered)
    transitions = jax.tree.map(lambda *leaves: jnp.stack(leaves), *moves[:-1])
    mean, cov = jax.jit(smooth)(stack.mean, stack.cov, Transition(*transitions))

    # Joint prior by unrolling x_{t+1} = F x_t + c + noise.
    size = steps * dim
    joint_mean, joint_cov = np.zeros(size), np.zeros((size, size))
    joint_mean[:dim], joint_cov[:dim, :dim] = first.mean, first.cov
    for t in range(1, steps):
        now, before = slice(t * dim, (t + 1) * dim), slice((t - 1) * dim, t * dim)
        f, c, q = (np.asarray(leaf) for leaf in moves[t - 1])
        joint_mean[now] = f @ joint_mean[before] + c
        joint_cov[now, : t * dim] = f @ joint_cov[before, : t * dim]
        joint_cov[: t * dim, now] = joint_cov[now, : t * dim].T
        joint_cov[now, now] = f @ joint_cov[before, before] @ f.T + q
    rows = np.zeros((steps * batch, size))
    for t in range(steps):
        rows[t * batch : (t + 1) * batch, t * dim : (t + 1) * dim] = design[t]
    posterior = np.linalg.inv(np.linalg.inv(joint_cov) + rows.T @ np.diag(precision.ravel()) @ rows)
    want = posterior @ (np.linalg.solve(joint_cov, joint_mean) + rows.T @ shift.ravel())
    np.testing.assert_allclose(mean.ravel(), want, rtol=1e-9, atol=1e-10)
    for t in range(steps):
        block = posterior[t * dim : (t + 1) * dim, t * dim : (t + 1) * dim]
        np.testing.assert_allclose(cov[t], block, rtol=1e-9, atol=1e-10)
    np.testing.assert_array_equal(mean[-1], stack.mean[-1])
