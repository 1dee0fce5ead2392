"""Sampler and train step beside google-tunix and transformers: same policy, same rows, one run.

A random Qwen2 is drawn and written under Hugging Face's names; before anything is timed, logits of
all contenders on the same tokens and the gradient norms of their first step must agree. Then each
contender's process stays alive and warm, and they take turns, round by round: a group of responses
to each prompt with no end-of-sequence (temperature 1, no truncation), and one clipped-surrogate
step with AdamW on the same rows. Ours also measures what it adds. Scheduling is `driver.choose`
and `driver.record` with FADE. The peers live in environments of their own, made by

    python -m experiments.benchmarks.make_peer_venvs

and a missing one is left out, with a word.

    python -m experiments.benchmarks.trainer --help
"""

import os
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from experiments import command_line
from experiments.benchmarks import trainer_report
from experiments.benchmarks.make_peer_venvs import python_of
from experiments.benchmarks.timing import summary
from experiments.benchmarks.trainer_pipe import Contender
from experiments.benchmarks.trainer_work import Work, write
from experiments.run_folder import console, open_folder, save_results, task

MODULE = "experiments.benchmarks.trainer_job"
PEERS = ("tunix", "transformers")
TOLERANCE = 1e-4
"""Of logits, relative to the largest; and of gradient norms."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """What to time.

    Attributes:
        work: sizes of policy, prompts and responses.
        rounds: timed rounds, each of every action once.
        venvs: folder of the peers' environments.
        peers: whether to run them.
        seed: of the order of the contenders in a round.
        quick: a tiny policy and two rounds, to see that everything runs.
        out: folder of the results; `runs/trainer/<UTC time>` if not given.
    """

    work: Work = field(default_factory=Work)
    rounds: int = 7
    venvs: Path = Path("runs/peer_venvs")
    peers: bool = True
    seed: int = 0
    quick: bool = False
    out: Path | None = None

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"rounds must be at least 1, got {self.rounds}")

    def shortened(self) -> "Config":
        """The same job in two minutes, most of which the compilers take."""
        small = Work(
            vocab_size=64,
            hidden_size=32,
            num_layers=2,
            num_heads=4,
            num_kv_heads=2,
            intermediate_size=48,
            prompts=2,
            prompt_length=16,
            group_size=4,
            response_length=6,
            seed=self.work.seed,
        )
        return replace(self, work=small, rounds=2)


def contenders(config: Config) -> tuple[dict[str, tuple[str, str]], dict[str, str]]:
    """Interpreter and module by contender, and why others are left out."""
    found, missing = {"ours": (sys.executable, MODULE)}, {}
    for peer in PEERS:
        python = python_of(config.venvs, peer)
        if not config.peers:
            missing[peer] = "not asked for"
        elif python.exists():
            found[peer] = (os.path.abspath(python), f"{MODULE}_{peer}")
        else:
            missing[peer] = "no environment; see make_peer_venvs"
    return found, missing


def agreement(folder: Path, names: list[str]) -> dict[str, float]:
    """Largest difference of a peer's logits from ours, over the largest of ours.

    Raises:
        ValueError: naming a peer that computes something else.
    """
    ours = np.load(folder / "logits_ours.npy")
    gaps = {}
    for name in names:
        theirs = np.load(folder / f"logits_{name}.npy")
        gap = np.abs(theirs - ours).max() if theirs.shape == ours.shape else np.inf
        gaps[name] = float(gap / np.abs(ours).max())
        if not gaps[name] <= TOLERANCE:
            raise ValueError(f"{name}: logits differ from ours by {gaps[name]:.2g} of the largest")
    return gaps


def same_gradient(norms: dict[str, float]) -> None:
    """Refuses contenders whose first steps differ.

    Raises:
        ValueError: naming one.
    """
    for name, norm in norms.items():
        if not abs(norm / norms["ours"] - 1) <= TOLERANCE:
            raise ValueError(f"{name}: gradient norm {norm:.6g}, ours {norms['ours']:.6g}")


def measure(config: Config, folder: Path) -> dict[str, Any]:
    """Everything there is to measure, as results.json holds it."""
    found, missing = contenders(config)
    for name, why in missing.items():
        console.print(f"{name} is left out: {why}", markup=False)
    write(config.work, folder)
    rng = np.random.default_rng(config.seed)
    with ExitStack() as stack, task("starting", (3 + config.rounds) * len(found)) as advance:
        running: dict[str, Contender] = {}
        for name, (python, module) in found.items():
            running[name] = stack.enter_context(Contender(name, python, module, folder))
            running[name].run("logits")
            advance(f"{name}: logits", 1)
        gaps = agreement(folder, list(running))
        console.print(f"Logits, largest difference from ours: {gaps}", markup=False)

        timed = {name: [a for a in c.actions if a != "logits"] for name, c in running.items()}
        first: dict[str, dict[str, Any]] = {}
        norms, peaks = {}, {}
        for name, contender in running.items():
            advance(f"{name}: first calls", 0)
            first[name] = {action: contender.run(action) for action in timed[name]}
            norms[name] = first[name]["train"]["gradient_norm"]
            peaks[name] = {
                "imported": contender.imported_bytes,
                "sample": first[name]["sample"]["peak_bytes"],
                "train": first[name]["train"]["peak_bytes"],
            }
            advance(f"{name}: first calls", 1)
            for action in timed[name]:
                contender.run(action)
            advance(f"{name}: warm", 1)
        same_gradient(norms)

        seconds = {n: {a: [] for a in actions} for n, actions in timed.items()}
        busy = {n: {a: [] for a in actions} for n, actions in timed.items()}
        load = [os.getloadavg()[0]]
        console.print("All warm; the rounds begin")
        for number in range(config.rounds):
            for name in rng.permutation(list(running)):
                for action in timed[name]:
                    answer = running[name].run(action)
                    seconds[name][action].append(answer["seconds"])
                    busy[name][action].append(answer["cpu_seconds"])
                advance(f"round {number + 1} of {config.rounds}", 1)
            load.append(os.getloadavg()[0])
        about = {name: contender.about for name, contender in running.items()}
    return {
        "work": asdict(config.work),
        "missing": missing,
        "about": about,
        "logit_gaps": gaps,
        "gradient_norms": norms,
        "first_seconds": {
            n: {action: answer["seconds"] for action, answer in own.items()}
            for n, own in first.items()
        },
        "peak_bytes": peaks,
        "seconds": {
            n: {a: summary(np.array(x)) for a, x in own.items()} for n, own in seconds.items()
        },
        "cpu_seconds": {
            n: {a: float(np.median(x)) for a, x in own.items()} for n, own in busy.items()
        },
        "rounds": seconds,
        "load_average": load,
    }


def main(config: Config) -> dict[str, Any]:
    """Measures, prints, and writes results.json and report.md.

    Args:
        config: what to time.

    Returns:
        The content of results.json.
    """
    folder = open_folder("trainer", config.out, config)
    chosen = config.shortened() if config.quick else config
    with tempfile.TemporaryDirectory() as place:
        results = measure(chosen, Path(place))
    results["goals"] = trainer_report.goals(results)
    results = save_results(folder, config, results)
    trainer_report.show(folder, results)
    return results


if __name__ == "__main__":
    command_line.run(main, lambda: tyro.cli(Config, description=__doc__))
