"""The store: one folder a run with its state and results, and what the report reads of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments import intervals, run_folder
from experiments.command_line import HINT
from experiments.processes import Ended
from experiments.suite.plan import STATE, Job
from experiments.suite.tables import GAINS


def note(store: Path, job: Job, state: str, how: Ended | None = None) -> None:
    """Writes what has become of a run.

    Args:
        store: folder of the suite.
        job: the run.
        state: running, done, crashed or not started (a run that it needs has crashed).
        how: it has ended, if it has.
    """
    folder = job.folder(store)
    folder.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {"state": state, "module": job.module, "rollouts": job.rollouts}
    if how is not None:
        content |= {"code": how.code, "seconds": how.seconds}
    if state == "crashed":
        content["last_line"] = last_words((folder / "log.txt").read_text(errors="replace"))
    run_folder.write_json(folder / STATE, content)


def last_words(log: str) -> str:
    """What a crashed run said last, without the frame and the hints around it."""
    lines = [line.strip(" \t│╭╮╰╯─") for line in log.splitlines()]
    lines = [line for line in lines if line and line != HINT]
    for i, line in enumerate(lines):
        if line.startswith("Error parsing"):  # tyro's, over as many lines as it needs
            rest = "\n".join(lines[i:]).partition("For full helptext")[0]
            return " ".join(rest.split())
    return lines[-1] if lines else ""


def digest(store: Path) -> dict[str, Any]:
    """What the report reads of every run in the store.

    Returns:
        `runs`: state of each, by part and name; and by part the figures of those that are done.
        Results are written whole and last, so a run that says "running" in a store that nobody
        holds is done where it has them, and was ended where it has not; it says so.
    """
    states: dict[str, dict[str, Any]] = {}
    figures: dict[str, dict[str, Any]] = {}
    for folder in sorted(path for path in (store / "runs").glob("*/*") if path.is_dir()):
        part, name = folder.parent.name, folder.name
        state: dict[str, Any] = {"state": "done"}
        if (folder / STATE).exists():
            state = run_folder.read_json(folder / STATE)
        results = folder / "results.json"
        if not (results.exists() or (folder / STATE).exists()):
            continue  # nobody's run
        if state["state"] in ("running", "done"):
            state["state"] = "done" if results.exists() else "ended before it was done"
        states.setdefault(part, {})[name] = state
        if state["state"] == "done":
            content = run_folder.read_json(results)
            state["commit"] = content["provenance"]["commit"]
            kind = name.split("_")[0] if part != "live" else "live"
            found = KINDS[kind](content)
            figures.setdefault(part, {})[name] = found
            if part == "live":
                state["rollouts_realised"] = found["figures"]["rollouts"]["values"]
    return {"runs": states, "figures": figures}


def _replay(content: dict[str, Any]) -> dict[str, Any]:
    names = ("protocol", "observed", "tracker", "log_loss", "brier", "ece", "ece_noise_floor")
    rows = [{key: row[key] for key in names} for row in content["rows"] if row["split"] == "all"]
    kept = [c for c in content["comparisons"] if (c["tracker"], c["rival"]) in GAINS]
    return {
        "history": content["history"],
        "labels": content["labels"],
        "rows": rows,
        "comparisons": kept,
        "fits": {name: content["fits"][name] for name in FITTED if name in content["fits"]},
    }


FITTED = ("logit_kalman", "fade_k0", "fade")
"""Trackers whose fitted parameters the report tells."""


def _parts(content: dict[str, Any]) -> dict[str, Any]:
    variants = {
        name: {key: value for key, value in row.items() if key != "fits"}
        for name, row in content["variants"].items()
    }
    return {key: content[key] for key in ("history", "labels", "informative_share", "chosen")} | {
        "variants": variants
    }


def _scales(content: dict[str, Any]) -> dict[str, Any]:
    return {key: content[key] for key in ("history", "run", "memories", "shown")}


def _when(content: dict[str, Any]) -> dict[str, Any]:
    cells = [{key: v for key, v in cell.items() if key != "params"} for cell in content["cells"]]
    return {"cells": cells, "seeds": content["config"]["seeds"]}


def _ablation(content: dict[str, Any]) -> dict[str, Any]:
    """The simulated trackers and variants, with intervals."""
    cells = content["cells"]
    trackers = {
        name: {"rmse": intervals.of(cell["rmse"]), "ece": cell["ece"]}
        for name, cell in cells.get("tracking", {}).items()
    }
    fitted = cells.get("tracking", {}).get("fade")
    variants = {}
    for name, cell in cells.get("filter", {}).items():
        gap = [a - b for a, b in zip(cell["rmse"], fitted["rmse"], strict=True)] if fitted else []
        variants[name] = {
            "factor": cell["factor"],
            "label": cell["label"],
            "minus_tuned": intervals.of(gap) if gap else None,
            "ece": cell["ece"],
        }
    skills = {
        name: {"rmse": intervals.of(cell["rmse"])} for name, cell in cells.get("skills", {}).items()
    }
    return {
        "labels": content["labels"],
        "trackers": trackers,
        "variants": variants,
        "skills": skills,
        "worlds": content["config"]["seeds"],
    }


def _trackers(content: dict[str, Any]) -> dict[str, Any]:
    return {key: content[key] for key in ("sizes", "steps", "labels")}


def _live(content: dict[str, Any]) -> dict[str, Any]:
    config = content["config"]
    return {
        "policy": config["policy"],
        "method": config["method"],
        "seeds": config["seeds"],
        "figures": {name: intervals.of(values) for name, values in content["figures"].items()},
    }


KINDS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "replay": _replay,
    "parts": _parts,
    "scales": _scales,
    "when": _when,
    "ablation": _ablation,
    "trackers": _trackers,
    "live": _live,
}
"""What is read of a run, by the first word of its name."""
