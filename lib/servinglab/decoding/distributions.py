"""From logits to probabilities: temperature, truncation, a penalty. Notebooks 06, 07 and 10 derive them in numpy."""

import math
from collections.abc import Sequence

import numpy as np
import scipy.special
from numpy.typing import ArrayLike

from servinglab.errors import CourseError


def softmax(logits: ArrayLike, temperature: float = 1.0) -> np.ndarray:
    """Probabilities, same shape, sum 1 along the last axis: exp(z/T) / sum(exp(z/T))."""
    z = np.asarray(logits, np.float64)
    if not temperature > 0:
        raise CourseError(f"temperature is {temperature}; it must be above 0 (towards 0 the likeliest takes all).")
    if np.isnan(z).any() or (z == np.inf).any() or (highest := z.max(-1, keepdims=True)).min() == -np.inf:
        raise CourseError("The logits hold nan or +inf, or a row is -inf throughout; look at the step before.")
    with np.errstate(over="ignore"):  # to -inf, a probability of 0
        return scipy.special.softmax((z - highest) / temperature, -1)


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
    z = np.asarray(logits, np.float64)
    p = softmax(_leading(z, top_k, -math.inf) if top_k else z, temperature)  # temperature keeps the ranks
    if not 0 < top_p < 1:
        return p
    falling = np.flip(np.sort(p), -1)
    kept = _leading(p, (falling.cumsum(-1) < top_p).sum(-1, keepdims=True) + 1, 0.0)
    return kept / kept.sum(-1, keepdims=True)


def repetition_penalty(logits: ArrayLike, tokens: Sequence[int], penalty: float) -> np.ndarray:
    """Logits [vocab] with each token of `tokens` made less likely, once, however often it occurs (Keskar et al. 2019,
    "CTRL"): positive logits are divided by `penalty`, negative ones multiplied. 1 is off, below 1 rewards repetition.
    """
    z = np.array(logits, np.float64)
    seen = np.unique(np.asarray(tokens, np.int64))
    z[seen] = np.where(z[seen] < 0, z[seen] * penalty, z[seen] / penalty)
    return z


def _leading(x: np.ndarray, count: int | np.ndarray, rest: float) -> np.ndarray:
    """`x` with all but its `count` highest replaced by `rest`, the lower index first among equals."""
    return np.where(np.argsort(np.argsort(-x, kind="stable")) < count, x, rest)
