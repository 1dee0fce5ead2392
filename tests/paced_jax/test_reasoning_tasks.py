"""Tasks of reasoning-gym as a verifier."""

import importlib.util
from importlib import import_module

import pytest

from paced_jax.verifiers import ReasoningVerifier
from paced_jax.verifiers.reasoning_tasks import gold

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("reasoning_gym") is None,
    reason="reasoning-gym comes with the reasoning extra",
)

TASKS = ("chain_sum", "spell_backward", "basic_arithmetic", "countdown")


def entries(name):
    # In a process of its own would be slower; the import is the test's, not the package's.
    return list(import_module("reasoning_gym").create_dataset(name, size=3, seed=7))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_each_tasks_own_answer_is_right_and_another_is_wrong():
    rows = [(name, entry) for name in TASKS for entry in entries(name)]
    golds = [gold(name, entry) for name, entry in rows]
    with ReasoningVerifier(workers=2, limit=60.0) as verifier:
        right = verifier.verify([f"<answer>{e['answer']}</answer>" for _, e in rows], golds)
        boxed = verifier.verify([rf"\boxed{{{e['answer']}}}" for _, e in rows], golds)
        wrong = verifier.verify(["<answer>zzz</answer>"] * len(rows), golds)
        absent = verifier.verify(["I\ndo not know"] * len(rows), golds)
        broken = verifier.verify(["<answer>1</answer>"], ['{"dataset": "nothing", "entry": {}}'])
    assert right.verdict.tolist() == [1] * len(rows)
    assert boxed.verdict.tolist() == [1] * len(rows)
    assert wrong.verdict.tolist() == [0] * len(rows)
    assert absent.reason == ("no answer",) * len(rows)
    assert broken.verdict.tolist() == [-1]
