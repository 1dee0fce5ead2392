import numpy as np
import pytest

from fade_jax.histories import check_history, dense_array, load, save_history
from fade_jax.pool import build_pool, content_key
from fade_jax.simulated_history import simulate_history


@pytest.fixture(scope="module")
def simulated():
    return simulate_history(np.random.default_rng(0), 400, 60, 8, 5)


def test_shapes_and_round_trip(simulated, tmp_path):
    history, truth = simulated
    assert truth.pass_rate.shape == (60, 400)
    assert truth.ability.shape == (60, 6)
    assert truth.intercept.shape == (400,)
    assert truth.loadings.shape == (400, 5)
    assert len(history.step) == 60 * 400
    check_history(history)
    save_history(tmp_path / "simulated.npz", history)
    again = load(tmp_path / "simulated.npz")
    np.testing.assert_array_equal(again.successes, history.successes)
    assert again.meta["simulated"] is True
    assert history.text is not None
    assert len(build_pool(history.text)[0].keys) == 400  # no two prompts read the same
    assert history.prompt_key[7] == content_key(str(history.text[7]))


def test_outcomes_follow_the_truth(simulated):
    history, truth = simulated
    logits = truth.ability @ np.column_stack([np.ones(400), truth.loadings]).T - truth.intercept
    np.testing.assert_allclose(np.log(truth.pass_rate / (1 - truth.pass_rate)), logits, rtol=1e-6)
    successes, trials = dense_array(history)
    assert (trials == 8).all()
    # Standardised residuals of 24,000 binomials: the mean has standard error .0065, the mean square
    # about .009 (kurtosis below 3); 5 of them, a false-alarm rate below 2e-6.
    expected = 8 * truth.pass_rate
    residual = (successes - expected) / np.sqrt(expected * (1 - truth.pass_rate))
    assert abs(residual.mean()) < 0.033
    assert abs((residual**2).mean() - 1) < 0.06


def test_abilities_rise_and_wander(simulated):
    _, truth = simulated
    moves = np.diff(truth.ability, axis=0)
    # 59 moves of sd .05 a step: standard error .0065 of a mean, .0046 of an sd; 5 of them.
    assert abs(moves[:, 0].mean() - 0.02) < 0.033
    assert ((moves[:, 1:].mean(0) > -0.033) & (moves[:, 1:].mean(0) < 0.073)).all()
    np.testing.assert_allclose(moves.std(0), 0.05, atol=0.023)
    calm = simulate_history(np.random.default_rng(1), 50, 30, 8, 3, drift_sd=0.0)[1]
    steps = np.diff(calm.ability, axis=0)
    np.testing.assert_allclose(steps, np.broadcast_to(steps[0], steps.shape), atol=1e-12)
    assert steps[0, 0] == pytest.approx(0.02)
    assert ((steps[0, 1:] >= 0) & (steps[0, 1:] <= 0.04)).all()


def test_options():
    one, _ = simulate_history(np.random.default_rng(2), 40, 20, 4, 0, visit_share=0.5)
    two, _ = simulate_history(np.random.default_rng(2), 40, 20, 4, 0, visit_share=0.5)
    np.testing.assert_array_equal(one.successes, two.successes)
    assert set(one.trials.tolist()) == {4}
    # 800 coins: standard error .018; 5 of them.
    assert abs(len(one.step) / 800 - 0.5) < 0.09
