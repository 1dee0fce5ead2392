"""Top-m: by P(informative) unless told otherwise, as a plain sort would choose."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from selector_cases import QUICK, choose, known

from fade_jax.selectors import top_m
from fade_jax.trackers import discounted_beta


def test_the_default_score_by_hand():
    # 1 - p^4 - (1-p)^4: 0, .3438, .875, .6976 (p = .8 has 1 - .4096 - .0016 = .5888).
    tracker, state = known([0.0, 0.1, 0.5, 0.3, 0.8])
    options = {"num_prompts": 5, "group_size": 4, "exploration": 0.0}
    assert set(choose(top_m.build(tracker, budget=12, **options), state)) == {2, 3, 4}
    easy = top_m.build(tracker, budget=8, score=tracker.pass_rate, **options)
    assert set(choose(easy, state)) == {4, 2}


def test_equals_a_sort_of_a_large_pool():
    rng = np.random.default_rng(0)
    tracker = discounted_beta.build(5_000)
    state = discounted_beta.State(*(jnp.asarray(rng.gamma(2, 3, 5_000), float) for _ in range(2)))
    selector = top_m.build(tracker, num_prompts=5_000, budget=512, group_size=8, exploration=0.0)

    @partial(jax.jit, compiler_options=QUICK)
    def run(key):
        return *selector.select(selector.init(), state, key)[1:], tracker.informative(state, 8)

    chosen, info, utility = run(jax.random.key(0))
    utility = np.asarray(utility)
    expected = np.sort(utility)[::-1][:64]
    np.testing.assert_array_equal(np.sort(utility[chosen.prompt_ids])[::-1], expected)
    np.testing.assert_allclose(info.expected_informative, expected.sum(), rtol=1e-6)
