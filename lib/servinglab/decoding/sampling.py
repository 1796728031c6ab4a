"""The probabilities a strategy samples from, and three ways to choose a token."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from servinglab.errors import CourseError

from . import filters
from .logspace import as_logits, as_probabilities, as_row, log_softmax, softmax

_NOISE = 2**20  # numbers that gumbel_max draws at a time: 8 MiB


def distribution(
    logits: ArrayLike, temperature: float = 1.0, top_k: int = 0, top_p: float = 0.0, min_p: float = 0.0
) -> np.ndarray:
    """Probabilities [..., vocab], sum 1: temperature, top-k, renormalise, top-p, then min-p, then renormalise.

    The order matters: a temperature above 1 widens the nucleus of top-p, and top-p measures the mass that top-k left.
    It is TensorRT-LLM's and transformers' order. The last step is transformers': the token that crosses top_p keeps all
    of its probability. TensorRT-LLM's kernels (cpp/tensorrt_llm/kernels/samplingTopKKernels.cu, samplingTopPKernels.cu,
    samplingAirTopPKernels.cu) scale the random number by top_p instead of dividing by what is left, so the same tokens
    survive, but the crossing one keeps only the part that is needed to reach top_p. With all filters off (0) this is
    softmax at `temperature`, while the server reads top_k and top_p both 0 as greedy.
    """
    # Temperature keeps the ranks, so top-k may go first; at temperature inf, where all are equal, it has to.
    kept = log_softmax(filters.top_k(logits, top_k), temperature)
    return softmax(filters.min_p(filters.top_p(kept, top_p), min_p))


def greedy(logits: ArrayLike) -> int | np.ndarray:
    """The token of the highest logit, the lowest id among equals: int for [vocab], int array [...] for [..., vocab]."""
    z = as_logits(logits)
    if (z.max(-1) == -np.inf).any():
        raise CourseError("Every logit is -inf, so no token is left to choose.")
    best = z.argmax(-1)
    return int(best) if z.ndim == 1 else best


def categorical(p: ArrayLike, rng: np.random.Generator, size: int | None = None) -> int | np.ndarray:
    """Draws tokens from probabilities [vocab] by inverting the cumulative sum: int, or int array [size].

    Raises CourseError for probabilities that do not sum to 1, as after a filter without renormalising.
    """
    p = as_probabilities(p)
    if p.ndim != 1:
        raise CourseError(f"The probabilities have shape {p.shape}; give one row of the vocabulary at a time.")
    cumulative = p.cumsum()
    # "right" steps over probabilities of 0. The uniform number is below 1, so the last sum is never reached.
    drawn = np.searchsorted(cumulative, _generator(rng).random(size) * cumulative[-1], side="right")
    return int(drawn) if size is None else drawn


def gumbel_max(logits: ArrayLike, rng: np.random.Generator, size: int | None = None) -> int | np.ndarray:
    """Draws tokens with the probabilities softmax(logits) without computing them: the highest of logit + Gumbel noise
    (Gumbel 1954). int, or int array [size]. For a temperature, divide the logits by it first."""
    z = as_row(logits)
    ids = np.flatnonzero(z > -np.inf)
    if not ids.size:
        raise CourseError("Every logit is -inf, so no token is left to choose.")
    rng, draws = _generator(rng), 1 if size is None else size
    rows = max(1, _NOISE // ids.size)
    parts = [
        (z[ids] + rng.gumbel(size=(min(rows, draws - start), ids.size))).argmax(1) for start in range(0, draws, rows)
    ]
    drawn = ids[np.concatenate(parts)] if parts else np.empty(0, np.int64)
    return int(drawn[0]) if size is None else drawn


def _generator(rng: object) -> np.random.Generator:
    if not isinstance(rng, np.random.Generator):
        raise CourseError("rng must be a numpy Generator; make one with np.random.default_rng(seed).")
    return rng
