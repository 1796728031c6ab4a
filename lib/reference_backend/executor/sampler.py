"""From a row of logits to a token: top-k, top-p, one draw. numpy only."""

from __future__ import annotations

import numpy as np

from .logits import LogitsProcessor
from .request import Request


class Sampler:
    """Chooses the tokens of one request. It owns the request's random numbers, one per token drawn, so that the others
    in its batch do not change them. (With int4 weights the logits differ in the last digits between batch sizes, and
    so may a text; with fp32 it does not.)"""

    def __init__(self, request: Request, vocab_size: int) -> None:
        self._params = params = request.sampling
        self._processor = LogitsProcessor(request, vocab_size, temperature=not params.greedy)
        self._random = np.random.Generator(np.random.PCG64(params.seed).advance(request.generated))

    def is_free(self, length: int) -> bool:
        """Whether the choice after `length` tokens will be the likeliest token of the logits as they come."""
        return self._params.greedy and self._processor.is_idle(length)

    def choose(self, logits: np.ndarray, tokens: list[int]) -> int:
        """The next token after `tokens` (prompt and generated). `logits` float32 [vocab] is used as scratch space: what
        it holds afterwards are the logits that the choice was made from.

        Raises RequestError when no token is left to choose.
        """
        best = self._processor.apply(logits, tokens)
        if self._params.greedy:
            return best
        ids, probabilities = distribution(logits, self._params.top_k, self._params.top_p)
        cumulative = probabilities.cumsum()
        at = np.searchsorted(cumulative, self._random.random() * cumulative[-1], side="right")
        return int(ids[min(at, len(ids) - 1)])


def distribution(logits: np.ndarray, top_k: int, top_p: float) -> tuple[np.ndarray, np.ndarray]:
    """The tokens that survive top-k and then top-p, and their probabilities (float64, sum 1), both [n].

    top-p works on the probabilities renormalised after top-k and keeps the token that crosses it, whole. (The kernels
    of TensorRT-LLM scale the random number by top_p instead, so that the crossing token keeps its part up to top_p.)
    """
    top_k = min(top_k, logits.size)
    nucleus = 0 < top_p < 1
    if top_k:
        ids = largest(logits, top_k)
        weights = np.exp(logits[ids] - logits[ids[0]], dtype=np.float64)
        if nucleus:
            weights = weights[: _nucleus_size(weights, top_p * weights.sum())]
        return ids[: weights.size], weights / weights.sum()
    below = logits.max() - logits
    weights = np.exp(-below).astype(np.float64)  # the exponential itself in float32, four times as fast
    if not nucleus:
        return np.arange(weights.size), weights / weights.sum()
    ids = _nucleus(below, weights, top_p * weights.sum())
    return ids, weights[ids] / weights[ids].sum()


def _nucleus(below: np.ndarray, weights: np.ndarray, mass: float) -> np.ndarray:
    """Indices of the likeliest tokens that together reach `mass`; `below` is how far each logit lies under the highest.

    Sorting a vocabulary costs milliseconds. Instead tokens are put into bins by their logit (1/16 wide), and only the
    bin in which the mass is reached is sorted.
    """
    bins = np.minimum(below * 16, 1023).astype(np.int32)
    reached = np.bincount(bins, weights).cumsum()
    last = min(int(np.searchsorted(reached, mass)), reached.size - 1)
    sure = np.flatnonzero(bins < last)
    edge = np.flatnonzero(bins == last)
    edge = edge[np.argsort(below[edge], kind="stable")]
    missing = mass - (reached[last - 1] if last else 0.0)
    return np.concatenate([sure, edge[: _nucleus_size(weights[edge], missing)]])


def _nucleus_size(weights: np.ndarray, mass: float) -> int:
    """How many of the leading weights reach `mass`; one more than there are if they do not."""
    return int(np.searchsorted(weights.cumsum(), mass)) + 1


def largest(values: np.ndarray, count: int) -> np.ndarray:
    """Indices of the `count` largest values, largest first, the lower index first among equals."""
    columns = values.size // 16
    if count > columns:
        return np.argsort(-values, kind="stable")[:count]
    # Few candidates are enough: the count-th largest of the column maxima cannot exceed the count-th largest value.
    maxima = values[: 16 * columns].reshape(16, columns).max(axis=0)
    candidates = np.flatnonzero(values >= np.partition(maxima, columns - count)[columns - count])
    return candidates[np.argsort(-values[candidates], kind="stable")[:count]]
