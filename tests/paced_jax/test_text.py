"""Tokenizers and chat templates; SmolLM2 against what transformers computed."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paced_jax.policy import smollm2, text
from paced_jax.policy.gguf_tokenizer import pre_tokenizer
from paced_jax.policy.sampling import sample
from paced_jax.policy.text import Tokenizer

DATA = Path(__file__).parent / "data"

needs_smollm2 = pytest.mark.skipif(
    smollm2.find() is None, reason=f"SmolLM2 is not installed: {smollm2.INSTALL}"
)


def small_tokenizer(directory, **settings):
    """A byte-level tokenizer of 259 tokens, saved as Hugging Face saves one."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate(alphabet)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|bos|>", "<|end|>", "<|user|>"])
    directory.mkdir(exist_ok=True)
    backend.save(str(directory / "tokenizer.json"))
    settings = {"eos_token": "<|end|>", "bos_token": {"content": "<|bos|>"}} | settings
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


def test_text_comes_back_and_special_tokens_are_recognised(tmp_path):
    tokenizer = text.load(small_tokenizer(tmp_path))
    ids = tokenizer.encode("naïve 北京<|end|>")
    assert ids[-1] == tokenizer.eos_id == 257 and ids.count(257) == 1
    assert tokenizer.decode(ids) == "naïve 北京"
    tokens = np.array([tokenizer.encode("abc"), tokenizer.encode("xyz")])
    mask = np.array([[True, True, False], [True, True, True]])
    assert tokenizer.decode_responses(tokens, mask) == ["ab", "xyz"]


def test_chat_templates_are_rendered_in_a_sandbox(tmp_path):
    template = (
        "{{ bos_token }}{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    tokenizer = text.load(small_tokenizer(tmp_path, chat_template=template))
    chat = tokenizer.chat([{"role": "user", "content": "hi"}])
    assert chat == "<|bos|>user: hi\nassistant: "
    named = [{"name": "tool", "template": "no"}, {"name": "default", "template": "yes"}]
    assert text.load(small_tokenizer(tmp_path, chat_template=named)).chat([]) == "yes"
    (tmp_path / "chat_template.jinja").write_text("from a file")
    assert text.load(tmp_path).chat([]) == "from a file"
    with pytest.raises(ValueError, match=r"chat_template: .*unsafe"):
        text.render("{{ messages.__class__.__mro__ }}", [], {})
    with pytest.raises(ValueError, match="chat_template: only user"):
        text.render("{{ raise_exception('only user') }}", [], {})
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(ValueError, match="chat_template: the model has none"):
        text.load(small_tokenizer(tmp_path)).chat([])


def test_directories_without_a_tokenizer_or_an_end_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"has no tokenizer\.json"):
        text.load(tmp_path)
    directory = small_tokenizer(tmp_path, eos_token=None)
    with pytest.raises(ValueError, match="which token ends a response"):
        text.load(directory)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert text.load(directory).eos_id == 7


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"]
)
def test_a_damaged_file_is_named(tmp_path, name):
    directory = small_tokenizer(tmp_path)
    (directory / name).write_text('{"model": ')
    with pytest.raises(ValueError, match=rf"{tmp_path.name}/{name}: "):
        text.load(directory)


def test_rows_are_padded_on_the_right_and_bad_ones_named():
    tokens, mask = text.pad([[5, 6, 7], [8]])
    np.testing.assert_array_equal(tokens, [[5, 6, 7], [8, 0, 0]])
    np.testing.assert_array_equal(mask, [[True, True, True], [True, False, False]])
    for rows in ([[1], []], [[1], [1, 2, 3]]):
        with pytest.raises(ValueError, match=r"row 1 must have 1\.\.2 tokens"):
            text.pad(rows, 2)


def test_unknown_ways_of_splitting_are_refused_by_name():
    assert [w for w, _ in pre_tokenizer("qwen2").pre_tokenize_str("I'll pay 12")] == [
        *("I", "'ll", "Ġpay", "Ġ", "1", "2")
    ]
    with pytest.raises(ValueError, match=r"tokenizer\.ggml\.pre must be one of .*got 'tekken'"):
        pre_tokenizer("tekken")


@pytest.fixture(scope="module")
def smol():
    return smollm2.load()


@needs_smollm2
@pytest.mark.slow
def test_smollm2_continues_as_transformers_does_token_by_token(smol):
    graphdef, params, _, tokenizer = smol
    reference = json.loads((DATA / "smollm2_greedy.json").read_text())
    rows, steps = reference["rows"], reference["max_new_tokens"]
    assert len(rows) == 20
    for row in rows:
        assert tokenizer.encode(row["prompt"]) == row["tokens"]
    tokens, mask = text.pad([row["tokens"] for row in rows])
    continued = jax.jit(
        lambda params, tokens, mask: sample(
            graphdef,
            params,
            tokens,
            mask,
            jnp.arange(len(rows), dtype=jnp.int32),
            jax.random.key(0),
            max_tokens=steps,
            eos_id=tokenizer.eos_id,
            temperature=0.0,
        )
    )(params, jnp.asarray(tokens), jnp.asarray(mask))
    for row, ours, live in zip(
        rows, np.asarray(continued.tokens), np.asarray(continued.action_mask), strict=True
    ):
        assert ours[live].tolist() == row["continuation"], row["prompt"]


@needs_smollm2
@pytest.mark.slow
def test_smollm2_is_told_its_own_template(smol):
    tokenizer: Tokenizer = smol[3]
    chat = tokenizer.chat([{"role": "user", "content": "hi"}])
    assert chat.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.decode([tokenizer.eos_id]) == "" and tokenizer.eos_id == 2
