"""Beliefs about a logit, and expectations over them that are independent of the package."""

import jax.numpy as jnp
import numpy as np
from scipy.special import expit


def f32(values):
    return jnp.asarray(values, jnp.float32)


def gaussian_rule(half_width=9.0, nodes=361):
    """Nodes and weights of E over N(0, 1), numpy float64."""
    nodes = np.linspace(-half_width, half_width, nodes)
    weights = np.exp(-0.5 * nodes**2)
    return nodes, weights / weights.sum()


def gaussian_expectation(function, mean, var):
    """E[function(p)], logit(p) ~ N(mean, var), elementwise; independent of the package."""
    nodes, weights = gaussian_rule()
    psi = np.asarray(mean)[..., None] + np.sqrt(np.asarray(var))[..., None] * nodes
    return function(expit(psi)) @ weights


def belief_grid(num_means=113, num_sds=31, max_mean=14.0, max_sd=5.0):
    means, sds = np.meshgrid(np.linspace(0, max_mean, num_means), np.linspace(0, max_sd, num_sds))
    return means.ravel(), sds.ravel() ** 2
