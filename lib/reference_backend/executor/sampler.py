"""From a row of logits to a token: bias, temperature, penalties, bans; then top-k, top-p, one draw. numpy only.
Notebooks 06 to 08 teach the same steps in the open; tests/unit/test_decoding_distributions.py holds the two equal.
"""

from collections.abc import Sequence

import numpy as np

from .params import RequestError, SamplingParams
from .request import Request


class NoTokenLeft(RequestError):
    """Every token is forbidden."""


class LogitsProcessor:
    """The changes that one request makes to its logits. With `temperature` false that of the request is not applied."""

    def __init__(self, request: Request, vocab_size: int, *, temperature: bool) -> None:
        self._params = params = request.sampling
        self._prompt_length = len(request.prompt) - request.generated
        self._end_id = request.end_id
        self._bad_words = Words(request.bad_words)
        self._bias = request.embedding_bias
        # The floor keeps float32 from overflowing.
        self._temperature = np.float32(max(params.temperature, 1e-6)) if temperature else np.float32(1)
        penalised = params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0
        self._counts = np.zeros(vocab_size, np.int32) if penalised else None
        self._counted = 0

    def forget(self) -> None:
        """The next tokens are no continuation of the last ones."""
        if self._counts is not None:
            self._counts[:] = self._counted = 0

    def is_idle(self, length: int) -> bool:
        """Whether `apply` after `length` tokens will change nothing."""
        if self._bias is not None or self._counts is not None or self._bad_words or self._temperature != 1:
            return False
        return self._end_id is None or length - self._prompt_length >= self._params.min_tokens

    def apply(self, logits: np.ndarray, tokens: list[int]) -> int:
        """Changes `logits` float32 [vocab] in place; `tokens` are the prompt and the generated ones so far. Returns
        the likeliest token. Raises NoTokenLeft when there is none, RequestError when the logits are no numbers.
        """
        # The order of TensorRT-LLM's penalty kernel: bias, temperature, penalties, bans. (transformers applies its
        # penalties first; only presence and frequency penalties at a temperature other than 1 tell the two apart.)
        if self._bias is not None:
            with np.errstate(over="ignore"):
                logits[: len(self._bias)] += self._bias
        if self._temperature != 1:
            with np.errstate(over="ignore"):
                logits /= self._temperature
        if self._counts is not None:
            new = np.array(tokens[self._counted :], np.int64)
            np.add.at(self._counts, new[new < len(self._counts)], 1)  # not those of a prompt_embedding_table
            self._counted = len(tokens)
            penalise(logits, self._counts, self._params)
        banned = self._bad_words.completed_by(tokens)
        if self._end_id is not None and len(tokens) - self._prompt_length < self._params.min_tokens:
            banned.append(self._end_id)
        logits[banned] = -np.inf
        best = int(logits.argmax())
        if not np.isfinite(logits[best]):
            if logits[best] != -np.inf:
                cause = "The model's logits" if self._bias is None else "The model's logits with embedding_bias"
                raise RequestError(f"{cause} are not finite numbers, so no token can be chosen.")
            forbids = "bad_words forbids" if self._bias is None else "embedding_bias (with bad_words) forbids"
            raise NoTokenLeft(f"No token is left to choose: {forbids} the whole vocabulary.")
        return best


def penalise(logits: np.ndarray, counts: np.ndarray, params: SamplingParams) -> None:
    """Lowers, in place, the logits [vocab] of tokens seen before; `counts` [vocab] says how often."""
    seen = np.flatnonzero(counts)
    values = logits[seen].astype(np.float64)
    with np.errstate(over="ignore"):
        values = np.where(values < 0, values * params.repetition_penalty, values / params.repetition_penalty)
        values -= params.presence_penalty + params.frequency_penalty * counts[seen]
    # Absurd penalties must not become infinities; what a bias forbids stays forbidden.
    logits[seen] = np.where(np.isneginf(values) & np.isneginf(logits[seen]), values, values.clip(-1e37, 1e37))


def log_normaliser(logits: np.ndarray) -> float:
    """log of the sum of exp(logits), `logits` float32 [vocab] of which one is finite; subtract it for log softmax."""
    highest = logits.max()
    # The exponential in float32, four times as fast, its sum in float64: an error below 1e-6.
    return float(highest) + float(np.log(np.exp(logits - highest).sum(dtype=np.float64)))


class Words:
    """Finds the tokens that would complete a word. What that costs does not grow with the number of words, only with
    that of their different lengths (and with how many do come up)."""

    def __init__(self, words: Sequence[Sequence[int]]) -> None:
        self._last: dict[tuple[int, ...], list[int]] = {}  # by the tokens before
        for word in words:
            self._last.setdefault(tuple(word[:-1]), []).append(word[-1])
        self._lengths = sorted({len(start) for start in self._last})

    def __bool__(self) -> bool:
        return bool(self._last)

    def completed_by(self, tokens: list[int]) -> list[int]:
        """Each token that completes a word if it is the next after `tokens`."""
        fitting = (length for length in self._lengths if length <= len(tokens))
        return [last for length in fitting for last in self._last.get(tuple(tokens[len(tokens) - length :]), ())]


class Sampler:
    """Chooses the tokens of one request. It owns the request's random numbers, one per token drawn, so that the others
    in its batch do not change them."""

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
