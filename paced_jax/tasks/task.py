"""What tasks with an exact answer have in common."""

from typing import NamedTuple

from paced_jax.tasks.skills import MAX_LENGTH
from paced_jax.tasks.tokens import EOS, SKILLS


class Task(NamedTuple):
    """How the prompts of a pool are named and ended.

    Attributes:
        name: of the task.
        skills: names of the kinds of prompt, in the order of a pool's `skill`.
        max_length: greatest `length` of a prompt.
        eos_id: token that ends a response.
    """

    name: str
    skills: tuple[str, ...]
    max_length: int
    eos_id: int


SKILL_TASK = Task("skills", SKILLS, MAX_LENGTH, EOS)
"""The eight digit skills of `skills`."""
