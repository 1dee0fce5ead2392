"""The warm-start experiment: its parts by hand, and, slow, on two simulated runs."""

import dataclasses
import json

import numpy as np
import pytest

from experiments import warm_start, warm_start_arms, warm_start_report
from fade_jax import histories
from fade_jax.histories import History, check_history
from fade_jax.simulated_history import simulate_history

pytestmark = pytest.mark.standard_promotion
N, EPOCHS, PARTS = 64, 6, 4


def run(start: float, seed: int) -> History:
    """A policy that starts at a logit, on the same prompts; each epoch comes in four batches."""
    first, truth = simulate_history(np.random.default_rng(0), N, EPOCHS, 8, 3, start=start)
    rng = np.random.default_rng(seed)
    logits = truth.ability[:, :1] + truth.ability[:, 1:] @ truth.loadings.T - truth.intercept
    prompt_id = np.concatenate([rng.permutation(N) for _ in range(EPOCHS)])
    epoch = np.repeat(np.arange(EPOCHS), N)
    step = np.arange(EPOCHS * N) // (N // PARTS)
    names = [f"skill{k} word{i}" for i, k in enumerate(truth.loadings.argmax(1))]
    return check_history(
        History(
            step=step,
            prompt_id=prompt_id,
            successes=rng.binomial(8, 1 / (1 + np.exp(-logits[epoch, prompt_id]))),
            trials=np.full(len(step), 8),
            policy_step=step,
            prompt_key=first.prompt_key,
            text=np.array(names),
            source=truth.loadings.argmax(1),
            meta={"policy": f"starts at {start}"},
        )
    )


def test_a_second_run_by_hand():
    second = warm_start_arms.open_second(run(-0.5, 1))
    assert second.epoch == PARTS and second.group_size == 8 and second.scored.all()
    assert second.batches.prompt_ids.shape == (EPOCHS * PARTS, N // PARTS)
    np.testing.assert_allclose(second.batches.elapsed, 1 / PARTS)  # time is counted in epochs

    other = warm_start_arms.reordered(second, 3)
    assert (other.prompt_ids != second.batches.prompt_ids).any()
    for start in range(0, EPOCHS * PARTS, PARTS):
        part = slice(start, start + PARTS)
        rows = [
            sorted(zip(*(np.ravel(column[part]) for column in batches[:3]), strict=True))
            for batches in (other, second.batches)
        ]
        assert rows[0] == rows[1]  # the same groups with the same outcomes, epoch by epoch


def test_losses_by_hand():
    second = warm_start_arms.open_second(run(-0.5, 1))
    y = warm_start_arms.informative(second.batches)
    right = np.asarray(second.batches.successes)
    np.testing.assert_array_equal(y, (right % 8 != 0).astype(float))
    got = warm_start_arms.losses(np.full(y.shape, 0.25, np.float32), second.batches)
    np.testing.assert_allclose(got["log loss"], np.where(y > 0, -np.log(0.25), -np.log(0.75)))
    np.testing.assert_allclose(got["Brier"], np.where(y > 0, 0.75**2, 0.25**2))


@pytest.mark.parametrize(
    ("field", "value"), [("orders", 0), ("epochs", ()), ("epochs", (0,)), ("widened", (0.0,))]
)
def test_bad_settings_are_refused_by_name(field, value):
    with pytest.raises(ValueError, match=field):
        dataclasses.replace(warm_start.Config(), **{field: value})


@pytest.mark.slow
def test_warm_start_on_two_simulated_runs(tmp_path):
    paths = (tmp_path / "weak.npz", tmp_path / "strong.npz")
    for path, start, seed in zip(paths, (-1.0, 0.5), (1, 2), strict=True):
        histories.save_history(path, run(start, seed))
    config = warm_start.Config(
        histories=paths,
        out=tmp_path / "out",
        num_skills=3,
        widened=(0.1,),
        orders=2,
        shuffles=2,
        bootstrap=100,
        epochs=(1, 2),
        quick=True,
    )
    content = warm_start.main(config)
    assert [d["shared_prompts"] for d in content["directions"]] == [N, N]
    assert content["directions"][0]["pass_rate_correlation"] > 0.8
    for direction in content["directions"]:
        assert set(direction["kinds"]) == set(warm_start.KINDS)
        constant = direction["kinds"]["constant"]
        first = {row["arm"]: row["log_loss"] for row in constant["epochs"] if row["epoch"] == 1}
        # Both policies find the same prompts hard: the intercepts must help at once, and only
        # those that belong to the prompt.
        assert first["warm"] < first["cold"] - 0.02
        for arm in ("warm, frozen", "warm, means", "warm, + 10 %"):
            assert first[arm] < first["cold"] - 0.02, arm
        assert first["shuffled"] > first["warm"] + 0.02
        assert first["shuffled means"] > first["warm, means"] + 0.02
        marks = {
            (m["arm"], m["cold_epochs"]): m for m in constant["marks"] if m["score"] != "Brier"
        }
        assert [marks["warm", epochs]["cold_rollouts"] for epochs in (1, 2)] == [8 * N, 16 * N]
        assert len(marks["warm", 2]["orders"]) == 2
        assert len(warm_start_report.mark_rows(direction)) == 3 * 2 * 6
    stored = json.loads((tmp_path / "out" / "results.json").read_text())
    assert stored["directions"][1]["first"] == "starts at 0.5"
    assert (tmp_path / "out" / "warm_start.png").stat().st_size > 10_000
    fits = json.loads((tmp_path / "out" / "fits_weak.json").read_text())["fits"]
    kinds = content["directions"][0]["kinds"]
    assert fits == {kind: kinds[kind]["params"] for kind in kinds}
