"""Which experiment wrote the report of each folder of committed results.

An experiment that is to have one adds a line: its folder under `experiments/results` and its
`write(folder, content)`, which writes report.md from the content of results.json and nothing else.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments import (
    ablation_report,
    exactness_report,
    headline_report,
    kill_check,
    quickstart,
    replay_report,
    run_folder,
    setting_check,
    smollm2,
    warm_start_report,
)
from experiments.benchmarks import filter_step_report, pool_scale_report, trainer_report
from experiments.suite import report as suite_report

RESULTS = Path(__file__).resolve().parent / "results"

Write = Callable[[Path, dict[str, Any]], Path]

WRITERS: dict[str, Write] = {
    "fade_ablation": ablation_report.write,
    "filter_step": filter_step_report.write,
    "headline": headline_report.write,
    "kill_check": kill_check.write,
    "pool_scale": pool_scale_report.write,
    "quickstart": quickstart.write,
    "quickstart_arms": quickstart.write,
    "replay_history": replay_report.write,
    "replay_recorded_tiny": replay_report.write,
    "setting_check": setting_check.write,
    "smollm2": smollm2.write,
    "suite": suite_report.write,
    "trainer": trainer_report.write,
    "trainer_smollm2": trainer_report.write,
    "verify_exactness": exactness_report.write,
    "verify_exactness_seeds": exactness_report.write,
    "warm_start": warm_start_report.write,
}

WITHOUT: dict[str, str] = {}
"""Folders of results that have no such report, and why."""


def written(name: str, scratch: Path) -> str:
    """The report that the code writes today from a folder's results.json.

    Args:
        name: of the folder in `experiments/results`.
        scratch: an empty folder to write to.

    Returns:
        Markdown.
    """
    content = run_folder.read_json(RESULTS / name / "results.json")
    return WRITERS[name](scratch, content).read_text()
