"""Sampler and train step beside google-tunix and transformers: same policy, same rows, one run.

A random Qwen2 is drawn, or SmolLM2-135M is taken, and written under Hugging Face's names; before
anything is timed, logits of all contenders on the same tokens and the gradient norms of their first
step must agree. Then each contender's process stays alive and warm, and they take turns, round by
round: a group of responses to each prompt with no end-of-sequence (temperature 1, no truncation),
and one clipped-surrogate step with AdamW on the same rows. Ours also measures what it adds.
Scheduling is `driver.choose` and `driver.record` with FADE. The peers live in environments of their
own, made by

    python -m experiments.benchmarks.make_peer_venvs

and a missing one is left out, with a word. SmolLM2 meets transformers alone: once on the prompts
and answers that `experiments.smollm2` trains it on, once on longer ones.

    python -m experiments.benchmarks.trainer
    python -m experiments.benchmarks.trainer --model smollm2
"""

import os
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro

from experiments import command_line
from experiments.benchmarks import trainer_report
from experiments.benchmarks.make_peer_venvs import python_of
from experiments.benchmarks.timing import summary
from experiments.benchmarks.trainer_pipe import Contender
from experiments.benchmarks.trainer_work import Work, smollm2_works, write, write_policy
from experiments.run_folder import console, open_folder, save_results, task

MODULE = "experiments.benchmarks.trainer_job"
PEERS = ("tunix", "transformers")
OF_SMOLLM2 = ("transformers",)
"""The peers that are handed SmolLM2."""

TOLERANCE = 1e-4
"""Of logits, relative to the largest; and of gradient norms."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """What to time.

    Attributes:
        model: the policy: a random Qwen2, or SmolLM2 with works of its own.
        work: sizes of policy, prompts and responses of the random one.
        rounds: timed rounds, each of every action once.
        venvs: folder of the peers' environments.
        peers: whether to run them.
        seed: of the order of the contenders in a round.
        quick: little work and two rounds, to see that everything runs.
        out: folder of the results; `runs/trainer/<UTC time>` if not given.
    """

    model: Literal["random", "smollm2"] = "random"
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
        if self.model == "smollm2" and self.work != Work():
            raise ValueError("work: that of model 'smollm2' is given, it takes no other")

    def works(self) -> dict[str, Work]:
        """What to time, by name; the random policy's work has none."""
        if self.model == "smollm2":
            works = smollm2_works(self.seed)
            few = {"prompts": 2, "group_size": 2, "variants": False}
            return {n: replace(w, **few) for n, w in works.items()} if self.quick else works
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
        return {"": small if self.quick else self.work}


def contenders(config: Config) -> tuple[dict[str, tuple[str, str]], dict[str, str]]:
    """Interpreter and module by contender, and why others are left out."""
    found, missing = {"ours": (sys.executable, MODULE)}, {}
    for peer in PEERS:
        python = python_of(config.venvs, peer)
        if not config.peers or (config.model == "smollm2" and peer not in OF_SMOLLM2):
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


def same_tokens(work: Work, tokens: dict[str, int]) -> None:
    """Refuses contenders that sample another number of tokens than the work has.

    Raises:
        ValueError: naming one.
    """
    for name, found in tokens.items():
        if found != work.rows * work.response_length:
            raise ValueError(
                f"{name}: samples {found} tokens of {work.rows} x {work.response_length}"
            )


def measure(config: Config, work: Work, folder: Path) -> dict[str, Any]:
    """Everything there is to measure, as results.json holds it.

    Args:
        config: how.
        work: what.
        folder: with the policy.
    """
    rounds = 2 if config.quick else config.rounds
    found, missing = contenders(config)
    for name, why in missing.items():
        console.print(f"{name} is left out: {why}", markup=False)
    write(work, folder)
    rng = np.random.default_rng(config.seed)
    with ExitStack() as stack, task("starting", (3 + rounds) * len(found)) as advance:
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
        same_tokens(work, {name: own["sample"]["tokens"] for name, own in first.items()})

        seconds = {n: {a: [] for a in actions} for n, actions in timed.items()}
        busy = {n: {a: [] for a in actions} for n, actions in timed.items()}
        load = [os.getloadavg()[0]]
        console.print("All warm; the rounds begin")
        for number in range(rounds):
            for name in rng.permutation(list(running)):
                for action in timed[name]:
                    answer = running[name].run(action)
                    seconds[name][action].append(answer["seconds"])
                    busy[name][action].append(answer["cpu_seconds"])
                advance(f"round {number + 1} of {rounds}", 1)
            load.append(os.getloadavg()[0])
        about = {name: contender.about for name, contender in running.items()}
    return {
        "work": asdict(work),
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
    works, found = config.works(), {}
    with tempfile.TemporaryDirectory() as place:
        write_policy(next(iter(works.values())), Path(place))
        for name, work in works.items():
            if name:
                console.print(name, markup=False)
            found[name] = measure(config, work, Path(place))
            found[name]["goals"] = trainer_report.goals(found[name])
    results = save_results(folder, config, found.get("") or {"works": found})
    trainer_report.show(folder, results)
    return results


if __name__ == "__main__":
    command_line.run(main, lambda: tyro.cli(Config, description=__doc__))
