"""Enumerable policies: every response of a small tree, with exact probabilities."""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Tree(NamedTuple):
    """All `Y` responses over a vocabulary whose last id ends a response, cut at `T` tokens."""

    tokens: np.ndarray  # [Y, T]
    mask: np.ndarray  # [Y, T]
    prefix: np.ndarray  # [Y, T], which row of a table of logits predicts the token
    num_prefixes: int


def tree(vocabulary: int, max_tokens: int) -> Tree:
    eos, rows, prefixes = vocabulary - 1, [], {}
    for length in range(1, max_tokens + 1):
        for body in itertools.product(range(eos), repeat=length - 1):
            ends = range(vocabulary) if length == max_tokens else [eos]
            rows += [(*body, end) for end in ends]
    shape = (len(rows), max_tokens)
    tokens, prefix, mask = np.zeros(shape, int), np.zeros(shape, int), np.zeros(shape, bool)
    for i, row in enumerate(rows):
        for t, token in enumerate(row):
            tokens[i, t], mask[i, t] = token, True
            prefix[i, t] = prefixes.setdefault(row[:t], len(prefixes))
    return Tree(tokens, mask, prefix, len(prefixes))


def log_probs(logits, tree: Tree):
    """[Y, T] log-probabilities under logits [prefixes, vocabulary]; 0 where masked."""
    per_token = jax.nn.log_softmax(logits, axis=-1)[tree.prefix, tree.tokens]
    return jnp.where(tree.mask, per_token, 0.0)


def probabilities(logits, tree: Tree) -> np.ndarray:
    """[Y] by a loop over tokens, in numpy."""
    logits = np.asarray(logits, float)
    table = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    return np.array(
        [
            np.prod([table[p, t] for p, t, m in zip(*row, strict=True) if m])
            for row in zip(tree.prefix, tree.tokens, tree.mask, strict=True)
        ]
    )


def score(logits, tree: Tree) -> np.ndarray:
    """[Y, prefixes, vocabulary]: gradient of log pi(y), token minus distribution at each prefix."""
    logits = np.asarray(logits, float)
    table = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    gradient = np.zeros((len(tree.tokens), *logits.shape))
    for y, row in enumerate(zip(tree.prefix, tree.tokens, tree.mask, strict=True)):
        for p, t, m in zip(*row, strict=True):
            if m:
                gradient[y, p] -= table[p]
                gradient[y, p, t] += 1
    return gradient


def logits_of(distribution: np.ndarray, tree: Tree, vocabulary: int) -> np.ndarray:
    """Logits whose responses have the given probabilities: log of the mass behind each branch."""
    mass = np.zeros((tree.num_prefixes, vocabulary))
    for y, row in enumerate(zip(tree.prefix, tree.tokens, tree.mask, strict=True)):
        for p, t, m in zip(*row, strict=True):
            mass[p, t] += m * distribution[y]
    return np.log(mass)
