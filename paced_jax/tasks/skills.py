"""Eight digit skills at lengths 1 to 10, solved and verified inside compiled code.

| skill | operands | answer |
|---|---|---|
| add | a, b | a + b, n or n + 1 digits |
| reverse | a | its digits from last to first |
| sort | a | its digits in ascending order |
| running_sum | a | sum_{j<=i} a_j mod 10 |
| digitwise_add | a, b | (a_i + b_i) mod 10 |
| running_max | a | max_{j<=i} a_j |
| successor | a | a + 1, n or n + 1 digits |
| alternating_sum | a | sum_{j<=i} (-1)^j a_j mod 10 |

Numbers are little-endian. Shapes: `B` problems, `W` the greatest length, `P = 2 W + 4` prompt
slots, `T = W + 2` answer slots, `R` rollouts, `N` prompts of a pool.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from paced_jax.tasks import tokens as t

MAX_LENGTH = 10
"""W of the shipped pools: 24 prompt slots and 12 answer slots."""

TWO_OPERANDS = ("add", "digitwise_add")
"""Skills that take two operands."""
CARRIES = ("add", "successor")
"""Skills whose answer may have one digit more than the operand."""


class Problems(NamedTuple):
    """Problems and their only right answers.

    Attributes:
        prompt_tokens: [B, P] int32, padded on the right.
        prompt_mask: [B, P], real tokens.
        answer_tokens: [B, T] int32: digits, EOS, then padding.
        answer_lengths: [B] int32, in 2..T, EOS included.
    """

    prompt_tokens: Int[Array, "B P"]
    prompt_mask: Bool[Array, "B P"]
    answer_tokens: Int[Array, "B T"]
    answer_lengths: Int[Array, " B"]


def _add_with_carry(a, b, lengths, first_carry):
    """Digits [B, W + 1] of a + b + first_carry, 0 past the answer, and the last carry [B]."""

    def column(carry, digits):
        place, x, y = digits
        total, inside = x + y + carry, place < lengths
        return jnp.where(inside, total // 10, carry), jnp.where(inside, total % 10, 0)

    places = jnp.arange(a.shape[1], dtype=jnp.int32)
    carry, digits = jax.lax.scan(column, first_carry, (places, a.T, b.T))
    last = jnp.where(jnp.arange(a.shape[1] + 1)[None] == lengths[:, None], carry[:, None], 0)
    return jnp.pad(digits.T, ((0, 0), (0, 1))) + last, carry


def solve(
    skill: Int[Array, " B"],
    lengths: Int[Array, " B"],
    a: Int[Array, "B W"],
    b: Int[Array, "B W"],
) -> tuple[Int[Array, "B W1"], Int[Array, " B"]]:
    """Answers of every skill by the table of the module.

    Args:
        skill: [B], index into `SKILLS`.
        lengths: [B], in 1..W.
        a: [B, W] digits; those past the length are ignored.
        b: [B, W] digits of the second operand, ignored by skills with one.

    Returns:
        (digits [B, W + 1], how many of them are the answer [B]).
    """
    width = a.shape[1]
    slots = jnp.arange(width, dtype=jnp.int32)[None]
    inside = slots < lengths[:, None]
    a, b = jnp.where(inside, a, 0), jnp.where(inside, b, 0)
    successor = (skill == t.SKILLS.index("successor")).astype(lengths.dtype)
    total, carry = _add_with_carry(a, b * (1 - successor[:, None]), lengths, successor)
    mirrored = jnp.take_along_axis(a, jnp.maximum(lengths[:, None] - 1 - slots, 0), axis=1)
    same_length = {
        "reverse": mirrored,
        "sort": jnp.sort(jnp.where(inside, a, 10), axis=1),
        "running_sum": jnp.cumsum(a, axis=1) % 10,
        "digitwise_add": (a + b) % 10,
        "running_max": jax.lax.cummax(a, axis=1),
        "alternating_sum": jnp.cumsum(a * (1 - 2 * (slots % 2)), axis=1) % 10,
    }
    answers = {name: jnp.pad(digits, ((0, 0), (0, 1))) for name, digits in same_length.items()}
    answers |= {"add": total, "successor": total}
    digits = jnp.stack([answers[name] for name in t.SKILLS])
    carries = jnp.asarray([name in CARRIES for name in t.SKILLS])[skill]
    return digits[skill, jnp.arange(a.shape[0])], lengths + jnp.where(carries, carry, 0)


def encode(
    skill: Int[Array, " B"],
    lengths: Int[Array, " B"],
    a: Int[Array, "B W"],
    b: Int[Array, "B W"],
) -> Problems:
    """Writes problems and answers as tokens.

    Args:
        skill: [B], index into `SKILLS`.
        lengths: [B], in 1..W.
        a: [B, W] digits of the first operand, lowest first.
        b: [B, W] digits of the second, where there is one.

    Returns:
        `Problems` with P = 2 W + 4 and T = W + 2.
    """
    width = a.shape[1]
    two = jnp.asarray([name in TWO_OPERANDS for name in t.SKILLS])[skill][:, None]
    n = lengths[:, None]
    slots = jnp.arange(2 * width + 4, dtype=jnp.int32)[None]
    end = 2 + n + jnp.where(two, n + 1, 0)  # where "=" stands

    def operand(digits, start):
        index = jnp.clip(slots - start, 0, width - 1)
        return jnp.take_along_axis(t.DIGIT_0 + digits, index, axis=1)

    prompt = jnp.where(slots < 2 + n, operand(a, 2), operand(b, 3 + n))
    prompt = jnp.where(two & (slots == 2 + n), t.SEPARATOR, prompt)
    prompt = jnp.where(slots == 0, t.BOS, prompt)
    prompt = jnp.where(slots == 1, t.FIRST_MARKER + skill[:, None], prompt)
    prompt = jnp.where(slots == end, t.EQUALS, prompt)
    mask = slots <= end
    digits, count = solve(skill, lengths, a, b)
    places = jnp.arange(width + 2, dtype=jnp.int32)[None]
    answer = jnp.pad(t.DIGIT_0 + digits, ((0, 0), (0, 1)))
    answer = jnp.where(places == count[:, None], t.EOS, answer)
    answer = jnp.where(places > count[:, None], t.PAD, answer)
    return Problems(jnp.where(mask, prompt, t.PAD), mask, answer, count + 1)


def draw_problems(
    key: Key[Array, ""], cell_weights: Float[Array, "S W"], batch_size: int
) -> tuple[Problems, Int[Array, " B"], Int[Array, " B"]]:
    """Draws problems with replacement: a cell by its weight, digits uniform. Consumes `key`.

    Args:
        key: for this batch.
        cell_weights: [8, W] >= 0, relative frequency of each skill and length.
        batch_size: B.

    Returns:
        (`Problems`, skill [B], lengths [B]).
    """
    width = cell_weights.shape[1]
    # One call to the generator: it is what takes the compiler's time here.
    bits = jax.random.bits(key, (batch_size, 1 + 2 * width), jnp.uint32)
    digits = (bits[:, 1:] % 10).astype(jnp.int32)
    total = jnp.cumsum(cell_weights.reshape(-1))
    level = (bits[:, 0] >> 9).astype(total.dtype) * 2.0**-23 * total[-1]  # in [0, total)
    cells = jnp.searchsorted(total, level, side="right").astype(jnp.int32)
    skill, lengths = cells // width, cells % width + 1
    return encode(skill, lengths, digits[:, :width], digits[:, width:]), skill, lengths


def verify(
    answer_tokens: Int[Array, "N T"],
    answer_lengths: Int[Array, " N"],
    prompt_ids: Int[Array, " R"],
    tokens: Int[Array, "R T"],
    action_mask: Bool[Array, "R T"],
) -> Int[Array, " R"]:
    """Exact match, end-of-sequence token included.

    Args:
        answer_tokens: [N, T], the pool's answers.
        answer_lengths: [N], EOS included.
        prompt_ids: [R], in 0..N-1.
        tokens: [R, T], responses.
        action_mask: [R, T], True up to and including EOS.

    Returns:
        [R] int8: 1 right, 0 wrong; a response that never ends is wrong. Never -1 (no verdict).
    """
    places = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    wanted = places < answer_lengths[prompt_ids][:, None]
    same = jnp.where(wanted, tokens == answer_tokens[prompt_ids], True)
    return ((action_mask == wanted) & same).all(axis=1).astype(jnp.int8)
