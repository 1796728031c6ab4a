"""Which placeholders NVIDIA's templates have, from which TensorRT-LLM version to which (notebook 03).

Source: config.pbtxt of the five models in triton-inference-server/tensorrtllm_backend, tags v0.5.0 to v0.19.0 and
c2e65b8, then in TensorRT-LLM itself up to 1.3.0rc3. `name=first` or `name=first-last`, both inclusive; a second range
follows a comma.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from packaging.version import InvalidVersion, Version

from engines import compass
from servinglab.repository import contract, wiring
from servinglab.repository.errors import RepositoryError
from servinglab.repository.pbtxt_source import spots

_RANGES = {
    "ensemble": "triton_max_batch_size=0.6.0 logits_datatype=0.17.0",
    "preprocessing": """triton_max_batch_size=0.6.0 tokenizer_dir=0.5.0 tokenizer_type=0.5.0-0.8.0
        preprocessing_instance_count=0.7.0 add_special_tokens=0.9.0 engine_dir=0.12.0 visual_model_path=0.12.0-0.18.2
        max_num_images=0.15.0 multimodal_model_path=0.19.0 max_queue_delay_microseconds=0.19.0 max_queue_size=0.19.0""",
    "postprocessing": """triton_max_batch_size=0.6.0 tokenizer_dir=0.5.0 tokenizer_type=0.5.0-0.8.0
        postprocessing_instance_count=0.7.0 skip_special_tokens=0.11.0""",
    "tensorrt_llm_bls": """triton_max_batch_size=0.7.0 decoupled_mode=0.7.0 bls_instance_count=0.7.0
        accumulate_tokens=0.7.0 tensorrt_llm_model_name=0.9.0 tensorrt_llm_draft_model_name=0.9.0
        multimodal_encoders_name=0.13.0 logits_datatype=0.17.0 prompt_embedding_table_data_type=1.1.0""",
    # enable_trt_overlap is back in 1.3.0rc3 and was not when 1.1's placeholder came: 1.1.0 is the earliest it can be.
    "tensorrt_llm": """triton_backend=0.10.0 triton_max_batch_size=0.6.0 decoupled_mode=0.5.0
        max_queue_delay_microseconds=0.6.0 max_queue_size=0.12.0 encoder_input_features_data_type=0.15.0
        logits_datatype=0.17.0 prompt_embedding_table_data_type=1.1.0 engine_dir=0.5.0 batching_strategy=0.6.0
        encoder_engine_dir=0.11.0 max_beam_width=0.6.0 max_tokens_in_paged_kv_cache=0.5.0 max_num_sequences=0.5.0-0.7.2
        max_kv_cache_length=0.6.0-0.6.1 max_attention_window_size=0.7.0 sink_token_length=0.10.0
        batch_scheduler_policy=0.5.0 kv_cache_free_gpu_mem_fraction=0.5.0 cross_kv_cache_fraction=0.14.0
        kv_cache_host_memory_bytes=0.10.0 kv_cache_onboard_blocks=0.10.0 enable_kv_cache_reuse=0.7.0
        enable_trt_overlap=0.5.0-0.9.0,1.1.0 exclude_input_in_output=0.6.0 normalize_log_probs=0.8.0
        enable_chunked_context=0.8.0 cancellation_check_period_ms=0.10.0 stats_check_period_ms=0.10.0
        iter_stats_max_iterations=0.10.0 request_stats_max_iterations=0.10.0 gpu_device_ids=0.8.0 participant_ids=0.13.0
        num_nodes=0.19.0 lora_cache_optimal_adapter_size=0.9.0 lora_cache_max_adapter_size=0.9.0
        lora_cache_gpu_memory_fraction=0.9.0 lora_cache_host_memory_bytes=0.9.0 lora_prefetch_dir=0.19.0
        decoding_mode=0.9.0 lookahead_window_size=0.19.0 lookahead_ngram_size=0.19.0
        lookahead_verification_set_size=0.19.0 medusa_choices=0.9.0 eagle_choices=0.16.0 gpu_weights_percent=0.10.0
        enable_context_fmha_fp32_acc=0.12.0 multi_block_mode=0.12.0 cuda_graph_mode=0.15.0 cuda_graph_cache_size=0.15.0
        speculative_decoding_fast_logits=0.15.0 guided_decoding_backend=0.19.0 tokenizer_dir=0.19.0
        xgrammar_tokenizer_info_path=0.19.0""",
}
# No placeholder of any template, but a parameter that the C++ backend looks up, so a deployment may set it.
UNWRITTEN = {"recv_poll_period_ms": "0.13.0"}

FIRST = Version("0.5.0")  # the first with a Triton backend

Range = tuple[Version, Version | None]


def version(text: str) -> Version:
    """A TensorRT-LLM version such as "0.16.0" or "1.3.0rc3"; RepositoryError with one sentence otherwise."""
    try:
        found = Version(text)
    except (InvalidVersion, TypeError):
        raise RepositoryError(f"{text!r} is no TensorRT-LLM version such as 0.16.0 or 1.2.1.") from None
    last = compass.table("containers")["workflow"]["last"]
    if not FIRST <= found <= Version(last):
        raise RepositoryError(
            f"TensorRT-LLM {text} has none of these templates: they came with {FIRST} and went with the TensorRT "
            f"backend after {last}."
        )
    return found


def generation_bounds(generation: str) -> tuple[Version, Version | None]:
    """The first version of a generation of tensor names, and the first version of the next (None after the last)."""
    firsts = {name: Version(first) for name, first in compass.table("containers")["generations"].items()}
    later = [first for first in firsts.values() if first > firsts[generation]]
    return max(firsts[generation], FIRST), min(later, default=None)


@cache
def ranges(model: str) -> dict[str, tuple[Range, ...]]:
    """{placeholder: its ranges of versions} for one of the five models."""
    table = {}
    for item in _RANGES[model].split():
        name, _, text = item.partition("=")
        bounds = [part.partition("-") for part in text.split(",")]
        table[name] = tuple((Version(first), Version(last) if last else None) for first, _, last in bounds)
    return table


def names(model: str, trtllm: str) -> set[str]:
    """The placeholders of one model's template in one TensorRT-LLM version."""
    found = version(trtllm)
    return {name for name, spans in ranges(model).items() if any(_within(found, span) for span in spans)}


def _within(found: Version, span: Range) -> bool:
    # A candidate of the release that brought it has it: 1.1.0rc1 counts as 1.1.0.
    return Version(found.base_version) >= span[0] and (span[1] is None or found <= span[1])


def history(name: str, models: Iterable[str] = tuple(_RANGES)) -> str | None:
    """When a placeholder was in the templates, as "TensorRT-LLM 0.5.0 to 0.8.0"; None for one that never was."""
    for model in models:
        if spans := ranges(model).get(name):
            parts = [f"{first} to {last}" if last else f"{first} and later" for first, last in spans]
            return "TensorRT-LLM " + " and ".join(parts)
    return None


def lacking(name: str, *, generation: str, trtllm: str | None = None) -> str | None:
    """Why `tensorrt_llm` of that version (else of any version of the generation) has no parameter `name`, or None."""
    spans = ranges("tensorrt_llm").get(name) or ((Version(UNWRITTEN[name]), None),)
    if trtllm is not None:
        found = version(trtllm)
        known, where = any(_within(found, span) for span in spans), f"TensorRT-LLM {trtllm}"
    else:
        first, after = generation_bounds(generation)
        known = any((not after or span[0] < after) and (not span[1] or span[1] >= first) for span in spans)
        where = f"Generation {generation!r} (TensorRT-LLM {first} {f'to before {after}' if after else 'and later'})"
    since = history(name, ["tensorrt_llm"]) or f"TensorRT-LLM {UNWRITTEN[name]} and later"
    return None if known else f"{where} has no parameter {name!r}: it is in {since}."


# The releases whose templates can be told apart; later ones differ in their tensors' names only.
_RELEASES = """0.7.2 0.8.0 0.9.0 0.10.0 0.11.0 0.12.0 0.13.0 0.14.0 0.15.0 0.16.0 0.17.0 0.18.2 0.19.0 0.20.0 0.21.0
1.0.0 1.1.0 1.2.1 1.3.0rc3""".split()
_KEY = re.compile(r"#[^\n]*|\bkey\s*:\s*[\"'](\w+)[\"']")


def releases_of(text: str) -> list[str]:
    """The TensorRT-LLM releases whose `tensorrt_llm` template this text can be, filled or not.

    It goes by the parameters, and by the placeholders as far as they are left. For templates only: a configuration that
    leaves out what is not set looks older than it is.
    """
    keys = {match[1] for match in _KEY.finditer(text) if match[1]}
    key_of = {p.variable: p.key for p in wiring.parameters("tensorrt_llm")}
    unsure = {"enable_trt_overlap"}
    unquoted = {"triton_backend"}.union(*(wiring.structural("tensorrt_llm", g) for g in contract.GENERATIONS))
    has = {name for name in ranges("tensorrt_llm") if key_of.get(name, name) in keys} - unsure - unquoted
    left = {spot.name for spot in spots(text)} - unsure
    untouched = "triton_max_batch_size" in left  # every template has it

    def fits(known: set[str]) -> bool:
        return known - unquoted == has and (left == known if untouched else left <= known)

    return [release for release in _RELEASES if fits(names("tensorrt_llm", release) - unsure)]
