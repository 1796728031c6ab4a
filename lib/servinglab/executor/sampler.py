"""From a row of logits to a token: penalties, bans, temperature, top-k, top-p, one draw. numpy only."""

from __future__ import annotations

import numpy as np

from .request import Request, RequestError, SamplingParams


class Sampler:
    """Chooses the tokens of one request. It owns the request's random numbers, one per token drawn, so that the others
    in its batch do not change them. (With int4 weights the logits differ in the last digits between batch sizes, and
    so may a text; with fp32 it does not.)"""

    def __init__(self, request: Request, vocab_size: int) -> None:
        self._params = params = request.sampling
        self._prompt_length = len(request.prompt)
        self._end_id = request.end_id
        self._bad_words = request.bad_words
        self._random = np.random.Generator(np.random.PCG64(params.seed))
        penalised = params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0
        self._counts = np.zeros(vocab_size, np.int32) if penalised else None
        self._counted = 0

    def choose(self, logits: np.ndarray, tokens: list[int]) -> int:
        """The next token after `tokens` (prompt and generated). `logits` float32 [vocab] is used as scratch space.

        Raises RequestError when no token is left to choose.
        """
        params = self._params
        # The order of TensorRT-LLM's penalty kernel: temperature before the penalties, bans last. (transformers applies
        # its penalties first; only presence and frequency penalties at a temperature other than 1 tell the two apart.)
        if not params.greedy and params.temperature != 1:
            logits /= np.float32(max(params.temperature, 1e-6))  # the floor keeps float32 from overflowing
        if self._counts is not None:
            for token in tokens[self._counted :]:
                self._counts[token] += 1
            self._counted = len(tokens)
            penalise(logits, self._counts, params)
        for token in self._banned(tokens):
            logits[token] = -np.inf
        best = int(logits.argmax())
        if not np.isfinite(logits[best]):
            raise RequestError(
                "No token is left to choose: bad_words forbids the whole vocabulary."
                if logits[best] == -np.inf
                else "The model's logits are not finite numbers, so no token can be chosen."
            )
        if params.greedy:
            return best
        ids, probabilities = distribution(logits, params.top_k, params.top_p)
        cumulative = probabilities.cumsum()
        at = np.searchsorted(cumulative, self._random.random() * cumulative[-1], side="right")
        return int(ids[min(at, len(ids) - 1)])

    def _banned(self, tokens: list[int]) -> list[int]:
        banned = [word[-1] for word in self._bad_words if ends_with(tokens, word[:-1])]
        if self._end_id is not None and len(tokens) - self._prompt_length < self._params.min_tokens:
            banned.append(self._end_id)
        return banned


def ends_with(tokens: list[int], word: list[int]) -> bool:
    """Whether the last tokens are `word` (the empty word always matches)."""
    return not word or tokens[-len(word) :] == word


def penalise(logits: np.ndarray, counts: np.ndarray, params: SamplingParams) -> None:
    """Lowers, in place, the logits [vocab] of tokens seen before; `counts` [vocab] says how often."""
    seen = np.flatnonzero(counts)
    values = logits[seen].astype(np.float64)
    with np.errstate(over="ignore"):
        values = np.where(values < 0, values * params.repetition_penalty, values / params.repetition_penalty)
        values -= params.presence_penalty + params.frequency_penalty * counts[seen]
    logits[seen] = values.clip(-1e37, 1e37)  # absurd penalties must not become infinities


def distribution(logits: np.ndarray, top_k: int, top_p: float) -> tuple[np.ndarray, np.ndarray]:
    """The tokens that survive top-k and then top-p, and their probabilities (float64, sum 1), both [n].

    top-p works on the probabilities renormalised after top-k and keeps the token that crosses it.
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
