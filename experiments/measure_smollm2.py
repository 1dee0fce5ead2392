"""Measures how often SmolLM2 solves each skill and length of the arithmetic task, untrained.

    python -m experiments.measure_smollm2

Writes `smollm2_rates.json` beside the shipped policies; runs on SmolLM2 read it to sort prompts by
their pass rate before training.
"""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from experiments import command_line, run_folder
from paced_jax import evaluation
from paced_jax.policy import smollm2
from paced_jax.policy.base_policies import WEIGHTS
from paced_jax.tasks import arithmetic
from paced_jax.tasks.skills import Problems


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """How much is sampled."""

    num_prompts: int = 16
    """Prompts of each skill and length."""
    group_size: int = 8
    """Rollouts of a prompt, temperature 1."""
    seed: int = 1
    """Of prompts and rollouts."""
    batch_size: int = 16
    """Prompts at once."""
    out: Path = WEIGHTS
    """Folder of the file."""


def main(config: Config) -> dict[str, Any]:
    """Samples, counts and writes.

    Args:
        config: how much.

    Returns:
        What the file holds.
    """
    graphdef, params, _, tokenizer = smollm2.load()
    skills, lengths = list(arithmetic.ARITHMETIC), arithmetic.MAX_LENGTH
    total = config.num_prompts * len(skills) * lengths
    pool = arithmetic.build_pool(
        tokenizer, config.seed, num_train=1, num_validation=total, num_test=1
    ).validation
    measure = jax.jit(
        partial(
            evaluation.evaluate,
            graphdef,
            group_size=config.group_size,
            batch_size=config.batch_size,
            eos_id=arithmetic.end_id(tokenizer),
        )
    )
    problems = Problems(*(jnp.asarray(x) for x in pool[:4]))
    with run_folder.console.status(f"{total * config.group_size} rollouts"):
        found = jax.device_get(measure(params, problems, jax.random.key(config.seed)))
    right = found.successes / config.group_size
    mixed = (found.successes > 0) & (found.successes < config.group_size)

    def table(values: np.ndarray) -> dict[str, list[float]]:
        cells = [
            [
                float(values[(pool.skill == s) & (pool.length == n + 1)].mean())
                for n in range(lengths)
            ]
            for s in range(len(skills))
        ]
        return dict(zip(skills, np.round(cells, 4).tolist(), strict=True))

    content = {
        "command": f"python -m experiments.measure_smollm2 --num-prompts {config.num_prompts}"
        f" --group-size {config.group_size} --seed {config.seed}",
        "prompts": total,
        "group_size": config.group_size,
        "mean_pass_rate": round(float(right.mean()), 4),
        "informative_groups_uniform": round(float(mixed.mean()), 4),
        "pass_rate": table(right),
        "informative": table(mixed),
    }
    run_folder.write_json(config.out / "smollm2_rates.json", content)
    header = ("skill", *(f"{n + 1} digits" for n in range(lengths)))
    rows = [(name, *values) for name, values in content["pass_rate"].items()]
    run_folder.print_table("Pass rate", header, rows)
    return content


if __name__ == "__main__":
    command_line.run(main, lambda: tyro.cli(Config, description=__doc__))
