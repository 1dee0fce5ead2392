"""How time and memory of a whole scheduling step grow with the pool, up to millions of prompts.

The step chooses groups through a selector (`top_m`, a tenth explored), absorbs their outcomes and
lets one step pass; compiled through the public tracker and selector, its state donated. `driver`
is the same with the choice as the live driver makes it, which also reads what was believed of the
chosen. Each pool runs in a process of its own. The last one runs twice: on one device, and split
over simulated devices, from a fresh pool; ids, outputs and final state are compared bit for bit.

    python -m experiments.benchmarks.pool_scale --help
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tyro

from experiments import command_line
from experiments.benchmarks import pool_scale_report
from experiments.benchmarks.pool_scale_job import Job, run_job
from experiments.run_folder import open_folder, save_results, task


@dataclass(frozen=True, kw_only=True)
class Config:
    """What to measure.

    Attributes:
        prompts: pool sizes, ascending; the last one is also split over devices.
        skills: K, loadings a prompt.
        groups: groups of 8 rollouts chosen a step.
        devices: simulated devices of the split pool.
        steps: steps from a fresh pool whose choices are compared.
        repetitions: timed steps; larger pools take fewer.
        seed: of loadings, choices and outcomes.
        quick: small pools and few repetitions, to see that everything runs.
        out: folder of the results; `runs/pool_scale/<UTC time>` if not given.
    """

    prompts: tuple[int, ...] = (40_315, 200_000, 1_000_000, 10_000_000)
    skills: int = 16
    groups: int = 128
    devices: int = 8
    steps: int = 5
    repetitions: int = 200
    seed: int = 0
    quick: bool = False
    out: Path | None = None

    def __post_init__(self) -> None:
        if len(self.prompts) < 2 or list(self.prompts) != sorted(set(self.prompts)):
            raise ValueError(f"prompts must be two sizes or more, ascending, got {self.prompts}")
        if not 1 <= self.groups <= self.prompts[0]:
            raise ValueError(f"groups must be in 1..{self.prompts[0]}, got {self.groups}")
        for name, least in (("devices", 2), ("steps", 2), ("repetitions", 1), ("skills", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")

    def shortened(self) -> "Config":
        """The same job in a minute."""
        return replace(self, prompts=(2_000, 20_001), skills=2, groups=16, devices=2, repetitions=5)


def jobs(config: Config) -> list[Job]:
    """One job a pool, and the last pool over devices."""
    one = [
        Job(
            devices=0,
            num_prompts=n,
            skills=config.skills,
            groups=config.groups,
            steps=config.steps,
            repetitions=max(5, round(config.repetitions / max(1, n / 200_000))),
            seed=config.seed,
        )
        for n in config.prompts
    ]
    return [*one, replace(one[-1], devices=config.devices)]


def measure(config: Config) -> dict[str, Any]:
    """Everything there is to measure, as results.json holds it."""
    loads, pools = [os.getloadavg()[0]], []
    with task("pools", len(jobs(config))) as advance:
        for job in jobs(config):
            advance(f"{job.num_prompts:,} prompts on {max(job.devices, 1)} device(s)", 0)
            pools.append(run_job(job))
            loads.append(os.getloadavg()[0])
            advance("pools", 1)
    before, one, many = pools[-3:]
    grown = one["job"]["num_prompts"] - before["job"]["num_prompts"]

    def slope(name: str) -> float:
        return (one[name] - before[name]) / grown

    return {
        "same_ids": one["ids"] == many["ids"],
        "same_outputs": one["outputs"] == many["outputs"],
        "same_state": one["state"] == many["state"],
        "largest_communicated": max(many["collectives"].values()),
        "bytes_per_prompt": {
            "state": slope("state_bytes"),
            "loadings": slope("loadings_bytes"),
            "step_temporary": slope("step_temporary_bytes"),
            "driver_temporary": slope("driver_temporary_bytes"),
        },
        "pools": pools,
        "load_average": loads,
    }


def main(config: Config) -> dict[str, Any]:
    """Measures, prints, and writes results.json, report.md and scale.png.

    Args:
        config: what to measure.

    Returns:
        The content of results.json.
    """
    folder = open_folder("pool_scale", config.out, config)
    results = save_results(folder, config, measure(config.shortened() if config.quick else config))
    pool_scale_report.show(folder, results)
    return results


if __name__ == "__main__":
    command_line.run(main, lambda: tyro.cli(Config, description=__doc__))
