"""From logits to probabilities and to a token: softmax in log space, truncation, draws. Notebooks 06 and 07."""

from __future__ import annotations

import math

import numpy as np
import scipy.special
from numpy.typing import ArrayLike

from servinglab.errors import CourseError


def logsumexp(x: ArrayLike, axis: int = -1) -> np.ndarray:
    """log(sum(exp(x))) along `axis`, which disappears; -inf where every x is -inf (the log of a sum of zeros)."""
    return scipy.special.logsumexp(as_logits(x), axis)


def log_softmax(logits: ArrayLike, temperature: float = 1.0, axis: int = -1) -> np.ndarray:
    """Log probabilities, same shape: z/T - logsumexp(z/T) along `axis`.

    Temperature 0 and math.inf are the limits: all mass on the highest logit (ties share it equally), and equal mass on
    every logit that is not -inf. Never above 0, and exact where `np.log(softmax(...))` has underflowed to -inf.
    """
    return scipy.special.log_softmax(_below_highest(logits, temperature, axis), axis)


def softmax(logits: ArrayLike, temperature: float = 1.0, axis: int = -1) -> np.ndarray:
    """Probabilities, same shape, sum 1 along `axis`: exp(z/T) / sum(exp(z/T)). Temperature as in `log_softmax`."""
    return scipy.special.softmax(_below_highest(logits, temperature, axis), axis)


def entropy(p: ArrayLike, axis: int = -1, base: float = math.e) -> np.ndarray:
    """Shannon entropy -sum(p log p) along `axis`, with 0 log 0 = 0: in nats, or with base 2 in bits."""
    return scipy.special.entr(as_probabilities(p, axis)).sum(axis) / math.log(base)


def distribution(logits: ArrayLike, temperature: float = 1.0, top_k: int = 0, top_p: float = 0.0) -> np.ndarray:
    """Probabilities [..., vocab], sum 1: temperature, top-k, renormalise, top-p, then renormalise.

    The order matters: a temperature above 1 widens the nucleus of top-p, and top-p measures the mass that top-k left.
    It is TensorRT-LLM's and transformers' order. The last step is transformers': the token that crosses top_p keeps all
    of its probability. TensorRT-LLM's kernels (cpp/tensorrt_llm/kernels/samplingTopKKernels.cu, samplingTopPKernels.cu,
    samplingAirTopPKernels.cu) scale the random number by top_p instead of dividing by what is left, so the same tokens
    survive, but the crossing one keeps only the part that is needed to reach top_p. With all filters off (0) this is
    softmax at `temperature`, while the server reads top_k and top_p both 0 as greedy.

    top_k: so many of the likeliest tokens stay (Fan et al. 2018, "Hierarchical Neural Story Generation"). Among equals
    the lower id ranks first, so exactly k stay; transformers keeps all that tie with the k-th.
    top_p: the likeliest tokens stay that together reach it, the nucleus (Holtzman et al. 2020, "The Curious Case of
    Neural Text Degeneration"). The token that crosses it is kept; one after a token that reaches it exactly is not.
    """
    if not (top_k >= 0 and top_k == int(top_k)):
        raise CourseError(f"top_k is {top_k}; it must be a whole number, 0 (off) or more.")
    if not top_p >= 0:
        raise CourseError(f"top_p is {top_p}; it must be 0 (off) or more.")
    z = as_logits(logits)
    # Temperature keeps the ranks, so top-k may go first; at temperature inf, where all are equal, it has to.
    p = softmax(_leading(z, top_k) if top_k else z, temperature)
    if not 0 < top_p < 1:
        return p
    falling = np.flip(np.sort(p), -1)
    kept = _leading(p, (falling.cumsum(-1) < top_p).sum(-1, keepdims=True) + 1, 0.0)
    return kept / kept.sum(-1, keepdims=True)


def _leading(x: np.ndarray, count: int | np.ndarray, rest: float = -math.inf) -> np.ndarray:
    """`x` with all but its `count` highest replaced by `rest`, the lower index first among equals."""
    rank = np.argsort(np.argsort(-x, kind="stable"))
    return np.where(rank < count, x, rest)


def greedy(logits: ArrayLike) -> int | np.ndarray:
    """The token of the highest logit, the lowest id among equals: int for [vocab], int array [...] for [..., vocab]."""
    best = _below_highest(logits, 1.0, -1).argmax(-1)
    return int(best) if best.ndim == 0 else best


def categorical(p: ArrayLike, rng: np.random.Generator, size: int | None = None) -> int | np.ndarray:
    """Draws tokens from probabilities [vocab] by inverting the cumulative sum: int, or int array [size].

    Raises CourseError for probabilities that do not sum to 1, as after a filter without renormalising.
    """
    cumulative = as_probabilities(p).cumsum()
    # "right" steps over probabilities of 0. The uniform number is below 1, so the last sum is never reached.
    drawn = np.searchsorted(cumulative, rng.random(size) * cumulative[-1], side="right")
    return int(drawn) if size is None else drawn


def as_logits(logits: ArrayLike) -> np.ndarray:
    """A copy in float64; CourseError for nan and +inf."""
    z = np.array(logits, np.float64)
    if np.isnan(z).any() or (z == np.inf).any():
        raise CourseError("The logits hold nan or +inf; look for an overflow in the step that computed them.")
    return z


def as_probabilities(p: ArrayLike, axis: int = -1) -> np.ndarray:
    """`p` in float64; CourseError unless its values are at least 0 and sum to 1 (within 0.001) along `axis`."""
    p = np.asarray(p, np.float64)
    total = p.sum(axis)
    if not ((p >= 0).all() and (abs(total - 1) <= 1e-3).all()):
        raise CourseError(
            f"These are no probabilities: the lowest is {p.min():.4g} and they sum to {np.ravel(total)[0]:.4g}; "
            "pass what a softmax gave, divided by its sum after a filter."
        )
    return p


def _below_highest(logits: ArrayLike, temperature: float, axis: int) -> np.ndarray:
    """(z - max z) / T: 0 for the highest logit, negative for the rest; as large as a softmax ever needs."""
    z = as_logits(logits)
    if not temperature >= 0:
        raise CourseError(f"temperature is {temperature}; it must be 0 (always the likeliest) or more.")
    highest = z.max(axis, keepdims=True)
    if (highest == -np.inf).any():
        raise CourseError("Every logit is -inf, so no token is left; loosen the filter or the ban that did it.")
    if temperature == 0:
        return np.where(z == highest, 0.0, -np.inf)
    if temperature == math.inf:
        return np.where(z == -np.inf, -np.inf, 0.0)
    with np.errstate(over="ignore"):  # to -inf, a probability of 0
        return (z - highest) / temperature
