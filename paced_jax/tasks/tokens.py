"""The vocabulary of the skill tasks: 24 tokens, one of them a digit's worth of meaning each.

A prompt reads `BOS marker operand =` or `BOS marker operand ; operand =`; an answer reads
`digits EOS`. Operands and answers are little-endian: the lowest digit comes first.
"""

import numpy as np
from jaxtyping import Int

PAD = 0
"""Fills rows on the right."""
BOS = 1
"""Begins a prompt."""
EOS = 2
"""Ends an answer."""
EQUALS = 3
"""Ends a prompt."""
SEPARATOR = 4
"""Stands between two operands."""
DIGIT_0 = 5
"""The digit 0; the others follow."""
FIRST_MARKER = 15
"""Marker of the first skill; the others follow."""
SKILLS = (
    "add",
    "reverse",
    "sort",
    "running_sum",
    "digitwise_add",
    "running_max",
    "successor",
    "alternating_sum",
)
"""Names of the skills, in the order of their markers and of `skill` columns."""

VOCAB_SIZE = 24
"""23 in use; rounded up for aligned matrix products."""

_WORDS = ("<pad>", "<bos>", "<eos>", "=", ";", *"0123456789", *SKILLS, "<unused>")


def render(tokens: Int[np.ndarray, " S"]) -> str:
    """Words of a token row, without padding and the first token.

    Args:
        tokens: [S], in 0..VOCAB_SIZE-1.

    Returns:
        The words, separated by spaces.

    Example:
        >>> render(np.array([1, 15, 7, 4, 8, 3, 0, 0]))
        'add 2 ; 3 ='
    """
    return " ".join(_WORDS[token] for token in tokens.tolist() if token not in (PAD, BOS))
