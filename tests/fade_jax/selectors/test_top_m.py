"""Top-m: by P(informative) unless told otherwise, as a plain sort would choose."""

import jax
import jax.numpy as jnp
import numpy as np
from selector_cases import choose, known

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
    _, chosen, info = jax.jit(selector.select)(selector.init(), state, jax.random.key(0))
    utility = np.asarray(tracker.informative(state, 8))
    expected = np.sort(utility)[::-1][:64]
    np.testing.assert_array_equal(np.sort(utility[chosen.prompt_ids])[::-1], expected)
    np.testing.assert_allclose(info.expected_informative, expected.sum(), rtol=1e-6)


def test_the_rest_is_explored():
    # 4 by score, 1 at random: every prompt outside the best four comes up in 400 choices with
    # probability 1 - 6 (5/6)^400 > 1 - 1e-30.
    tracker, state = known(np.r_[np.full(4, 0.5), np.zeros(6)])
    selector = top_m.build(tracker, num_prompts=10, budget=40, group_size=8, exploration=0.05)
    keys = jax.random.split(jax.random.key(0), 400)
    select = jax.jit(jax.vmap(lambda key: selector.select((), state, key)[1].prompt_ids))
    ids = np.asarray(select(keys))
    assert (np.sort(ids[:, :4], axis=1) == np.arange(4)).all()
    assert set(ids[:, 4].tolist()) == {4, 5, 6, 7, 8, 9}
