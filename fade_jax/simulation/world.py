"""A world of skills: true pass rates, and abilities that respond to what is trained on.

    logit p_i = ability_0 + loadings_i . ability_1.. - difficulty_i

Training on informative groups moves the abilities so that their prompts' logits rise; degenerate
groups teach nothing. Beside that abilities wander, as those of a policy do.

Shapes: `N` prompts, `K` skills, `D = K + 1` abilities (entry 0 is common to all prompts), `M`
generated groups.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from fade_jax.types import Observation


class World(NamedTuple):
    """The truth, and how it moves.

    Attributes:
        loadings: [N, K], about unit norm: mean square 1 / K.
        difficulty: [N], logits.
        ability: [D] before the first step, logits.
        learning_rate: logits that the common ability gains in a step whose groups all pass half
            of their rollouts.
        drift: standard deviation an ability gains per step, logits.
    """

    loadings: Float[Array, "N K"]
    difficulty: Float[Array, " N"]
    ability: Float[Array, " D"]
    learning_rate: Float[Array, ""]
    drift: Float[Array, ""]


def draw(
    key: Key[Array, ""],
    num_prompts: int,
    num_skills: int,
    *,
    ability_sd: float = 1.0,
    difficulty_mean: float = 0.5,
    difficulty_sd: float = 1.5,
    learning_rate: float = 0.1,
    drift: float = 0.03,
) -> World:
    """Draws a world; consumes `key`.

    Args:
        key: of everything.
        num_prompts: N.
        num_skills: K >= 0.
        ability_sd: standard deviation of abilities at the start; loadings are divided by sqrt(K),
            so skills together contribute this much to a logit.
        difficulty_mean: of the difficulties; above 0 the policy starts below one half.
        difficulty_sd: of the difficulties.
        learning_rate: see `World`.
        drift: see `World`.

    Returns:
        A World.
    """
    loading_key, ability_key, difficulty_key = jax.random.split(key, 3)
    scale = max(num_skills, 1) ** -0.5
    noise = jax.random.normal(difficulty_key, (num_prompts,))
    return World(
        loadings=scale * jax.random.normal(loading_key, (num_prompts, num_skills)),
        difficulty=difficulty_mean + difficulty_sd * noise,
        ability=ability_sd * jax.random.normal(ability_key, (num_skills + 1,)),
        learning_rate=jnp.asarray(learning_rate, float),
        drift=jnp.asarray(drift, float),
    )


def seen_loadings(
    key: Key[Array, ""],
    world: World,
    kind: Literal["informative", "weak", "shuffled"] = "informative",
    *,
    share: float = 0.5,
) -> Float[Array, "N K"]:
    """What a scheduler is told of the loadings; consumes `key`.

    Args:
        key: of the noise or the shuffle.
        world: the truth.
        kind: the true ones; a mixture with noise of the same size; those of other prompts.
        share: of the variance that "weak" loadings have in common with the true ones, in 0..1.

    Returns:
        [N, K].

    Raises:
        ValueError: an unknown kind.
    """
    if kind == "informative":
        return world.loadings
    if kind == "shuffled":
        return jax.random.permutation(key, world.loadings)
    if kind == "weak":
        noise = jax.random.normal(key, world.loadings.shape, world.loadings.dtype)
        size = max(world.loadings.shape[1], 1) ** -0.5
        return share**0.5 * world.loadings + (1 - share) ** 0.5 * size * noise
    raise ValueError(f"kind must be informative, weak or shuffled, got {kind!r}")


def logits(world: World, ability: Float[Array, " D"]) -> Float[Array, " N"]:
    """True logits of every prompt under these abilities."""
    return ability[0] + world.loadings @ ability[1:] - world.difficulty


def pass_rates(world: World, ability: Float[Array, " D"]) -> Float[Array, " N"]:
    """True pass rates of every prompt under these abilities."""
    return jax.nn.sigmoid(logits(world, ability))


def trained(
    world: World, ability: Float[Array, " D"], observation: Observation
) -> Float[Array, " D"]:
    """Abilities after a step on some generated groups, without drift.

    `ability + learning_rate / M sum_groups 4 y/n (1 - y/n) [1, loadings_i]`: as a policy gradient
    does, a group pushes in proportion to the variance of its rewards, hence 0 if degenerate.

    Args:
        world: loadings and learning rate.
        ability: before.
        observation: the M groups the learner got; groups without trials teach nothing but count
            in M.

    Returns:
        [D].
    """
    ids: Int[Array, " M"] = observation.prompt_ids
    rate = observation.successes / jnp.maximum(observation.trials, 1.0)
    push = 4 * rate * (1 - rate) / observation.trials.shape[0]
    loads = world.loadings.at[ids].get(mode="fill", fill_value=0.0)
    gain = jnp.concatenate([push.sum()[None], loads.T @ push])
    return ability + world.learning_rate * gain
