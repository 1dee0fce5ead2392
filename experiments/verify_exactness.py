"""Where the filter is exact, and how far it is from exact everywhere else.

Prints and writes: the identities that hold to rounding; one-dimensional posteriors by quadrature,
NUTS and a Gibbs sampler made of the filter's own update; every moment rule against an exact
two-dimensional filter; the price of forgetting cross-covariances, against NUTS; and every scalar
filter, other libraries' included where installed, where pass rates saturate.

    python -m experiments.verify_exactness --out runs/verify_exactness/mine
"""

import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

import tyro

from experiments import command_line, exactness_checks, exactness_report, run_folder
from experiments.exactness_checks import RULES, Tick
from experiments.exactness_report import SECTIONS

# The prior variance of a logit is about 1 in the first, well-conditioned world: only that one is
# held to limits. The last is wide: rare runs with a prompt pool far too hard or easy at the start.
WORLDS = (
    {"batch": 16, "drift": 0.1, "ability_sd": 0.5**0.5},
    {"batch": 4, "drift": 0.1, "ability_sd": 0.5**0.5},
    {"batch": 16, "drift": 0.3, "ability_sd": 0.5**0.5},
    {"batch": 16, "drift": 0.1, "ability_sd": 1.0},
)

# Variances .05, .3 and 1 per step.
DRIFTS = (0.05**0.5, 0.3**0.5, 1.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """How exact the filter is, measured."""

    out: Path | None = None
    """Folder to write to; runs/verify_exactness/<UTC time> if not given."""
    seed: int = 0
    """Of identities, NUTS and Gibbs; simulated worlds count up from 0."""
    sections: tuple[str, ...] = SECTIONS
    """What to run."""
    rules: tuple[str, ...] = tuple(RULES)
    """Moment rules to compare."""
    runs: int = 40
    """Simulated runs of each world with known difficulties."""
    first_run: int = 0
    """Seed of the first of them; the limits were set on the runs from 0 on."""
    steps: int = 30
    """Steps of each; distances count from step 6 on."""
    logit_draws: int = 1500
    """NUTS draws per chain (64 chains) of the one-dimensional posteriors."""
    gibbs_draws: int = 300
    """Gibbs draws per chain (200 chains)."""
    worlds: int = len(WORLDS)
    """How many of the worlds with known difficulties; the first is held to limits."""
    path_runs: int = 3
    """Simulated runs with unknown difficulties; NUTS takes about 15 s for each."""
    path_steps: int = 10
    """Steps of each."""
    path_draws: int = 400
    """NUTS draws per chain (16 chains) of each."""
    walk_worlds: int = 5
    """Simulated worlds of the saturating scalar job, for each drift."""
    walk_prompts: int = 128
    """Random walks in each."""
    walk_steps: int = 150
    """Steps of each."""
    quick: bool = False
    """Fewer rules, runs and worlds: within a minute, to see it work."""

    def __post_init__(self) -> None:
        """Checks the fields at the door."""
        for name, known in (("sections", SECTIONS), ("rules", tuple(RULES))):
            unknown = set(getattr(self, name)) - set(known)
            if unknown:
                raise ValueError(f"{name} must be among {known}, got {sorted(unknown)}")
        if "adf" not in self.rules:
            raise ValueError(f"rules must contain adf, got {self.rules}")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if type(value) is int and field.name not in ("seed", "first_run") and value < 1:
                raise ValueError(f"{field.name} must be >= 1, got {value}")
        if self.first_run < 0:
            raise ValueError(f"first_run must be >= 0, got {self.first_run}")
        if self.steps < 7:
            raise ValueError(f"steps must be >= 7, as the first 5 are not scored, got {self.steps}")


QUICK = {
    "rules": ("pg 4", "adf"),
    "runs": 8,
    "worlds": 1,
    "logit_draws": 800,
    "gibbs_draws": 150,
    "path_runs": 1,
    "path_draws": 250,
    "walk_worlds": 1,
    "walk_prompts": 64,
}


def main(config: Config) -> dict[str, Any]:
    """Runs the comparisons and writes folder, tables and figures.

    Args:
        config: what to run.

    Returns:
        The content of results.json; `held` says whether every limit was kept.
    """
    if config.quick:
        config = dataclasses.replace(config, **QUICK)
    folder = run_folder.open_folder("verify_exactness", config.out, config)
    with run_folder.progress() as progress:
        task = progress.add_task("starting", total=len(config.sections))

        def tick(words: str) -> None:
            progress.update(task, description=words[:60])

        found = {}
        for section in SECTIONS:
            if section in config.sections:
                tick(section)
                start = time.perf_counter()
                found[section] = _run(section, config, tick)
                found[section]["seconds"] = time.perf_counter() - start
                progress.advance(task)
    held = all(c["held"] for result in found.values() for c in result["checks"])
    results = run_folder.save_results(folder, config, {**found, "held": held})
    exactness_report.show(found)
    exactness_report.draw(found, folder)
    report = exactness_report.write(folder, results)
    run_folder.console.print(f"{exactness_report.verdict(results)} Report: {report}")
    return results


def _run(section: str, config: Config, tick: Tick) -> exactness_checks.Result:
    """One comparison."""
    rules = {name: RULES[name] for name in config.rules}
    if section == "identities":
        return exactness_checks.same_step(config.seed)
    if section == "one_dimensional":
        return exactness_checks.one_dimensional(
            config.seed,
            nuts_samples=config.logit_draws,
            gibbs_samples=config.gibbs_draws,
            tick=tick,
        )
    if section == "known_difficulties":
        return exactness_checks.known_difficulties(
            rules,
            range(config.first_run, config.first_run + config.runs),
            WORLDS[: config.worlds],
            steps=config.steps,
            tick=tick,
        )
    if section == "unknown_difficulties":
        return exactness_checks.unknown_difficulties(
            rules,
            range(config.path_runs),
            nuts_samples=config.path_draws,
            steps=config.path_steps,
            tick=tick,
        )
    return exactness_checks.saturation(
        rules,
        range(config.walk_worlds),
        DRIFTS,
        num_prompts=config.walk_prompts,
        steps=config.walk_steps,
        tick=tick,
    )


if __name__ == "__main__":
    held = command_line.run(main, lambda: tyro.cli(Config, description=__doc__))["held"]
    sys.exit(0 if held else 1)
