"""Truncation: each filter returns the logits with every dropped token at -inf, as transformers' warpers do.

Dropping is all they do. The softmax that follows renormalises; whoever filters probabilities must divide by the sum
that is left. The value 0 switches a filter off, as in TensorRT-LLM (transformers reads top_p 0 as "the best token
only" and refuses top_k 0).

Ties: among equal logits the lower token id ranks first, so top_k keeps exactly k tokens. transformers' TopKLogitsWarper
keeps every token that ties with the k-th, and its TopPLogitsWarper leaves the order of equals to an unstable sort.
"""

from __future__ import annotations

import math
import operator

import numpy as np
from numpy.typing import ArrayLike

from servinglab.errors import CourseError

from .logspace import as_logits, softmax


def top_k(logits: ArrayLike, k: int, axis: int = -1) -> np.ndarray:
    """Keeps the k highest logits along `axis` (Fan et al. 2018, "Hierarchical Neural Story Generation").

    0, or k at or above the vocabulary size, keeps all.
    """
    z = as_logits(logits, axis)
    try:
        k = operator.index(k)
    except TypeError:
        k = -1
    if k < 0:
        raise CourseError("top_k must be a whole number, 0 (off) or more.")
    return z if k == 0 else _keep_leading(z, k, axis)


def top_p(logits: ArrayLike, p: float, axis: int = -1) -> np.ndarray:
    """Keeps the likeliest tokens that together reach probability p, the nucleus (Holtzman et al. 2020, "The Curious
    Case of Neural Text Degeneration").

    The token that crosses p is kept, so the nucleus holds at least p; a token after one that reaches p exactly is
    dropped. 0 and p >= 1 keep all.
    """
    z = as_logits(logits, axis)
    _not_negative("top_p", p)
    if p == 0 or p >= 1:
        return z
    ranked = np.flip(np.sort(softmax(z, axis=axis), axis=axis), axis=axis)
    short_of_p = (ranked.cumsum(axis) < p).sum(axis, keepdims=True)
    return _keep_leading(z, short_of_p + 1, axis)


def min_p(logits: ArrayLike, p: float, axis: int = -1) -> np.ndarray:
    """Keeps tokens at least p times as likely as the likeliest (Nguyen et al. 2024, "Turning Up the Heat").

    In log space a constant distance: z >= max z + log p. A token exactly at it is kept, and so is every tie. 0 is off.
    """
    z = as_logits(logits, axis)
    _not_negative("min_p", p)
    if p > 1:
        raise CourseError(f"min_p is {p}; it must be from 0 (off) to 1.")
    return z if p == 0 else np.where(z >= z.max(axis, keepdims=True) + math.log(p), z, -np.inf)


def _keep_leading(z: np.ndarray, count: int | np.ndarray, axis: int) -> np.ndarray:
    """The `count` highest along `axis`, the lower index first among equals; the rest becomes -inf."""
    order = np.argsort(-z, axis=axis, kind="stable")
    rank = np.argsort(order, axis=axis)
    return np.where(rank < count, z, -np.inf)


def _not_negative(name: str, value: float) -> None:
    if not value >= 0:
        raise CourseError(f"{name} is {value}; it must be 0 (off) or more.")
