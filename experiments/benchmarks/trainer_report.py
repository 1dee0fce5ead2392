"""What `trainer` prints and writes about its results."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.run_folder import console, markdown_table, print_table, write_report

TIME_HEADER = ("contender", "action", "seconds", "quartiles", "CPU s", "tokens/s", "first call, s")
MEMORY_HEADER = ("contender", "imported", "after sampling", "after a step", "rise")
GOAL_HEADER = ("goal", "found", "wanted", "met")
NAMES = {"ours": "paced_jax", "tunix": "google-tunix", "transformers": "transformers"}
MIB = 2**20
SCHEDULED = 50
"""Steps of one schedule action, see `trainer_job`."""
WANTED = {"random": {"sample": 2.0, "train": 1.0}, "smollm2": {"sample": 1.0, "train": 1.0}}
"""Least ratio of a peer's seconds to ours, by policy and kind of action."""


def median(results: dict[str, Any], name: str, action: str) -> float:
    """Seconds."""
    return results["seconds"][name][action]["median"]


def fastest(results: dict[str, Any], name: str, kind: str) -> tuple[str, float]:
    """The fastest action of a kind, "sample" or "train", that a contender has."""
    times = {
        action: own["median"]
        for action, own in results["seconds"][name].items()
        if action.split(",")[0] == kind
    }
    return min(times.items(), key=lambda item: item[1])


def goals(results: dict[str, Any]) -> list[dict[str, Any]]:
    """What was asked for and what was found.

    Ours is the plain action; a peer's is the fastest of its variants.

    Args:
        results: of one work, with `seconds` by contender and action.

    Returns:
        Dicts of goal, found, wanted and met.
    """
    out = []
    peers = [name for name in results["seconds"] if name != "ours"]
    for kind, wanted in WANTED[results["work"].get("model", "random")].items():
        for peer in peers:
            action, theirs = fastest(results, peer, kind)
            ratio = theirs / median(results, "ours", kind)
            what = {"sample": "sampler's tokens/s over", "train": "train step's speed over"}[kind]
            out.append(
                {
                    "goal": f"{what} {NAMES[peer]}'s ({action})",
                    "found": ratio,
                    "wanted": f">= {wanted:g}",
                    "met": ratio >= wanted,
                }
            )
    step = median(results, "ours", "sample") + median(results, "ours", "train")
    for action in results["seconds"]["ours"]:
        if action.startswith("schedule"):
            share = median(results, "ours", action) / SCHEDULED / step
            out.append(
                {
                    "goal": f"scheduling {int(action.split()[1]):,} prompts, share of the step",
                    "found": share,
                    "wanted": "<= 0.01",
                    "met": share <= 0.01,
                }
            )
    return out


def time_rows(results: dict[str, Any]) -> list[tuple[Any, ...]]:
    """One row an action."""
    tokens = results["work"]["prompts"] * results["work"]["group_size"]
    tokens *= results["work"]["response_length"]
    rows = []
    for name, actions in results["seconds"].items():
        for action, own in actions.items():
            share = SCHEDULED if action.startswith("schedule") else 1
            rows.append(
                (
                    NAMES[name],
                    action,
                    own["median"] / share,
                    f"{own['q25'] / share:.3g}-{own['q75'] / share:.3g}",
                    results["cpu_seconds"][name][action] / share,
                    tokens / own["median"] if action.startswith("sample") else None,
                    f"{results['first_seconds'][name][action]:.1f}",
                )
            )
    return rows


def memory_rows(results: dict[str, Any]) -> list[tuple[Any, ...]]:
    """MiB, one row a contender."""
    return [
        (
            NAMES[name],
            *(f"{own[key] / MIB:.0f}" for key in ("imported", "sample", "train")),
            f"{(own['train'] - own['imported']) / MIB:.0f}",
        )
        for name, own in results["peak_bytes"].items()
    ]


def goal_rows(results: dict[str, Any]) -> list[tuple[Any, ...]]:
    """One row a goal."""
    return [
        (goal["goal"], goal["found"], goal["wanted"], "yes" if goal["met"] else "NO")
        for goal in results["goals"]
    ]


def same_work(results: dict[str, Any]) -> str:
    """What was checked before anything was timed."""
    gaps = ", ".join(
        f"{NAMES[n]} {gap:.1e}" for n, gap in results["logit_gaps"].items() if n != "ours"
    )
    norms = ", ".join(f"{NAMES[n]} {norm:.5f}" for n, norm in results["gradient_norms"].items())
    missing = "".join(f" {NAMES[n]} was left out: {why}." for n, why in results["missing"].items())
    compared = f"Logits on the same tokens differ from ours by (of the largest): {gaps}. "
    return (
        compared if gaps else ""
    ) + f"Gradient norm of the first step, before clipping: {norms}.{missing}"


def setting(results: dict[str, Any]) -> str:
    """The work in words."""
    work = results["work"]
    versions = "; ".join(
        f"{NAMES[n]}: " + ", ".join(f"{k} {v}" for k, v in own.items())
        for n, own in results["about"].items()
    )
    load, cpus = results["load_average"], results["provenance"]["cpus"]
    policy, weights = "Qwen2", ", random weights"
    if work.get("model") == "smollm2":
        policy, weights = "SmolLM2-135M, a Llama", ""
    arithmetic = work.get("task") == "arithmetic"
    asked = "few-shot arithmetic prompts of at most" if arithmetic else "prompts of"
    text = (
        f"{policy} of hidden {work['hidden_size']}, {work['num_layers']} layers, "
        f"{work['num_heads']} heads, {work['num_kv_heads']} KV heads, FFN "
        f"{work['intermediate_size']}, vocabulary {work['vocab_size']:,}, float32{weights}; "
        f"{work['prompts']} {asked} {work['prompt_length']} tokens, groups of "
        f"{work['group_size']}, responses of {work['response_length']}. {versions}. {cpus} cores; "
        f"load average {min(load):.1f} to {max(load):.1f}."
    )
    if work.get("peer_parts", 1) > 1:
        text += (
            f" transformers' step goes through the rows in {work['peer_parts']} parts, whose"
            " gradients add up: the activations of all at once would not fit."
        )
    if max(load) > 1.5 * cpus:
        text += " Other work ran beside it: a ratio within one round is worth more than a time."
    return text


HOW = """A contender's process stays alive and runs one action at a time; each round runs every
action of every contender once, in an order of contenders drawn anew. Seconds are medians over the
rounds, taken inside the process; first calls, which compile, are apart, and a second call warms up.
The goals compare our plain action with the fastest variant of a peer's.

* **sample**: ours runs each prompt once for its whole group and returns log-probabilities, as the
  trainer needs. google-tunix has a row a response and returns them too (cache of exactly prompt and
  response, a fresh seed a call). transformers' `generate` with `num_return_sequences`, dynamic
  cache; without log-probabilities except where the action says so.
* **train**: the clipped surrogate of GRPO without KL term, forward, backward, gradient clipping and
  AdamW. Ours is `learn` with all its checks and metrics; it runs each prompt once for its group, a
  legitimate saving that the peers don't make: "prompts repeated" is without it. "KL measured" adds
  the forward pass after the step that `measure_kl`, on by default in training, costs. "balance" is
  the trajectory balance of `paced`. google-tunix: `grpo_loss_fn` in its RL trainer's own compiled
  step. transformers: logits of the response alone, fused AdamW.
* **schedule**: FADE's choose and record, a step; each action runs 50.

Peak memory is the high-water mark of the whole process, so libraries and compilers count: once
imported, after the first plain sampling, after the first plain step; rise over imported
libraries."""


def by_name(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Results of each work, with where they come from; the only one has no name."""
    about = {name: results[name] for name in ("config", "provenance")}
    return {n: own | about for n, own in results.get("works", {"": results}).items()}


def write(folder: Path, results: dict[str, Any]) -> Path:
    """Writes report.md."""
    sections = []
    for name, own in by_name(results).items():
        sections += [f"## {name.capitalize()}"] if name else []
        of, level = (f": {name}", "###") if name else ("", "##")
        sections += [setting(own), same_work(own)]
        for title, header, rows in tables(own):
            sections += [f"{level} {title}{of}", markdown_table(header, rows)]
    quick = " (quick)" if results["config"]["quick"] else ""
    sections += ["## How it was timed", HOW]
    return write_report(
        folder, "The trainer beside its peers" + quick, sections, results["provenance"]
    )


def tables(results: dict[str, Any]) -> list[tuple[str, Sequence[str], list[tuple[Any, ...]]]]:
    """Title, header and rows of the tables of one work."""
    return [
        ("Goals", GOAL_HEADER, goal_rows(results)),
        ("Time", TIME_HEADER, time_rows(results)),
        ("Peak resident memory, MiB", MEMORY_HEADER, memory_rows(results)),
    ]


def show(folder: Path, results: dict[str, Any]) -> None:
    """Writes the report and prints the tables.

    Args:
        folder: of the run.
        results: the content of results.json.
    """
    write(folder, results)
    for name, own in by_name(results).items():
        after = f", {name}" if name else ""
        console.print(same_work(own), markup=False)
        for title, header, rows in tables(own):
            print_table(title + after, header, rows)
    console.print(f"Wrote {folder}", markup=False)
