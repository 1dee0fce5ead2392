"""One skill leaps: which prompts' beliefs follow, how soon, and whether the others stay."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.ablation_world import Setting
from fade_jax import ability_difficulty, dynamics, hyperparameters
from fade_jax.simulation import exposure
from fade_jax.simulation import world as worlds
from fade_jax.trackers import discounted_beta, logit_kalman

LEAP = 2.0
"""Logits."""
AFTER = 20
"""Iterations that are looked at after the leap."""
BEFORE = 60


def _fade(loadings, **parts) -> Any:
    hyper = hyperparameters.default(
        loadings.shape[1], ability_drift=0.2, intercept_var=2.25, intercept_drift=0.02
    )
    return ability_difficulty.build(loadings, hyper, **parts)


JUMPERS = {
    "FADE": _fade,
    "FADE, adaptive walk": lambda loadings: _fade(
        loadings, dynamics=dynamics.adaptive(exponent=1.0)
    ),
    "FADE, K = 0": lambda loadings: _fade(loadings[:, :0]),
    "logit Kalman, drift": lambda loadings: logit_kalman.build(loadings.shape[0], drift=0.2),
    "discounted Beta": lambda loadings: discounted_beta.build(loadings.shape[0], discount=0.5),
}
"""Trackers `(loadings) -> Tracker`, at hand-set rates: the tuned ones expect no leap."""


def jump_cell(name: str, seeds: int, setting: Setting) -> dict[str, Any]:
    """How much of a leap of skill 0 each tracker has followed after 0, 1, 2, ... iterations.

    Every prompt draws on one skill; nothing else moves. The move of the true pass rates is the
    unit. For other prompts: the mean change of their belief, against the same run without a leap.

    Args:
        name: of JUMPERS.
        seeds: worlds.
        setting: sizes.

    Returns:
        `followed` and `others`, [seeds, AFTER + 1].
    """
    build = JUMPERS[name]
    before = min(BEFORE, setting.iterations)

    def one(key):
        world_key, skill_key, run_key = jax.random.split(key, 3)
        world = worlds.draw(
            world_key, setting.num_prompts, setting.num_skills, learning_rate=0.0, drift=0.0
        )
        skill = jax.random.randint(skill_key, (setting.num_prompts,), 0, setting.num_skills)
        world = world._replace(loadings=jax.nn.one_hot(skill, setting.num_skills))
        leap = jnp.zeros_like(world.ability).at[1].set(LEAP)
        tracker = build(world.loadings)

        def run(jump):
            seen = exposure.expose(
                world,
                run_key,
                iterations=before + AFTER + 1,
                budget=setting.budget,
                group_size=setting.group_size,
                jump=jump,
                jump_at=before,
            )
            said = exposure.shadow(tracker, seen, setting.group_size).pass_rate
            return seen.pass_rate[before:], said[before:]

        # The same choices and draws with and without: what differs is the leap's doing.
        (true, said), (true_still, said_still) = run(leap), run(None)
        moved, truly, concerned = said - said_still, true - true_still, skill == 0
        share = jnp.where(concerned, moved, 0).sum(1) / jnp.where(concerned, truly, 0).sum(1)
        others = jnp.where(concerned, 0, moved).sum(1) / (~concerned).sum()
        return share, others

    keys = jnp.stack([jax.random.key(5000 + seed) for seed in range(seeds)])
    followed, others = jax.device_get(jax.jit(jax.vmap(one))(keys))
    return {"followed": np.asarray(followed).tolist(), "others": np.asarray(others).tolist()}
