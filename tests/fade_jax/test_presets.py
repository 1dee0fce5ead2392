"""Named schedulers: their rules, and that they compile once, close over nothing, and vectorise."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import TypeCheckError

from fade_jax import Observation, hyperparameters, pool_loadings, presets
from fade_jax.trackers import discounted_beta, oracle

N, K = 600, 3
QUICK = {"xla_backend_optimization_level": 0}  # most of the time goes into compiling
SIZES: dict[str, Any] = {"budget": 64, "group_size": 8}


def loadings():
    return jnp.asarray(np.random.default_rng(0).normal(size=(N, K)), float)


def paced_on_beta(discount=0.7, **options):
    return presets.paced(discounted_beta.build(N, discount=discount), num_prompts=N, **options)


SCHEDULERS = {
    "epochs": lambda **options: presets.uniform(N, epochs=True, **options),
    "mopps": lambda **options: presets.mopps(N, **options),
    "fade": lambda **options: presets.fade(loadings(), **options),
    "paced": paced_on_beta,
}


def outcomes(ids):
    wins = jnp.asarray(np.arange(len(ids)) % 9, float)
    return Observation(ids, wins, jnp.full(len(ids), 8.0))


def iterate(scheduler, states, key):
    """One iteration: choose, observe, age."""
    belief, memory = states
    memory, chosen, info = scheduler.selector.select(memory, belief, key)
    seen = outcomes(chosen.prompt_ids)
    belief, _ = scheduler.tracker.update(belief, seen)
    memory = scheduler.selector.observe(memory, seen)
    return (scheduler.tracker.predict(belief, 1.0), memory), (chosen, info)


def start(scheduler):
    return scheduler.tracker.init(), scheduler.selector.init()


@pytest.mark.parametrize("name", ["mopps", "fade"])
def test_an_iteration_compiles_once(name):
    scheduler = SCHEDULERS[name](**SIZES)
    keys = jax.random.split(jax.random.key(2), 4)
    traces = 0

    def step(states, key):
        nonlocal traces
        traces += 1
        return iterate(scheduler, states, key)

    once, states = jax.jit(step, compiler_options=QUICK), start(scheduler)
    for key in keys:
        states, (chosen, _) = once(states, key)
        assert len(set(chosen.prompt_ids.tolist())) == 8
    assert traces == 1


@pytest.mark.parametrize("name", ["fade", "paced"])
def test_vmap_over_keys_equals_single_uncompiled_calls(name):
    scheduler = SCHEDULERS[name](**SIZES)
    belief, memory = start(scheduler)
    select, keys = scheduler.selector.select, jax.random.split(jax.random.key(2), 3)
    many = jax.jit(jax.vmap(lambda key: select(memory, belief, key)))(keys)
    for i, key in enumerate(keys):
        one = jax.tree.map(lambda batch, i=i: batch[i], many)
        alone = select(memory, belief, key)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5), one, alone)


def test_a_scan_equals_its_steps():
    scheduler = SCHEDULERS["epochs"](**SIZES)
    keys = jax.random.split(jax.random.key(2), 80)  # more than one epoch of 600 prompts in eights

    def step(states, key):
        return iterate(scheduler, states, key)

    states, once = start(scheduler), jax.jit(step)
    scanned_states, (scanned, _) = jax.lax.scan(step, states, keys)
    for t, key in enumerate(keys):
        states, (chosen, _) = once(states, key)
        assert scanned.prompt_ids[t].tolist() == chosen.prompt_ids.tolist()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 1e-5), scanned_states, states)


def test_built_inside_jit_nothing_large_is_closed_over():
    hyper = hyperparameters.default(K)
    sources = jnp.arange(N, dtype=jnp.int32) % 4

    def run(name, loadings, hyper, discount, sources, key):
        sized = {**SIZES, "sources": sources, "source_floor": 1, "exploration": 0.25}
        made = {
            "fade": lambda: presets.fade(loadings, hyper, **sized),
            "uniform": lambda: presets.uniform(N, discount=discount, **sized),
            "mopps": lambda: presets.mopps(N, discount=discount, target=discount, **sized),
            "paced": lambda: paced_on_beta(discount, target=discount, **sized),
        }[name]()
        return iterate(made, start(made), key)[1]

    arguments = loadings(), hyper, jnp.asarray(0.5), sources, jax.random.key(0)
    for name in ("fade", "uniform", "mopps", "paced"):
        traced = jax.jit(run, static_argnums=0).trace(name, *arguments)
        held = [np.asarray(x).nbytes for x in traced.jaxpr.consts]
        assert max(held, default=0) <= 1024
    chosen, _ = jax.jit(run, static_argnums=0)("paced", *arguments)
    assert set((chosen.prompt_ids % 4).tolist()) == {0, 1, 2, 3}


def test_mopps_rule_on_three_prompts_by_hand():
    # Beta so narrow that every draw is within .01 of .9, .45, .2; nearest .5 are 1 and 2.
    made = presets.mopps(3, budget=4, group_size=2)
    rates = jnp.array([0.9, 0.45, 0.2])
    state = discounted_beta.State(1e6 * rates, 1e6 * (1 - rates))
    _, chosen, info = jax.jit(made.selector.select, compiler_options=QUICK)(
        (), state, jax.random.key(0)
    )
    assert set(chosen.prompt_ids.tolist()) == {1, 2}
    np.testing.assert_allclose(info.expected_informative, 0.495 + 0.32, rtol=1e-4)


def test_mopps_counts_and_draws_its_candidates():
    made = presets.mopps(N, **SIZES)
    seen = Observation(jnp.array([5]), jnp.array([6.0]), jnp.array([8.0]))
    state, _ = jax.jit(made.tracker.update, compiler_options=QUICK)(made.tracker.init(), seen)
    assert (state.successes[5], state.failures[5]) == (7.0, 3.0)  # Beta(1, 1), nothing forgotten
    # Prompt 5 is surely at .5, all others are surely at 0: it is chosen whenever it is among the
    # 16 x 8 candidates of 600. Within 4.5 standard errors (.018): false-alarm rate 7e-6.
    state = discounted_beta.State(jnp.full(N, 1e-3), jnp.full(N, 1e6))
    state = state._replace(successes=state.successes.at[5].set(1e6))
    select = jax.vmap(lambda key: made.selector.select((), state, key)[1].prompt_ids)
    ids = np.asarray(
        jax.jit(select, compiler_options=QUICK)(jax.random.split(jax.random.key(0), 500))
    )
    assert abs((ids == 5).any(1).mean() - 128 / 600) < 4.5 * 0.0184


def test_paced_takes_the_expected_pass_rates_nearest_the_target():
    rates = np.array([0.9, 0.45, 0.2, 0.62, 0.0])
    for target, expected in ((0.5, [1, 3]), (0.1, [2, 4])):
        tracker = oracle.build(jnp.asarray(rates, float))
        made = presets.paced(tracker, target, num_prompts=5, budget=4, group_size=2)
        assert made.tracker is tracker
        select = jax.jit(made.selector.select, compiler_options=QUICK)
        _, chosen, _ = select((), tracker.init(), jax.random.key(0))
        assert sorted(chosen.prompt_ids.tolist()) == expected


def test_fade_explores_and_takes_the_rest_by_informative_probability():
    laid_out = pool_loadings.lay_out(loadings())
    made, same = presets.fade(laid_out, **SIZES), presets.fade(loadings(), **SIZES)
    belief = made.tracker.init()  # the longer the loading, the wider the belief

    @partial(jax.jit, compiler_options=QUICK)
    def run(key):
        chosen = [s.selector.select((), belief, key)[1].prompt_ids for s in (made, same)]
        return *chosen, made.tracker.informative(belief, 8)

    ids, same_ids, utility = (np.asarray(x) for x in run(jax.random.key(9)))
    assert ids.tolist() == same_ids.tolist()
    order = np.argsort(-utility)
    assert set(ids[:7].tolist()) == set(order[:7].tolist())
    assert ids[7] not in order[:8]


def test_uniform_keeps_score_of_what_it_sees():
    made = presets.uniform(4, budget=16, group_size=8)
    np.testing.assert_allclose(made.tracker.pass_rate(made.tracker.init()), 0.35, rtol=1e-6)
    seen = Observation(jnp.array([2]), jnp.array([8.0]), jnp.array([8.0]))
    state, _ = jax.jit(made.tracker.update, compiler_options=QUICK)(made.tracker.init(), seen)
    np.testing.assert_allclose((state.successes[2], state.failures[2]), (8.35, 0.65), rtol=1e-6)


def test_sizes_reach_the_selector():
    for name, make in SCHEDULERS.items():
        made = make(budget=24, group_size=4, max_groups=9, exploration=1.0)
        assert (made.selector.budget, made.selector.max_groups) == (24, 9), name
        with pytest.raises(ValueError, match=r"budget must be .* got 20"):
            make(budget=20, group_size=8)


@pytest.mark.slow
def test_fade_takes_other_selectors_and_refuses_unknown_ones():
    loadings = jnp.asarray(np.random.default_rng(0).normal(size=(64, 2)), jnp.float32)
    sizes: dict[str, Any] = {"budget": 32, "group_size": 4}
    tracker = presets.fade(loadings, **sizes).tracker
    state = tracker.init()
    for _ in range(6):  # prompts 0..7 become well known: half of their rollouts succeed
        seen = Observation(jnp.arange(8, dtype=jnp.int32), jnp.full(8, 8.0), jnp.full(8, 16.0))
        state, _ = tracker.update(state, seen)
    chosen = {}
    for name in ("top_m", "weighted", "thompson"):
        scheduler = presets.fade(loadings, selector=name, exploration=0.0, **sizes)
        select = jax.jit(scheduler.selector.select)
        _, selection, _ = select(scheduler.selector.init(), state, jax.random.key(1))
        assert int(selection.group_sizes.sum()) == 32
        chosen[name] = set(np.asarray(selection.prompt_ids).tolist())
    # The greedy rule goes back to what it knows; the others do not all.
    assert chosen["top_m"] == set(range(8))
    assert chosen["weighted"] != chosen["top_m"] != chosen["thompson"]
    with pytest.raises((ValueError, TypeCheckError), match="selector"):
        unknown: dict[str, Any] = sizes | {"selector": "best"}
        presets.fade(loadings, **unknown)
