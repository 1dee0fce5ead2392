"""Few-shot arithmetic: right answers, disjoint pools, exact tokens."""

import jax.numpy as jnp
import numpy as np
import pytest
from test_text import small_tokenizer

from paced_jax.policy import text
from paced_jax.tasks import arithmetic
from paced_jax.tasks.arithmetic import ARITHMETIC, build_pool, line, prompt_text, questions
from paced_jax.tasks.skills import verify


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return text.load(small_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def test_answers_by_hand():
    assert [line(skill, 47, 6) for skill in ARITHMETIC] == [
        "47 + 6 = 53\n",
        "47 - 6 = 41\n",
        "47 * 6 = 282\n",
        "max(47, 6) = 47\n",
        "47 mod 6 = 5\n",
        "reverse(47, 6) = 6, 47\n",
    ]
    assert prompt_text("add", 5, 9) == "4 + 3 = 7\n17 + 5 = 22\n5 + 9 = "


def test_questions_are_valid_distinct_and_all_there_are():
    rng = np.random.default_rng(0)
    counts = {
        "add": 99,  # 10 x 10 less the example (4, 3)
        "subtract": 54,  # 55 with a >= b
        "multiply": 99,
        "maximum": 89,  # 90 that differ
        "remainder": 79,  # b from 2 to 9
        "reverse": 89,
    }
    for skill, count in counts.items():
        pairs = questions(skill, 1, 1000, rng)
        assert len(pairs) == len(np.unique(pairs, axis=0)) == count
    long = questions("subtract", 3, 50, rng)
    assert len(long) == 50 and (long[:, 0] >= long[:, 1]).all() and long.min() >= 100


def test_pools_are_disjoint_and_uniform_over_cells(tokenizer):
    pools = build_pool(tokenizer, 0, num_train=360, num_validation=36, num_test=18)
    texts = [prompt for pool in pools for prompt in pool.text]
    assert len(set(texts)) == len(texts) == 414
    for pool, each in zip(pools, (20, 2, 1), strict=True):
        cells, count = np.unique(pool.skill * 4 + pool.length, return_counts=True)
        assert len(cells) == 18 and (count == each).all()
    again = build_pool(tokenizer, 0, num_train=360, num_validation=36, num_test=18)
    np.testing.assert_array_equal(again.test.prompt_tokens, pools.test.prompt_tokens)
    with pytest.raises(ValueError, match="only"):
        build_pool(tokenizer, 0, num_train=10**7)


def test_prompt_and_answer_are_the_tokens_of_the_whole_text(tokenizer):
    pool = build_pool(tokenizer, 1, num_train=18, num_validation=18, num_test=18).train
    end = arithmetic.end_id(tokenizer)
    for i in range(18):
        prompt = pool.prompt_tokens[i][pool.prompt_mask[i]].tolist()
        answer = pool.answer_tokens[i, : pool.answer_lengths[i]].tolist()
        whole = tokenizer.decode(prompt + answer)
        assert whole.startswith(pool.text[i]) and tokenizer.encode(whole) == prompt + answer
        question, given = whole.splitlines()[2].split(" = ")
        if pool.skill[i] < 3:
            assert int(given) == eval(question)
        assert answer[-1] == end and answer.count(end) == 1
    slots = np.arange(pool.answer_tokens.shape[1])[None] < pool.answer_lengths[:, None]
    answers, lengths, slots = map(jnp.asarray, (pool.answer_tokens, pool.answer_lengths, slots))
    ids = jnp.arange(18, dtype=jnp.int32)
    assert verify(answers, lengths, ids, answers, slots).tolist() == [1] * 18
    assert verify(answers, lengths, ids[::-1], answers, slots).sum() < 9
