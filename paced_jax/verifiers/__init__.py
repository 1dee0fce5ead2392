"""Verifiers of text on the host: right, wrong or none, from any thread, hostile input or not.

`math_answers`, `code_answers` and `reasoning_tasks` judge; `pool` and `sandbox` contain.
"""

from paced_jax.verifiers.code_answers import CodeVerifier
from paced_jax.verifiers.math_answers import MathVerifier
from paced_jax.verifiers.pool import WorkerPool
from paced_jax.verifiers.reasoning_tasks import ReasoningVerifier
from paced_jax.verifiers.sandbox import Limits, SandboxError
from paced_jax.verifiers.verdicts import Verdicts, Verifier, why_none

__all__ = [
    "CodeVerifier",
    "Limits",
    "MathVerifier",
    "ReasoningVerifier",
    "SandboxError",
    "Verdicts",
    "Verifier",
    "WorkerPool",
    "why_none",
]
