"""Pre-training, its experiment, and the policies that ship with the package."""

import dataclasses
import functools
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tyro

from experiments import make_base_policy
from paced_jax.policy.base_policies import WEIGHTS, load_base_policy, save_base_policy
from paced_jax.policy.config import DecoderConfig
from paced_jax.policy.decoder import abstract, create
from paced_jax.policy.sampling import sample
from paced_jax.pretraining import PretrainConfig, cell_weights, pretrain
from paced_jax.tasks.skills import draw_problems, verify
from paced_jax.tasks.tokens import EOS, SKILLS, VOCAB_SIZE

SHIPPED = sorted(path.stem for path in WEIGHTS.glob("*.npz"))
DECODER = DecoderConfig(
    vocab_size=VOCAB_SIZE,
    hidden_size=32,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    intermediate_size=32,
    rope_theta=100.0,
)
CONFIG = PretrainConfig(
    decoder=DECODER,
    steps=40,
    batch_size=32,
    learning_rate=1e-2,
    warmup_steps=5,
    length_decay=(1.0,) * 8,
    max_length=3,
    short_length=1,
)


def test_cell_weights_are_positive_and_geometric():
    config = dataclasses.replace(
        CONFIG, max_length=10, skill_share=(2.0,) + (1.0,) * 7, length_decay=(0.5,) * 7 + (2.0,)
    )
    weights = cell_weights(config).astype(np.float64)
    assert (weights > 0).all()
    np.testing.assert_allclose(weights.sum(), 1, rtol=1e-6)
    np.testing.assert_allclose(weights.sum(axis=1), np.array([2] + [1] * 7) / 9, rtol=1e-6)
    np.testing.assert_allclose(weights[0, 1:] / weights[0, :-1], np.exp(-0.5), rtol=1e-5)
    np.testing.assert_allclose(weights[7, 1:] / weights[7, :-1], np.exp(-2.0), rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (dict(steps=0), "steps"),
        (dict(learning_rate=-1.0), "learning_rate"),
        (dict(short_length=3), "short_length"),
        (dict(skill_share=(1.0,)), "skill_share"),
        (dict(length_decay=(0.0,) * 8), "length_decay"),
    ],
)
def test_impossible_values_are_refused_by_name(change, field):
    with pytest.raises(ValueError, match=f"^{field} "):
        dataclasses.replace(CONFIG, **change)


@pytest.mark.slow
def test_the_experiment_learns_stores_and_measures(tmp_path):
    """40 steps on short problems: from log(24) = 3.18 nats a token to where digits are digits and
    answers end. A policy that knows only that, the lengths and nothing else, is at 5/3 digits a
    problem times log(10) over 8/3 tokens = 1.44 or above."""
    config = make_base_policy.Config(
        name="trial", pretrain=CONFIG, out=tmp_path, num_prompts=4, group_size=4
    )
    metadata = make_base_policy.main(config)
    assert [step for step, _ in metadata["loss"]] == [10, 20, 30, 40]
    assert metadata["loss"][-1][1] < 2.2
    on_disk = json.loads((tmp_path / "trial.json").read_text())
    assert on_disk["pass_rate"] == metadata["pass_rate"]
    assert on_disk["command"] == "python -m experiments.make_base_policy trial --seed 0"
    assert set(on_disk["pass_rate"]) == set(SKILLS) and len(on_disk["pass_rate"]["add"]) == 3
    policy = load_base_policy("trial", tmp_path)
    assert policy.graphdef == abstract(DECODER)[0]
    assert metadata["parameters"] == 768 + 6208 + 32


def test_chunks_must_divide_the_steps():
    with pytest.raises(ValueError, match="chunk must divide steps = 40, got 7"):
        pretrain(CONFIG, jax.random.key(0), chunk=7)


def test_weights_survive_the_disk_and_odd_files_are_refused(tmp_path):
    graphdef, params = create(DECODER, jax.random.key(0))
    save_base_policy(tmp_path, "a", DECODER, params, {"command": "none"})
    back = load_base_policy("a", tmp_path)
    assert back.graphdef == graphdef and back.metadata["command"] == "none"
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(a, np.asarray(b, np.float16)),
        back.params,
        params,
    )
    with pytest.raises(ValueError, match=r"name must be one of \['a'\], got 'b'"):
        load_base_policy("b", tmp_path)
    with np.load(tmp_path / "a.npz") as stored:
        arrays: dict[str, Any] = dict(stored)
    fewer: dict[str, Any] = {k: v for k, v in arrays.items() if k != "norm/scale"}
    np.savez(tmp_path / "a.npz", **fewer)
    with pytest.raises(ValueError, match=r"missing or unexpected parameters \['norm/scale'\]"):
        load_base_policy("a", tmp_path)
    arrays["norm/scale"] = np.ones(3)
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(ValueError, match=r"norm/scale must have shape \(32,\), got \(3,\)"):
        load_base_policy("a", tmp_path)
    params["norm"]["scale"] = params["norm"]["scale"] * 1e6
    with pytest.raises(ValueError, match="parameter norm/scale does not fit float16"):
        save_base_policy(tmp_path, "a", DECODER, params, {})


@functools.partial(jax.jit, static_argnames=("graphdef", "num_prompts", "group_size"))
def group_successes(graphdef, params, cell_weights, key, *, num_prompts, group_size):
    """[num_prompts] successes; written without `cell_successes`, which made the table."""
    prompt_key, rollout_key = jax.random.split(key)
    problems, _, _ = draw_problems(prompt_key, cell_weights, num_prompts)
    group = jnp.repeat(jnp.arange(num_prompts, dtype=jnp.int32), group_size)
    samples = sample(
        graphdef,
        params,
        problems.prompt_tokens,
        problems.prompt_mask,
        group,
        rollout_key,
        max_tokens=12,
        eos_id=EOS,
    )
    answers, lengths = problems.answer_tokens, problems.answer_lengths
    right = verify(answers, lengths, group, samples.tokens, samples.action_mask)
    return right.reshape(num_prompts, group_size).sum(axis=1)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_policies_have_the_pass_rates_they_say(name):
    """Six cells from easy to hard, each on as many fresh prompts and rollouts as in the table.

    Both means are over 64 independent prompts, so the standard error of their difference is
    sqrt(2 / 64) times the standard deviation of a prompt's share of successes, which the fresh
    groups estimate. Beyond 4 standard errors is 1.7e-4 under Student's t with 63 degrees of
    freedom: for six cells a false alarm in .1 % of seeds a policy. The seed is fixed.
    """
    policy = load_base_policy(name)
    group_size = policy.metadata["group_size"]
    num_prompts = policy.metadata["rollouts_per_cell"] // group_size
    assert (num_prompts, group_size) == (64, 8)
    table = np.array([policy.metadata["pass_rate"][skill] for skill in SKILLS])
    for i, wanted in enumerate(np.linspace(0.15, 0.85, 6)):
        cell = np.unravel_index(np.abs(table - wanted).argmin(), table.shape)
        successes = group_successes(
            policy.graphdef,
            policy.params,
            jnp.zeros(table.shape).at[cell].set(1.0),
            jax.random.fold_in(jax.random.key(7), i),
            num_prompts=num_prompts,
            group_size=group_size,
        )
        share = np.asarray(successes) / group_size
        error = share.std(ddof=1) * np.sqrt(2 / num_prompts)
        assert abs(share.mean() - table[cell]) < 4 * error, (cell, share.mean(), table[cell])


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_policies_leave_something_to_climb_and_something_to_choose(name):
    """The setting, stated as figures of uniform and of ideal choice alone."""
    metadata = load_base_policy(name).metadata
    assert 0.25 < metadata["mean_pass_rate"] < 0.45
    assert metadata["informative_groups_uniform"] <= 0.35
    ratio = metadata["informative_groups_best_8_cells"] / metadata["informative_groups_uniform"]
    assert ratio >= 1.5


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_weights_are_small_and_say_how_they_were_made(name):
    """Parsed as on the command line, the command in the metadata gives the config in it."""
    assert (WEIGHTS / f"{name}.npz").stat().st_size < 3_000_000
    policy = load_base_policy(name)
    leaves = jax.tree.leaves(policy.params)
    assert sum(leaf.size for leaf in leaves) == policy.metadata["parameters"]
    assert all(leaf.dtype == jnp.float32 for leaf in leaves)
    python, _, module, *arguments = policy.metadata["command"].split()
    assert (python, module) == ("python", "experiments.make_base_policy")
    config = tyro.extras.overridable_config_cli(make_base_policy.CONFIGS, args=arguments)
    assert make_base_policy.command(config) == policy.metadata["command"]
    assert config == make_base_policy.CONFIGS[name][1]
    made = json.loads(json.dumps(dataclasses.asdict(config.pretrain)))
    assert made.pop("decoder") == policy.metadata["decoder"]
    assert made == policy.metadata["pretrain"]
    losses = [loss for _, loss in policy.metadata["loss"]]
    assert losses[-1] <= config.pretrain.stop_loss < min(losses[:-1])


def test_the_package_ships_tiny_and_base():
    assert SHIPPED == ["base", "tiny"]
