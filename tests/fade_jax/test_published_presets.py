"""Published schedulers, three steps worked by hand each: defaults, state and choice."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fade_jax import Observation, moments, presets
from fade_jax.selectors import skip, warm_up

QUICK = {"xla_backend_optimization_level": 0}  # most of the time goes into compiling


class Run:
    """A scheduler that is told outcomes and asked for its choice, one step at a time."""

    def __init__(self, scheduler):
        tracker, self.selector, _ = scheduler
        self.belief, self.memory, self.steps = tracker.init(), self.selector.init(), 0

        def step(belief, memory, seen, key):
            belief = tracker.predict(tracker.update(belief, seen)[0], 1.0)
            memory = self.selector.observe(memory, seen)
            memory, chosen, info = self.selector.select(memory, belief, key)
            reading = tracker.pass_rate(belief), tracker.informative(belief, 2)
            return belief, memory, chosen.prompt_ids, info, *reading

        self.step = jax.jit(step, compiler_options=QUICK)

    def __call__(self, ids, successes, trials=8.0):
        """The ids chosen after these outcomes."""
        seen = Observation(
            jnp.asarray(ids, jnp.int32),
            jnp.asarray(successes, float),
            jnp.full(len(ids), trials, float),
        )
        key = jax.random.key(self.steps)
        self.belief, self.memory, chosen, self.info, self.rate, self.informative = self.step(
            self.belief, self.memory, seen, key
        )
        self.steps += 1
        return set(chosen.tolist())


def test_mopps():
    # So many rollouts that every draw is within .01 of the mean; two of three nearest .5.
    run = Run(presets.mopps(3, budget=4, group_size=2))
    assert run.belief.successes.tolist() == run.belief.failures.tolist() == [1.0] * 3
    assert run([0, 1, 2], [9e5, 4.5e5, 2e5], 1e6) == {1, 2}  # .9, .45, .2
    assert run([1, 1, 1], [3e5] * 3, 1e6 / 3) == {1, 2}  # lambda = 1: (.45 + .9) / 2
    np.testing.assert_allclose(run.rate, [0.9, 0.675, 0.2], atol=1e-4)
    assert run([0, 0, 0], [0, 0, 0], 1e6 / 3) == {0, 1}  # (.9 + 0) / 2
    np.testing.assert_allclose(run.rate, [0.45, 0.675, 0.2], atol=1e-4)


def test_dps():
    run = Run(presets.dps(3, budget=8, group_size=4))
    # 0 mixed: its column gets 1/3 per row, 4/3 of 10/3. 1 all right: 1 of 10/3. 2 unseen.
    assert run([0, 1], [3, 8]) == {0, 2}
    np.testing.assert_allclose(run.informative, [0.4, 0.3, 1 / 3], rtol=1e-5)
    # lambda = .7: 4/3 fades to 1.2333. 0 all wrong: that of 3.2333. 2 mixed: as 0 was before.
    assert run([0, 2], [0, 5]) == {0, 2}
    faded = 0.7 * 4 / 3 + 0.3
    expected = [faded / (2 + faded), 1 / (2 + faded), 0.4]
    np.testing.assert_allclose(run.informative, expected, rtol=1e-5)
    # 0 all wrong again: one more on (wrong, wrong). 2 all right: from (mixed, right).
    assert run([0, 2], [0, 8]) == {1, 2}
    twice = 0.7 * faded + 0.3
    expected = [twice / (3 + twice), 1 / (2 + twice), faded / (2 + faded)]
    np.testing.assert_allclose(run.informative, expected, rtol=1e-5)


def test_mapp():
    # V_2 = 2ab / ((a + b)(a + b + 1)): Beta(1, 1) 1/3; 2 of 2 makes Beta(3, 1) .3; then 0 of 2
    # Beta(2, 3) .4; 1 of 2 makes the other Beta(2, 2) .4.
    made = presets.mapp(2, budget=2, group_size=2)
    run = Run(made)
    select = jax.jit(
        jax.vmap(
            lambda belief, key: made.selector.select((), belief, key)[1].prompt_ids, (None, 0)
        ),
        compiler_options=QUICK,
    )
    keys = jax.random.split(jax.random.key(1), 4_000)
    for ids, wins, values in (
        ([0], [2], (0.3, 1 / 3)),
        ([0], [0], (0.4, 1 / 3)),
        ([1], [1], (0.4, 0.4)),
    ):
        run(ids, wins, 2.0)
        np.testing.assert_allclose(run.informative, values, rtol=1e-5)
        # Drawn in proportion: standard error .0079, 4.5 of them, false-alarm rate 2e-5 in all.
        share = (np.asarray(select(run.belief, keys)) == 0).mean()
        assert abs(share - values[0] / sum(values)) < 4.5 * 0.0079
    assert (run.belief.successes.tolist(), run.belief.failures.tolist()) == ([2, 2], [3, 2])


def test_greso():
    run = Run(presets.greso(4, budget=24, group_size=8))
    # 0 and 1 all right, 2 all wrong of four: both shares too large, 1/2 >= 1/12, 1/4 >= 1/6.
    run([0, 1, 2, 3], [8, 8, 0, 3])
    assert run.memory.streak.tolist() == [1, 1, -1, 0]
    np.testing.assert_allclose((run.memory.easy, run.memory.hard), (0.49, 0.49), rtol=1e-6)
    # 0 again; 1 mixed: 1/2 of two again too large; none all wrong.
    run([0, 1], [8, 5])
    assert run.memory.streak.tolist() == [2, 0, -1, 0]
    np.testing.assert_allclose((run.memory.easy, run.memory.hard), (0.48, 0.50), rtol=1e-6)
    # 2 again all wrong: kept with .49^2; 0 with .49^2 as well, p_easy has come back.
    chosen = run([2, 3, 1], [0, 1, 1])
    assert run.memory.streak.tolist() == [2, 0, -2, 0]
    np.testing.assert_allclose((run.memory.easy, run.memory.hard), (0.49, 0.49), rtol=1e-6)
    kept = skip.keep_probability(run.memory, 0.01)
    np.testing.assert_allclose(kept, [0.49**2, 1, 0.49**2, 1], rtol=1e-6)
    assert {1, 3} < chosen and int(run.info.planned_rollouts) in (16, 24)


def test_adarft():
    run = Run(presets.adarft(3, budget=16, group_size=8))
    # The counter starts at Beta(.35, .65), discount .9. 8/8 makes Beta(8.35, .65): difficulty
    # 7.2, the others 65. R = 1: T = 50 tanh(1) = 38.08, 26.9 from 65 and 30.9 from 7.2.
    assert run([0], [8]) == {1, 2}
    np.testing.assert_allclose(run.memory.target, 50 * np.tanh(1), rtol=1e-5)
    # 4/8 and 0/8: R = 1/4, T falls by 50 tanh(.5) = 23.1 to 15.0. Difficulties 51.7 and 96.1.
    assert run([1, 2], [4, 0]) == {0, 1}
    np.testing.assert_allclose(run.memory.target, 50 * (np.tanh(1) - np.tanh(0.5)), rtol=1e-5)
    np.testing.assert_allclose(100 * (1 - run.rate), [7.222, 51.667, 96.111], rtol=1e-3)
    # 2/8 and 6/8: R = beta, T stays; Beta(9.55, 6.65) and Beta(9.95, 6.25).
    assert run([0, 1], [2, 6]) == {0, 1}
    np.testing.assert_allclose(run.memory.target, 50 * (np.tanh(1) - np.tanh(0.5)), rtol=1e-5)
    np.testing.assert_allclose(100 * (1 - run.rate), [41.049, 38.580, 96.111], rtol=1e-3)


def test_cdas():
    run = Run(presets.cdas(4, budget=16, group_size=8))
    # From R = 0: d = .5 - 1 and .5 - 0, their changes cancel; 2 and 3 are at R itself, below it.
    chosen = run([0, 1], [8, 0])
    assert run.belief.difficulty.tolist() == [-0.5, 0.5, 0, 0] and float(run.belief.ability) == 0
    assert 1 in chosen and chosen & {2, 3} and len(chosen) == 2
    assert (int(run.info.planned_rollouts), int(run.info.shortfall)) == (16, 0)


def test_kgps_sees_every_prompt_before_it_prefers_any():
    run = Run(presets.kgps(6, budget=16, group_size=8))
    assert run.belief.var.tolist() == [4.0] * 6
    seen: list[int] = []
    chosen = run([0, 1], [0, 0], 0.0)
    for _ in range(3):
        seen += chosen
        chosen = run(sorted(chosen), [4 if i == 2 else 7 for i in sorted(chosen)])
    assert sorted(seen) == list(range(6))
    assert 2 in chosen
    best = np.argsort(-np.asarray(run.informative))[:2]
    assert chosen == set(best.tolist())


def test_fade_pg_is_surer_than_fade_and_k0_moves_all_alike():
    loadings = jnp.asarray([[1.0, 0], [1, 0], [0, 1], [0, 0]])
    sized: dict[str, Any] = {"budget": 8, "group_size": 4}
    spread = {}
    for name, made in (
        ("adf", presets.fade(loadings, rule=moments.adf(8), **sized)),
        ("pg", presets.fade_pg(loadings, **sized)),
        ("k0", presets.fade_k0(4, **sized)),
    ):
        run = Run(made)
        run([0], [8])
        spread[name] = float(run.belief.ability.cov[0, 0])
        rates = np.asarray(run.rate)
        if name == "k0":
            np.testing.assert_allclose(rates[1:], rates[1], rtol=1e-6)
            assert rates[0] > rates[1] > 0.52
        else:
            assert rates[0] > rates[1] > rates[3] > 0.5
    assert spread["pg"] < spread["adf"] - 0.01


def test_rules_that_do_not_fit_together_are_refused():
    one, other = (presets.uniform(6, budget=b, group_size=8).selector for b in (16, 24))
    with pytest.raises(ValueError, match=r"budget must be the same for both .* got 16 and 24"):
        warm_up.build(one, other, iterations=2)
    with pytest.raises(ValueError, match="iterations must be >= 0, got -1"):
        warm_up.build(one, one, iterations=-1)


def test_a_negative_warm_up_is_refused():
    with pytest.raises(ValueError, match="warm_up_epochs must be >= 0, got -1"):
        presets.kgps(6, budget=16, group_size=8, warm_up_epochs=-1)
    assert presets.kgps(6, budget=16, group_size=8, warm_up_epochs=0).selector.init() == ()
