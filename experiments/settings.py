"""Settings that comparisons are run on, each chosen by `setting_check` before any method ran.

A setting is the policy, the task and the sizes: whatever is the same for every scheduler.
"""

from typing import Any, Literal

from paced_jax.training import TrainConfig

TINY = TrainConfig(policy="tiny", policy_learning_rate=2e-4, iterations=100)
"""131,008 parameters, 32 prompts x 8 rollouts; about a tenth of a second an iteration on 2 cores.

AdamW at 1e-4 learns the same more slowly; at 3e-4 a policy trained on one skill and length for ten
iterations forgot others (pass rate .42 to .40 in 60 iterations)."""

BASE = TrainConfig(policy="base", num_prompts=64, iterations=100)
"""987,520 parameters, 64 prompts x 8 rollouts; one to two seconds an iteration on 2 cores."""

SMOLLM2 = TrainConfig(
    policy="smollm2",
    num_prompts=8,
    iterations=60,
    chunk=1,
    num_train=512,
    policy_learning_rate=3e-5,
    measure_kl=False,
)
"""A language model of 135 million parameters, 8 prompts x 8 rollouts; about twenty seconds an
iteration on 2 cores. 512 prompts, because each is embedded before training starts; the KL of a step
would be a sixth of an iteration. The learning rate is not tuned."""

SETTINGS = {"tiny": TINY, "base": BASE, "smollm2": SMOLLM2}

MethodName = Literal[
    "uniform",
    "mopps",
    "fade",
    "paced",
    "paced_no_replay",
    "fade_thompson",
    "fade_weighted",
    "fade_skill",
    "fade_skill_length",
    "fade_shuffled",
    "oracle",
]
METHODS: dict[str, dict[str, Any]] = {
    "uniform": {"scheduler": "uniform"},
    "mopps": {"scheduler": "mopps"},
    "fade": {"scheduler": "fade"},
    "paced": {"scheduler": "paced"},
    "paced_no_replay": {"scheduler": "paced", "replay": "off"},
    "fade_thompson": {"scheduler": "fade", "fade_selector": "thompson"},
    "fade_weighted": {"scheduler": "fade", "fade_selector": "weighted"},
    # Loadings that say more, or nothing: told the skill, told skill and length, another prompt's.
    "fade_skill": {"scheduler": "fade", "loadings": "skill", "fade_selector": "thompson"},
    "fade_skill_length": {
        "scheduler": "fade",
        "loadings": "skill_length",
        "fade_selector": "thompson",
    },
    "fade_shuffled": {"scheduler": "fade", "loadings": "shuffled", "fade_selector": "thompson"},
    "oracle": {"scheduler": "oracle"},
}
"""What a method changes in a setting."""
