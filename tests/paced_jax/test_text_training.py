"""Language models on prompts from a file, judged on the host."""

import dataclasses
import json
import shutil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from live_world import ground as skill_ground
from text_world import SameLetter, model, tokenizer, write_prompts

from experiments import train
from fade_jax import driver
from fade_jax.pool import build_pool
from fade_jax.pool_files import LoadedPool, load_pool
from paced_jax import evaluation, ground, host_evaluation, training
from paced_jax.checkpoint import fingerprint
from paced_jax.host_judge import Judge, check_golds
from paced_jax.policy import language_model
from paced_jax.tasks import named
from paced_jax.tasks.skills import Problems
from paced_jax.tasks.text_prompts import encode_all, encode_pools, prompt_ids
from paced_jax.tasks.tokens import EOS
from paced_jax.training import TrainConfig, prepare


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    return write_prompts(tmp_path_factory.mktemp("prompts") / "sums.jsonl")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    language_model.save(folder, model())
    return folder


def test_a_model_written_is_the_model_read(directory):
    again = language_model.load(str(directory))
    assert again.config == model().config and again.graphdef == model().graphdef
    jax.tree.map(np.testing.assert_array_equal, again.params, model().params)
    text = "Añb 12\n<|end|>x"
    assert again.tokenizer.encode(text) == tokenizer().encode(text)
    assert again.tokenizer.eos_id == tokenizer().eos_id
    chat = [{"role": "user", "content": "1+1="}]
    assert again.tokenizer.chat(chat) == "<u>1+1=<|end|><a>"


def test_a_tokenizers_own_truncation_and_padding_are_left_out(directory, tmp_path):
    shutil.copytree(directory, tmp_path / "tiny")
    backend = language_model.load(str(tmp_path / "tiny")).tokenizer.backend
    backend.enable_truncation(4)
    backend.enable_padding(length=16)
    backend.save(str(tmp_path / "tiny" / "tokenizer.json"))
    again = language_model.load(str(tmp_path / "tiny")).tokenizer
    for text in ("1", "12345678"):
        assert again.encode(text) == tokenizer().encode(text)


def test_what_is_no_model_is_refused_by_name(tmp_path):
    (tmp_path / "model.bin").write_text("")
    for name in ("nowhere", str(tmp_path / "model.bin")):
        with pytest.raises(ValueError, match=f"policy: '{name}' is neither"):
            language_model.load(name)
    with pytest.raises(ValueError, match=r"policy: must be one of .*got 'nowhere'"):
        TrainConfig(policy="nowhere")


def test_prompts_of_a_file_are_split_by_content_and_long_ones_left_out(tmp_path):
    prompts = write_prompts(tmp_path / "sums.jsonl", 300)
    loaded = load_pool(prompts, source="kind")
    pools, too_long = encode_pools(loaded, tokenizer(), 3, chat=False, max_prompt_tokens=7)
    split_of = dict(zip(loaded.pool.texts, loaded.pool.split, strict=True))
    answer_of = dict(zip(loaded.pool.texts, loaded.pool.answers or (), strict=True))
    seen = 0
    for split, pool in pools._asdict().items():
        assert len(pool.skill) == len(pool.gold) == pool.answer_lengths.size > 0
        assert pool.prompt_tokens.shape[1] == 7 and pool.answer_tokens.shape[1] == 0
        for row, text in enumerate(pool.text):
            assert split_of[text] == split and pool.gold[row] == answer_of[text]
            ids = pool.prompt_tokens[row][pool.prompt_mask[row]].tolist()
            assert ids == tokenizer().encode(text)
            number = int(text.split("+")[1].rstrip("="))
            assert loaded.source_names[pool.skill[row]] == ("odd" if number % 2 else "even")
        seen += len(pool.skill)
    assert too_long == 0 and max(map(len, loaded.pool.texts)) == 7
    fewer, too_long = encode_pools(loaded, tokenizer(), 3, chat=False, max_prompt_tokens=5)
    left = sum(len(pool.skill) for pool in fewer)
    assert too_long == sum(len(text) > 5 for text in loaded.pool.texts) > 0
    assert left + too_long == seen == 300
    with pytest.raises(ValueError, match="prompts: none of at most 2 tokens for train; 300 were"):
        encode_pools(loaded, tokenizer(), 3, chat=False, max_prompt_tokens=2)
    few = tmp_path / "few.jsonl"
    few.write_text('{"prompt": "1+1=", "answer": "2"}\n')
    with pytest.raises(ValueError, match="prompts: of 1 none falls into the split"):
        encode_pools(load_pool(few), tokenizer(), 3)
    with pytest.raises(ValueError, match="answer: the prompts need answers"):
        encode_pools(load_pool(prompts, answer=None), tokenizer(), 3)


def test_one_long_gold_costs_its_own_length_alone():
    golds = ["y" * 200_000, "end\0", *map(str, range(98))]
    pool, rows = build_pool([f"{i}?" for i in range(100)], golds)
    encoded = encode_all(LoadedPool(pool, rows, (), None, None), tokenizer(), chat=False)
    assert encoded.gold.tolist() == golds and encoded.gold.nbytes < 10_000
    changed = encoded._replace(gold=np.array([*golds[:-1], "98"], object))
    assert fingerprint(encoded) == fingerprint(encoded._replace(gold=np.array(golds, object)))
    assert fingerprint(encoded) != fingerprint(changed)


def test_a_prompt_is_written_by_the_chat_template_or_as_it_is():
    decode = lambda ids: tokenizer().backend.decode(ids, skip_special_tokens=False)  # noqa: E731
    got = prompt_ids("2+2=", tokenizer(), system="Add.")
    assert decode(got) == "<s>Add.<|end|><u>2+2=<|end|><a>"
    assert got.count(tokenizer().eos_id) == 2  # one token each, not its letters
    assert decode(prompt_ids("2+2=", tokenizer(), system="Add.", chat=False)) == "Add.\n\n2+2="
    with pytest.raises(ValueError, match="chat_template: the model has none"):
        prompt_ids("2+2=", tokenizer(None))


class Numbers:
    """Tokens as text: their numbers."""

    def decode_batch(self, rows, skip_special_tokens):
        assert skip_special_tokens
        return [" ".join(map(str, row)) for row in rows]


class Equal(SameLetter):
    def verify(self, responses, golds):
        return super().verify(
            [text if text == gold else "" for text, gold in zip(responses, golds, strict=True)],
            golds,
        )


@pytest.mark.slow
def test_on_the_host_the_skill_tasks_come_out_as_in_compiled_code():
    """Same key and batches, so the same rollouts; 8 prompts in batches of 3 leave one over."""
    world = skill_ground()
    pool, width = world.pools.validation, world.pools.validation.answer_tokens.shape[1]
    # Right is to say nothing, which a random policy does now and then.
    ends = np.zeros_like(pool.answer_tokens)
    ends[:, 0] = EOS
    pool = pool._replace(answer_tokens=ends, answer_lengths=np.ones_like(pool.answer_lengths))
    key = jax.random.key(5)
    graphdef, params, _ = world.base
    want = evaluation.evaluate(
        graphdef,
        params,
        Problems(*(jnp.asarray(x) for x in pool[:4])),
        key,
        group_size=16,
        batch_size=3,
    )
    gold = [
        " ".join(map(str, row[:length]))
        for row, length in zip(pool.answer_tokens, pool.answer_lengths, strict=True)
    ]
    judge = Judge(tokenizer()._replace(backend=Numbers()), Equal())
    got = host_evaluation.evaluate(
        host_evaluation.make_sampler(graphdef, max_tokens=width, eos_id=EOS),
        judge,
        params,
        pool._replace(gold=np.array(gold)),
        key,
        group_size=16,
        batch_size=3,
        eos_id=EOS,
    )
    # evaluate evens its batches out (3, 3, 2 of 8 are 3 each); so do the numbers here.
    jax.tree.map(np.testing.assert_array_equal, got, want)
    assert 0 < int(want.successes.sum()) < 128


@pytest.mark.parametrize(
    ("name", "golds", "message"),
    [
        ("math", ["4", "  "], "prompt 1: gold: is empty"),
        ("code", ['{"asserts": "assert f(1) == 2"}', "30"], "prompt 1: gold: must be "),
        ("reasoning", ["30"], "prompt 0: gold: must be .*dataset.* got '30'"),
        ("reasoning", ['{"dataset": "chain_sum"}'], "prompt 0: gold: must be "),
    ],
)
def test_golds_that_no_verifier_can_judge_by_are_refused_before_a_run(name, golds, message):
    with pytest.raises(ValueError, match=message):
        check_golds(name, golds)


def text_config(directory, file, **changes):
    plan: dict[str, Any] = dict(
        policy=str(directory), prompts=str(file), num_prompts=4, group_size=4, chunk=1
    )
    plan |= dict(iterations=3, num_train=40, max_tokens=6, policy_learning_rate=1e-2)
    return TrainConfig(**(plan | changes))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:prompts. .* are left out")
def test_a_run_counts_what_the_verifier_says(directory, prompts, monkeypatch):
    monkeypatch.setattr(named, "open_verifier", lambda name: SameLetter())
    config = text_config(directory, prompts, scheduler="fade", num_skills=4)
    made = ground.prepare_ground(config)
    run = prepare(config, made)
    with pytest.raises(ValueError, match="max_tokens: the ground has 6, the config 5"):
        prepare(dataclasses.replace(config, max_tokens=5), made)
    assert run.task.skills == ("all",) and run.max_tokens == 6
    assert training.base_rates(run) is None
    judged = []
    verify = training.host_verify(run)
    assert verify is not None

    def remember(setup, rollouts):
        judged.append((jax.device_get(rollouts), verify(setup, rollouts)))
        return judged[-1][1]

    step = driver.compile_step(run.make, chunk=1, host_verify=remember)
    state = run.init(run.setup, jax.random.key(0))
    for _ in range(3):
        state, record = step(run.setup, state)
        rollouts, verdicts = judged[-1]
        texts = tokenizer().decode_responses(rollouts.tokens, rollouts.action_mask)
        golds = run.pools.train.gold[rollouts.prompt_ids]
        want = [-1 if "\x00" in t else int(g in t) for t, g in zip(texts, golds, strict=True)]
        assert verdicts.tolist() == want
        for slot, prompt in enumerate(record.observation.prompt_ids[0].tolist()):
            mine = [v for v, i in zip(want, rollouts.prompt_ids, strict=True) if i == prompt]
            assert record.observation.successes[0, slot] == mine.count(1)
            assert record.observation.trials[0, slot] == len(mine) - mine.count(-1)
    assert int(state.iteration) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(policy="tiny"), "prompts: 'tiny' reads no text"),
        (dict(chunk=3), "chunk must be 1 where the host judges `prompts`, got 3"),
        (dict(prompts=""), "max_tokens: 6 has no effect with prompts ''"),
        (dict(scheduler="oracle"), "scheduler: 'oracle' is told"),
        (dict(max_tokens=0), "max_tokens must be positive, got 0"),
    ],
)
def test_bad_text_options_name_the_field(directory, prompts, changes, message):
    with pytest.raises(ValueError, match=message):
        text_config(directory, prompts, **changes)


def test_a_language_models_sizes_are_those_a_laptop_can_bear(directory):
    got = train.parse(["--policy", str(directory), "--num-prompts", "4"])
    assert (got.policy, got.num_prompts, got.chunk) == (str(directory), 4, 1)
    assert got.num_train == 512 and got.watch.eval_batch == 16
    assert train.parse(["--policy", "tiny"]) == train.Config()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:prompts. .* are left out")
def test_train_on_a_prompt_file_from_end_to_end(directory, prompts, tmp_path):
    arguments = ["--policy", str(directory), "--prompts", str(prompts), "--num-prompts", "4"]
    arguments += ["--group-size", "4", "--max-tokens", "6", "--num-train", "40", "--out"]
    arguments += [str(tmp_path / "run"), "--iterations", "4", "--scheduler", "fade"]
    arguments += ["--num-skills", "4", "--watch.eval-every", "2", "--watch.checkpoint-every", "2"]
    summary = train.main(train.parse(arguments))
    assert summary["rollouts"] == 4 * 16 and len(summary["validation"]) == 3
    trained = language_model.load(str(tmp_path / "run" / "policy"))
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), trained.params, model().params)
    assert max(jax.tree.leaves(moved)) >= 0  # a policy that solves nothing has nothing to learn
    assert trained.tokenizer.encode("1+1=") == tokenizer().encode("1+1=")
    longer = train.parse(["--resume", str(tmp_path / "run"), "--iterations", "6"])
    assert longer.prompts == str(prompts)
    assert train.main(longer)["rollouts"] == 6 * 16
    config = json.loads((tmp_path / "run" / "run" / "config.json").read_text())
    assert dataclasses.asdict(train.training_part(longer)) == config["run"]
