r"""Scores a language model on a benchmark or on prompts of your own: avg@n, pass@k, intervals.

    python -m experiments.evaluate --policy smollm2 --benchmark gsm8k --path FILE --limit 50
    python -m experiments.evaluate --policy MODEL --benchmark math500 --path FILE --rollouts 16
    python -m experiments.evaluate --policy MODEL --prompts FILE.parquet --verifier code

MODEL is a Hugging Face directory of the Llama or Qwen2 family, a .gguf file, or the folder `policy`
of a trained run. Every batch is kept; a call that was ended goes on after the last one, in the same
--out. The responses and their verdicts are in `samples/`.
"""

import contextlib
import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import tyro

from experiments import command_line, run_folder
from fade_jax.pool import build_pool
from fade_jax.pool_files import LoadedPool, load_pool
from paced_jax import host_evaluation
from paced_jax.checkpoint import fingerprint
from paced_jax.host_judge import Judge, VerifierName, check_golds, open_verifier
from paced_jax.policy import language_model
from paced_jax.policy.language_model import LanguageModel
from paced_jax.scores import Score, score_table
from paced_jax.tasks.benchmarks import load_benchmark
from paced_jax.tasks.skill_pool import SkillPool
from paced_jax.tasks.text_prompts import encode_all
from paced_jax.verifiers.verdicts import NONE, RIGHT

BOXED = "Please reason step by step, and put your final answer within \\boxed{}."
"""What Qwen2.5-Math's evaluation asks for."""
READ = (
    "The verifier of mathematics reads the last \\boxed{}, else what follows the last #### or"
    " 'answer is', else a response of one line as a whole"
)
"""Said where nothing was right."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """A model and what it is asked."""

    policy: str = language_model.SMOLLM2
    """smollm2, a model directory, or a .gguf file."""
    benchmark: Literal[
        "", "aime24", "aime25", "amc23", "math500", "minerva_math", "olympiadbench", "gsm8k"
    ] = ""
    """Of which `path` is the file."""
    path: Path | None = None
    """File of the benchmark, <name>/test.jsonl as Qwen2.5-Math's evaluation publishes it."""
    prompts: Path | None = None
    """File or folder of your own prompts, instead of a benchmark; see
    `fade_jax.pool_files.load_pool`."""
    prompt_column: str = "prompt"
    """Column of the prompts."""
    answer_column: str = "answer"
    """Column of the gold answers; nested ones by a dotted path."""
    verifier: VerifierName = "math"
    """What judges answers to `prompts`."""
    instruction: str | None = None
    """Follows every problem, on a line of its own. None: for a benchmark "Please reason step by
    step, and put your final answer within \\boxed{}.", for your own prompts nothing. The verifier
    of mathematics reads boxes, `####`, "answer: 4", and bare answers: let prompts ask for one."""
    chat: Literal["auto", "on", "off"] = "auto"
    """Write prompts by the model's chat template; auto: if it has one."""
    rollouts: int = 8
    """Responses to each problem; n of avg@n, and pass@k for k up to it."""
    temperature: float = 1.0
    """Of the sampler; 0 takes the likeliest token."""
    max_tokens: int = 512
    """Longest response."""
    max_prompt_tokens: int = 2048
    """A longer prompt is refused."""
    batch_size: int = 4
    """Problems at once."""
    limit: int | None = None
    """Only the first so many problems."""
    workers: int = 2
    """Processes of the verifier."""
    seed: int = 0
    """Of the rollouts."""
    out: Path | None = None
    """Folder to write to; runs/evaluate/<time> if not given."""

    def __post_init__(self) -> None:
        """Refuses what can't be asked, naming the field."""
        if bool(self.benchmark) == (self.prompts is not None):
            raise ValueError(
                f"benchmark: needs either a benchmark or prompts, got {self.benchmark!r} and"
                f" {self.prompts}"
            )
        if bool(self.benchmark) != (self.path is not None):
            raise ValueError(f"path: is the file of a benchmark, got {self.path}")
        idle = () if self.prompts else ("prompt_column", "answer_column", "verifier")
        for field in dataclasses.fields(self):
            if field.name in idle and getattr(self, field.name) != field.default:
                raise ValueError(
                    f"{field.name}: {getattr(self, field.name)!r} has no effect with a benchmark"
                )
        for name in ("rollouts", "max_tokens", "max_prompt_tokens", "batch_size", "workers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit must be at least 1, got {self.limit}")
        if self.temperature < 0:
            raise ValueError(f"temperature must be >= 0, got {self.temperature}")

    @property
    def judged_by(self) -> VerifierName:
        """The verifier."""
        return "math" if self.benchmark else self.verifier

    @property
    def asked_for(self) -> str:
        """The instruction."""
        if self.instruction is None:
            return BOXED if self.benchmark else ""
        return self.instruction


def read_problems(config: Config) -> LoadedPool:
    """The problems in the order of their file; rows of equal text are one."""
    if config.prompts is not None:
        return load_pool(config.prompts, prompt=config.prompt_column, answer=config.answer_column)
    assert config.path is not None
    problems = load_benchmark(config.benchmark, config.path)
    texts = [problem.text.strip() for problem in problems]
    pool, row_to_prompt = build_pool(texts, [problem.answer for problem in problems])
    return LoadedPool(pool, row_to_prompt, (), None, None)


def encode(config: Config, loaded: LoadedPool, model: LanguageModel) -> SkillPool:
    """The problems as tokens, `limit` of them."""
    check_golds(config.judged_by, (loaded.pool.answers or ())[: config.limit])
    template = model.tokenizer.chat_template is not None
    return encode_all(
        loaded,
        model.tokenizer,
        instruction=config.asked_for,
        chat=template if config.chat == "auto" else config.chat == "on",
        max_prompt_tokens=config.max_prompt_tokens,
        limit=config.limit,
    )


def main(config: Config) -> dict[str, Any]:
    """Samples, judges and scores.

    Args:
        config: model and problems.

    Returns:
        What results.json holds.
    """
    loaded = read_problems(config)
    model = language_model.load(config.policy)
    pool = encode(config, loaded, model)
    wanted = dataclasses.asdict(config) | contents(pool, model)

    def check(folder: Path) -> None:
        stored = folder / "config.json"
        if stored.exists():
            refuse_another(folder, run_folder.read_json(stored), wanted)

    folder = run_folder.open_folder("evaluate", config.out, wanted, check)
    count = len(pool.gold)
    run_folder.console.print(
        f"{count} problems x {config.rollouts} rollouts of at most {config.max_tokens} tokens;"
        f" results in {folder}"
    )
    total = -(-count // config.batch_size)
    with (
        command_line.same_command(folder),
        run_folder.alone(folder),
        run_folder.task("evaluate", total) as advance,
    ):
        batches = sample(config, folder, model, pool, advance)
    results = summarise(batches)
    run_folder.save_results(folder, config, results)
    report(folder, config, results)
    return results


def contents(pool: SkillPool, model: LanguageModel) -> dict[str, str]:
    """Fingerprints of what is behind the paths: files may change under the same name."""
    ends = np.array(model.tokenizer.eos_id)
    return {
        "problems_fingerprint": fingerprint(pool),
        "policy_fingerprint": fingerprint([*jax.tree.leaves(model.params), ends]),
    }


def refuse_another(folder: Path, stored: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuses a folder whose samples are of something else.

    Raises:
        ValueError: naming the first field that differs.
    """
    for name, value in wanted.items():
        if name in ("out", "workers"):
            continue
        mine = str(value) if isinstance(value, Path) else value
        if stored.get(name) != mine:
            raise ValueError(
                f"{name}: {folder} has {stored.get(name)!r}, got {mine!r}; take another --out"
            )


def sample(
    config: Config, folder: Path, model: LanguageModel, pool: SkillPool, advance: Any
) -> list[dict[str, Any]]:
    """Goes on after the last batch that was kept; returns all of them."""
    kept = folder / "samples"
    kept.mkdir(exist_ok=True)
    done = 0
    while (kept / f"{done:06d}.json").exists():
        done += 1
    advance("kept before", done)
    eos = model.tokenizer.eos_id
    sampler = host_evaluation.make_sampler(
        model.graphdef,
        max_tokens=config.max_tokens,
        eos_id=eos,
        temperature=config.temperature,
    )
    with contextlib.closing(open_verifier(config.judged_by, workers=config.workers)) as verifier:
        judge = Judge(model.tokenizer, verifier)
        judged = host_evaluation.batches(
            sampler,
            judge,
            model.params,
            pool,
            jax.random.key(config.seed),
            group_size=config.rollouts,
            batch_size=config.batch_size,
            start=done,
        )
        for number, batch in enumerate(judged, done):
            run_folder.write_json(
                kept / f"{number:06d}.json", to_json(batch, model, pool, config.rollouts)
            )
            advance("sampling and judging", 1)
    files = sorted(kept.glob("*.json"))
    return [run_folder.read_json(file) for file in files]


def to_json(
    batch: host_evaluation.Batch, model: LanguageModel, pool: SkillPool, rollouts: int
) -> dict[str, Any]:
    """A batch for its file."""
    responses = model.tokenizer.decode_responses(batch.tokens, batch.action_mask)
    lengths = batch.action_mask.sum(axis=1).tolist()
    ended = batch.tokens[np.arange(len(lengths)), np.array(lengths) - 1] == model.tokenizer.eos_id
    groups = [slice(i * rollouts, (i + 1) * rollouts) for i in range(len(batch.prompts))]
    return {
        "problems": [
            {
                "problem": int(prompt),
                "text": str(pool.text[prompt]),
                "prompt": as_read(model, pool, int(prompt)),
                "gold": str(pool.gold[prompt]),
                "responses": responses[rows],
                "verdicts": batch.verdicts[rows].tolist(),
                "reasons": batch.reasons[rows],
                "tokens": lengths[rows],
                "ended": ended[rows].tolist(),
            }
            for prompt, rows in zip(batch.prompts, groups, strict=True)
        ]
    }


def as_read(model: LanguageModel, pool: SkillPool, prompt: int) -> str:
    """A prompt as the model reads it, with instruction and chat template."""
    ids = pool.prompt_tokens[prompt][pool.prompt_mask[prompt]].tolist()
    return model.tokenizer.backend.decode(ids, skip_special_tokens=False)


def summarise(batches: list[dict[str, Any]]) -> dict[str, Any]:
    """Scores of all problems that have a verdict.

    Raises:
        ValueError: there is no verdict at all.
    """
    problems = [problem for batch in batches for problem in batch["problems"]]
    verdicts = np.array([problem["verdicts"] for problem in problems])
    trials, right = (verdicts != NONE).sum(axis=1), (verdicts == RIGHT).sum(axis=1)
    judged = trials > 0
    if not judged.any():
        raise ValueError(f"verifier: no verdict on any of {verdicts.size} responses")
    scores: list[Score] = score_table(right[judged], trials[judged])
    tokens = np.array([problem["tokens"] for problem in problems])
    reasons = Counter(reason for problem in problems for reason in problem["reasons"])
    return {
        "problems": len(problems),
        "without_a_verdict": int((~judged).sum()),
        "responses_without_a_verdict": float((verdicts == NONE).mean()),
        "reasons": dict(reasons.most_common()),
        "scores": [score._asdict() for score in scores],
        "tokens": int(tokens.sum()),
        "tokens_a_response": float(tokens.mean()),
        "cut_off": float(1 - np.array([problem["ended"] for problem in problems]).mean()),
    }


def report(folder: Path, config: Config, results: dict[str, Any]) -> None:
    """Prints and writes the scores."""
    header = ("score", "mean", "95 % interval", "if sampled again")
    rows = [
        (
            score["score"],
            f"{score['mean']:.3f}",
            f"{score['low']:.3f} to {score['high']:.3f}",
            "" if score["rollout_error"] is None else f"± {score['rollout_error']:.3f}",
        )
        for score in results["scores"]
    ]
    what = config.benchmark or str(config.prompts)
    title = f"{config.policy} on {what}, {results['problems']} problems"
    run_folder.print_table(title, header, rows)
    notes = (
        f"{results['tokens_a_response']:.0f} tokens a response, {results['cut_off']:.1%} cut off at"
        f" {config.max_tokens}; {results['responses_without_a_verdict']:.1%} have no verdict and"
        " count neither as right nor as wrong. The interval covers the choice of the problems and"
        " the noise of the rollouts, the last column the noise alone (one standard error)."
    )
    asked = f"followed by {config.asked_for!r}" if config.asked_for else "as they are"
    first = "" if config.limit is None else f", the first {results['problems']}"
    settings = (
        f"Prompts {asked}{first}; chat template {config.chat}, temperature {config.temperature:g},"
        f" seed {config.seed}; judged by the verifier `{config.judged_by}`."
    )
    how = [f"{count} {reason}" for reason, count in results["reasons"].items()]
    notes += f" How the verdicts came about: {', '.join(how)}."
    if config.judged_by == "math" and results["scores"][0]["mean"] == 0:
        notes += f" Nothing was right. {why_nothing(config, results)}"
    run_folder.console.print(notes, markup=False)
    run_folder.write_report(
        folder, title, [settings, run_folder.markdown_table(header, rows), notes]
    )


def why_nothing(config: Config, results: dict[str, Any]) -> str:
    """What to look at where no answer was right."""
    said = [READ]
    if not config.asked_for:
        said.append(f"ask for one of these, in the prompts or by --instruction, as {BOXED!r}")
    if results["cut_off"] > 0.25:
        said.append(f"{results['cut_off']:.0%} of the responses were cut off: raise --max-tokens")
    return "; ".join([*said, "`samples/` has every response with the reason of its verdict"]) + "."


if __name__ == "__main__":
    command_line.run(main, lambda: tyro.cli(Config, description=__doc__))
