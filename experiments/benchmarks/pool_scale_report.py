"""What `pool_scale` prints, draws and writes about its results."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from experiments import figures
from experiments.run_folder import console, markdown_table, print_table, write_report

TIME_HEADER = ("N", "devices", "step, ms", "quartiles", "driver's step, ms", "quartiles",
               "compile, s", "runs")  # fmt: skip
MEMORY_HEADER = ("N", "devices", "loadings", "state", "temporary, step", "temporary, driver",
                 "state, bytes a prompt")  # fmt: skip
MEGA = 2**20


def name(row: dict[str, Any]) -> tuple[str, int]:
    """Size and devices of a row."""
    return f"{row['job']['num_prompts']:,}", max(row["job"]["devices"], 1)


def quartiles(times: dict[str, float]) -> str:
    """Lower and upper."""
    return f"{times['q25']:.3g}-{times['q75']:.3g}"


def time_rows(results: dict[str, Any]) -> list[tuple[Any, ...]]:
    """One row a pool."""
    return [
        (
            *name(row), row["step_ms"]["median"], quartiles(row["step_ms"]),
            row["driver_ms"]["median"], quartiles(row["driver_ms"]),
            f"{row['compile_seconds']:.1f}", row["step_ms"]["repetitions"],
        )
        for row in results["pools"]
    ]  # fmt: skip


def memory_rows(results: dict[str, Any]) -> list[tuple[Any, ...]]:
    """One row a pool; MiB of each device."""
    return [
        (
            *name(row),
            row["loadings_bytes_per_device"] / MEGA, row["state_bytes_per_device"] / MEGA,
            row["step_temporary_bytes"] / MEGA, row["driver_temporary_bytes"] / MEGA,
            f"{row['state_bytes'] / row['job']['num_prompts']:.2f}",
        )
        for row in results["pools"]
    ]  # fmt: skip


def draw(results: dict[str, Any], folder: Path) -> Path:
    """Time and memory against the size of the pool."""
    figures.style()
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.6))
    one, many = results["pools"][:-1], results["pools"][-1]
    sizes = [row["job"]["num_prompts"] for row in one]
    split = f"over {many['job']['devices']} simulated devices"
    for key, label, colour, marker in (
        ("step_ms", "choose, update, predict", figures.COLOURS[0], "o"),
        ("driver_ms", "the same, chosen by the driver", figures.COLOURS[1], "s"),
    ):
        medians = [row[key]["median"] for row in one]
        low = [m - row[key]["q25"] for m, row in zip(medians, one, strict=True)]
        high = [row[key]["q75"] - m for m, row in zip(medians, one, strict=True)]
        left.errorbar(sizes, medians, (low, high), color=colour, marker=marker, label=label)
    left.plot(sizes[-1], many["step_ms"]["median"], "X", color=figures.COLOURS[3], ms=9,
              label=f"{split}, same cores")  # fmt: skip
    left.set(xscale="log", yscale="log", xlabel="prompts in the pool", ylabel="milliseconds")
    left.set_title("Time of a step (median, quartiles)")
    left.legend()

    for key, label, colour, marker in (
        ("loadings_bytes_per_device", f"loadings, K = {many['job']['skills']}",
         figures.COLOURS[2], "^"),
        ("driver_temporary_bytes", "temporary", figures.COLOURS[1], "s"),
        ("state_bytes_per_device", "state of the filter", figures.COLOURS[0], "o"),
    ):  # fmt: skip
        right.plot(sizes, [row[key] / MEGA for row in one], color=colour, marker=marker,
                   label=label)  # fmt: skip
        right.plot(sizes[-1], many[key] / MEGA, "X", color=colour, ms=9)
    right.plot([], [], "X", color=figures.COLOURS[7], ms=9, label=f"each of {split[5:]}")
    right.set(xscale="log", yscale="log", xlabel="prompts in the pool", ylabel="MiB on a device")
    right.set_title("Memory")
    right.legend()
    return figures.save(figure, folder / "scale.png")


def findings(results: dict[str, Any]) -> str:
    """The findings in words."""
    many = results["pools"][-1]
    size, devices = name(many)
    grown = results["bytes_per_prompt"]
    same = results["same_ids"] and results["same_outputs"] and results["same_state"]
    verdict = (
        "**the same ids, the same outputs and the same final state, bit for bit**"
        if same
        else f"ids {'the same' if results['same_ids'] else 'DIFFERENT'}, outputs "
        f"{'the same' if results['same_outputs'] else 'DIFFERENT'}, final state "
        f"{'the same' if results['same_state'] else 'DIFFERENT'}"
    )
    text = (
        f"{size} prompts on one device and split over {devices} simulated ones, "
        f"{many['job']['steps']} steps from a fresh pool: {verdict}. Each device holds "
        f"{many['loadings_bytes_per_device'] / many['loadings_bytes']:.1%} of the loadings; the "
        f"largest array that crosses devices has {results['largest_communicated']:,} numbers.\n\n"
        f"A prompt more costs {grown['state']:.2f} bytes of state, {grown['loadings']:.2f} of "
        f"loadings and {grown['step_temporary']:.1f} of temporary memory "
        f"({grown['driver_temporary']:.1f} where the driver chooses), between the two largest "
        "pools on one device."
    )
    load, cpus = max(results["load_average"]), results["provenance"]["cpus"]
    if load > 1.5 * cpus:
        text += (
            f" The machine was busy with other work (load up to {load:.1f} on {cpus} cores): the "
            "times are too long by about as much."
        )
    return text


def write(folder: Path, results: dict[str, Any]) -> Path:
    """Writes report.md."""
    sections = [
        findings(results),
        "## Time",
        markdown_table(TIME_HEADER, time_rows(results)),
        f"Simulated devices share the cores of one ({results['provenance']['cpus']} here): their "
        "row shows that nothing is lost by splitting, or how much, not what eight devices gain. "
        "Steps and driver's steps run in turn; every run ends with `block_until_ready`; compiling "
        "is apart; figures are medians.",
        "## Memory of each device, MiB",
        markdown_table(MEMORY_HEADER, memory_rows(results)),
        "Loadings and state as the arrays are held; temporary as the compiler plans it "
        "(`memory_analysis`), beside the donated state.",
        "![Time and memory against the size of the pool](scale.png)",
    ]
    quick = " (quick)" if results["config"]["quick"] else ""
    return write_report(
        folder, "The step and the size of the pool" + quick, sections, results["provenance"]
    )


def show(folder: Path, results: dict[str, Any]) -> None:
    """Writes figure and report, and prints the tables.

    Args:
        folder: of the run.
        results: the content of results.json.
    """
    draw(results, folder)
    write(folder, results)
    print_table("Time", TIME_HEADER, time_rows(results))
    print_table("Memory of each device, MiB", MEMORY_HEADER, memory_rows(results))
    console.print(findings(results).replace("**", ""), markup=False)
    console.print(f"Wrote {folder}", markup=False)
