"""Pre-trains a base policy on the skill tasks and writes it as package data.

    python -m experiments.make_base_policy tiny
    python -m experiments.make_base_policy base

`tiny` takes about two minutes of CPU time, `base` about four. Both end with a table of
pass rates by skill and length, measured by sampling at temperature 1 on the weights as stored.
"""

import dataclasses
import math
import platform
import time
from pathlib import Path
from typing import Any

import flax
import jax
import numpy as np
import tyro
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from experiments import command_line
from paced_jax.policy.base_policies import WEIGHTS, load_base_policy, save_base_policy
from paced_jax.policy.config import DecoderConfig
from paced_jax.pretraining import PretrainConfig, pretrain
from paced_jax.tasks.cell_rates import cell_successes
from paced_jax.tasks.tokens import SKILLS, VOCAB_SIZE


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """What to make.

    Attributes:
        name: of the two files.
        pretrain: sizes, steps, frequencies.
        seed: of weights and data.
        out: directory of the files.
        num_prompts: random prompts a cell in the table of pass rates.
        group_size: rollouts a prompt in that table, and of the informative groups it counts.
    """

    name: str
    pretrain: PretrainConfig
    seed: int = 0
    out: Path = WEIGHTS
    num_prompts: int = 64
    group_size: int = 8

    def __post_init__(self):
        """Refuses sizes that measure nothing."""
        if self.num_prompts < 1:
            raise ValueError(f"num_prompts must be at least 1, got {self.num_prompts}")
        if self.group_size < 2:
            raise ValueError(f"group_size must be at least 2, got {self.group_size}")


TINY = Config(
    name="tiny",
    seed=1,
    pretrain=PretrainConfig(
        decoder=DecoderConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=64,
            num_layers=3,
            num_heads=4,
            num_kv_heads=2,
            intermediate_size=160,
            rope_theta=100.0,
            remat=True,
        ),
        steps=2000,
        stop_loss=0.6,
        batch_size=128,
        learning_rate=2e-3,
        skill_share=(2.0, 0.8, 0.9, 1.2, 1.8, 0.4, 0.6, 1.8),
        length_decay=(0.5, 0.7, 0.7, 0.5, 0.5, 0.9, 0.7, 0.5),
        length_floor=0.25,
    ),
)
BASE = Config(
    name="base",
    pretrain=PretrainConfig(
        decoder=DecoderConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=128,
            num_layers=5,
            num_heads=8,
            num_kv_heads=4,
            intermediate_size=384,
            rope_theta=100.0,
            remat=True,
        ),
        steps=1500,
        stop_loss=0.6,
        batch_size=128,
        learning_rate=1.5e-3,
        skill_share=(2.0, 0.8, 0.9, 1.2, 1.8, 0.4, 0.6, 1.8),
        length_decay=(0.5, 0.7, 0.7, 0.5, 0.5, 0.9, 0.7, 0.5),
        length_floor=0.25,
    ),
)
CONFIGS = {"tiny": ("131,008 parameters", TINY), "base": ("about 1 million", BASE)}


def command(config: Config) -> str:
    """What makes the policy; for a config that differs from `CONFIGS` in its seed alone."""
    return f"python -m experiments.make_base_policy {config.name} --seed {config.seed}"


def summarise(successes: np.ndarray, group_size: int) -> dict[str, Any]:
    """Pass rates and informative groups of [8, W, prompts] success counts, as JSON values."""
    informative = ((successes > 0) & (successes < group_size)).mean(axis=2)
    rate = successes.mean(axis=2) / group_size
    best = np.sort(informative, axis=None)[::-1]
    return {
        "group_size": group_size,
        "rollouts_per_cell": successes.shape[2] * group_size,
        "mean_pass_rate": round(float(rate.mean()), 4),
        "cells_between_0.1_and_0.9": round(float(((rate > 0.1) & (rate < 0.9)).mean()), 4),
        "cells_without_a_success": int((rate == 0).sum()),
        "informative_groups_uniform": round(float(informative.mean()), 4),
        "informative_groups_best_8_cells": round(float(best[:8].mean()), 4),
        "informative_groups_best_16_cells": round(float(best[:16].mean()), 4),
        "pass_rate": {
            name: np.round(row, 4).tolist() for name, row in zip(SKILLS, rate, strict=True)
        },
        "informative": {
            name: np.round(row, 4).tolist() for name, row in zip(SKILLS, informative, strict=True)
        },
    }


def main(config: Config) -> dict[str, Any]:
    """Pre-trains, stores, reloads, measures.

    Args:
        config: what to make.

    Returns:
        The metadata, as stored.
    """
    console = Console(stderr=True, width=100)
    started, cpu = time.perf_counter(), time.process_time()
    key, table_key = jax.random.split(jax.random.key(config.seed))
    steps = config.pretrain.steps
    with Progress(console=console) as progress:
        task = progress.add_task(f"pre-training {config.name}", total=steps)
        losses = []

        def report(done: int, loss: float):
            losses.append([done, round(loss, 4)])
            progress.update(task, completed=done, description=f"{config.name}, loss {loss:.3f}")

        chunk = math.gcd(steps, 50)
        _, params = pretrain(config.pretrain, key, chunk=chunk, report=report)
    metadata = {
        "command": command(config),
        "seed": config.seed,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
        "pretrain": {
            field.name: getattr(config.pretrain, field.name)
            for field in dataclasses.fields(config.pretrain)
            if field.name != "decoder"
        },
        "loss": losses,
        "wall_seconds": round(time.perf_counter() - started, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "versions": {
            "python": platform.python_version(),
            "jax": jax.__version__,
            "flax": flax.__version__,
        },
    }
    decoder = config.pretrain.decoder
    save_base_policy(config.out, config.name, decoder, params, metadata)
    policy = load_base_policy(config.name, config.out)
    measure = jax.jit(cell_successes, static_argnames=("num_prompts", "group_size", "max_length"))
    successes = measure(
        policy.graphdef,
        policy.params,
        table_key,
        num_prompts=config.num_prompts,
        group_size=config.group_size,
        max_length=config.pretrain.max_length,
    )
    metadata |= summarise(np.asarray(successes), config.group_size)
    save_base_policy(config.out, config.name, decoder, policy.params, metadata)
    table = Table(title=f"{config.name}: pass rate, temperature 1")
    for column in ("skill", *map(str, range(1, config.pretrain.max_length + 1))):
        table.add_column(column, no_wrap=True)
    for name, row in metadata["pass_rate"].items():
        table.add_row(name, *(f"{rate:.2f}" for rate in row))
    console.print(table)
    for name in ("mean_pass_rate", "informative_groups_uniform", "informative_groups_best_8_cells"):
        console.print(f"{name} {metadata[name]}")
    console.print(f"{config.out / config.name}.npz: {metadata['command']}")
    return metadata


if __name__ == "__main__":
    command_line.run(main, lambda: tyro.extras.overridable_config_cli(CONFIGS))
