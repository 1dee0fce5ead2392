"""Figures of `replay_history`, and the numbers behind them."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from experiments import figures
from experiments.replay_contenders import Pool, fade_hyperparameters
from fade_jax import ability_difficulty, calibration, smoother
from fade_jax.dynamics import Transition
from fade_jax.replay import Protocol
from fade_jax.types import Observation

SHOWN = ("ema_0.3", "beta_strong", "beta_tuned", "logit_kalman", "fade_k0", "fade")
VISIT_EDGES = (0, 1, 2, 3, 5, 8, 12, 20, 60)
AGE_EDGES = (1, 2, 3, 5, 8, 12, 20, 60)


def draw(
    folder: Path,
    table: Any,
    families: list[list[Protocol]],
    predictions: list[dict[str, np.ndarray]],
    results: dict[str, Any],
    pool: Pool,
) -> dict[str, Any]:
    """Draws every figure into the folder.

    Args:
        folder: of the run.
        table: the history as arrays.
        families: protocols.
        predictions: of each family, by tracker.
        results: what has been measured so far (fits, labels).
        pool: all prompts.

    Returns:
        Extra entries for results.json: the curves.
    """
    figures.style()
    labels = results["labels"]
    shown = [name for name in SHOWN if name in labels] or list(labels)[:6]
    _reliability(folder / "reliability.png", table, families[0], predictions[0], shown, labels)
    sparsest = min(
        (i for i, f in enumerate(families) if f[0].name == "sparse"),
        key=lambda i: families[i][0].observed_share,
        default=0,
    )
    curves = _error_curves(
        folder / "error_by_evidence.png",
        table,
        families[sparsest],
        predictions[sparsest],
        [name for name in shown if not name.startswith("ema")] or shown,  # EMA is off the scale
        labels,
    )
    extra: dict[str, Any] = {"error_curves": curves}
    if "fade" in results["fits"]:
        extra["abilities"] = _abilities(
            folder / "abilities.png", table, results["fits"]["fade"]["even"], pool
        )
    return extra


def _reliability(path, table, family, predictions, shown, labels) -> None:
    """Reliability diagram of the dense protocol, with the count of every bin beneath."""
    scored = family[0].scored
    outcome = table.informative[scored]
    figure, (top, bottom) = plt.subplots(
        2, 1, figsize=(6.4, 6.4), height_ratios=(3, 1), sharex=True
    )
    top.plot([0, 1], [0, 1], color="#bbbbbb", linewidth=1, zorder=0)
    width = 0.8 / len(shown)
    for i, name in enumerate(shown):
        bins = calibration.reliability_bins(predictions[name][0][scored], outcome, num_bins=10)
        ece = calibration.expected_calibration_error(predictions[name][0][scored], outcome)
        top.plot(
            bins.predicted,
            bins.observed,
            color=figures.COLOURS[i],
            marker=figures.MARKERS[i],
            markersize=4,
            linewidth=1.3,
            label=f"{labels[name]} (ECE {ece:.3f})",
        )
        centres = (bins.edges[:-1] + bins.edges[1:]) / 2
        bottom.bar(
            centres + 0.1 * width * (i - (len(shown) - 1) / 2),
            bins.count,
            0.1 * width,
            color=figures.COLOURS[i],
        )
    top.set_ylabel("share of groups that were informative")
    top.set_title(f"Reliability, {table.source.split(';')[0]}: every visit before it is seen")
    top.legend(loc="upper left")
    bottom.set_ylabel("predictions")
    bottom.set_xlabel("predicted P(group informative)")
    figures.save(figure, path)


def evidence_before(observed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Visits seen before each step, and steps since the last of them (0 where none), [S, N]."""
    steps = np.arange(len(observed))[:, None]
    visits = np.cumsum(observed, axis=0) - observed
    last = np.maximum.accumulate(np.where(observed, steps, -1), axis=0)
    before = np.vstack([np.full((1, observed.shape[1]), -1), last[:-1]])
    return visits, np.where(before >= 0, steps - before, 0)


def _error_curves(path, table, family, predictions, shown, labels) -> dict[str, Any]:
    """Log loss by number of visits seen, and by steps since the last one."""
    scored = np.stack([protocol.scored for protocol in family])
    evidence = [evidence_before(protocol.observed) for protocol in family]
    visits = np.stack([visit for visit, _ in evidence])[scored]
    age = np.stack([since for _, since in evidence])[scored]
    outcome = np.broadcast_to(table.informative, scored.shape)[scored]
    axes_of = {
        "visits seen so far": (visits, VISIT_EDGES),
        "steps since last seen": (age, AGE_EDGES),
    }
    figure, axes = plt.subplots(1, 2, figsize=(9.6, 3.9), sharey=True)
    curves: dict[str, Any] = {
        "protocol": family[0].name,
        "observed": family[0].observed_share,
    }
    for axis, (title, (value, edges)) in zip(axes, axes_of.items(), strict=True):
        bins = list(pairwise(edges))
        masks = [(value >= low) & (value < high) for low, high in bins]
        kept = [(b, m) for b, m in zip(bins, masks, strict=True) if m.sum() >= 300]
        ticks = [str(low) if high == low + 1 else f"{low}–{high - 1}" for (low, high), _ in kept]
        curves[title] = {"bins": ticks, "count": [int(m.sum()) for _, m in kept], "log_loss": {}}
        for i, name in enumerate(shown):
            p = predictions[name][scored]
            losses = [calibration.log_loss(p[m], outcome[m]) for _, m in kept]
            curves[title]["log_loss"][name] = losses
            axis.plot(
                range(len(kept)),
                losses,
                color=figures.COLOURS[i],
                marker=figures.MARKERS[i],
                markersize=4,
                linestyle=figures.LINES[i % 4],
                label=labels[name],
            )
        axis.set_xticks(range(len(kept)), ticks)
        axis.set_xlabel(title)
    axes[0].set_ylabel("log loss, nats")
    losses = [v for c in curves.values() if isinstance(c, dict) for v in c["log_loss"].values()]
    lowest = min((value for values in losses for value in values), default=0.0)
    axes[0].set_ylim(bottom=max(0.0, lowest - 0.05))
    axes[0].legend()
    share = f"{100 * family[0].observed_share:.0f} %"
    figure.suptitle(
        f"Where evidence is thin ({family[0].name}, {share} of visits shown)", x=0.01, ha="left"
    )
    figures.save(figure, path)
    return curves


def _abilities(path: Path, table: Any, params: dict[str, float], pool: Pool) -> dict[str, Any]:
    """The filter's abilities over the run, and what hindsight says of them."""
    kind = "text" if "text" in pool.loadings else "constant"
    loadings = pool.loadings[kind]
    num_skills = loadings.num_skills
    ids = jnp.arange(pool.num_prompts, dtype=jnp.int32)

    @jax.jit
    def run(params, successes, trials):
        hyper = fade_hyperparameters(params, num_skills)
        model = ability_difficulty.assemble(loadings, hyper)

        def step(state, row):
            state, _ = ability_difficulty.update(model, state, Observation(ids, *row))
            move = model.dynamics(hyper, state.ability, 1.0, state.nis)
            return ability_difficulty.predict(model, state, 1.0), (state.ability, move)

        _, (ability, moves) = jax.lax.scan(
            step, ability_difficulty.init(model), (successes, trials)
        )
        steps = Transition(*(leaf[:-1] for leaf in moves))
        return ability, smoother.smooth(ability.mean, ability.cov, steps)

    arrays = {name: jnp.float32(value) for name, value in params.items()}
    filtered, (mean, cov) = run(arrays, jnp.asarray(table.successes), jnp.asarray(table.trials))
    mean, cov = np.asarray(mean), np.asarray(cov)
    moved = np.abs(mean[-1, 1:] - mean[0, 1:])
    top = 1 + np.argsort(-moved)[:3]
    figure, axes = plt.subplots(
        1, 2 if num_skills else 1, figsize=(9.6 if num_skills else 6.4, 3.7)
    )
    first = axes[0] if num_skills else axes
    x = np.arange(len(mean))
    first.plot(x, filtered.mean[:, 0], color=figures.COLOURS[1], linestyle="--", label="filtered")
    first.plot(x, mean[:, 0], color=figures.COLOURS[0], label="smoothed")
    sd = np.sqrt(cov[:, 0, 0])
    first.fill_between(
        x, mean[:, 0] - 2 * sd, mean[:, 0] + 2 * sd, color=figures.COLOURS[0], alpha=0.2
    )
    first.set_title("ability common to all prompts (± 2 sd)")
    first.set_ylabel("logits")
    first.set_xlabel("visit (epoch)")
    first.legend()
    if num_skills:
        for i, skill in enumerate(top):
            sd = np.sqrt(cov[:, skill, skill])
            axes[1].plot(x, mean[:, skill], color=figures.COLOURS[i], label=f"skill {skill}")
            axes[1].fill_between(
                x,
                mean[:, skill] - 2 * sd,
                mean[:, skill] + 2 * sd,
                color=figures.COLOURS[i],
                alpha=0.15,
            )
        axes[1].set_title("the three skills that moved most (smoothed)")
        axes[1].set_xlabel("visit (epoch)")
        axes[1].legend()
    figures.save(figure, path)
    return {
        "common_filtered": np.asarray(filtered.mean[:, 0]).tolist(),
        "common_smoothed": mean[:, 0].tolist(),
        "skills": top.tolist() if num_skills else [],
        "skill_moves": moved.tolist(),
    }
