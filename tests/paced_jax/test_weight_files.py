"""Model directories and GGUF files against what transformers computed from them."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_policy import random_policy

from paced_jax.policy import gguf, hf, weight_names
from paced_jax.policy.config import DecoderConfig
from paced_jax.policy.forward import logits
from paced_jax.policy.weight_names import HUGGING_FACE, fill, places, split

MODELS = Path(__file__).parent / "data" / "models"
NAMES = ("llama_tied", "llama_untied", "qwen2_tied", "qwen2_untied")

forward = jax.jit(logits)


def our_logits(directory, tokens):
    graphdef, params, _ = hf.load(directory)
    tokens = jnp.asarray(tokens, jnp.int32)
    return np.asarray(forward(graphdef, params, tokens, jnp.ones(tokens.shape, bool)))


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers_also_after_export(name, tmp_path):
    with np.load(MODELS / name / "reference.npz") as reference:
        tokens, wanted, exported = (
            reference[key] for key in ("tokens", "logits", "exported_logits")
        )
    scale = np.abs(wanted).max()
    assert np.abs(our_logits(MODELS / name, tokens) - wanted).max() <= 1e-4 * scale
    _, params, config = hf.load(MODELS / name)
    hf.save(tmp_path / name, config, params)
    assert np.abs(our_logits(tmp_path / name, tokens) - wanted).max() <= 1e-4 * scale
    # transformers computed this from a directory that `save` had written.
    assert np.abs(exported - wanted).max() <= 1e-4 * scale


@pytest.mark.parametrize("name", NAMES)
def test_export_gives_back_every_tensor_bit_for_bit(name, tmp_path):
    _, params, config = hf.load(MODELS / name)
    hf.save(tmp_path, config, params, shard_bytes=10_000)
    files = hf.shards(tmp_path)
    assert len(files) > 1 and all(file.stat().st_size < 13_000 for file in files)
    before, after = dict(hf.stream(hf.shards(MODELS / name))), dict(hf.stream(files))
    assert set(before) == set(after)
    for key, tensor in before.items():
        np.testing.assert_array_equal(tensor, after[key])
    assert hf.read_config(tmp_path) == config
    with pytest.raises(ValueError, match="holds weights already"):
        hf.save(tmp_path, config, params)


def test_the_sizes_are_read_from_the_description():
    config = hf.read_config(MODELS / "llama_untied")
    assert config == DecoderConfig(
        vocab_size=37,
        hidden_size=24,
        num_layers=2,
        num_heads=6,
        num_kv_heads=2,
        intermediate_size=40,
        head_dim=8,
        rms_norm_eps=1e-6,
        tie_embeddings=False,
    )
    assert hf.read_config(MODELS / "llama_tied").rope_theta == 1e5
    assert hf.read_config(MODELS / "qwen2_tied").qkv_bias
    published = {  # of Qwen2.5-Math-1.5B, as published
        "model_type": "qwen2",
        "hidden_act": "silu",
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "max_position_embeddings": 4096,
        "num_attention_heads": 12,
        "num_hidden_layers": 28,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
        "use_mrope": False,
        "use_sliding_window": False,
        "vocab_size": 151936,
    }
    found = hf.of_description(published, "config.json", dtype="bfloat16")
    assert weight_names.num_parameters(found) == 1_543_714_304
    assert found.param_dtype == "bfloat16"
    del published["hidden_size"]
    with pytest.raises(ValueError, match=r"config\.json: hidden_size is missing"):
        hf.of_description(published, "config.json")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_type", "mistral"),
        ("hidden_act", "gelu"),
        ("attention_bias", True),
        ("mlp_bias", True),
        ("use_sliding_window", True),
        ("rope_scaling", {"rope_type": "llama3", "factor": 8.0}),
        ("rope_scaling", {"type": "linear", "factor": 2.0}),
    ],
)
def test_options_a_decoder_has_not_are_refused_by_name(field, value):
    content = json.loads((MODELS / "llama_tied" / "config.json").read_text())
    content.pop("rope_parameters", None)
    content[field] = value
    with pytest.raises(ValueError, match=field.replace("rope_scaling", "rope_type")):
        hf.of_description(content, "config.json")


def test_a_damaged_description_or_index_is_named(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "lla')
    with pytest.raises(ValueError, match=rf"{tmp_path.name}/config\.json: "):
        hf.read_config(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("")
    with pytest.raises(ValueError, match=rf"{tmp_path.name}/model\.safetensors\.index\.json: "):
        hf.shards(tmp_path)


def test_weights_cut_short_are_named(tmp_path):
    whole = (MODELS / "llama_tied" / "model.safetensors").read_bytes()
    (tmp_path / "config.json").write_bytes((MODELS / "llama_tied" / "config.json").read_bytes())
    for kept in (0, 200, len(whole) - 1):
        (tmp_path / "model.safetensors").write_bytes(whole[:kept])
        with pytest.raises(ValueError, match=rf"{tmp_path.name}: model\.safetensors: "):
            hf.load(tmp_path)


def tensors_of(name="llama_untied"):
    config = hf.read_config(MODELS / name)
    return config, dict(hf.stream(hf.shards(MODELS / name)))


def test_missing_unmapped_and_misshapen_tensors_are_refused_by_name():
    config, tensors = tensors_of()
    name = "model.layers.1.mlp.up_proj.weight"
    without = {key: value for key, value in tensors.items() if key != name}
    with pytest.raises(ValueError, match=f"tensors missing: {name}"):
        fill(config, HUGGING_FACE, without.items())
    with pytest.raises(ValueError, match=r"without a place: model\.layers\.2\.mlp\.x"):
        more = {**tensors, "model.layers.2.mlp.x": np.zeros(3, np.float32)}
        fill(config, HUGGING_FACE, more.items())
    with pytest.raises(ValueError, match=rf"{name} must have shape \(40, 24\), got \(24, 40\)"):
        fill(config, HUGGING_FACE, {**tensors, name: tensors[name].T}.items())
    with pytest.raises(ValueError, match=f"{name} comes twice"):
        fill(config, HUGGING_FACE, [*tensors.items(), (name, tensors[name])])
    derived = {**tensors, "model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(4, np.float32)}
    fill(config, HUGGING_FACE, derived.items())


def test_a_tied_head_that_is_stored_must_be_the_embedding():
    config, tensors = tensors_of("llama_tied")
    embedding = tensors["model.embed_tokens.weight"]
    fill(config, HUGGING_FACE, {**tensors, "lm_head.weight": embedding}.items())
    with pytest.raises(ValueError, match=r"lm_head\.weight differs"):
        fill(config, HUGGING_FACE, {**tensors, "lm_head.weight": embedding + 1}.items())


def test_a_lost_file_of_several_is_refused_by_name(tmp_path):
    shutil.copytree(MODELS / "qwen2_untied", tmp_path / "model")
    lost = sorted((tmp_path / "model").glob("*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(ValueError, match=lost.name):
        hf.load(tmp_path / "model")
    with pytest.raises(ValueError, match=r"has no config\.json"):
        hf.load(tmp_path)


def test_tensors_are_read_one_by_one_and_cast_as_they_come():
    """The peak beside the model itself is one tensor, whatever the file's dtype."""
    config, tensors = tensors_of()
    config = dataclasses.replace(config, param_dtype="bfloat16")
    alive = []

    def lazily():
        for name, tensor in tensors.items():
            alive.append(name)
            yield name, tensor

    params = fill(config, HUGGING_FACE, lazily())
    assert len(alive) == len(tensors)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("bfloat16")}
    wanted = tensors["model.norm.weight"].astype(jnp.bfloat16)
    np.testing.assert_array_equal(np.asarray(params["norm"]["scale"]), wanted)


def test_bfloat16_files_are_read_and_written(tmp_path):
    config, tensors = tensors_of()
    config = dataclasses.replace(config, dtype="bfloat16", param_dtype="bfloat16")
    params = fill(config, HUGGING_FACE, tensors.items())
    hf.save(tmp_path, config, params)
    stored = dict(hf.stream(hf.shards(tmp_path)))
    assert {tensor.dtype for tensor in stored.values()} == {np.dtype("bfloat16")}
    _, again, _ = hf.load(tmp_path, dtype="bfloat16")
    jax.tree.map(np.testing.assert_array_equal, params, again)


@pytest.mark.parametrize("bias", [False, True])
def test_split_undoes_fill(bias):
    config = DecoderConfig(
        vocab_size=9,
        hidden_size=12,
        num_layers=3,
        num_heads=6,
        num_kv_heads=2,
        head_dim=4,
        intermediate_size=20,
        qkv_bias=bias,
        tie_embeddings=bias,
    )
    _, params = random_policy(config, 0)
    tensors = dict(split(config, HUGGING_FACE, params))
    assert set(tensors) == set(places(config, HUGGING_FACE))
    assert all(tensor.flags.c_contiguous for tensor in tensors.values())
    jax.tree.map(np.testing.assert_array_equal, params, fill(config, HUGGING_FACE, tensors.items()))


def write_gguf(path, config, params, family, *, quantise=None, extra=()):
    """A GGUF file of a decoder, written by the `gguf` package; Llama's rows permuted."""
    import gguf as library

    writer = library.GGUFWriter(path, family)
    writer.add_block_count(config.num_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_size)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    for name, value in extra:
        writer.add_string(name, value)
    where = places(config, weight_names.GGUF)
    for name, tensor in split(config, weight_names.GGUF, params):
        if family == "llama" and where[name].module in ("q", "k"):
            heads = tensor.shape[0] // config.head_size
            halves = tensor.reshape(heads, 2, config.head_size // 2, -1)
            tensor = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(tensor.shape))
        kind = quantise if quantise is not None and tensor.ndim == 2 else None
        if kind is not None:
            tensor = library.quants.quantize(tensor, kind)
        writer.add_tensor(name, tensor, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


SMALL = DecoderConfig(
    vocab_size=9,
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    intermediate_size=64,
    rope_theta=1e5,
)


@pytest.mark.parametrize(("family", "bias"), [("llama", False), ("qwen2", True)])
def test_gguf_files_give_the_decoder_they_were_written_from(family, bias, tmp_path):
    config = dataclasses.replace(SMALL, qkv_bias=bias, tie_embeddings=bias)
    _, params = random_policy(config, 0)
    write_gguf(tmp_path / "model.gguf", config, params, family)
    _, found, read = gguf.load(tmp_path / "model.gguf")
    rounded = float(np.float32(config.rms_norm_eps))  # the file has it in 32 bits
    assert read == dataclasses.replace(config, rms_norm_eps=rounded)
    jax.tree.map(np.testing.assert_array_equal, params, found)


def test_quantised_rows_are_put_back_in_order(tmp_path):
    from gguf import GGMLQuantizationType

    _, params = random_policy(SMALL, 0)
    kind = GGMLQuantizationType.Q8_0
    write_gguf(tmp_path / "model.gguf", SMALL, params, "llama", quantise=kind)
    _, found, _ = gguf.load(tmp_path / "model.gguf")
    for wanted, got in zip(jax.tree.leaves(params), jax.tree.leaves(found), strict=True):
        # Eight bits for the largest of 32 numbers.
        assert np.abs(wanted - got).max() <= np.abs(wanted).max() / 127


def test_other_gguf_files_are_refused_by_name(tmp_path):
    _, params = random_policy(SMALL, 0)
    path = tmp_path / "model.gguf"
    write_gguf(path, SMALL, params, "gemma")
    with pytest.raises(ValueError, match=r"general\.architecture must be one of"):
        gguf.load(path)
    path.unlink()
    write_gguf(path, SMALL, params, "llama", extra=[("llama.rope.scaling.type", "yarn")])
    with pytest.raises(ValueError, match=r"rope\.scaling\.type must be 'none', got 'yarn'"):
        gguf.load(path)
    path.write_bytes(b"not a model at all, only some text")
    with pytest.raises(ValueError, match=r"model\.gguf is no GGUF file"):
        gguf.load(path)
    with pytest.raises(ValueError, match="there is no file"):
        gguf.load(tmp_path / "other.gguf")
