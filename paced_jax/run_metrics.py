"""One iteration's Record as the figures of a log line. Host side, numpy.

Shapes: `C` iterations of a chunk, `M` chosen prompts.
"""

from typing import Any

import numpy as np


class Tally:
    """Counts what has been generated so far, and turns Records into figures.

    Args:
        num_prompts: of the pool.
        labels: per-prompt numbers, [N] each, whose mean over the chosen prompts is logged as
            `chosen_<name>`: say a prompt's length, or its pass rate under the base policy.
    """

    def __init__(self, num_prompts: int, labels: dict[str, np.ndarray] | None = None):
        self.seen = np.zeros(num_prompts, bool)
        self.labels = labels or {}
        self.rollouts = 0
        self.tokens = 0

    def resume(self, prompt_ids: np.ndarray, line: dict[str, Any]) -> None:
        """Takes up the count of an earlier part of the run.

        Args:
            prompt_ids: of all groups generated so far, any shape; -1 in unused slots.
            line: the last one written, which holds the sums.
        """
        self.seen[prompt_ids[prompt_ids >= 0]] = True
        self.rollouts, self.tokens = int(line["rollouts"]), int(line["tokens"])

    def figures(self, record: Any) -> list[tuple[int, dict[str, float]]]:
        """Figures of every live iteration of a chunk, in order.

        Args:
            record: a `driver.Record` on the host, numpy arrays with a leading axis [C].

        Returns:
            (iteration, {name: value}) of each.
        """
        lines = []
        for i in range(len(record.iteration)):
            if record.live[i]:
                lines.append((int(record.iteration[i]), self._line(_at(record, i))))
        return lines

    def _line(self, record: Any) -> dict[str, float]:
        ids, successes, trials = map(np.asarray, record.observation)
        used = ids >= 0
        self.seen[ids[used]] = True
        self.rollouts += int((trials + record.missing).sum())
        self.tokens += int(record.sample_metrics.tokens)
        judged = used & (trials > 0)
        rate = successes[judged] / trials[judged]
        flag = (~np.asarray(record.degenerate)[judged]).astype(float)
        informative = np.asarray(record.informative)[judged]
        predicted = np.asarray(record.predicted)[judged]
        line = {
            "rollouts": float(self.rollouts),
            "tokens": float(self.tokens),
            "stepped": float(record.learn.stepped),
            "pass_rate": _mean(rate),
            "informative_realised": _mean(flag),
            "informative_predicted": _mean(informative),
            "informative_brier": _mean((informative - flag) ** 2),
            "pass_rate_predicted": _mean(predicted),
            "pass_rate_absolute_error": _mean(np.abs(predicted - rate)),
            "pass_rate_bias": _mean(predicted - rate),
            "tracker_log_evidence": float(record.tracker_info.log_evidence),
            "tracker_nis": float(record.tracker_info.nis),
            "informative_groups": float(flag.sum()),
            "expected_informative_groups": float(record.select_info.expected_informative),
            "planned_rollouts": float(record.select_info.planned_rollouts),
            "shortfall": float(record.select_info.shortfall),
            "low_signal": float(record.select_info.low_signal),
            "missing_verdicts": float(record.missing.sum()),
            "distinct_prompts": float(self.seen.sum()),
            "sampled_tokens": float(record.sample_metrics.tokens),
            "cut_off": float(record.sample_metrics.cut_off),
        }
        line |= {f"chosen_{name}": _mean(x[ids[used]]) for name, x in self.labels.items()}
        if record.learn.stepped:
            line |= {k: float(v) for k, v in record.learn.metrics._asdict().items()}
        return line


def _at(record: Any, i: int) -> Any:
    """Iteration i of a chunk's Record."""
    if isinstance(record, tuple):
        return type(record)(*(_at(x, i) for x in record))
    return record[i]


def _mean(x: np.ndarray) -> float:
    return float(np.mean(x)) if len(x) else float("nan")
