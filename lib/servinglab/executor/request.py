"""What a caller hands to the executor and what it gets back, with every check that needs no engine.

Names, defaults and ranges are those of TensorRT-LLM's executor (`SamplingConfig`), as its Triton backend exposes them.
"""

from __future__ import annotations

import logging
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from servinglab.errors import CourseError

log = logging.getLogger(__name__)

#: Above this a request is a mistake; below it, what does not fit `max_seq_len` is clamped as TensorRT-LLM does.
MAX_TOKENS_LIMIT = 1_000_000
MAX_TOP_K = 1024


class RequestError(CourseError):
    """The request cannot be served as it is; the executor is unharmed."""


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is chosen.

    `top_k` 0 and `top_p` 0 are off; with both off the choice is greedy, and temperature and seed have no effect.
    `temperature` 0 is greedy too. Penalties count the tokens of the prompt as well as the generated ones.
    `min_tokens`: `end_id` cannot be chosen before that many tokens exist; stop words are not delayed.

    Raises RequestError for a value outside its range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 1

    def __post_init__(self) -> None:
        real, whole = self._real, self._whole
        real("temperature", lambda v: v >= 0, "0 (greedy) or more")
        whole("top_k", 0, MAX_TOP_K, f"from 0 (off) to {MAX_TOP_K}")
        real("top_p", lambda v: 0 <= v <= 1, "from 0 (off) to 1")
        whole("seed", 0, 2**64 - 1, "from 0 to 2^64 - 1")
        real("repetition_penalty", lambda v: v > 0, "more than 0 (1 is off)")
        real("presence_penalty", lambda v: True, "finite (0 is off)")
        real("frequency_penalty", lambda v: True, "finite (0 is off)")
        whole("min_tokens", 0, MAX_TOKENS_LIMIT, f"from 0 to {MAX_TOKENS_LIMIT}")

    @property
    def greedy(self) -> bool:
        """True when the likeliest token is always taken."""
        return self.temperature == 0 or (self.top_k == 0 and self.top_p == 0)

    def _real(self, name: str, allowed: Callable[[float], bool], range_text: str) -> None:
        given = getattr(self, name)
        try:
            value = float(given)
        except (TypeError, ValueError):
            raise RequestError(f"{name} is {given!r}; it must be a number, {range_text}.") from None
        if not math.isfinite(value) or not allowed(value):
            raise RequestError(f"{name} is {value:g}; it must be {range_text}.")
        object.__setattr__(self, name, value)

    def _whole(self, name: str, low: int, high: int, range_text: str) -> None:
        object.__setattr__(self, name, _whole(name, getattr(self, name), low, high, range_text))


@dataclass(frozen=True)
class Output:
    """What one step brought for one request. The last one of a request, and only that, has a `finish_reason`:
    "end_id", "stop_words", "length", "cancelled" or "error" (then `error` is one sentence)."""

    request_id: str
    tokens: list[int]
    finish_reason: str | None = None
    error: str | None = None


def _ignore(output: Output) -> None:
    """Stands in for a caller that wants no outputs."""


@dataclass
class Request:
    """One prompt to continue.

    id: unique among the requests that are running or waiting.
    prompt: token ids, int [T], T >= 1.
    end_id: ends the request and is not part of the tokens; None (or a negative id) is off.
    stop_words: token sequences; the request ends when its tokens end with one, which stays part of them.
    bad_words: token sequences that are never completed.
    on_output: called in the engine's thread, once or more, so it must return quickly.

    Raises RequestError for a value that no engine could serve.
    """

    id: str
    prompt: np.ndarray
    max_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    end_id: int | None = None
    stop_words: Sequence[Sequence[int]] = ()
    bad_words: Sequence[Sequence[int]] = ()
    on_output: Callable[[Output], None] = _ignore

    def __post_init__(self) -> None:
        prompt = np.asarray(self.prompt)
        if prompt.ndim != 1 or (prompt.size and prompt.dtype.kind not in "iu"):
            raise RequestError(
                f"The prompt is an array of {prompt.dtype} with {prompt.ndim} dimension(s); "
                "it must be one row of token ids (integers)."
            )
        if not prompt.size:
            raise RequestError("The prompt is empty; it must hold at least one token.")
        # Wide, so that an id past 2^31 is refused later rather than wrapped into the vocabulary here.
        self.prompt = prompt.astype(np.int64)
        range_text = f"from 1 to {MAX_TOKENS_LIMIT}"
        self.max_tokens = _whole("max_tokens", self.max_tokens, 1, MAX_TOKENS_LIMIT, range_text)
        if self.end_id is not None:
            self.end_id = _whole("end_id", self.end_id, -(2**31), 2**31 - 1, "a token id")
            self.end_id = None if self.end_id < 0 else self.end_id
        self.stop_words = _words("stop_words", self.stop_words)
        self.bad_words = _words("bad_words", self.bad_words)

    def fit(self, vocab_size: int, max_seq_len: int) -> int:
        """Checks the request against an engine; returns how many tokens it may generate.

        A prompt plus `max_tokens` beyond `max_seq_len` is clamped with a warning in the log, as TensorRT-LLM does.
        """
        outside = self.prompt[(self.prompt < 0) | (self.prompt >= vocab_size)]
        if outside.size:
            raise RequestError(f"The prompt holds token id {outside[0]}; ids must be from 0 to {vocab_size - 1}.")
        if self.end_id is not None and self.end_id >= vocab_size:
            raise RequestError(f"end_id is {self.end_id}; it must be from 0 to {vocab_size - 1}.")
        for name in ("stop_words", "bad_words"):
            for token in (token for word in getattr(self, name) for token in word):
                if not 0 <= token < vocab_size:
                    raise RequestError(f"{name} holds token id {token}; ids must be from 0 to {vocab_size - 1}.")
        length, longest = len(self.prompt), max_seq_len - 1
        if length > longest:
            raise RequestError(
                f"Prompt length ({length}) exceeds maximum input length ({longest}); "
                "shorten the prompt or use an engine with a larger max_seq_len."
            )
        if length + self.max_tokens > max_seq_len:
            room = max_seq_len - length
            log.warning(
                "Request %s: prompt (%d) + max_tokens (%d) exceeds max_seq_len (%d); max_tokens is now %d.",
                self.id, length, self.max_tokens, max_seq_len, room,
            )  # fmt: skip
            return room
        return self.max_tokens


def _whole(name: str, given: object, low: int, high: int, range_text: str) -> int:
    try:
        value = operator.index(given)
    except TypeError:
        raise RequestError(f"{name} is {given!r}; it must be a whole number, {range_text}.") from None
    if not low <= value <= high:
        raise RequestError(f"{name} is {value}; it must be {range_text}.")
    return value


def _words(name: str, words: Sequence[Sequence[int]]) -> list[list[int]]:
    try:
        listed = [[operator.index(token) for token in word] for word in words or ()]
    except TypeError:
        raise RequestError(f"{name} must be a list of token id lists, such as [[10, 11], [12]].") from None
    if not all(listed):
        raise RequestError(f"{name} holds an empty word; each word must have at least one token.")
    return listed
