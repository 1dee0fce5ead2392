"""Figures of the live comparisons that are not in their results as such."""

from typing import Any

from experiments import intervals, run_folder
from experiments.measured import Results, figure
from paced_jax.policy.base_policies import WEIGHTS, known_policies


@figure
def long_run_sizes(results: Results) -> dict[str, int]:
    """Seeds, and choices of a prompt in a run of `tiny`."""
    tiny = results["headline"]["tiny"]
    choices = tiny["setting"]["iterations"] * tiny["setting"]["num_prompts"]
    return {"seeds": len(tiny["seeds"]), "choices": choices}


@figure
def long_run_times_uniform(results: Results) -> dict[str, dict[str, float]]:
    """Effective groups over uniform choice's: part, method."""
    return {
        part: {
            name: column["informative_realised"]["mean"]
            / results["headline"][part]["methods"]["uniform"]["informative_realised"]["mean"]
            for name, column in results["headline"][part]["methods"].items()
        }
        for part in ("tiny", "base")
    }


@figure
def quickstart_doubled(results: Results) -> float:
    """PACED's effective groups over uniform choice's."""
    methods = results["quickstart"]["methods"]
    return (
        methods["paced"]["informative_realised"]["mean"]
        / methods["uniform"]["informative_realised"]["mean"]
    )


@figure
def quickstart_floor(results: Results) -> float:
    """The largest ECE that a perfect prediction of any method's would show."""
    methods = results["quickstart"]["methods"].values()
    return max(column["informative_ece_floor"]["mean"] for column in methods)


def _end_gains(results: Results) -> dict[str, dict[str, Any]]:
    """Validation at the end minus uniform choice's, of all methods of both calls."""
    found = {}
    for folder in ("quickstart", "quickstart_arms"):
        for name, column in results[folder]["minus_uniform"].items():
            found[name] = column["validation_end"]
    return found


@figure
def quickstart_clear(results: Results) -> dict[str, int]:
    """Differences at the end whose intervals exclude 0, of how many."""
    gains = _end_gains(results).values()
    return {"excluding": sum(map(intervals.excludes_zero, gains)), "of": len(gains)}


@figure
def quickstart_margin(results: Results) -> dict[str, float]:
    """By how much an interval at the end stays clear of 0, by method."""
    return {name: max(x["low"], -x["high"]) for name, x in _end_gains(results).items()}


@figure
def smollm2_stuck(results: Results) -> dict[str, Any]:
    """Greedy FADE's longest stretch of blocks with hardly an informative group.

    Returns:
        first and last iteration; informative, the blocks' shares; pass_rate, theirs.
    """
    fade, config = (results["smollm2"][key] for key in ("methods", "config"))
    informative = fade["fade"]["informative"]["values"]
    rates = fade["fade"]["pass_rate_generated"]["values"]
    block = config["iterations"] // len(informative)
    best = (0, 0)
    for start in range(len(informative)):
        end = start
        while end < len(informative) and informative[end] < 0.1:
            end += 1
        best = max(best, (start, end), key=lambda pair: pair[1] - pair[0])
    start, end = best
    values = {"informative": informative[start:end], "pass_rate": rates[start:end]}
    return {"first": start * block + 1, "last": end * block, **values}


@figure
def smollm2_standard_error(results: Results) -> list[float]:
    """Of the validation pass rate at the end, by method."""
    methods = results["smollm2"]["methods"].values()
    return [x["summary"]["validation"][-1]["pass_at_1_standard_error"] for x in methods]


@figure
def smollm2_visits(results: Results) -> list[float]:
    """Groups for each distinct prompt that was chosen, by method."""
    summaries = [x["summary"] for x in results["smollm2"]["methods"].values()]
    return [summary["groups"] / summary["distinct_prompts"] for summary in summaries]


@figure
def smollm2_reverse(results: Results) -> list[float]:
    """Test pass rate of the task of reversing, by method."""
    methods = results["smollm2"]["methods"].values()
    return [x["summary"]["test"]["skill/reverse"] for x in methods]


@figure
def smollm2_first_block(results: Results) -> list[float]:
    """Informative groups in the first block of iterations, by method."""
    return [x["informative"]["values"][0] for x in results["smollm2"]["methods"].values()]


@figure
def policy_parameters(results: Results) -> dict[str, int]:
    """Parameters of the policies that come with the package."""
    return {
        name: run_folder.read_json(WEIGHTS / f"{name}.json")["parameters"]
        for name in known_policies()
    }
