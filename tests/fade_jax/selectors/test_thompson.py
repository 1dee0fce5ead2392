"""Thompson sampling: MoPPS's rule by hand, and the tracker's own draw with the same key."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from selector_cases import QUICK, choose, known

from fade_jax import utility
from fade_jax.selectors import thompson
from fade_jax.trackers import discounted_beta

SIZES: dict[str, Any] = {"num_prompts": 3, "budget": 4, "group_size": 2, "exploration": 0.0}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {1, 2}),  # |p - .5|: .4, .05, .3
        ({"target": 0.8}, {0, 1}),  # .1, .35, .6
        ({"target": 0.0}, {1, 2}),  # .9, .45, .2
        ({"rule": "informative"}, {1, 2}),  # 2 p (1 - p): .18, .495, .32
    ],
)
def test_three_prompts_by_hand(options, expected):
    tracker, state = known([0.9, 0.45, 0.2])  # an oracle draws the truth
    assert set(choose(thompson.build(tracker, **SIZES, **options), state)) == expected


def test_ranks_the_trackers_own_draw():
    tracker = discounted_beta.build(40)
    rng = np.random.default_rng(1)
    state = discounted_beta.State(*(jnp.asarray(rng.gamma(2, 1, 40), float) for _ in range(2)))
    selector = thompson.build(
        tracker, num_prompts=40, budget=64, group_size=8, target=0.4, exploration=0.0
    )

    @partial(jax.jit, compiler_options=QUICK)
    def both(key):
        draw_key, _ = jax.random.split(key)
        return selector.select(selector.init(), state, key), tracker.draw(draw_key, state)

    for seed in range(5):
        (_, chosen, info), drawn = both(jax.random.key(seed))
        nearest = np.argsort(np.abs(np.asarray(drawn) - 0.4))[:8]
        assert set(chosen.prompt_ids.tolist()) == set(nearest.tolist())
        # What to expect is the belief's, not the draw's.
        believed = utility.informative_beta(state.successes, state.failures, 8)[nearest]
        np.testing.assert_allclose(info.expected_informative, believed.sum(), rtol=1e-6)


def test_unknown_rules_and_targets_are_refused():
    tracker, _ = known([0.9, 0.45, 0.2])
    for target in (-0.1, 1.5):
        with pytest.raises(ValueError, match=rf"target must be in 0\.\.1, got {target}"):
            thompson.build(tracker, target=target, **SIZES)
