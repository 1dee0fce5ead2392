"""Figures of how well trackers predict that are not in the results as such."""

from typing import Any

import numpy as np

from experiments import ablation_report
from experiments.measured import Results, figure


def replayed(content: dict[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Scores on all prompts of a replay, by masks (`dense`, `sparse 0.1`) and tracker."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in content["rows"]:
        if row["split"] == "all":
            found.setdefault(_masks(row), {})[row["tracker"]] = row
    return found


def _masks(row: dict[str, Any]) -> str:
    return "dense" if row["protocol"] == "dense" else f"{row['protocol']} {row['observed']:g}"


def log_loss(content: dict[str, Any], masks: str, tracker: str) -> float:
    """Of a tracker on all prompts."""
    return replayed(content)[masks][tracker]["log_loss"]


def _gains(content: dict[str, Any]) -> dict[str, Any]:
    """By how much a tracker's log loss is below a rival's: masks, tracker, rival."""
    found: dict[str, Any] = {}
    for row in content["comparisons"]:
        gain = {"mean": -row["log_loss_difference"], "low": -row["high"], "high": -row["low"]}
        found.setdefault(_masks(row), {}).setdefault(row["tracker"], {})[row["rival"]] = gain
    return found


@figure
def public_run(results: Results) -> dict[str, Any]:
    """Scores on the public run: masks, tracker."""
    return replayed(results["replay_history"])


@figure
def public_gain(results: Results) -> dict[str, Any]:
    """Gains on the public run: masks, tracker, rival."""
    return _gains(results["replay_history"])


@figure
def public_base_rate_loss(results: Results) -> float:
    """Log loss of stating the public run's share of informative groups every time, nats."""
    share = results["replay_history"]["history"]["informative_share"]
    return float(-share * np.log(share) - (1 - share) * np.log(1 - share))


@figure
def public_best_cold(results: Results) -> float:
    """Least log loss of any tracker on the public run's prompts that it has never seen."""
    return min(row["log_loss"] for row in public_run(results)["cold 0.5"].values())


@figure
def public_common_share(results: Results) -> dict[str, float]:
    """What K = 0 has of FADE's gain over the best-tuned Beta."""
    gain = public_gain(results)
    return {
        masks: gain[masks]["fade_k0"]["beta_tuned_free"]["mean"]
        / gain[masks]["fade"]["beta_tuned_free"]["mean"]
        for masks in gain
    }


@figure
def public_pg_share(results: Results) -> float:
    """What the `pg` rule keeps of FADE's gain over the best-tuned Beta where visits are sparse."""
    gain = public_gain(results)["sparse 0.1"]
    return gain["fade_pg"]["beta_tuned_free"]["mean"] / gain["fade"]["beta_tuned_free"]["mean"]


@figure
def own_run(results: Results) -> dict[str, Any]:
    """Scores on the run of this project's own: masks, tracker."""
    return replayed(results["replay_recorded_tiny"])


@figure
def own_gain(results: Results) -> dict[str, Any]:
    """Gains on the run of this project's own: masks, tracker, rival."""
    return _gains(results["replay_recorded_tiny"])


@figure
def runs_where_fade_is_best(results: Results) -> int:
    """Recorded runs on which FADE has the least log loss of all trackers, dense and sparse."""
    return sum(
        all(
            min(run[masks], key=lambda name: run[masks][name]["log_loss"]) == "fade"
            for masks in run
            if not masks.startswith("cold")
        )
        for run in (public_run(results), own_run(results))
    )


@figure
def simulated(results: Results) -> dict[str, Any]:
    """FADE's error over that of others, and shuffled loadings against none."""
    return ablation_report.claims(results["fade_ablation"]["cells"]["tracking"])


@figure
def simulated_counts(results: Results) -> dict[str, int]:
    """How many trackers were tracked with, and paradigms chosen by."""
    cells = results["fade_ablation"]["cells"]
    loops = {name.split(" x ")[1] for name in cells["loops"] if " x " in name}
    return {"trackers": len(cells["tracking"]), "paradigms": len(loops)}


@figure
def simulated_leap(results: Results) -> dict[str, list[float]]:
    """Share of a leap that was followed after two iterations, by tracker: one value a world."""
    jump = results["fade_ablation"]["cells"]["jump"]
    return {name: [world[2] for world in cell["followed"]] for name, cell in jump.items()}


@figure
def simulated_shortfall(results: Results) -> list[float]:
    """1 - realised / planned under the threshold rule, counts that never forget, by world."""
    cell = results["fade_ablation"]["cells"]["loops"]["beta_counter x threshold"]
    return (1 - np.divide(cell["planned_realised"], cell["planned_expected"])).tolist()


def warm_differences(kind: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Log loss minus the cold start's over the whole run, by arm."""
    return {row["arm"]: row for row in kind["differences"] if row["over"] == "whole run"}


def _directions(results: Results) -> dict[str, dict[str, Any]]:
    return {each["first"]: each for each in results["warm_start"]["directions"]}


@figure
def warm_start_run(results: Results) -> dict[str, Any]:
    """A direction's own figures: whose run is first."""
    return _directions(results)


@figure
def warm_minus_cold(results: Results) -> dict[str, Any]:
    """Log loss minus the cold start's over the whole run: whose run is first, loadings, arm."""
    return {
        first: {kind: warm_differences(found) for kind, found in each["kinds"].items()}
        for first, each in _directions(results).items()
    }


def _marks(results: Results) -> list[dict[str, Any]]:
    """Rollouts to the first mark, of arms that start from the first run's own intercepts."""
    return [
        {"first": first, "kind": kind, **row}
        for first, each in _directions(results).items()
        for kind, found in each["kinds"].items()
        for row in found["marks"]
        if row["cold_epochs"] == 1 and row["arm"].startswith("warm")
    ]


@figure
def warm_marks(results: Results) -> dict[str, Any]:
    """Rollouts to the first mark: score, whose run is first, loadings, arm; low and high beside."""
    found: dict[str, Any] = {}
    for row in _marks(results):
        by_first = found.setdefault(row["score"], {}).setdefault(row["first"], {})
        by_first.setdefault(row["kind"], {})[row["arm"]] = row
    return found


@figure
def warm_saving(results: Results) -> dict[str, dict[str, int]]:
    """Starts whose rollouts are below the cold start's, and those whose whole interval is."""
    found = {}
    for score in ("log loss", "Brier"):
        rows = [row for row in _marks(results) if row["score"] == score]
        below = [row for row in rows if (row["rollouts"] or np.inf) < row["cold_rollouts"]]
        sure = [row for row in below if (row["high"] or np.inf) < row["cold_rollouts"]]
        found[score] = {"of": len(rows), "below": len(below), "sure": len(sure)}
    return found


@figure
def warm_extra_epochs(results: Results) -> float:
    """Epochs beyond the cold start's mark that intercepts taken as they are cost, tiny first."""
    row = warm_marks(results)["log loss"]["tiny"]["constant"]["warm"]
    return (row["rollouts"] - row["cold_rollouts"]) / row["cold_rollouts"]


def of_first_world(content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Gaps to the exact filter on the world that is held to limits, by rule."""
    rows = content["known_difficulties"]["rows"]
    return {row["rule"]: row for row in rows if row["world"] == rows[0]["world"]}


@figure
def exactness(results: Results) -> dict[str, Any]:
    """Gaps on the world that is held to limits, by rule."""
    return of_first_world(results["verify_exactness"])


@figure
def exactness_other_seeds(results: Results) -> dict[str, Any]:
    """Gaps on other runs of the same world, by rule, and the seeds of these runs."""
    content = results["verify_exactness_seeds"]
    first, runs = content["config"]["first_run"], content["config"]["runs"]
    return {"first": first, "last": first + runs - 1, **of_first_world(content)}


@figure
def exactness_worlds(results: Results) -> dict[str, Any]:
    """Gaps of `adf` by world: `4 prompts`, `drift 0.3`, `variance 1`."""
    found, usual = {}, results["verify_exactness"]["known_difficulties"]["rows"][0]["world"]
    for row in results["verify_exactness"]["known_difficulties"]["rows"]:
        world = row["world"]
        if row["rule"] != "adf":
            continue
        if world["batch"] != usual["batch"]:
            found[f"{world['batch']} prompts"] = row
        elif world["drift"] != usual["drift"]:
            found[f"drift {world['drift']:g}"] = row
        elif world["ability_sd"] != usual["ability_sd"]:
            found[f"variance {world['ability_sd'] ** 2:g}"] = row
    return found


@figure
def exactness_identities(results: Results) -> float:
    """Largest relative difference of the identities."""
    return max(row["difference"] for row in results["verify_exactness"]["identities"]["rows"])


@figure
def exactness_unknown(results: Results) -> dict[str, Any]:
    """Gaps to NUTS with unknown difficulties: filter, rule."""
    found: dict[str, Any] = {}
    for row in results["verify_exactness"]["unknown_difficulties"]["rows"]:
        found.setdefault(row["filter"], {})[row["rule"]] = row
    return found


@figure
def saturation(results: Results) -> dict[str, float | None]:
    """Nats a step above the grid where pass rates saturate (drift sd 1), by method."""
    rows = results["verify_exactness"]["saturation"]["rows"]
    return {row["method"]: row["excess"] for row in rows if row["drift"] == 1}
