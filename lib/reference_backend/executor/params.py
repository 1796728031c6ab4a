"""How a request's tokens are chosen: every setting, its range, and the tensors that carry it, in one table.

Names, defaults and ranges are those of TensorRT-LLM's executor (`SamplingConfig`), as its Triton backend exposes them.
A new setting is a line here, its effect in sampler.py, and its tensor in the repository's contract.
"""

import math
import operator
from dataclasses import dataclass, field, fields
from typing import Any

from reference_backend import BackendError

#: Above this a request is a mistake; below it, what does not fit `max_seq_len` is clamped as TensorRT-LLM does.
MAX_TOKENS_LIMIT = 1_000_000


class RequestError(BackendError):
    """The request cannot be served as it is; the executor is unharmed."""


def _setting(default: float, low: float, high: float, says: str, *tensors: str) -> Any:
    """A field of SamplingParams: whole where its default is an int, from low to high, both included."""
    return field(default=default, metadata={"low": low, "high": high, "says": says, "tensors": tensors})


_TINY, _INF = math.ulp(0.0), math.inf


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is chosen.

    `top_k` 0 and `top_p` 0 are off; with both off the choice is greedy, and temperature and seed have no effect.
    `temperature` 0 is greedy too. Penalties count the tokens of the prompt as well as the generated ones.
    `min_tokens`: `end_id` cannot be chosen before that many tokens exist; stop words are not delayed.

    `beam_width` above 1 is beam search (`beams.py`): temperature, top_k, top_p and seed have no effect then (the
    temperature most likely has one in TensorRT-LLM). Only there: `length_penalty`, `beam_search_diversity_rate`,
    `early_stopping`.

    Raises RequestError for a value outside its range.
    """

    temperature: float = _setting(1.0, 0, _INF, "0 (greedy) or more", "temperature")
    top_k: int = _setting(0, 0, 1024, "from 0 (off) to 1024", "runtime_top_k")
    top_p: float = _setting(0.0, 0, 1, "from 0 (off) to 1", "runtime_top_p")
    seed: int = _setting(0, 0, 2**64 - 1, "from 0 to 2^64 - 1", "seed", "random_seed")
    repetition_penalty: float = _setting(1.0, _TINY, _INF, "more than 0 (1 is off)", "repetition_penalty")
    presence_penalty: float = _setting(0.0, -_INF, _INF, "0 is off", "presence_penalty")
    frequency_penalty: float = _setting(0.0, -_INF, _INF, "0 is off", "frequency_penalty")
    min_tokens: int = _setting(1, 0, MAX_TOKENS_LIMIT, f"from 0 to {MAX_TOKENS_LIMIT}", "min_tokens", "min_length")
    beam_width: int = _setting(1, 1, 256, "from 1 to 256", "beam_width")
    length_penalty: float = _setting(0.0, 0, 50, "from 0 (off) to 50", "len_penalty")  # a power of the length
    # A BOOL in NVIDIA's templates, so 0 or 1, though the executor knows more.
    early_stopping: int = _setting(1, 0, 2**31 - 1, "0 or more", "early_stopping")
    beam_search_diversity_rate: float = _setting(0.0, 0, _INF, "0 (off) or more", "beam_search_diversity_rate")

    def __post_init__(self) -> None:
        for setting in fields(self):
            limits = [setting.metadata[limit] for limit in ("low", "high", "says")]
            whole, given = isinstance(setting.default, int), getattr(self, setting.name)
            object.__setattr__(self, setting.name, checked(setting.name, given, *limits, whole=whole))

    @property
    def greedy(self) -> bool:
        """True when the likeliest token is always taken."""
        return self.temperature == 0 or (self.top_k == 0 and self.top_p == 0)


#: {tensor of `tensorrt_llm`: field}; the second tensor of a field is its name in TensorRT-LLM <= 0.19.
TENSORS = {tensor: setting.name for setting in fields(SamplingParams) for tensor in setting.metadata["tensors"]}


def checked(name: str, given: object, low: float, high: float, says: str, *, whole: bool) -> float:
    """`given` as a float, or as an int if it is to be whole, from low to high; raises RequestError naming `name`."""
    try:
        value = operator.index(given) if whole else float(given)
    except (TypeError, ValueError):
        raise RequestError(f"{name} is {given!r}; it must be a {'whole ' * whole}number, {says}.") from None
    if not whole and not math.isfinite(value):
        raise RequestError(f"{name} is {value:g}; it must be a finite number, {says}.")
    if not low <= value <= high:
        raise RequestError(f"{name} is {value if whole else format(value, 'g')}; it must be {says}.")
    return value
