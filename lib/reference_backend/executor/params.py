"""How a request's tokens are chosen: every setting, checked against its range.

Names, defaults and ranges are those of TensorRT-LLM's executor (`SamplingConfig`), as its Triton backend exposes them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass

from servinglab.errors import CourseError

#: Above this a request is a mistake; below it, what does not fit `max_seq_len` is clamped as TensorRT-LLM does.
MAX_TOKENS_LIMIT = 1_000_000
MAX_TOP_K = 1024
MAX_BEAM_WIDTH = 256


class RequestError(CourseError):
    """The request cannot be served as it is; the executor is unharmed."""


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is chosen.

    `top_k` 0 and `top_p` 0 are off; with both off the choice is greedy, and temperature and seed have no effect.
    `temperature` 0 is greedy too. Penalties count the tokens of the prompt as well as the generated ones.
    `min_tokens`: `end_id` cannot be chosen before that many tokens exist; stop words are not delayed.

    `beam_width` above 1 is beam search (`beams.py`): temperature, top_k, top_p and seed have no effect then (the
    temperature most likely has one in TensorRT-LLM). Only there: `length_penalty`, `beam_search_diversity_rate`, and
    `early_stopping` (1: end when `beam_width` beams have ended; 0: when no running one looks better than those; 2 or
    more: when none can become better).

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
    beam_width: int = 1
    length_penalty: float = 0.0
    early_stopping: int = 1
    beam_search_diversity_rate: float = 0.0

    def __post_init__(self) -> None:
        real, whole = self._real, self._whole
        real("temperature", lambda v: v >= 0, "0 (greedy) or more")
        whole("top_k", 0, MAX_TOP_K, f"from 0 (off) to {MAX_TOP_K}")
        real("top_p", lambda v: 0 <= v <= 1, "from 0 (off) to 1")
        whole("seed", 0, 2**64 - 1, "from 0 to 2^64 - 1")
        real("repetition_penalty", lambda v: v > 0, "more than 0 (1 is off)")
        real("presence_penalty", lambda v: True, "0 is off")
        real("frequency_penalty", lambda v: True, "0 is off")
        whole("min_tokens", 0, MAX_TOKENS_LIMIT, f"from 0 to {MAX_TOKENS_LIMIT}")
        whole("beam_width", 1, MAX_BEAM_WIDTH, f"from 1 to {MAX_BEAM_WIDTH}")
        real("length_penalty", lambda v: v >= 0, "0 (off) or more")
        whole("early_stopping", 0, 2**31 - 1, "0 or more")
        real("beam_search_diversity_rate", lambda v: v >= 0, "0 (off) or more")

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
        if not math.isfinite(value):
            raise RequestError(f"{name} is {value:g}; it must be a finite number, {range_text}.")
        if not allowed(value):
            raise RequestError(f"{name} is {value:g}; it must be {range_text}.")
        object.__setattr__(self, name, value)

    def _whole(self, name: str, low: int, high: int, range_text: str) -> None:
        object.__setattr__(self, name, whole_number(name, getattr(self, name), low, high, range_text))


def whole_number(name: str, given: object, low: int, high: int, range_text: str) -> int:
    """`given` as an int from low to high; raises RequestError naming `name`."""
    try:
        value = operator.index(given)
    except TypeError:
        raise RequestError(f"{name} is {given!r}; it must be a whole number, {range_text}.") from None
    if not low <= value <= high:
        raise RequestError(f"{name} is {value}; it must be {range_text}.")
    return value
