"""Figures of the benchmarks and of `kill_check` that are not in their results as such."""

from typing import Any

from experiments.measured import Results, figure


@figure
def pool_split(results: Results) -> dict[str, Any]:
    """The pool that is split over devices."""
    return results["pool_scale"]["pools"][-1]


@figure
def pool_load(results: Results) -> list[float]:
    """Load averages while the pools were timed, sorted."""
    return sorted(results["pool_scale"]["load_average"])


@figure
def trainer_tokens(results: Results) -> dict[str, Any]:
    """Sampled tokens a second: contender, action."""
    content = results["trainer"]
    work = content["work"]
    tokens = work["prompts"] * work["group_size"] * work["response_length"]
    return {
        name: {action: tokens / own["median"] for action, own in actions.items()}
        for name, actions in content["seconds"].items()
    }


@figure
def trainer_goals(results: Results) -> dict[str, float]:
    """Ratios that were wanted, by the words of the goal."""
    return {goal["goal"]: goal["found"] for goal in results["trainer"]["goals"]}


@figure
def trainer_smollm2_goals(results: Results) -> dict[str, dict[str, float]]:
    """Ratios that were wanted of SmolLM2: work, the words of the goal."""
    return {
        name: {goal["goal"]: goal["found"] for goal in work["goals"]}
        for name, work in results["trainer_smollm2"]["works"].items()
    }


@figure
def trainer_gib(results: Results) -> dict[str, float]:
    """Peak memory after a train step, GiB."""
    return {name: own["train"] / 2**30 for name, own in results["trainer"]["peak_bytes"].items()}


@figure
def trainer_repeated_times(results: Results) -> float:
    """Our trajectory-balance step with prompts repeated over transformers' GRPO step."""
    seconds = results["trainer"]["seconds"]
    repeated = seconds["ours"]["train, balance, prompts repeated"]["median"]
    return repeated / seconds["transformers"]["train"]["median"]


@figure
def kill_check_differences(results: Results) -> int:
    """Differences of killed runs from those that nobody killed."""
    return sum(len(entry["differences"]) for entry in results["kill_check"]["compared"])
