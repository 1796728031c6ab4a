"""Penalties on tokens that were there before, and the ban on ending early. One row of logits [vocab] at a time.

TensorRT-LLM divides by the temperature first and penalises after; transformers penalises first. For the repetition
penalty (a factor) the order makes no difference; a presence or frequency penalty (a difference) weighs T times as much
in TensorRT-LLM.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from servinglab.errors import CourseError

from .logspace import as_row

_MAX = np.finfo(np.float64).max


def repetition_penalty(logits: ArrayLike, tokens: Iterable[int], penalty: float) -> np.ndarray:
    """Logits [vocab] with each token of `tokens` made less likely, once, however often it occurs (Keskar et al. 2019,
    "CTRL"): positive logits are divided by `penalty`, negative ones multiplied. 1 is off, below 1 rewards repetition.
    """
    z = as_row(logits)
    if not (math.isfinite(penalty) and penalty > 0):
        raise CourseError(f"The repetition penalty is {penalty}; it must be a number above 0 (1 is off).")
    seen = np.flatnonzero(_counts(tokens, z.size))
    with np.errstate(over="ignore"):
        z[seen] = _still_logits(np.where(z[seen] < 0, z[seen] * penalty, z[seen] / penalty), z[seen])
    return z


def presence_frequency_penalty(
    logits: ArrayLike, tokens: Iterable[int], presence: float = 0.0, frequency: float = 0.0
) -> np.ndarray:
    """Logits [vocab] minus `presence` for each token that occurs in `tokens`, minus `frequency` times its count (as in
    OpenAI's API). 0 is off; negative values reward repetition. TensorRT-LLM counts the tokens of the prompt too.
    """
    z = as_row(logits)
    if not (math.isfinite(presence) and math.isfinite(frequency)):
        raise CourseError(f"The penalties are {presence} and {frequency}; both must be finite numbers (0 is off).")
    counts = _counts(tokens, z.size)
    seen = np.flatnonzero(counts)
    with np.errstate(over="ignore", invalid="ignore"):
        z[seen] = _still_logits(z[seen] - (presence + frequency * counts[seen]), z[seen])
    return z


def min_tokens_mask(logits: ArrayLike, end_id: int | None, generated: int, min_tokens: int) -> np.ndarray:
    """Logits [vocab] with `end_id` at -inf while fewer than `min_tokens` tokens have been generated (prompt excluded).
    None as `end_id` changes nothing."""
    z = as_row(logits)
    if end_id is not None and generated < min_tokens:
        z[_counts([end_id], z.size) > 0] = -np.inf
    return z


def _still_logits(changed: np.ndarray, before: np.ndarray) -> np.ndarray:
    """The changed logits: forbidden ones stay so, and no other becomes infinite by an absurd penalty."""
    return np.where(before == -np.inf, -np.inf, changed.clip(-_MAX, _MAX))


def _counts(tokens: Iterable[int], vocab: int) -> np.ndarray:
    """How often each token occurs, int [vocab]; CourseError for an id outside the vocabulary."""
    try:
        ids = [operator.index(token) for token in tokens]
    except TypeError:
        raise CourseError("The tokens must be a list of whole numbers (token ids).") from None
    outside = [token for token in ids if not 0 <= token < vocab]
    if outside:
        raise CourseError(f"Token id {outside[0]} is outside the logits; ids must be from 0 to {vocab - 1}.")
    return np.bincount(np.array(ids, np.int64), minlength=vocab)
