"""One method of the live ablations: its seeds at the setting that all methods share.

    python -m experiments.suite.live --policy tiny --method fade_thompson

Started by `experiments.suite`. FADE's ablations change what the filter knows (loadings, K, moment
rule) or how its beliefs are used; PACED-RL's change its selection, its replay and its loss. All
learn by PACED-RL's trajectory balance, at one learning rate.
"""

import dataclasses
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import tyro

from experiments import command_line, curves, headline_results, live_run, run_folder
from experiments.run_identity import Watch, check_runs, seed_folder
from experiments.settings import METHODS, SETTINGS
from paced_jax.training import TrainConfig

Policy: TypeAlias = Literal["tiny", "base", "smollm2"]

FADE: dict[str, dict[str, Any]] = {
    "fade_thompson": METHODS["fade_thompson"],
    "fade_pg": {"scheduler": "fade_pg", "fade_selector": "thompson"},
    "fade_k0": {"scheduler": "fade_k0", "fade_selector": "thompson"},
    "fade_k4": METHODS["fade_thompson"] | {"num_skills": 4},
    "fade_shuffled": METHODS["fade_shuffled"],
    "fade_greedy": METHODS["fade"],
    "fade_weighted": METHODS["fade_weighted"],
}

PACED: dict[str, dict[str, Any]] = {
    "paced": METHODS["paced"],
    "paced_no_replay": METHODS["paced_no_replay"],
    "paced_uniform_replay": {"scheduler": "uniform", "replay": "on"},
    "paced_target_0.3": METHODS["paced"] | {"target": 0.3},
    "paced_target_0.7": METHODS["paced"] | {"target": 0.7},
    "paced_replay_not_in_v": METHODS["paced"] | {"replay_partition": "off"},
}

CONTROLS: dict[str, dict[str, Any]] = {
    "uniform": METHODS["uniform"],
    "mopps": METHODS["mopps"],
    "oracle": METHODS["oracle"],
}


def methods(policy: Policy) -> dict[str, dict[str, Any]]:
    """What each method changes in the policy's setting; language models have no oracle."""
    table = {**CONTROLS, **FADE, **PACED}
    if policy == "smollm2":
        del table["oracle"]
    return table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """One method."""

    policy: Policy = "tiny"
    """Whose setting."""
    method: str = "uniform"
    """One of `methods`."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Of choices and rollouts."""
    iterations: int | None = None
    """Of each run; the setting's own if not given."""
    out: Path | None = None
    """Folder to write to, runs/live/<time> if not given; finished runs in it are not repeated."""

    def __post_init__(self) -> None:
        """Refuses what is not in the list."""
        if self.method not in methods(self.policy):
            raise ValueError(
                f"method: must be one of {list(methods(self.policy))}, got {self.method!r}"
            )
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds must be distinct, at least one, got {self.seeds}")

    @property
    def setting(self) -> TrainConfig:
        """The configuration of its runs, but for the seed."""
        base = SETTINGS[self.policy]
        base = dataclasses.replace(base, iterations=self.iterations or base.iterations)
        return dataclasses.replace(base, **methods(self.policy)[self.method])

    @property
    def watch(self) -> Watch:
        """What is looked at."""
        every = 10 if self.policy != "tiny" else 20
        return Watch(
            eval_every=min(every, self.setting.iterations),
            eval_group_size=2,
            test_group_size=8,
            tensorboard=False,
        )


def main(config: Config) -> dict[str, Any]:
    """Runs every seed that is not finished.

    Args:
        config: which method.

    Returns:
        What results.json holds: `figures`, by name a value a seed.
    """
    seeds = config.seeds
    configs = [dataclasses.replace(config.setting, seed=seed) for seed in seeds]
    watch = config.watch

    def runs(folder: Path) -> list[tuple[TrainConfig, Path]]:
        folders = [seed_folder(folder, config.method, seed) for seed in seeds]
        return list(zip(configs, folders, strict=True))

    folder = run_folder.open_folder(
        "live", config.out, config, check=lambda folder: check_runs(runs(folder), watch)
    )
    folders = [path for _, path in runs(folder)]
    bench = live_run.open_bench(configs[0], watch)
    total = config.setting.iterations * len(seeds)
    try:
        with run_folder.task(config.method, total) as advance, command_line.same_command(folder):
            live_run.execute(bench, config.method, configs, folders, advance)
    finally:
        bench.close()
    rows = [headline_results.figures_of(curves.read_run(path)) for path in folders]
    figures = {key: np.array([row[key] for row in rows]) for key in rows[0]}
    return run_folder.save_results(folder, config, {"figures": figures})


if __name__ == "__main__":
    command_line.run(main, lambda: tyro.cli(Config, description=__doc__))
