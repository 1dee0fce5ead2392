"""Helpers of the selector tests: beliefs that are known exactly, and many choices at once."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import chi2

from fade_jax.trackers import oracle

# Most of the time of these tests goes into compiling.
QUICK = {"xla_backend_optimization_level": 0}


def known(pass_rates):
    """A tracker that is certain of these pass rates, and its state."""
    tracker = oracle.build(jnp.asarray(pass_rates, float))
    return tracker, tracker.init()


def choose(selector, tracker_state, seed=0):
    """The ids of one choice, in order."""
    select = jax.jit(selector.select, compiler_options=QUICK)
    _, chosen, _ = select(selector.init(), tracker_state, jax.random.key(seed))
    return np.asarray(chosen.prompt_ids).tolist()


def choose_often(selector, tracker_state, times, seed=0):
    """[times, M] ids of independent choices from the same states."""

    def one(key):
        return selector.select(selector.init(), tracker_state, key)[1].prompt_ids

    many = jax.jit(jax.vmap(one), compiler_options=QUICK)
    return np.asarray(many(jax.random.split(jax.random.key(seed), times)))


def is_plausible(counts, expected, false_alarm=1e-4):
    """Pearson's chi-square test of counts over all outcomes; expected sums to their sum."""
    counts, expected = np.asarray(counts, float).ravel(), np.asarray(expected, float).ravel()
    assert abs(counts.sum() - expected.sum()) < 1e-6 * counts.sum(), "outcomes are missing"
    statistic = ((counts - expected) ** 2 / expected).sum()
    return statistic < chi2.isf(false_alarm, counts.size - 1)
