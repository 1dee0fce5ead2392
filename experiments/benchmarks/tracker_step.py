"""What a step of each tracker costs: absorb a batch, age, score the whole pool.

One compiled, donated step a tracker, timed in turn in one run, beside a bare product of the
loadings with a [K, K] matrix.

    python -m experiments.benchmarks.tracker_step
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from experiments import command_line, run_folder
from experiments.benchmarks.timing import interleave, summary
from fade_jax import ability_difficulty, hyperparameters, moments
from fade_jax.pool_loadings import lay_out
from fade_jax.trackers import cdas, discounted_beta, ema, logit_kalman, markov
from fade_jax.types import Observation, Tracker


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Steps of every tracker."""

    sizes: tuple[int, ...] = (1024, 8192, 40_315)
    """Prompts in the pool."""
    batch: int = 128
    """Groups absorbed a step."""
    group_size: int = 8
    """Rollouts of a group."""
    repetitions: int = 100
    """Timed steps of each."""
    seed: int = 0
    """Of loadings, outcomes and the order of the runs."""
    out: Path | None = None
    """Folder to write to, runs/tracker_step/<time> if not given."""
    quick: bool = False
    """A small pool, few repetitions."""

    def __post_init__(self) -> None:
        """Refuses what can't be timed."""
        if not self.sizes or min(self.sizes) < self.batch:
            raise ValueError(f"sizes must be at least batch = {self.batch}, got {self.sizes}")
        for name in ("batch", "repetitions"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def effective(self) -> "Config":
        """What is run: itself, or the small version."""
        if not self.quick:
            return self
        return Config(sizes=(256,), repetitions=5, out=self.out)


LABELS = {
    "ema": "EMA",
    "beta": "discounted Beta",
    "markov": "Markov chain (DPS)",
    "cdas": "CDAS",
    "kalman": "logit Kalman",
    "fade_k0": "FADE, K = 0",
    "fade_16": "FADE, K = 16",
    "fade_32": "FADE, K = 32",
    "fade_16_pg": "FADE, K = 16, pg rule",
    "product": "bare [N, 16] x [16, 16] product",
}


def _fade(count: int, **parts: Any) -> Callable[[jax.Array], Tracker]:
    def build(loadings: jax.Array) -> Tracker:
        told = lay_out(loadings[:, :count])
        return ability_difficulty.build(told, hyperparameters.default(count), **parts)

    return build


TRACKERS: dict[str, Callable[[jax.Array], Tracker]] = {
    "ema": lambda loadings: ema.build(len(loadings)),
    "beta": lambda loadings: discounted_beta.build(len(loadings)),
    "markov": lambda loadings: markov.build(len(loadings)),
    "cdas": lambda loadings: cdas.build(len(loadings)),
    "kalman": lambda loadings: logit_kalman.build(len(loadings)),
    "fade_k0": _fade(0),
    "fade_16": _fade(16),
    "fade_32": _fade(32),
    "fade_16_pg": _fade(16, rule=moments.pg()),
}


def stepper(
    build: Callable[[jax.Array], Tracker], loadings: jax.Array, seen: Observation, group_size: int
) -> Callable[[], Any]:
    """A function that takes one more step each time it is called; its arrays are arguments."""

    @jax.jit
    def init(loadings: jax.Array) -> Any:
        return build(loadings).init()

    def step(state: Any, loadings: jax.Array, seen: Observation) -> tuple[Any, jax.Array]:
        tracker = build(loadings)
        state, _ = tracker.update(tracker.predict(state, 1.0), seen)
        return state, tracker.informative(state, group_size)

    compiled = jax.jit(step, donate_argnames="state")
    held = [init(loadings)]

    def run() -> jax.Array:
        held[0], scores = compiled(held[0], loadings, seen)
        return scores

    return run


def main(config: Config) -> dict[str, Any]:
    """Times every tracker on every pool.

    Args:
        config: sizes.

    Returns:
        What results.json holds: `steps`, milliseconds by pool size and tracker.
    """
    config = config.effective
    folder = run_folder.open_folder("tracker_step", config.out, config)
    steps: dict[str, Any] = {}
    with run_folder.task("tracker_step", len(config.sizes)) as advance:
        for size in config.sizes:
            rng = np.random.default_rng(config.seed)
            loadings = jnp.asarray(rng.normal(size=(size, 32)) / 4, jnp.float32)
            ids = rng.choice(size, config.batch, replace=False)
            outcomes = rng.binomial(config.group_size, 0.4, config.batch)
            seen = Observation(
                jnp.asarray(ids, jnp.int32),
                jnp.asarray(outcomes, jnp.float32),
                jnp.full(config.batch, float(config.group_size)),
            )
            runs = {
                name: stepper(build, loadings, seen, config.group_size)
                for name, build in TRACKERS.items()
            }
            matrix = jnp.asarray(rng.normal(size=(16, 16)), jnp.float32)
            rows = jnp.asarray(np.asarray(loadings)[:, :16])
            product = jax.jit(jnp.matmul)
            runs["product"] = lambda product=product, rows=rows, matrix=matrix: product(
                rows, matrix
            )
            times, _ = interleave(runs, config.repetitions, config.seed)
            steps[str(size)] = {name: summary(values) for name, values in times.items()}
            advance(f"{size} prompts", 1)
    content = run_folder.save_results(
        folder, config, {"sizes": list(config.sizes), "steps": steps, "labels": LABELS}
    )
    write(folder, content)
    run_folder.print_table("a step, ms", header(content), rows_of(content))
    return content


def header(content: dict[str, Any]) -> tuple[str, ...]:
    """Of the table."""
    return ("tracker", *(f"{size:,} prompts: ms" for size in content["sizes"]))


def rows_of(content: dict[str, Any]) -> list[tuple[str, ...]]:
    """A line a tracker: median and quartiles."""
    return [
        (
            content["labels"][name],
            *(
                f"{found['median']:.3f} ({found['q25']:.3f} to {found['q75']:.3f})"
                for found in (content["steps"][str(size)][name] for size in content["sizes"])
            ),
        )
        for name in content["labels"]
    ]


def write(folder: Path, content: dict[str, Any]) -> Path:
    """Writes report.md from what results.json holds."""
    config = content["config"]
    sections = [
        f"Age, absorb {config['batch']} groups of {config['group_size']}, score every prompt:"
        f" milliseconds of one compiled step, median and quartiles of {config['repetitions']},"
        " timed in turn.",
        run_folder.markdown_table(header(content), rows_of(content)),
    ]
    return run_folder.write_report(
        folder, "A step of each tracker", sections, content["provenance"]
    )


if __name__ == "__main__":
    command_line.run(main, lambda: tyro.cli(Config, description=__doc__))
