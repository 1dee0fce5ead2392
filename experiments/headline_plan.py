"""What the headline comparison runs: four parts, each with its setting, methods and watch."""

import dataclasses
from pathlib import Path
from typing import Any, Literal, TypeAlias

from experiments import run_folder
from experiments.run_identity import Watch
from experiments.settings import BASE, METHODS, TINY
from paced_jax.training import TrainConfig

Part: TypeAlias = Literal["tiny_rates", "tiny", "base_rates", "base"]
"""tiny_rates and base_rates choose the learning rate of each objective, under uniform choice; tiny
and base compare schedulers at the rates chosen."""

OBJECTIVES = {"tiny_rates": ("paced", "grpo", "dapo"), "base_rates": ("paced",)}
"""Each gets the same rates, seeds and iterations."""

RATES = {"tiny_rates": (1e-4, 2e-4, 4e-4), "base_rates": (1e-4, 2e-4, 4e-4)}

RATE_SEEDS = {"tiny_rates": (100, 101), "base_rates": (100,)}
"""Others than those of the comparisons."""

TINY_METHODS: dict[str, dict[str, Any]] = {
    **{name: METHODS[name] for name in ("uniform", "mopps")},
    "mapp": {"scheduler": "mapp"},
    "kgps": {"scheduler": "kgps"},
    "dps": {"scheduler": "dps"},
    "fade": METHODS["fade"],
    "fade_shuffled": {"scheduler": "fade", "loadings": "shuffled"},
    "fade_k0": {"scheduler": "fade_k0"},
    "fade_thompson": METHODS["fade_thompson"],
    **{name: METHODS[name] for name in ("paced", "paced_no_replay")},
    "grpo_uniform": {"scheduler": "uniform", "objective": "grpo"},
    "dapo": {"scheduler": "dapo", "objective": "dapo"},
    "lilo": {"scheduler": "lilo", "objective": "grpo"},
    "oracle": METHODS["oracle"],
}
"""All learn by PACED-RL's trajectory balance but for GRPO, DAPO and LILO, which have their own
objective and, the last two, their own rule of which groups are learnt from."""

BASE_METHODS = {name: METHODS[name] for name in ("uniform", "mopps", "fade", "paced", "oracle")}


@dataclasses.dataclass(frozen=True)
class Plan:
    """One part: runs, by method and seed.

    Attributes:
        part: its name.
        methods: a configuration each; the seed is filled in.
        seeds: of each method.
        watch: what is looked at.
    """

    part: Part
    methods: dict[str, TrainConfig]
    seeds: tuple[int, ...]
    watch: Watch

    def config(self, method: str, seed: int) -> TrainConfig:
        """Configuration of one run."""
        return dataclasses.replace(self.methods[method], seed=seed)

    def setting(self) -> dict[str, int]:
        """The sizes of every run, and of its last look."""
        config = next(iter(self.methods.values()))
        sizes = {
            name: getattr(config, name) for name in ("iterations", "num_prompts", "group_size")
        }
        return sizes | {"test_group_size": self.watch.test_group_size}

    def jobs(self) -> list[tuple[str, tuple[int, ...]]]:
        """(method, seeds) that one process runs, in order.

        A run of `tiny` is short beside its compilation, so a process takes all seeds; `base` goes
        seed by seed, so that an unfinished part is a whole comparison of fewer seeds.
        """
        if self.part == "base":
            return [(name, (seed,)) for seed in self.seeds for name in self.methods]
        return [(name, self.seeds) for name in self.methods]


def make(
    part: Part,
    *,
    rates: dict[str, float],
    seeds: tuple[int, ...],
    iterations: int | None = None,
    methods: tuple[str, ...] | None = None,
) -> Plan:
    """Puts a part together.

    Args:
        part: which.
        rates: learning rate of the policy by objective, as chosen; not read by the rates' parts.
        seeds: of the comparisons; the rates' parts have their own.
        iterations: of each run; None for 200 of tiny and 100 of base, half of it for the rates.
        methods: some of the comparison's; None for all. Rates are chosen for their objectives.

    Raises:
        ValueError: an unknown method, or one whose objective has no rate.
    """
    tiny = part.startswith("tiny")
    known = TINY_METHODS if tiny else BASE_METHODS
    wanted = tuple(known) if methods is None else methods
    unknown = set(wanted) - set(known)
    if unknown:
        raise ValueError(f"methods: {sorted(unknown)} are not in {part}: {list(known)}")
    setting = dataclasses.replace(TINY, iterations=200) if tiny else BASE
    if part in OBJECTIVES:
        half = setting.iterations // 2 if tiny else 60
        setting = dataclasses.replace(setting, iterations=iterations or half, scheduler="uniform")
        configs = {
            f"{objective}_{rate:g}": dataclasses.replace(
                setting, objective=objective, policy_learning_rate=rate
            )
            for objective in OBJECTIVES[part]
            if objective in {known[name].get("objective", setting.objective) for name in wanted}
            for rate in RATES[part]
        }
        seeds = RATE_SEEDS[part]
    else:
        setting = dataclasses.replace(setting, iterations=iterations or setting.iterations)
        configs = {}
        for name in wanted:
            config = dataclasses.replace(setting, **known[name])
            if config.objective not in rates:
                raise ValueError(
                    f"methods: {name} needs a rate of {config.objective}, {part}_rates has chosen"
                    f" those of {list(rates)}; run it for {name} first"
                )
            rate = rates[config.objective]
            configs[name] = dataclasses.replace(config, policy_learning_rate=rate)
    watch = Watch(
        eval_every=20 if tiny else 10,
        eval_group_size=4 if tiny else 2,
        test_group_size=32 if tiny else 8,
        tensorboard=False,
        checkpoint_every=50 if tiny else 20,
    )
    if iterations is not None:
        watch = dataclasses.replace(watch, checkpoint_every=10, eval_every=10)
    return Plan(part, configs, seeds, watch)


def save(folder: Path, plan: Plan) -> None:
    """Writes plan.json, which the processes of the part read."""
    folder.mkdir(parents=True, exist_ok=True)
    run_folder.write_json(folder / "plan.json", dataclasses.asdict(plan))


def load(folder: Path) -> Plan:
    """Reads what `save` wrote."""
    content = run_folder.read_json(folder / "plan.json")
    methods = {name: TrainConfig(**config) for name, config in content["methods"].items()}
    watch = Watch(**content["watch"])
    return Plan(content["part"], methods, tuple(content["seeds"]), watch)
