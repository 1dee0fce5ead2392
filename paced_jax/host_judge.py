"""Verdicts on sampled tokens from a verifier of text: tokens to text, text to verdicts.

Shapes: `R` responses of `T` slots.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Bool, Int, Int8

from paced_jax.policy.text import Tokenizer
from paced_jax.verifiers import (
    CodeVerifier,
    MathVerifier,
    ReasoningVerifier,
    Verdicts,
    Verifier,
    code_answers,
    reasoning_tasks,
)

VerifierName: TypeAlias = Literal["math", "code", "reasoning"]
"""What answers are: mathematics, programs, or tasks of reasoning-gym."""

_VERIFIERS = {"math": MathVerifier, "code": CodeVerifier, "reasoning": ReasoningVerifier}
_FORMS = {"code": code_answers.read_tests, "reasoning": reasoning_tasks.check_gold}


class Judge(NamedTuple):
    """Judges what a policy sampled.

    Attributes:
        tokenizer: of the policy.
        verifier: of text; closed by whoever opened it.
    """

    tokenizer: Tokenizer
    verifier: Verifier

    def verdicts(
        self,
        tokens: Int[np.ndarray, "R T"],
        action_mask: Bool[np.ndarray, "R T"],
        golds: Sequence[str],
    ) -> Int8[np.ndarray, " R"]:
        """1 right, 0 wrong, -1 no verdict.

        Args:
            tokens: [R, T], responses.
            action_mask: [R, T], tokens that were sampled.
            golds: [R].
        """
        return self.verify(tokens, action_mask, golds).verdict

    def verify(
        self,
        tokens: Int[np.ndarray, "R T"],
        action_mask: Bool[np.ndarray, "R T"],
        golds: Sequence[str],
    ) -> Verdicts:
        """Verdicts with their reasons; arguments as `verdicts`."""
        responses = self.tokenizer.decode_responses(np.asarray(tokens), np.asarray(action_mask))
        return self.verifier.verify(responses, list(golds))


def check_golds(name: VerifierName, golds: Sequence[str]) -> None:
    """Refuses golds that the verifier could never judge by, before anything is generated.

    Args:
        name: of the verifier.
        golds: of all prompts.

    Raises:
        ValueError: naming the first prompt whose gold is empty or has another form.
    """
    for i, gold in enumerate(golds):
        try:
            if not gold.strip():
                raise ValueError("gold: is empty")
            if name in _FORMS:
                _FORMS[name](gold)
        except ValueError as error:
            raise ValueError(f"prompt {i}: {error}") from None


def open_verifier(name: VerifierName, *, workers: int = 2) -> Verifier:
    """Starts the processes of a verifier.

    Args:
        name: of the verifier.
        workers: processes, >= 1.

    Raises:
        ValueError: an extra is missing.
        SandboxError: code, on a machine that lacks a part of the sandbox.
    """
    return _VERIFIERS[name](workers=workers)
