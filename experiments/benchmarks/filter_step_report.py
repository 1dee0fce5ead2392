"""What `filter_step` prints, draws and writes about its results."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from experiments import figures
from experiments.benchmarks.peers import INSTALL
from experiments.run_folder import console, markdown_table, print_table, write_report

TARGET_SIZE, TARGET_MS, TARGET_RATIO = (40_315, 16), 0.6, 3.0

PART_HEADER = ("part", "ms", "share")
SIZE_HEADER = ("N", "K", "step, ms", "quartiles", "p99", "product, ms", "ratio", "compile, s",
               "runs")  # fmt: skip
PART_LABELS = {"call": "the call itself", "predict": "predict", "update": "update (adf)",
               "score": "score all prompts", "top": "pick the top"}  # fmt: skip
PEER_HEADER = ("peer", "N", "B", "T", "peer, ms", "tracker, ms", "times slower",
               "distinct, ms", "times slower", "difference", "same answer")  # fmt: skip

DIFFERENCES = """\
## What is compared, and what is not

The peers are general state-space libraries; the filter is specialised to binomial counts in a large
pool. They share one job, in float64: independent random walks on the logit, B of N prompts visited
per step, an extended-Kalman step, the same answers. Known differences:

* **cuthbert** (`factorial` over the square-root linearised-moments filter) takes any dynamics and
  observation by automatic differentiation, keeps a Cholesky factor, and treats the B visited
  prompts as one joint state: B^3 work where this job, without correlations, needs B. It also
  returns the local state of every step, and takes distinct ids for granted.
* **dynamax** (conditional moments, EKF integrals, `vmap` over prompts) is as general and has no
  pool: every prompt is filtered at every step. It adds 1e-9 to the matrices it solves with.
* **Ours** is scalar arithmetic on gathered rows. The public tracker also merges repeated ids and
  keeps clocks; "distinct ids" is the same rule without that, as cuthbert's.
* The `ekf` rule exists for this comparison only. The step timed below runs `adf`, shares abilities
  between prompts, and has no counterpart in either library."""


def size_rows(results: dict[str, Any]) -> list[tuple[Any, ...]]:
    """One row a pool size."""
    return [
        (
            f"{row['prompts']:,}", row["skills"], row["step_ms"]["median"],
            f"{row['step_ms']['q25']:.3g}-{row['step_ms']['q75']:.3g}", row["step_ms"]["p99"],
            row["product_ms"]["median"], row["ratio_to_product"], f"{row['compile_seconds']:.1f}",
            row["step_ms"]["repetitions"],
        )
        for row in results["sizes"]
    ]  # fmt: skip


def part_rows(results: dict[str, Any]) -> list[tuple[str, float, str]]:
    """One row a part, and the sum."""
    split, total = results["split_ms"], results["split_step_ms"]
    rows = [(PART_LABELS[name], split[name], f"{split[name] / total:.0%}") for name in PART_LABELS]
    return [*rows, ("all", total, "100%")]


def peer_rows(results: dict[str, Any]) -> list[tuple[Any, ...]]:
    """One row a peer and job."""
    return [
        (
            f"{name} {peer['version']}", f"{row['job']['prompts']:,}", row["job"]["batch"],
            row["job"]["steps"], row["ms_median"], row["ours_ms_median"], row["ratio"],
            row["ours_distinct_ms_median"], row["ratio_distinct"], row["difference"],
            "yes" if row["equal"] else "NO",
        )
        for name, peer in results["peers"].items()
        for row in peer["jobs"]
    ]  # fmt: skip


def draw(results: dict[str, Any], folder: Path) -> Path:
    """Where the time of a step goes, and how it grows with the pool."""
    figures.style()
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.2), width_ratios=(3, 2))
    start = 0.0
    for name, colour in zip(PART_LABELS, figures.COLOURS, strict=False):
        width = max(results["split_ms"][name], 0.0)
        left.barh("step", width, left=start, color=colour, label=f"{PART_LABELS[name]} {width:.3f}")
        start += width
    bare = results["split_product_ms"]
    left.barh("product", bare, color=figures.COLOURS[7], label=f"bare product {bare:.3f}")
    left.axvline(TARGET_RATIO * bare, color="black", linestyle=":", linewidth=1)
    left.text(TARGET_RATIO * bare, 0.5, f" {TARGET_RATIO:g} products", va="center", fontsize=8.5)
    left.set_xlim(0, 1.3 * max(start, TARGET_RATIO * bare))
    left.invert_yaxis()
    left.grid(axis="y", visible=False)
    left.set_xlabel("milliseconds (medians)")
    left.set_title(f"One step, {results['prompts']:,} prompts")
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.24), ncols=3)

    rows = sorted(
        (row for row in results["sizes"] if row["skills"] == results["sizes"][0]["skills"]),
        key=lambda row: row["prompts"],
    )
    for key, label, colour, marker in (
        ("step_ms", "step", figures.COLOURS[0], "o"),
        ("product_ms", "bare product", figures.COLOURS[7], "s"),
    ):
        right.loglog(
            [row["prompts"] for row in rows],
            [row[key]["median"] for row in rows],
            color=colour, marker=marker, label=label,
        )  # fmt: skip
    right.set_xlabel("prompts in the pool")
    right.set_ylabel("milliseconds (medians)")
    right.set_title(f"K = {rows[0]['skills']} skills")
    right.legend()
    return figures.save(figure, folder / "step.png")


def headline_text(results: dict[str, Any]) -> str:
    """The finding in words; beside the targets, where the size is theirs."""
    ms, ratio = results["step_ms_median"], results["ratio_to_product"]
    text = (
        f"One step over {results['prompts']:,} prompts with {results['sizes'][0]['skills']} skills "
        f"takes **{ms:.3f} ms** (median of {results['step_ms']['repetitions']:,}; quartiles "
        f"{results['step_ms']['q25']:.3f} and {results['step_ms']['q75']:.3f}), **{ratio:.2f} "
        f"times** a bare product of {results['product_ms_median']:.3f} ms. Compiling took "
        f"{results['compile_seconds']:.1f} s, apart."
    )
    size = (results["prompts"], results["sizes"][0]["skills"])
    if size == TARGET_SIZE and results["provenance"]["backend"] == "cpu":
        text += (
            f" Target on two cores: {TARGET_MS} ms ({'met' if ms <= TARGET_MS else 'missed'}) and "
            f"{TARGET_RATIO:g} products ({'met' if ratio <= TARGET_RATIO else 'missed'})."
        )
    load, cpus = max(results["load_average"]), results["provenance"]["cpus"]
    if load > 1.5 * cpus:
        text += (
            f" The machine was busy with other work (load {load:.1f} on {cpus} cores): read the "
            "ratio, not the milliseconds."
        )
    return text


def peer_table(results: dict[str, Any]) -> str:
    """The parity table, or why there is none."""
    if results["peers"]:
        return markdown_table(PEER_HEADER, peer_rows(results))
    if results["config"]["peers"]:
        return f"No peer is installed here: `{INSTALL}` adds them."
    return "The peers were not run (`--no-peers`)."


def write(folder: Path, results: dict[str, Any]) -> Path:
    """Writes report.md: peers and known differences first, then the step."""
    info = results["step_with_info_ms"]["median"]
    sections = [
        DIFFERENCES,
        peer_table(results),
        "## The step",
        headline_text(results),
        markdown_table(PART_HEADER, part_rows(results)),
        "Parts are differences between steps that stop early, so they sum to the step; they were "
        "timed in one run of their own. Returning Info (log evidence and innovation) as well makes "
        f"{info:.3f} ms of {results['split_step_ms']:.3f}.",
        "![Where the time of a step goes](step.png)",
        markdown_table(SIZE_HEADER, size_rows(results)),
        "Step and product run in turn, in an order drawn anew each round; every run ends with "
        "`block_until_ready`; compilation and warm-up are apart; figures are medians. Where the "
        "product's output takes more than a few megabytes it mostly waits for fresh memory, so the "
        "ratios of the larger rows flatter the step.",
    ]
    quick = " (quick)" if results["config"]["quick"] else ""
    return write_report(
        folder, "The filter's step: time, and peers" + quick, sections, results["provenance"]
    )


def show(folder: Path, results: dict[str, Any]) -> None:
    """Writes figure and report, and prints the tables.

    Args:
        folder: of the run.
        results: the content of results.json.
    """
    draw(results, folder)
    write(folder, results)
    print_table("Split by part", PART_HEADER, part_rows(results))
    print_table("Step and product", SIZE_HEADER, size_rows(results))
    if results["peers"]:
        print_table("The pool job, float64, ekf rule", PEER_HEADER, peer_rows(results))
    else:
        console.print(peer_table(results), markup=False)
    console.print(headline_text(results).replace("**", ""), markup=False)
    console.print(f"Wrote {folder}", markup=False)
