"""What a policy is asked, apart from the prompts themselves."""

from typing import NamedTuple

from paced_jax.host_judge import Judge
from paced_jax.tasks.skills import MAX_LENGTH
from paced_jax.tasks.tokens import EOS, SKILLS


class Task(NamedTuple):
    """How the prompts of a pool are named and ended.

    Attributes:
        name: of the task.
        skills: names of the kinds of prompt, in the order of a pool's `skill`.
        max_length: greatest `length` of a prompt.
        eos_id: token that ends a response.
        judge: verifier of text on the host; None where answers are compared in compiled code.
        max_tokens: T of a response that a judge reads; else T is the width of the answers.
    """

    name: str
    skills: tuple[str, ...]
    max_length: int
    eos_id: int
    judge: Judge | None = None
    max_tokens: int = 0


SKILL_TASK = Task("skills", SKILLS, MAX_LENGTH, EOS)
"""The eight digit skills of `skills`."""
