"""Penalties on tokens that were there before, and the ban on ending early. One row of logits [vocab] at a time.

TensorRT-LLM divides by the temperature first and penalises after; transformers penalises first. For the repetition
penalty (a factor) the order makes no difference; a presence or frequency penalty (a difference) weighs T times as much
in TensorRT-LLM. Notebook 07.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from servinglab.errors import CourseError

from .distributions import as_logits


def repetition_penalty(logits: ArrayLike, tokens: Sequence[int], penalty: float) -> np.ndarray:
    """Logits [vocab] with each token of `tokens` made less likely, once, however often it occurs (Keskar et al. 2019,
    "CTRL"): positive logits are divided by `penalty`, negative ones multiplied. 1 is off, below 1 rewards repetition.
    """
    if not penalty > 0:
        raise CourseError(f"The repetition penalty is {penalty}; it must be a number above 0 (1 is off).")
    z = as_logits(logits)
    seen = _counts(tokens, z.size) > 0
    return np.where(seen, np.where(z < 0, z * penalty, z / penalty), z)


def presence_frequency_penalty(
    logits: ArrayLike, tokens: Sequence[int], presence: float = 0.0, frequency: float = 0.0
) -> np.ndarray:
    """Logits [vocab] minus `presence` for each token that occurs in `tokens`, minus `frequency` times its count (as in
    OpenAI's API). 0 is off; negative values reward repetition. TensorRT-LLM counts the tokens of the prompt too.
    """
    z = as_logits(logits)
    counts = _counts(tokens, z.size)
    return z - presence * (counts > 0) - frequency * counts


def min_tokens_mask(logits: ArrayLike, end_id: int, generated: int, min_tokens: int) -> np.ndarray:
    """Logits [vocab] with `end_id` at -inf while fewer than `min_tokens` tokens are generated, without the prompt."""
    z = as_logits(logits)
    if generated < min_tokens:
        z[end_id] = -np.inf
    return z


def _counts(tokens: Sequence[int], vocab: int) -> np.ndarray:
    """How often each token occurs, int [vocab]."""
    ids = np.asarray(tokens, np.int64)
    if ids.size and not 0 <= ids.min() <= ids.max() < vocab:
        raise CourseError(f"A token id is outside the logits: ids must be from 0 to {vocab - 1}.")
    return np.bincount(ids, minlength=vocab)
