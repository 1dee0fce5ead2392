"""Grades a gold against itself as mathematics alone, without the shortcut for equal text."""

import math_verify

from paced_jax.verifiers import math_answers, math_text
from paced_jax.verifiers.math_answers import load  # noqa: F401  (the pool calls it)


def grade(response, gold):
    for text in math_text.split_parts(math_text.tidy(math_text.find_answer(response) or "")):
        number, _ = math_text.split_unit(text)
        value = math_answers._parse(number)  # pyright: ignore[reportPrivateUsage]
        if not value:
            return 0, f"unread: {text}"
        again = math_answers._parse(number)  # pyright: ignore[reportPrivateUsage]
        if not math_verify.verify(value, again, timeout_seconds=None, raise_on_error=True):
            return 0, f"unequal: {text}"
    return 1, "equal"
