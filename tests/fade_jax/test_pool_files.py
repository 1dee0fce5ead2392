"""Pools from files: every format gives the same pool, and what is wrong is named with its place."""

import json
import os
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pyarrow
import pytest
from pyarrow import ipc, parquet

from fade_jax import Observation
from fade_jax.pool import duplicate_rows, fingerprint
from fade_jax.pool_files import describe, load_pool
from fade_jax.prompt_rows import plain_answer, prompt_text, read_rows
from fade_jax.trackers import discounted_beta

DATA = Path(
    os.environ.get("FADE_JAX_HISTORY_DIR")
    or Path(__file__).resolve().parents[3] / "shared" / "data" / "rlvr_history"
)
ROWS = [
    {"prompt": "1 + 1 = ?", "answer": "2", "from": "sums", "about": {"index": 7, "n": [1]}},
    {"prompt": "Grüße²\n\u2028 = ?", "answer": "x", "from": "words", "about": {"index": 3}},
    {"prompt": " 1  + 1 = ?", "answer": " 2 ", "from": "words", "about": {"index": 7}},
    {"prompt": "3 - 1 = ?", "answer": "2", "from": "differences", "about": {"index": 4}},
]
NAMED: dict[str, Any] = {"source": "from", "index": "about.index"}


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return path


def write_parquet(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def save_to_disk(folder, rows, shards=2, split=None, **state):
    """The layout of `Dataset.save_to_disk`."""
    folder.mkdir(parents=True)
    table, files = pyarrow.Table.from_pylist(rows), []
    for i, chunk in enumerate(np.array_split(np.arange(len(rows)), shards)):
        files.append({"filename": f"data-{i:05d}-of-{shards:05d}.arrow"})
        with ipc.new_stream(folder / files[-1]["filename"], table.schema) as stream:
            stream.write_table(table.take(chunk))
    state = {"_data_files": files, "_fingerprint": "0", "_split": split, **state}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def save_dict_to_disk(folder, **splits):
    folder.mkdir()
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(splits)}))
    for name, rows in splits.items():
        save_to_disk(folder / name, rows, shards=1, split=name)
    return folder


def every_format(tmp_path, rows):
    write_parquet(tmp_path / "shards" / "train-00001-of-00002.parquet", rows[1:])
    write_parquet(tmp_path / "shards" / "train-00000-of-00002.parquet", rows[:1])
    write_parquet(tmp_path / "shards" / ".cache" / "old.parquet", rows)
    return [
        write_lines(tmp_path / "rows.jsonl", rows),
        write_parquet(tmp_path / "rows.parquet", rows),
        tmp_path / "shards",
        save_to_disk(tmp_path / "saved", rows, split="train"),
        save_dict_to_disk(tmp_path / "dict", train=rows),
    ]


def test_every_format_gives_the_same_pool(tmp_path):
    names = set()
    for path in every_format(tmp_path, ROWS):
        loaded = load_pool(path, **NAMED)
        assert loaded.pool.texts == (ROWS[0]["prompt"], ROWS[1]["prompt"], ROWS[3]["prompt"])
        assert loaded.pool.answers == ("2", "x", "2")
        assert loaded.row_to_prompt.tolist() == [0, 1, 0, 2]
        assert loaded.row_to_prompt.dtype == np.int32
        assert loaded.source_names == ("differences", "sums", "words")
        assert loaded.pool.sources.tolist() == [1, 2, 0]
        assert loaded.index_to_prompt == {7: 0, 3: 1, 4: 2}
        assert loaded.system is None
        names.add(fingerprint(loaded.pool))
    assert len(names) == 1
    # As `fingerprint` says: it changes with content and with order.
    changed = [ROWS[::-1], ROWS[:3], [{**ROWS[0], "answer": "3"}, ROWS[1], ROWS[3]]]
    for i, rows in enumerate(changed):
        names.add(fingerprint(load_pool(write_lines(tmp_path / f"{i}.jsonl", rows), **NAMED).pool))
    assert len(names) == 4


def test_without_answers_sources_or_index(tmp_path):
    loaded = load_pool(
        write_lines(tmp_path / "a.jsonl", ROWS), answer=None, fractions=(1.0, 0.0, 0.0)
    )
    assert loaded.pool.answers is None and loaded.index_to_prompt is None
    assert loaded.source_names == () and loaded.pool.sources.tolist() == [0, 0, 0]
    assert set(loaded.pool.split.tolist()) == {"train"}


def test_an_outcome_of_a_repeated_row_reaches_the_same_prompt(tmp_path):
    """Field report 24: 300 rows are 3 prompts 100 times each; rows 50 and 250 are one of them."""
    kinds = np.arange(300) % 3
    kinds[[250, 251]] = kinds[[251, 250]]
    rows = [
        {"prompt": f"{k} + 1 =" + " " * (i // 100), "answer": str(k + 1)}
        for i, k in enumerate(kinds)
    ]
    loaded = load_pool(write_lines(tmp_path / "rows.jsonl", rows))
    assert len(loaded.pool.keys) == 3
    np.testing.assert_array_equal(loaded.row_to_prompt, kinds)
    places = duplicate_rows(loaded.row_to_prompt)
    assert {prompt: len(each) for prompt, each in places.items()} == {0: 100, 1: 100, 2: 100}
    assert places[2][:2] == [2, 5] and {50, 250} <= set(places[2])
    tracker = discounted_beta.build(3)
    seen = loaded.row_to_prompt[[250]]
    outcome = Observation(jnp.asarray(seen), jnp.array([8.0]), jnp.array([8.0]))
    before = tracker.pass_rate(tracker.init())
    after = tracker.pass_rate(tracker.update(tracker.init(), outcome)[0])
    assert np.flatnonzero(np.asarray(after != before)).tolist() == [loaded.row_to_prompt[50]]
    assert describe(loaded).splitlines() == [
        "300 rows, 3 prompts, 3 of them in several rows",
        "prompt 0: 100 rows, 0, 3, 6, 9, 12, ...",
        "prompt 1: 100 rows, 1, 4, 7, 10, 13, ...",
        "prompt 2: 100 rows, 2, 5, 8, 11, 14, ...",
    ]


CHAT = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "1 + 1"}]


def test_chats(tmp_path):
    assert prompt_text(CHAT) == ("1 + 1", "be brief")
    assert prompt_text([*CHAT, CHAT[1]]) == ("1 + 1\n1 + 1", "be brief")
    columns = {"role": ["system", "user"], "content": ["be brief", "1 + 1"]}
    assert prompt_text(columns) == prompt_text(CHAT)
    rows = [{"prompt": CHAT, "answer": 2}, {"prompt": [*CHAT[:1], {**CHAT[1], "content": "2"}]}]
    rows[1]["answer"] = 27
    for path in every_format(tmp_path, rows):
        loaded = load_pool(path)
        assert loaded.pool.texts == ("1 + 1", "2") and loaded.system == "be brief"
        assert loaded.pool.answers == ("2", "27")
    write_lines(tmp_path / "rows.jsonl", [*rows, {"prompt": CHAT[1:], "answer": "2"}])
    message = r"rows.jsonl, row 2: prompt has the system message None, .* before it 'be brief'"
    with pytest.raises(ValueError, match=message):
        load_pool(tmp_path / "rows.jsonl")


@pytest.mark.parametrize(
    ("prompt", "complaint"),
    [
        (5, "'5' is neither text nor a list"),
        (" \n", r"is empty"),
        ([], "'' is empty"),
        (CHAT[:1], "'' is empty"),
        (["1 + 1"], "'1 \\+ 1' is no message"),
        ([*CHAT, {"role": "assistant", "content": "2"}], "assistant.* is no message"),
        ([{"role": "user", "content": [{"type": "image"}]}], "image.* is no message"),
        ({"text": "1 + 1"}, "is neither text nor a list"),
        ("\ud800", "is not valid Unicode"),
    ],
)
def test_prompts_that_are_none(tmp_path, prompt, complaint):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({**row, "prompt": prompt}) + "\n" for row in ROWS[:1]))
    with pytest.raises(ValueError, match=f"rows.jsonl, row 0: prompt: .*{complaint}"):
        load_pool(path)


def test_answers_as_strings():
    given = ["025", "", 12, -1.0, 27.0, 0.5, 10**20]
    assert [plain_answer(each) for each in given] == [
        "025",
        "",
        "12",
        "-1",
        "27",
        "0.5",
        "100000000000000000000",
    ]
    for wrong in (True, float("nan"), float("inf"), ["2"], {"a": 1}):
        with pytest.raises(ValueError, match="is no string or number"):
            plain_answer(wrong)


@pytest.mark.parametrize(
    ("lines", "arguments", "complaint"),
    [
        ("", {}, r"^rows\.jsonl: no rows"),
        ("\n \n", {}, r"^rows\.jsonl: no rows"),
        ('\ufeff{"prompt": "a", "answer": "b"}\n\n{"prompt":', {}, r"row 1 \(line 3\): not JSON"),
        ('["a"]', {}, r"rows.jsonl, row 0 \(line 1\): a list, not a JSON object"),
        ('{"prompt": "a"}', {}, "rows.jsonl, row 0: no field 'answer'; fields: prompt"),
        ('{"prompt": null, "answer": "b"}', {}, "rows.jsonl, row 0: prompt is null"),
        ('{"prompt": "a", "answer": null}', {}, "rows.jsonl, row 0: answer is null"),
        ('{"prompt": "a", "answer": ["b"]}', {}, "row 0: answer: .*list.* no string or number"),
        ('{"prompt": "a", "answer": {"b": null}}', {"answer": "answer.b"}, "answer.b is null"),
        ('{"prompt": "a", "answer": {"b": 1}}', {"answer": "answer.c"}, "no field 'answer.c'"),
        ('{"prompt": "a", "answer": null}', {"answer": "answer.c"}, "no field 'answer.c'"),
        ('{"prompt": "a", "answer": "b"}', {"index": "id"}, "row 0: no field 'id'"),
        ('{"prompt": "a", "answer": "b"}', {"split": "test"}, "one file and has no splits"),
        (
            '{"prompt": "a", "answer": "b"}',
            {"fractions": (1.0, 1.0, 1.0)},
            "jsonl: fractions: ",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path, lines, arguments, complaint):
    path = tmp_path / "rows.jsonl"
    path.write_text(lines, "utf-8")
    with pytest.raises(ValueError, match=complaint):
        load_pool(path, **arguments)


def test_text_that_is_not_utf8(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes('{"prompt": "Grüße", "answer": "1"}'.encode("latin-1"))
    with pytest.raises(ValueError, match=r"rows.jsonl, row 0 \(line 1\): not JSON: .*utf-8"):
        load_pool(path)


def test_columns_of_other_formats_are_named_too(tmp_path):
    rows = [{**row, "answer": None if i == 3 else row["answer"]} for i, row in enumerate(ROWS)]
    *_, shards, saved, _ = every_format(tmp_path, rows)
    with pytest.raises(
        ValueError, match=r"rows.parquet: no column 'truth.x'; columns: prompt, ans"
    ):
        load_pool(tmp_path / "rows.parquet", answer="truth.x")
    with pytest.raises(ValueError, match=r"rows.parquet, row 0: no field 'about.id'"):
        load_pool(tmp_path / "rows.parquet", index="about.id")
    with pytest.raises(ValueError, match=r"train-00001-of-00002.parquet, row 2: answer is null"):
        load_pool(shards)
    with pytest.raises(ValueError, match=r"data-00001-of-00002.arrow, row 1: answer is null"):
        load_pool(saved)
    # Only what is asked for is read.
    assert [set(row.record) for row in read_rows(shards, ["about.index"])] == [{"about"}] * 4
    assert set(next(read_rows(shards)).record) == set(ROWS[0])


def test_two_answers_to_one_prompt(tmp_path):
    """Compared exactly, white space aside; the column is named as the caller named it."""
    pairs = [("a", "1/2"), ("b", "2"), ("a ", "0.5"), ("b", " 2\n"), ("c", "x y"), ("c", "xy")]
    rows = [{"prompt": prompt, "truth": {"of": answer}} for prompt, answer in pairs]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    message = r"rows.jsonl: truth.of: rows 0 and 2 .*'1/2' and '0.5' \(2 such prompts\)"
    with pytest.raises(ValueError, match=message):
        load_pool(path, answer="truth.of")
    agreeing = load_pool(write_lines(path, [rows[0], rows[1], rows[3]]), answer="truth.of")
    assert agreeing.pool.answers == ("1/2", "2")


def test_an_index_that_identifies_nothing(tmp_path):
    """Field report 23: data sets without the column give every prompt the id 0."""
    same = [{**row, "about": {"index": 0}} for row in ROWS]
    for path in every_format(tmp_path, same):
        with pytest.raises(ValueError, match=r"about.index: all 4 rows have the value 0"):
            load_pool(path, index="about.index")
        assert len(load_pool(path).pool.keys) == 3  # known by content, they are told apart
    path = write_lines(tmp_path / "rows.jsonl", [*ROWS, {**ROWS[1], "prompt": "new"}])
    with pytest.raises(ValueError, match=r"about.index: rows 1 and 4 hold two prompts .* value 3"):
        load_pool(path, answer=None, index="about.index")


def test_splits_on_disk(tmp_path):
    saved = save_dict_to_disk(tmp_path / "dict", train=ROWS[:2], test=ROWS[3:])
    assert load_pool(saved, split="train").pool.texts == (ROWS[0]["prompt"], ROWS[1]["prompt"])
    assert load_pool(saved, split="test").pool.texts == (ROWS[3]["prompt"],)
    with pytest.raises(ValueError, match="split: dict holds train, test; choose one"):
        load_pool(saved)
    with pytest.raises(ValueError, match="split: dict holds train, test; not 'validation'"):
        load_pool(saved, split="validation")
    single = save_to_disk(tmp_path / "single", ROWS, split="train")
    assert len(load_pool(single, split="train").row_to_prompt) == 4
    with pytest.raises(ValueError, match="split: single holds 'train' alone, not 'test'"):
        load_pool(single, split="test")


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("train.parquet", "test.parquet"),  # verl
        ("data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"),  # the Hub
        ("main/train/0000.parquet", "main/test/0000.parquet"),  # the Hub's own conversion
    ],
)
def test_splits_are_never_mixed(tmp_path, train, test):
    write_parquet(tmp_path / "set" / train, ROWS[:2])
    write_parquet(tmp_path / "set" / test, ROWS[3:])
    with pytest.raises(ValueError, match=r"split: set holds (train, test|test, train); choose one"):
        load_pool(tmp_path / "set")
    assert len(load_pool(tmp_path / "set", split="train").row_to_prompt) == 2
    assert len(load_pool(tmp_path / "set", split="test").row_to_prompt) == 1


def test_paths_that_hold_no_data_set(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.csv").write_text("prompt,answer\n")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    write_parquet(tmp_path / "none.parquet", ROWS[:1])
    parquet.write_table(parquet.read_table(tmp_path / "none.parquet")[:0], tmp_path / "z.parquet")
    saved = save_to_disk(tmp_path / "saved", ROWS)
    (saved / "data-00001-of-00002.arrow").unlink()
    mapped = save_to_disk(tmp_path / "mapped", ROWS, _indices_data_files=[{"filename": "i.arrow"}])
    for path, complaint in [
        ("missing.jsonl", "path: .*missing.jsonl does not exist"),
        ("empty", "path: 'empty' holds no Parquet files"),
        ("a.csv", "path: 'a.csv' .* ends in none of .jsonl, .ndjson, .parquet"),
        ("torn.parquet", "^torn.parquet: "),
        ("z.parquet", "^z.parquet: no rows"),
        (saved.name, "^data-00001-of-00002.arrow: "),
        (mapped.name, "mapped: saved with an indices mapping"),
    ]:
        with pytest.raises(ValueError, match=complaint):
            load_pool(tmp_path / path)
    (tmp_path / "saved" / "state.json").write_text("{")
    with pytest.raises(ValueError, match=r"saved/state.json: "):
        load_pool(tmp_path / "saved")


@pytest.mark.skipif(
    not (DATA / "dsr_sub.parquet").exists(),
    reason="dsr_sub.parquet of One-Shot-RLVR is not here; FADE_JAX_HISTORY_DIR names its folder",
)
def test_a_published_file():
    """1,207 prompts in 1,209 rows of verl's layout; one row has an empty answer."""
    loaded = load_pool(
        DATA / "dsr_sub.parquet",
        answer="reward_model.ground_truth",
        source="data_source",
        index="extra_info.index",
    )
    assert describe(loaded).splitlines() == [
        "1,209 rows, 1,207 prompts, 1 of them in several rows",
        "prompt 136: 3 rows, 136, 780, 899",
        "1 prompts have an empty answer: 265",
        "source deepscaler: 1,207 prompts",
    ]
    assert loaded.index_to_prompt is not None and len(loaded.index_to_prompt) == 1209
    assert loaded.index_to_prompt[780] == loaded.row_to_prompt[899] == 136
    assert loaded.pool.texts[0].startswith("Find the probability that a monkey")
    assert loaded.pool.answers is not None and loaded.pool.answers[0] == r"\frac{3}{7}"
