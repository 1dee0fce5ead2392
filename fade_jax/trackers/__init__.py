"""Rival trackers: what a prompt's pass rate is believed to be without factoring it."""

from fade_jax.trackers import cdas, discounted_beta, ema, logit_kalman, markov, oracle

__all__ = ["cdas", "discounted_beta", "ema", "logit_kalman", "markov", "oracle"]
