"""The values behind the names: what is allowed, what greedy means on each road, how log probs and guides are said.

Sources: SamplingParams.params_imply_greedy_decoding and to_sampling_params of TensorRT-LLM 1.3.0rc3, the ranges of its
C++ executor, and the pull requests named below. Used by llm_api (notebook 12).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from engines import EngineError, llm_names
from engines.llm_names import ENGINES

MAX_TOP_K = 1024  # of the executor behind an engine

# Ideas that each road writes in another form.
OTHER_FORM = ("bias", "LoRA")
WHY_LOST = {
    "bias": "one says words, one token ids, one a vector as long as the vocabulary: make it with the tokenizer.",
    "LoRA": "an engine knows an adapter by number and weights, the LLM API by name and folder.",
    "end id": "stop_token_ids adds a token that ends the answer, and the model's own stays one.",
    "ignore end id": "min_tokens as large as max_tokens comes near it.",
    "cancel": "cancel the call, or close the connection.",
}

# Fields that SamplingParams takes and the PyTorch backend's sampler ignored until summer 2026, so in 1.2.1 too.
_SINCE = "read by the PyTorch backend since {} (pull request {}) and ignored before, in 1.2.1 too."
CAVEATS = {
    "bad words": _SINCE.format("July 2026", 16052),
    "top p decay": _SINCE.format("July 2026", 16184),
    "min p": _SINCE.format("July 2026", 16590),
    "repetition penalty": _SINCE.format("July 2026", 16485),
    "presence penalty": _SINCE.format("July 2026", 16485),
    "frequency penalty": _SINCE.format("July 2026", 16485),
    "seed": _SINCE.format("August 2026", 17172),
}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_texts(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list | tuple) and all(isinstance(v, str) for v in value))


def _whole(low: int, high: float = math.inf) -> Any:
    return lambda v: isinstance(v, int) and not isinstance(v, bool) and low <= v <= high


_NUMBER, _FLAG = (_is_number, "a number"), (lambda v: isinstance(v, bool), "True or False")
_COUNT, _TEXTS = (_whole(1), "a whole number, 1 or more"), (_is_texts, "a text or a list of texts")
_IDS = (lambda v: isinstance(v, list | tuple) and all(map(_whole(0), v)), "a list of token ids")
_FROM_0 = (lambda v: _is_number(v) and v >= 0, "a number, 0 or more")
_SHARE = (lambda v: _is_number(v) and 0 <= v <= 1, "a number from 0 to 1")
_KINDS = {
    "max tokens": _COUNT, "n": _COUNT, "best of": _COUNT,
    "temperature": _FROM_0, "top p": _SHARE, "min p": _SHARE, "length penalty": _FROM_0,
    "top k": (_whole(0), "a whole number, 0 or more"),
    "min tokens": (_whole(0), "a whole number, 0 or more"),
    "seed": (_whole(0, 2**64 - 1), "a whole number from 0 to 2^64 - 1"),
    "end id": (_whole(-1), "a token id"), "pad id": (_whole(-1), "a token id"),
    "stop words": _TEXTS, "bad words": _TEXTS, "stop token ids": _IDS,
    "repetition penalty": (lambda v: _is_number(v) and v > 0, "a number above 0"),
    "presence penalty": _NUMBER, "frequency penalty": _NUMBER,
    "beams": (lambda v: isinstance(v, bool) or _whole(1)(v), "a whole number, 1 or more"),
    "log probs": (lambda v: isinstance(v, bool) or _whole(0)(v), "True, False or how many a token"),
    "early stopping": (lambda v: isinstance(v, bool) or _whole(0)(v), "True, False or a whole number"),
}  # fmt: skip
_FLAGS = """keep stop word,ignore end id,sum of log probs,repeat the prompt,stream,cancel,prompt logits,answer logits,
timings,finish reason,stop reason""".replace("\n", "").split(",")
_KINDS |= dict.fromkeys(_FLAGS, _FLAG)


def checked(idea: str, name: str, value: Any) -> Any:
    """The value, a single text of a word list as a list. Raises EngineError when it is of the wrong kind."""
    allowed, text = _KINDS.get(idea, (lambda v: True, ""))
    if idea == "prompt":
        kind, text = (list, "a list of messages") if name == "messages" else (str, "a text")
        allowed = lambda v: isinstance(v, kind) and bool(v)  # noqa: E731
    if not allowed(value):
        raise EngineError(f"{name} is {value!r}; it must be {text}.")
    return [value] if idea in ("stop words", "bad words") and isinstance(value, str) else value


def filled(said: Mapping[str, Any], road: str) -> dict[str, Any]:
    """{idea: the value that counts on a road}, said or not."""
    return {row.idea: said.get(row.idea, row.on(road).default) for row in llm_names.rows()}


def choice(said: Mapping[str, Any], road: str) -> tuple[float, int, float] | None:
    """(temperature, top_k, top_p) of sampling, where 0 and 1.0 mean off; None for greedy.

    Behind an engine top_k or top_p turns sampling on and temperature never does. For SamplingParams any of the three
    does. Both are greedy when one of them leaves a single token.
    """
    ideas = filled(said, road)
    temperature, top_k, top_p = ideas["temperature"], ideas["top k"], ideas["top p"]
    if temperature == 0 or top_k == 1:
        return None
    if road in ENGINES:
        return None if top_k == 0 and top_p == 0 else (temperature, top_k, top_p or 1.0)
    if top_p == 0 or (temperature is None and top_k is None and top_p is None):
        return None
    return (1.0 if temperature is None else temperature), top_k or 0, (1.0 if top_p is None else top_p)


def write_choice(
    chosen: tuple[float, int, float] | None, road: str, said: Iterable[str]
) -> tuple[float | None, int | None, float | None]:
    """(temperature, top_k, top_p) that make a road choose so; None leaves one out. What was said stays said."""
    samples_unasked = choice({}, road) is not None
    if chosen is None:
        return (0.0 if samples_unasked else None), None, None
    temperature, top_k, top_p = chosen
    keep_temperature = temperature != 1 or "temperature" in said
    keep_top_p = top_p != 1 or "top p" in said
    if road in ENGINES:
        keep_top_p |= top_k == 0  # 1.0 leaves out no token, and turns sampling on
    elif not (samples_unasked or keep_temperature or keep_top_p or top_k):
        keep_temperature = True
    return (temperature if keep_temperature else None), top_k or None, (top_p if keep_top_p else None)


def beams(ideas: Mapping[str, Any], road: str) -> int:
    """Width of the beam search, 1 for none."""
    width = ideas["beams"]
    if road in ENGINES:
        return width
    return max(ideas["best of"] or 1, ideas["n"]) if width else 1


def log_probs(value: Any, road: str) -> int | None:
    """How many likely tokens come with their log probability beside the chosen one; None for none at all."""
    if road in ("completions", "chat"):
        return int(value) if value else None  # trtllm-serve takes 0 for no
    if isinstance(value, bool):
        return 0 if value else None
    return value


def write_log_probs(count: int, road: str) -> tuple[Any, str]:
    """The value on a road, and what must be known of it."""
    if road in ENGINES:
        return True, f"an engine gives that of the chosen token only, not of {count} more." if count else ""
    if road == "completions" and count == 0:
        return 1, "trtllm-serve takes 0 for no, so the likeliest token's comes too."
    return count, ""


# (engine's guide type, field of GuidedDecodingParams, type of response_format, key that holds the guide there)
_GUIDES = (
    ("json", "json_object", "json_object", None),
    ("json_schema", "json", "json_schema", "json_schema"),
    ("regex", "regex", "regex", "regex"),
    ("ebnf_grammar", "grammar", "ebnf", "ebnf"),
)


def read_guide(guide: Any, kind: Any, road: str) -> tuple[str, Any] | None:
    """(engine's guide type, guide); None without one. Raises EngineError for a guide that no row knows."""
    if guide is None and kind is None:
        return None
    if road in ENGINES:
        if kind in [row[0] for row in _GUIDES] and (guide is not None or kind == "json"):
            return kind, guide
    elif isinstance(guide, Mapping):
        for engine_kind, field, kind, key in _GUIDES:
            if guide.get("type") == kind:
                return engine_kind, guide.get(key)
            if guide.get(field):
                return engine_kind, None if field == "json_object" else guide[field]
        if guide.get("type") == "text":
            return None
    kinds = ", ".join(row[0] for row in _GUIDES)
    raise EngineError(f"The guide {guide!r} (type {kind!r}) is none of: {kinds}.")


def write_guide(guide: tuple[str, Any], road: str) -> dict[str, Any]:
    """The entries of a request on a road that has guides."""
    engine_kind, text = guide
    _, field, kind, key = next(row for row in _GUIDES if row[0] == engine_kind)
    schema = engine_kind == "json_schema"
    if road in ENGINES:
        if schema and not isinstance(text, str):
            text = json.dumps(text)
        return {"guided_decoding_guide_type": engine_kind} | ({"guided_decoding_guide": text} if text else {})
    if road == "llm_api":
        return {"guided_decoding": {field: True if text is None else text}}
    value = json.loads(text) if schema and isinstance(text, str) else text
    return {"response_format": {"type": kind} | ({key: value} if key else {})}
