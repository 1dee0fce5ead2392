"""The simulated setting of `fade_ablation`: worlds, uniform runs, closed loops, scores.

Every seed is a world of its own; the seeds of a cell are one `vmap`.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.replay_contenders import Contender, Pool
from fade_jax import calibration, tuning, utility
from fade_jax.pool_loadings import lay_out
from fade_jax.simulation import closed_loop, exposure
from fade_jax.simulation import world as worlds
from fade_jax.simulation.exposure import Exposure
from fade_jax.simulation.world import World
from fade_jax.types import Scheduler

Kind = Literal["informative", "weak", "shuffled"]


@dataclasses.dataclass(frozen=True)
class Setting:
    """Sizes and speeds of the simulated world."""

    num_prompts: int = 400
    """N."""
    num_skills: int = 6
    """K of the truth."""
    groups: int = 16
    """Prompts chosen by an iteration."""
    group_size: int = 8
    """Rollouts of a chosen prompt."""
    iterations: int = 200
    """Of every run."""
    first_scored: int = 20
    """Iterations before are not scored."""
    drift: float = 0.08
    """Standard deviation an ability wanders by per iteration, logits."""
    learning_rate: float = 0.02
    """Logits that an iteration of half-passed groups adds to the common ability."""

    @property
    def budget(self) -> int:
        """Rollouts of an iteration."""
        return self.groups * self.group_size


class Case(NamedTuple):
    """One seed's world and what becomes of it under uniform choice."""

    world: World
    exposure: Exposure
    key: jax.Array


def make_cases(setting: Setting, seeds: range, num_skills: int | None = None) -> Case:
    """Worlds [seeds] and their runs under uniform choice."""
    skills = setting.num_skills if num_skills is None else num_skills

    def one(key):
        world_key, run_key, other = jax.random.split(key, 3)
        world = worlds.draw(
            world_key,
            setting.num_prompts,
            skills,
            drift=setting.drift,
            learning_rate=setting.learning_rate,
        )
        seen = exposure.expose(
            world,
            run_key,
            iterations=setting.iterations,
            budget=setting.budget,
            group_size=setting.group_size,
        )
        return Case(world, seen, other)

    keys = jnp.stack([jax.random.key(seed) for seed in seeds])
    return jax.jit(jax.vmap(one))(keys)


def told(kind: Kind, cases: Case) -> jax.Array:
    """What schedulers are told of the loadings, [seeds, N, K]."""
    tell = partial(worlds.seen_loadings, kind=kind)
    return jax.jit(jax.vmap(lambda case: tell(case.key, case.world)))(cases)


def first_skills(num_skills: int, cases: Case) -> jax.Array:
    """The first so many true skills, or all and columns of noise, of unit size; [seeds, N, K]."""

    def loadings(case: Case) -> jax.Array:
        true = case.world.loadings
        unit = true * true.shape[1] ** 0.5
        missing = max(num_skills - true.shape[1], 0)
        noise = jax.random.normal(case.key, (true.shape[0], missing))
        both = jnp.concatenate([unit[:, :num_skills], noise], 1)
        return both / max(num_skills, 1) ** 0.5

    return jax.jit(jax.vmap(loadings))(cases)


def pool_of(loadings: jax.Array) -> Pool:
    """The pool a contender is built for; its "text" loadings are those told."""
    constant = lay_out(jnp.zeros((loadings.shape[0], 0)))
    return Pool(loadings.shape[0], {"constant": constant, "text": lay_out(loadings)})


def arrays(params: dict[str, float]) -> dict[str, jax.Array]:
    """Parameters as what a compiled function takes without compiling anew."""
    return {name: jnp.float32(value) for name, value in params.items()}


class Bench:
    """Compiled functions of one setting; a structure compiles once, whatever its parameters."""

    def __init__(self, setting: Setting):
        self.setting = setting
        self._programs: dict[Any, Callable[..., Any]] = {}

    def program(self, key: Any, make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
        """The compiled function of that name."""
        if key not in self._programs:
            self._programs[key] = jax.jit(make())
        return self._programs[key]

    def tune(
        self, key: str, contender: Contender, loadings: jax.Array, cases: Case, steps: int
    ) -> dict[str, float]:
        """Parameters of least squared pass-rate error on these cases, by gradient."""
        if contender.constraints is None:
            return dict(contender.start)

        def make():
            def score(params, loadings, cases):
                def one(loadings, case: Case):
                    tracker = contender.build(params, pool_of(loadings))
                    said = exposure.shadow(tracker, case.exposure, self.setting.group_size)
                    first = self.setting.first_scored
                    return exposure.mean_squared_error(said, case.exposure, first)

                # In units in which clipping and learning rates are what `fit` expects.
                return -100 * jax.vmap(one)(loadings, cases).mean()

            def climb(start, loadings, cases):
                return tuning.fit(
                    lambda params: score(params, loadings, cases),
                    start,
                    contender.constraints,
                    steps=steps,
                    learning_rate=0.1,
                )

            return climb

        fitted = self.program(("tune", key), make)(arrays(contender.start), loadings, cases)
        return {name: float(value) for name, value in fitted.params.items()}

    def shadow(
        self,
        key: str,
        contender: Contender,
        params: dict[str, float],
        loadings: jax.Array,
        cases: Case,
    ) -> dict[str, Any]:
        """Shows every case's run to a tracker and scores what it says."""

        def make():
            def one(params, loadings, case: Case):
                tracker = contender.build(params, pool_of(loadings))
                return exposure.shadow(tracker, case.exposure, self.setting.group_size)

            return jax.vmap(one, in_axes=(None, 0, 0))

        said = self.program(("shadow", key), make)(arrays(params), loadings, cases)
        return score_shadow(jax.device_get(said), cases, self.setting)

    def loop(
        self,
        key: str,
        build: Callable[[dict[str, Any], Any, jax.Array, Case], Scheduler],
        params: dict[str, float],
        choice: int,
        loadings: jax.Array,
        cases: Case,
    ) -> dict[str, Any]:
        """Runs a scheduler in every world and scores its choices.

        Args:
            key: of the program.
            build: `(params, choice, loadings, case) -> Scheduler`, inside the compiled function.
            params: of the tracker.
            choice: which of several selectors.
            loadings: [seeds, N, K], told.
            cases: worlds [seeds].
        """
        setting = self.setting

        def make():
            def one(params, choice, loadings, case: Case):
                pieces = closed_loop.build(build(params, choice, loadings, case))
                state = closed_loop.init(pieces, case.world, jax.random.fold_in(case.key, 1))
                state, (records, scores) = closed_loop.run(
                    pieces,
                    case.world,
                    state,
                    iterations=setting.iterations,
                    group_size=setting.group_size,
                )
                final = worlds.pass_rates(case.world, state.learner).mean()
                return records, scores, final, state.updates

            return jax.vmap(one, in_axes=(None, None, 0, 0))

        run = self.program(("loop", key), make)
        seen = jax.device_get(run(arrays(params), jnp.int32(choice), loadings, cases))
        return score_loop(*seen, setting=setting)


VISITS = {"0": (0, 0), "1": (1, 1), "2": (2, 2), "3-4": (3, 4), "5+": (5, 10**9)}
AGES = {"1": (1, 1), "2-4": (2, 4), "5-9": (5, 9), "10-19": (10, 19), "20-39": (20, 39)} | {
    "40+": (40, 10**9)
}


def score_shadow(said: exposure.Shadow, cases: Case, setting: Setting) -> dict[str, Any]:
    """Figures of every seed, and calibration over all of them."""
    said, seen = jax.tree.map(np.asarray, (said, cases.exposure))
    rates, informative = np.asarray(said.pass_rate), np.asarray(said.informative)
    truths, visited = np.asarray(seen.pass_rate), np.asarray(seen.visits)
    first = setting.first_scored
    rows: dict[str, list[Any]] = {"rmse": [], "spearman": [], "top_informative": [], "log_loss": []}
    bins: dict[str, dict[str, list[float]]] = {"visits": {}, "age": {}}
    flags, predicted = [], []
    for seed in range(rates.shape[0]):
        truth, error = truths[seed], rates[seed] - truths[seed]
        rows["rmse"].append(
            exposure.rmse_within(error[first:], np.ones_like(error[first:], bool))[0]
        )
        looks = range(first, len(truth), 20)
        rows["spearman"].append(
            np.mean(
                [
                    calibration.spearman(rates[seed, t], truth[t], np.ones_like(truth[t]))
                    for t in looks
                ]
            )
        )
        true_utility = np.asarray(utility.informative_rate(jnp.asarray(truth), setting.group_size))
        best = np.argsort(-informative[seed], axis=1)[:, : setting.groups]
        rows["top_informative"].append(np.take_along_axis(true_utility, best, 1)[first:].mean())
        ids, successes, trials = (np.asarray(x[seed]) for x in seen.observation)
        flag = ((successes > 0) & (successes < trials))[first:].ravel()
        p = np.take_along_axis(informative[seed], ids, 1)[first:].ravel()
        rows["log_loss"].append(calibration.log_loss(p, flag))
        flags.append(flag)
        predicted.append(np.clip(p, 0, 1))
        for name, edges, counts in (
            ("visits", VISITS, visited),
            ("age", AGES, np.asarray(seen.age)),
        ):
            known = visited[seed] > 0 if name == "age" else np.ones_like(error, bool)
            for label, (low, high) in edges.items():
                within = (counts[seed] >= low) & (counts[seed] <= high) & known
                rmse, _ = exposure.rmse_within(error, within)
                bins[name].setdefault(label, []).append(rmse)
    p, y = np.concatenate(predicted), np.concatenate(flags)
    return {
        **rows,
        "by_visits": bins["visits"],
        "by_age": bins["age"],
        "ece": calibration.expected_calibration_error(p, y),
        "ece_noise_floor": calibration.ece_noise_floor(p),
    }


def score_loop(records, scores, final, updates, *, setting: Setting) -> dict[str, list[float]]:
    """Figures of every seed from the Records and Scores [seeds, iterations, ...] of its run."""
    first = setting.first_scored
    used = records.observation.trials > 0
    informative = used & ~records.degenerate
    planned = records.select_info.planned_rollouts[..., None]
    # Groups in the order they were chosen: those the rule itself asked for come first.
    asked = used & (np.cumsum(records.observation.trials, -1) <= planned + 0.5)
    figures: dict[str, list[float]] = {}

    def note(name: str, values: np.ndarray) -> None:
        figures[name] = [float(x) for x in values]

    late = np.s_[:, first:]
    share = informative[late].sum((1, 2)) / used[late].sum((1, 2))
    note("effective", share)
    note(
        "predicted",
        np.where(used, records.informative, 0)[late].sum((1, 2)) / used[late].sum((1, 2)),
    )
    note(
        "informative_rollouts",
        (informative * records.observation.trials)[late].sum((1, 2))
        / records.observation.trials[late].sum((1, 2)),
    )
    note("true", scores.informative_true[late].mean(1))
    note("best", scores.informative_best[late].mean(1))
    note("rmse", scores.pass_rate_rmse[late].mean(1))
    note("gain", final - scores.mean_pass_rate[:, 0])
    note("planned_groups", asked[late].sum(2).mean(1))
    note("planned_expected", np.where(asked, records.informative, 0)[late].sum(2).mean(1))
    note("planned_realised", (asked & informative)[late].sum(2).mean(1))
    ids = np.where(used, records.observation.prompt_ids, -1)
    note(
        "distinct",
        np.array([len(set(row[row >= 0].tolist())) for row in ids.reshape(len(ids), -1)]),
    )
    note("updates", updates)
    return figures
