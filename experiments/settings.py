"""Settings that comparisons are run on, each chosen by `setting_check` before any method ran.

A setting is the policy, the task and the sizes: whatever is the same for every scheduler.
"""

from paced_jax.training import TrainConfig

TINY = TrainConfig(policy="tiny", policy_learning_rate=2e-4, iterations=100)
"""131,008 parameters, 32 prompts x 8 rollouts; about a tenth of a second an iteration on 2 cores.

AdamW at 1e-4 learns the same more slowly; at 3e-4 a policy trained on one skill and length for ten
iterations forgot others (pass rate .42 to .40 in 60 iterations)."""

SETTINGS = {"tiny": TINY}
