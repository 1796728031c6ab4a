"""What the string parameters of config.pbtxt may hold: types and ranges of the quoted template variables (notebook 03).

Triton keeps every parameter as a string. The C++ backend converts it and, where that fails, goes on with the default
("yes" is no boolean, "2560 tokens" is 2560), so a mistake would only show as odd behaviour: it is refused here.
Sources: the conversions of model_instance_state.cc and model_state.cc in TensorRT-LLM's Triton backend (v0.9.0 to
1.3.0rc3), and the limits that executor/kvCacheConfig.cpp, decodingConfig.cpp and executorConfig.cpp enforce.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from packaging.version import Version

from servinglab.errors import did_you_mean
from servinglab.repository.errors import RepositoryError

LOOKAHEAD = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")
# Which TensorRT-LLM's C++ backend was the first to know a value of these.
_SINCE = {"medusa": "0.11.0", "redrafter": "0.16.0", "lookahead": "0.16.0", "eagle": "0.16.0"}
_LISTS_SINCE = {"max_attention_window_size": (",", "0.13.0"), "gpu_device_ids": (";", "0.12.0"),
                "participant_ids": (";", "0.15.0")}  # fmt: skip

# Variables, then their kind: `int least`, `bytes`, `fraction` with open () or closed [] ends, `bool` as the C++ backend
# reads it, `switch` as the Python models read it, `ints` 1,2 or a single one, `ids` 0,1;2,3, `tree` {0, 0}, {1}.
# A variable that is not here (paths, model names) may hold any text.
_TABLE = """
max_beam_width max_tokens_in_paged_kv_cache sink_token_length num_nodes max_num_images: int 1
lora_cache_optimal_adapter_size lora_cache_max_adapter_size lookahead_window_size lookahead_ngram_size: int 1
max_num_sequences max_kv_cache_length: int 1
lookahead_verification_set_size cancellation_check_period_ms stats_check_period_ms recv_poll_period_ms: int 0
iter_stats_max_iterations request_stats_max_iterations cuda_graph_cache_size: int 0
kv_cache_host_memory_bytes lora_cache_host_memory_bytes: bytes
kv_cache_free_gpu_mem_fraction cross_kv_cache_fraction: fraction ()
lora_cache_gpu_memory_fraction gpu_weights_percent: fraction []
kv_cache_onboard_blocks enable_kv_cache_reuse exclude_input_in_output normalize_log_probs enable_chunked_context: bool
enable_trt_overlap enable_context_fmha_fp32_acc multi_block_mode cuda_graph_mode: bool
speculative_decoding_fast_logits: bool
add_special_tokens skip_special_tokens accumulate_tokens: switch
max_attention_window_size: ints
gpu_device_ids participant_ids: ids
medusa_choices eagle_choices: tree
batch_scheduler_policy: choice guaranteed_no_evict max_utilization
batching_strategy: choice inflight_fused_batching inflight_batching V1
decoding_mode: choice top_k top_p top_k_top_p beam_search medusa redrafter lookahead eagle
guided_decoding_backend: choice xgrammar
triton_backend: choice tensorrtllm python
"""
KINDS: dict[str, tuple[str, ...]] = {}
for _line in _TABLE.strip().splitlines():
    _names, _, _kind = _line.partition(": ")
    KINDS |= dict.fromkeys(_names.split(), tuple(_kind.split()))

_INTS = r"[0-9]{1,10}(?: ?, ?[0-9]{1,10})*"
_PATTERNS = {
    "bool": r"True|true|TRUE|1|False|false|FALSE|0",
    "switch": r"(?i:true|yes|1|t|y|false|no|0|f|n)",
    "ints": _INTS,
    "ids": rf"{_INTS}(?: ?; ?{_INTS})*",
    "tree": rf"\{{ ?{_INTS} ?\}}(?: ?, ?\{{ ?{_INTS} ?\}})*",
}
_WORDS = {
    "bool": "true or false",
    "switch": "true or false",
    "ints": "a whole number of at least 1, or several with commas such as 4096,1024",
    "ids": "whole numbers with commas, and a semicolon between instances, such as 0,1 or 0,1;2,3",
    "tree": "paths of whole numbers in braces, such as {0, 0, 0}, {0, 1}",
    "bytes": "a whole number of bytes, such as 1073741824",
    "text": "text",
}


def text_of(value: object) -> str:
    """A parameter as Triton stores it: booleans are "true" and "false", [[0, 1], [2, 3]] is "0,1;2,3"."""
    if isinstance(value, (list, tuple)):
        nested = any(isinstance(item, (list, tuple)) for item in value)
        return (";" if nested else ",").join(map(text_of, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def checked(name: str, value: object, where: str = "", *, trtllm: str | None = None) -> str:
    """The text of a parameter's value. Raises RepositoryError when it does not fit, or when that TensorRT-LLM version
    does not know it; `where` begins the message.
    """
    kind, *limits = KINDS.get(name, ("text",))
    is_list = isinstance(value, (list, tuple))
    if kind == "tree" and is_list:
        text = ", ".join("{" + ", ".join(map(str, p)) + "}" if isinstance(p, (list, tuple)) else "?" for p in value)
    else:
        text = text_of(value)
    allowed = {"bool": (str, bool), "switch": (str, bool), "text": (str, int, float, bool, Path)}
    right_type = kind in ("ints", "ids", "tree") if is_list else isinstance(value, allowed.get(kind, (str, int, float)))
    if isinstance(value, bool) and kind not in ("bool", "switch", "text"):
        right_type = False  # True is an int, and no size
    if not right_type or not _fits(kind, limits, text):
        hint = did_you_mean(text, limits) if kind == "choice" else ""
        raise RepositoryError(f"{where}{name} must be {_wanted(kind, limits)}, not {value!r}.{hint}")
    sign, since = _LISTS_SINCE.get(name, ("", ""))
    known_since = since if sign and sign in text else _SINCE.get(text, "0") if kind == "choice" else "0"
    if trtllm is not None and Version(trtllm) < Version(known_since):
        what = f"several values with {sign!r}" if sign else repr(text)
        raise RepositoryError(f"{where}{name} takes {what} since TensorRT-LLM {known_since}, and this is {trtllm}.")
    return text


def _wanted(kind: str, limits: list[str]) -> str:
    if kind == "choice":
        return f"one of {', '.join(limits)}" if len(limits) > 1 else limits[0]
    if kind == "int":
        return f"a whole number of at least {limits[0]}"
    if kind == "fraction":
        return "a number between 0 and 1" + (", and neither of them" if limits == ["()"] else "")
    return _WORDS[kind]


def _fits(kind: str, limits: list[str], text: str) -> bool:
    if kind in ("int", "bytes"):
        return bool(re.fullmatch(r"[0-9]{1,19}", text)) and (
            int(limits[0]) <= int(text) < 2**31 if kind == "int" else int(text) < 2**63
        )
    if kind == "fraction":
        if not re.fullmatch(r"[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]{1,3})?|[0-9]+\.", text):
            return False
        return 0 < float(text) < 1 if limits == ["()"] else 0 <= float(text) <= 1
    if kind == "choice":
        return text in limits
    if kind == "text":
        return True
    if not re.fullmatch(_PATTERNS[kind], text):
        return False
    least = {"ints": 1, "ids": 0, "tree": 0}.get(kind)
    return least is None or all(least <= int(number) < 2**31 for number in re.findall(r"[0-9]+", text))


def check_together(values: Mapping[str, str], *, cpp_backend: bool) -> None:
    """Refuse parameters of `tensorrt_llm` that need each other. `cpp_backend` is the trtllm lane."""
    given = [name for name in LOOKAHEAD if name in values]
    if (given or values.get("decoding_mode") == "lookahead") and len(given) < 3:
        missing = ", ".join(name for name in LOOKAHEAD if name not in given)
        raise RepositoryError(f"Lookahead decoding needs all three of its sizes: give {missing} as well.")
    if given and int(values[LOOKAHEAD[1]]) == 1 and (int(values[LOOKAHEAD[0]]), int(values[LOOKAHEAD[2]])) != (1, 0):
        raise RepositoryError(
            "lookahead_ngram_size 1 looks nothing ahead, and TensorRT-LLM takes it with lookahead_window_size 1 and "
            "lookahead_verification_set_size 0 only: give 2 or more."
        )
    if "cross_kv_cache_fraction" in values and "encoder_engine_dir" not in values:
        raise RepositoryError(
            "cross_kv_cache_fraction is for encoder-decoder models only, TensorRT-LLM loads no other with it: leave it "
            "out, or give encoder_engine_dir."
        )
    if cpp_backend and "guided_decoding_backend" in values and "xgrammar_tokenizer_info_path" not in values:
        raise RepositoryError(
            "guided_decoding_backend does nothing without xgrammar_tokenizer_info_path, the JSON file that describes "
            "the tokenizer: give both."
        )
