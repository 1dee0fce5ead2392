"""The tables of the pages that are written from results, row by row; each field names a function.

Every function takes the content of all results.json by folder and returns a Markdown table.
"""

from typing import Any

import numpy as np

from experiments.measured import Results, figure
from experiments.measured_filter import log_loss, of_first_world, replayed, warm_differences
from experiments.number_text import Found, show
from experiments.run_folder import markdown_table
from experiments.warm_start_report import rollouts

MIB = 2**20

LIVE = {
    "uniform": "uniform",
    "mopps": "MoPPS",
    "mapp": "MaPP",
    "kgps": "KGPS",
    "dps": "DPS",
    "fade": "FADE, greedy",
    "fade_shuffled": "FADE, greedy, shuffled loadings",
    "fade_k0": "FADE, greedy, K = 0",
    "fade_thompson": "FADE, Thompson",
    "paced": "PACED",
    "paced_no_replay": "PACED without replay",
    "grpo_uniform": "GRPO, uniform",
    "dapo": "DAPO",
    "lilo": "LILO",
    "oracle": "oracle",
}


def _long_run(part: dict[str, Any]) -> str:
    header = (
        "method",
        "effective",
        "validation, end",
        "minus uniform, 95 % interval",
        "to uniform's end",
        "distinct prompts",
    )
    rows = []
    for name, column in part["methods"].items():
        cost = part["cost_to"]["uniform"]["rollouts"][name]
        gain = part["minus_uniform"].get(name)
        rows.append(
            (
                LIVE[name],
                f"{Found(column['informative_realised']):.3f}",
                f"{Found(column['validation_end']):.3f}",
                "" if gain is None else f"{Found(gain['validation_end']):+.3f ()}",
                f"{Found(cost['ratio']):.2f} ({cost['reached']})",
                f"{Found(column['distinct_prompts']):,.0f}",
            )
        )
    return markdown_table(header, rows)


@figure
def long_run_tiny(results: Results) -> str:
    """Every method on `tiny`."""
    return _long_run(results["headline"]["tiny"])


@figure
def long_run_base(results: Results) -> str:
    """Every method on `base`."""
    return _long_run(results["headline"]["base"])


@figure
def quickstart_methods(results: Results) -> str:
    """The four methods of the quickstart."""
    header = (
        "method",
        "effective",
        "validation: end",
        "mean over the run",
        "ECE of P(informative)",
        "distinct prompts",
        "s / iteration",
    )
    labels = {
        "uniform": "uniform",
        "mopps": "MoPPS (Thompson on Beta counts)",
        "fade": "FADE (most informative first)",
        "paced": "PACED-RL (nearest one half, replay)",
    }
    forms = {
        "informative_realised": ".3f",
        "validation_end": ".3f",
        "validation_mean": ".3f",
        "informative_ece": ".3f",
        "distinct_prompts": ",.0f",
        "iteration_seconds": ".3f",
    }
    methods = results["quickstart"]["methods"]
    return markdown_table(
        header,
        [
            (labels[name], *(format(Found(column[key]), form) for key, form in forms.items()))
            for name, column in methods.items()
        ],
    )


SIMULATED = {
    "fade": "FADE, true loadings",
    "fade_pg": "FADE, `pg` rule",
    "fade_k0": "FADE, K = 0",
    "fade_shuffled": "FADE, shuffled loadings (control)",
    "kalman": "per-prompt logit Kalman, drift",
    "beta": "discounted Beta",
    "ema": "EMA",
    "kalman_still": "per-prompt logit Kalman, no drift",
    "beta_counter": "Beta counter (no drift)",
}


@figure
def simulated_trackers(results: Results) -> str:
    """Trackers on simulated worlds: their errors, and what choosing by them brings."""
    header = (
        "tracker",
        "RMSE of E[p], uniform choice",
        "ECE of P(informative)",
        "effective groups, top-m",
        "gain over uniform, top-m",
        "threshold rule: realised / planned",
    )
    tracking = results["fade_ablation"]["cells"]["tracking"]
    loops = results["fade_ablation"]["cells"]["loops"]
    rows = []
    for name, label in SIMULATED.items():
        cells = [f"{Found(tracking[name]['rmse']):.4f ±}", f"{Found(tracking[name]['ece']):.3f}"]
        if f"{name} x top_m" in loops:
            best, threshold = loops[f"{name} x top_m"], loops[f"{name} x threshold"]
            gain = np.subtract(best["gain"], loops[f"{name} x uniform"]["gain"]).tolist()
            kept = np.divide(threshold["planned_realised"], threshold["planned_expected"]).tolist()
            cells += [f"{Found(best['effective']):.3f ±}", f"{Found(gain):.3f ±}"]
            cells += [f"{Found(kept):.3f}"]
        rows.append((label, *cells, *[""] * (5 - len(cells))))
    return markdown_table(header, rows)


REPLAYED = {
    "fade": "FADE, text loadings",
    "fade_tags": "FADE, told the skill (tags)",
    "fade_k0": "FADE, K = 0 (ability common to all prompts)",
    "fade_shuffled": "FADE, shuffled loadings (control)",
    "fade_pg": "FADE, text loadings, `pg` rule",
    "logit_kalman": "per-prompt logit Kalman filter, tuned",
    "beta_tuned_free": "discounted Beta, prior, discount and pull tuned",
    "beta_tuned": "discounted Beta, prior and discount tuned",
    "beta_strong": "Beta(.35,.65), discount .9, set by hand",
    "logit_kalman_ekf": "logit Kalman, extended (KGPS), tuned",
    "beta_0.9": "Beta(1,1), discount .9 (MoPPS)",
    "ema_0.3": "EMA, gain .3",
    "markov": "Markov chain (DPS)",
    "cdas": "CDAS",
}


def _replay(content: dict[str, Any], families: dict[str, str], left_out: tuple[str, ...]) -> str:
    """Log loss and ECE in each family of masks, best dense log loss first."""
    found = replayed(content)
    header = ["tracker"]
    for family, words in families.items():
        assert family in found
        header += [f"{words}: log loss", "ECE"]
    names = [name for name in REPLAYED if name in found["dense"] and name not in left_out]
    names.sort(key=lambda name: log_loss(content, "dense", name))
    rows = []
    for name in names:
        scores = [found[family][name] for family in families]
        cells = [f"{Found(score[key]):.4f}" for score in scores for key in ("log_loss", "ece")]
        rows.append((REPLAYED[name], *cells))
    return markdown_table(header, rows)


@figure
def replayed_public(results: Results) -> str:
    """Every tracker on the public run."""
    families = {"dense": "dense", "sparse 0.1": "sparse"}
    return _replay(results["replay_history"], families, ("beta_tuned",))


@figure
def replayed_own(results: Results) -> str:
    """The trackers in question on the run of this project's own."""
    families = {"dense": "dense", "sparse 0.1": "sparse, 10 % seen", "cold 0.5": "cold"}
    left_out = ("beta_tuned_free", "beta_strong", "logit_kalman_ekf", "beta_0.9", "ema_0.3")
    return _replay(results["replay_recorded_tiny"], families, (*left_out, "markov", "cdas"))


WARM = {
    "warm": "intercepts as learnt",
    "warm, + 10 %": "variances + 10 % of the prior's",
    "warm, + 30 %": "variances + 30 % of the prior's",
    "warm, frozen": "frozen: only ability is learnt",
    "shuffled": "another prompt's intercepts (control)",
}


@figure
def warm_starts(results: Results) -> str:
    """K = 0: rollouts to the mark, and the loss of the whole run, both ways round."""
    header, columns = ["start"], {name: [label] for name, label in WARM.items()}
    cold = ["cold"]
    for direction in results["warm_start"]["directions"]:
        way = f"{direction['first']}, then {direction['second']}"
        header += [f"{way}: rollouts", "log loss - cold's, whole run"]
        kind = direction["kinds"]["constant"]
        marks = {
            row["arm"]: row
            for row in kind["marks"]
            if row["score"] == "log loss" and row["cold_epochs"] == 1
        }
        cold += [rollouts(marks["warm"]["cold_rollouts"]), show(0)]
        different = warm_differences(kind)
        for name, cells in columns.items():
            ends = [rollouts(marks[name][key]) for key in ("rollouts", "low", "high")]
            never = len(set(ends)) == 1
            cells.append(ends[0] if never else f"{ends[0]} ({ends[1]} to {ends[2]})")
            cells.append(f"{Found(different[name]):+.4f ()}")
    return markdown_table(header, [cold, *columns.values()])


@figure
def exactness_rules(results: Results) -> str:
    """Moment rules against the exact filter, on the world that is held to limits."""
    labels = {
        "ep": "`ep`",
        "adf": "`adf` (default)",
        "pg_laplace": "`pg_laplace`",
        "laplace": "`laplace`",
        "ekf": "`ekf`",
        "pg 4": "`pg`, 4 passes",
        "pg 1 pass": "`pg`, 1 pass",
    }
    rules = of_first_world(results["verify_exactness"])
    rows = [
        (
            label,
            f"{Found(rules[name]['distance_mean']):.3f}",
            f"{Found(rules[name]['distance_max']):.2f}",
            f"{Found(rules[name]['ratio_mean']):.2f}",
        )
        for name, label in labels.items()
    ]
    return markdown_table(("rule", "mean", "max", "variance / exact"), rows)


@figure
def step_sizes(results: Results) -> str:
    """The filter's step by the size of the pool, K = 16."""
    sizes = [row for row in results["filter_step"]["sizes"] if row["skills"] == 16]
    rows = [
        (
            show(row["prompts"]),
            *(show(row[key]["median"], ".2f") for key in ("step_ms", "product_ms")),
        )
        for row in sorted(sizes, key=lambda row: row["prompts"])
    ]
    return markdown_table(("prompts", "step, ms", "bare [N, 16] x [16, 16] product, ms"), rows)


@figure
def pool_sizes(results: Results) -> str:
    """A whole step, and memory, by the size of the pool and the number of devices."""
    header = (
        "prompts",
        "devices",
        "step, ms",
        "loadings + state + temporary on each device, MiB",
    )
    parts = ("loadings_bytes_per_device", "state_bytes_per_device", "step_temporary_bytes")
    rows = []
    for row in results["pool_scale"]["pools"]:
        devices = max(row["job"]["devices"], 1)
        time = row["step_ms"]["median"]
        rows.append(
            (
                show(row["job"]["num_prompts"]),
                "1" if devices == 1 else f"{devices} on the same cores",
                show(time, ".2f" if time < 10 else ".1f" if time < 100 else ",.0f"),
                " + ".join(show(row[part] / MIB, ".1f") for part in parts),
            )
        )
    return markdown_table(header, rows)
