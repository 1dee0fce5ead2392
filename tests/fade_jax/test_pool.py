import doctest
import hashlib
import unicodedata

import numpy as np
import pytest

from fade_jax import pool
from fade_jax.pool import build_pool, content_key, fingerprint, normalise_text

TEXTS = [f"What is {i} + {i}?" for i in range(300)]


def test_a_key_is_a_hash_of_the_content():
    assert content_key("one  two\n") == hashlib.sha256(b"one two").hexdigest()[:16]
    # The ligature, the full-width digit and the decomposed accent are the same prompt.
    assert content_key("ﬁne ７ é") == content_key("fine 7 e\u0301")
    assert unicodedata.normalize("NFKC", "ﬁne ７ é") == normalise_text("fine 7 e\u0301")


@pytest.mark.parametrize(("one", "other"), [("10²", "102"), ("a₁", "a1"), ("1½", "11⁄2")])
def test_superscripts_and_fractions_are_content(one, other):
    assert unicodedata.normalize("NFKC", one) == other  # what plain NFKC would merge
    assert content_key(one) != content_key(other)


def test_repeated_rows_are_one_prompt():
    """Field report 24: 300 rows that are 3 prompts, 100 times each."""
    rows = [TEXTS[i % 3] + " " * (i // 3) for i in range(300)]
    made, row_to_prompt = build_pool(rows, [str(i % 3) for i in range(300)], index=range(300))
    assert made.texts == tuple(TEXTS[:3])
    assert made.answers == ("0", "1", "2")
    assert made.sources.tolist() == [0, 0, 0]
    assert row_to_prompt.dtype == np.int32
    np.testing.assert_array_equal(row_to_prompt, np.arange(300) % 3)
    assert row_to_prompt[250] == row_to_prompt[49 + 1 + 50 * 2 + 1]  # rows 250 and 151: same text


def test_order_and_sources_are_kept():
    made, row_to_prompt = build_pool(["b", "a", "b", "c"], sources=[5, 2, 7, 1])
    assert made.texts == ("b", "a", "c")
    assert made.keys.tolist() == [content_key(text) for text in "bac"]
    assert made.sources.tolist() == [5, 2, 1]
    assert made.sources.dtype == np.int32
    assert made.answers is None
    assert row_to_prompt.tolist() == [0, 1, 0, 2]


def test_two_answers_to_one_prompt():
    with pytest.raises(ValueError, match=r"answers: rows 0 and 2 .*id 0.*'025' and '25'"):
        build_pool(["x = ?", "y = ?", "x  = ?"], ["025", "1", "25"])


def test_an_index_that_identifies_nothing():
    """Field report 23: a data set without the column gives every prompt the id 0."""
    with pytest.raises(ValueError, match=r"index: all 3 rows have the value 0"):
        build_pool(["a", "b", "c"], index=[0, 0, 0])
    with pytest.raises(ValueError, match=r"index: rows 0 and 2 hold two prompts .* value 4"):
        build_pool(["a", "b", "c"], index=np.array([4, 5, 4]))
    assert len(build_pool(["a", "b", "a"], index=[4, 5, 4])[0].keys) == 2
    assert len(build_pool(["a"], index=[0])[0].keys) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"texts": ["a", " \n"]}, "texts: row 1 is ' .n'"),
        ({"texts": ["a", "b"], "answers": ["1"]}, "answers: 1 values for 2 texts"),
        ({"texts": ["a", "b"], "sources": [1]}, "sources: 1 values for 2 texts"),
        ({"texts": ["a", "b"], "index": [1]}, "index: 1 values for 2 texts"),
        ({"texts": ["a"], "sources": np.array([0.5])}, "sources: needs integers, got .*0.5"),
        ({"texts": ["a"], "fractions": (0.8, 0.1, 0.2)}, "fractions: .* shares that sum to 1"),
        ({"texts": ["a"], "fractions": (1.1, -0.1, 0.0)}, "fractions"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(ValueError, match=message):
        build_pool(**arguments)


def test_a_split_depends_on_content_alone():
    few, _ = build_pool(TEXTS[:40])
    many, _ = build_pool([*TEXTS[::-1], "another prompt"])
    where = dict(zip(many.texts, many.split, strict=True))
    assert [where[text] for text in few.texts] == few.split.tolist()
    assert set(many.split) == set(pool.SPLITS)
    # Hash bits are fair coins: 300 prompts at .8 have standard error .023; 4 of them here.
    assert abs(np.mean(many.split == "train") - 0.8) < 0.1
    assert abs(np.mean(many.split == "test") - 0.1) < 0.07
    everything, _ = build_pool(TEXTS, fractions=(0.0, 0.0, 1.0))
    assert set(everything.split) == {"test"}


def test_fingerprint_changes_with_content_and_order():
    base = build_pool(TEXTS[:5], list("12345"))[0]
    others = [
        build_pool(TEXTS[:4], list("1234"))[0],
        build_pool([*TEXTS[1:5], TEXTS[0]], list("23451"))[0],
        build_pool(TEXTS[:5], list("12346"))[0],
        build_pool(TEXTS[:5])[0],
        build_pool(TEXTS[:5], list("12345"), [0, 0, 0, 0, 1])[0],
        build_pool(TEXTS[:5], list("12345"), fractions=(0.0, 0.0, 1.0))[0],
    ]
    names = [fingerprint(each) for each in (base, *others)]
    assert len(set(names)) == len(names)
    assert all(len(name) == 16 for name in names)
    spaced = build_pool([text + " " for text in TEXTS[:5]], list("12345"))[0]
    assert fingerprint(spaced) == names[0]
    # A known value: state is compared across machines and versions.
    assert fingerprint(build_pool(["1 + 1"], ["2"])[0]) == "e25c51ad9b8f3777"


def test_examples():
    assert doctest.testmod(pool).failed == 0
