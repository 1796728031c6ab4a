"""The five models as data: their tensors, their parameters, and the maps of the ensemble (taught in notebook 03).

Source: the model templates of TensorRT-LLM's Triton backend (triton-inference-server/tensorrtllm_backend, v0.19.0 and
c2e65b8), here by datatype. A table line reads `DATATYPE dims flags: names`. Flags: `?` optional, `r` ragged (rows of
one batch may have different lengths), `s` reshaped to a scalar: the wire shape is [batch, 1], the model sees [batch];
`-` none. The Python backend of Triton 24.10 accepts ragged inputs: requests of different lengths then share one
execute() call. Dims leave out the batch dimension. `${…}` is a datatype that the deployment chooses.

Left out on purpose: `return_num_input_tokens`, `return_num_output_tokens` and the outputs `num_input_tokens`,
`num_output_tokens` (1.0.0rc1 and later: no released table pins the first version that has them, and a client can count
tokens itself); the second `kv_cache_alloc_total_blocks` of the shipped ensemble, a duplicate.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from servinglab.errors import CourseError

MODELS = ("preprocessing", "tensorrt_llm", "postprocessing", "tensorrt_llm_bls", "ensemble")
PYTHON_MODELS = ("preprocessing", "postprocessing", "tensorrt_llm_bls")  # the other two have an empty version folder
# A second `tensorrt_llm`, of a smaller engine, for the speculative decoding of `tensorrt_llm_bls`; any name will do.
DRAFT = "tensorrt_llm_draft"

# "old": TensorRT-LLM <= 0.19 (containers <= 25.05); "new": 0.20 and later. Two names differ. (Since 1.1 images too may
# come with a request, and the datatype of prompt_embedding_table is a choice: no text model needs either.)
GENERATIONS = ("old", "new")
OLD_NAMES = {"min_tokens": "min_length", "seed": "random_seed"}


class RepositoryError(CourseError):
    """A repository, a template or a spec that cannot be used. The message says what, where and what to do."""


_RESULTS = """
FP32 -1 -: cum_log_probs
FP32 -1,-1 -: output_log_probs
${logits_datatype} -1,-1 -: context_logits
${logits_datatype} -1,-1,-1 -: generation_logits
INT32 1 -: batch_index sequence_index kv_cache_alloc_new_blocks kv_cache_reused_blocks kv_cache_alloc_total_blocks
INT32 1 -: total_accepted_draft_tokens total_draft_tokens
INT64 1 -: arrival_time_ns first_scheduled_time_ns first_token_time_ns last_token_time_ns
FP32 1 -: acceptance_rate
"""

_INPUTS = {
    "ensemble": """
STRING 1 -: text_input
STRING 1 ?: decoder_text_input
INT32 1 -: max_tokens
INT32 1 ?: num_return_sequences end_id pad_id top_k min_tokens beam_width prompt_vocab_size
STRING -1 ?: bad_words stop_words embedding_bias_words
BOOL 1 ?: exclude_input_in_output return_log_probs return_context_logits return_generation_logits return_perf_metrics
BOOL 1 ?: stream
FP32 1 ?: top_p temperature length_penalty repetition_penalty presence_penalty frequency_penalty
UINT64 1 ?: seed prompt_table_extra_id lora_task_id
FP16 -1,-1 ?: prompt_embedding_table
FP32 -1 ?: embedding_bias_weights
FP16 -1,-1 ?r: lora_weights
INT32 -1,3 ?r: lora_config
STRING 1 ?r: guided_decoding_guide_type guided_decoding_guide
""",
    "preprocessing": """
STRING 1 -: QUERY
STRING 1 ?: DECODER_QUERY IMAGE_URL
UINT8 -1,-1,-1,-1 ?: IMAGE_BYTES VIDEO_BYTES
INT32 1 -: REQUEST_OUTPUT_LEN
STRING -1 ?: BAD_WORDS_DICT STOP_WORDS_DICT EMBEDDING_BIAS_WORDS
FP32 -1 ?: EMBEDDING_BIAS_WEIGHTS
INT32 1 ?: END_ID PAD_ID
UINT64 1 ?: PROMPT_TABLE_EXTRA_ID
""",
    "tensorrt_llm": """
INT32 -1 ?r: input_ids draft_input_ids decoder_input_ids retention_token_range_starts retention_token_range_ends
INT32 -1 ?r: retention_token_range_priorities retention_token_range_durations_ms
${encoder_input_features_data_type} -1,-1 ?r: encoder_input_features
INT32 1 ?s: encoder_output_lengths num_return_sequences decoder_input_lengths end_id pad_id beam_width runtime_top_k
INT32 1 ?s: runtime_top_p_reset_ids min_tokens prompt_vocab_size
INT32 1 s: input_lengths request_output_len
${logits_datatype} -1,-1 ?r: draft_logits
FP32 1 ?s: draft_acceptance_threshold temperature runtime_top_p runtime_top_p_min runtime_top_p_decay len_penalty
FP32 1 ?s: repetition_penalty beam_search_diversity_rate presence_penalty frequency_penalty
INT32 2,-1 ?r: stop_words_list bad_words_list
FP32 -1 ?r: embedding_bias
BOOL 1 ?s: early_stopping return_log_probs return_context_logits return_generation_logits return_perf_metrics
BOOL 1 ?s: exclude_input_in_output stop streaming
UINT64 1 ?s: seed lora_task_id
FP16 -1,-1 ?r: prompt_embedding_table lora_weights
UINT64 -1 ?r: prompt_table_extra_ids
BOOL -1,-1 ?r: cross_attention_mask
FP32 -1 ?: mrope_rotary_cos_sin
INT64 1 ?: mrope_position_deltas
INT32 -1,3 ?r: lora_config
UINT8 -1 ?r: context_phase_params
BOOL 1 ?r: skip_cross_attn_blocks
INT32 1 ?r: retention_decode_priority retention_decode_duration_ms lookahead_window_size lookahead_ngram_size
INT32 1 ?r: lookahead_verification_set_size
STRING 1 ?r: guided_decoding_guide_type guided_decoding_guide
""",
    "postprocessing": """
INT32 -1,-1 -: TOKENS_BATCH
INT32 -1 -: SEQUENCE_LENGTH
""",
    "tensorrt_llm_bls": """
STRING 1 -: text_input
STRING 1 ?: decoder_text_input image_url_input guided_decoding_guide_type guided_decoding_guide
FP16 -1,3,-1,-1 ?: image_input
UINT8 -1,-1,-1,-1 ?: image_bytes_input video_bytes_input
INT32 1 -: max_tokens
STRING -1 ?: bad_words stop_words embedding_bias_words
BOOL 1 ?: exclude_input_in_output stream
INT32 1 ?: end_id pad_id top_k min_tokens beam_width prompt_vocab_size num_draft_tokens
FP32 1 ?: top_p temperature length_penalty repetition_penalty presence_penalty frequency_penalty
UINT64 1 ?: seed prompt_table_extra_id
BOOL 1 ?s: return_log_probs return_context_logits return_generation_logits use_draft_logits return_perf_metrics
INT32 1 ?s: num_return_sequences
FP16 -1,-1 ?: prompt_embedding_table
FP32 -1 ?: embedding_bias_weights
UINT64 1 ?s: lora_task_id
FP16 -1,-1 ?r: lora_weights
INT32 -1,3 ?r: lora_config
""",
}

_OUTPUTS = {
    "ensemble": "STRING -1 -: text_output\n" + _RESULTS,
    "preprocessing": """
INT32 -1 -: INPUT_ID DECODER_INPUT_ID REQUEST_OUTPUT_LEN VISION_INPUT_ID
INT32 1 -: REQUEST_INPUT_LEN REQUEST_DECODER_INPUT_LEN OUT_END_ID OUT_PAD_ID
INT32 2,-1 -: BAD_WORDS_IDS STOP_WORDS_IDS
FP32 -1 -: EMBEDDING_BIAS
UINT64 -1 -: OUT_PROMPT_TABLE_EXTRA_IDS
FP16 -1,-1,-1,-1 -: PIXEL_VALUES
INT64 -1 -: ASPECT_RATIO_IDS ATTENTION_MASK
INT64 -1,-1 -: ASPECT_RATIO_MASK
INT64 -1,-1,-1 -: CROSS_ATTENTION_MASK
INT64 2 -: IMAGE_SIZES
BOOL 1 -: IS_VIDEO_INPUT
INT64 3 -: IMAGE_GRID_THW
""",
    "tensorrt_llm": """
INT32 -1,-1 -: output_ids
INT32 -1 -: sequence_length
UINT8 -1 -: context_phase_params
"""
    + _RESULTS,
    "postprocessing": "STRING -1 -: OUTPUT",
    "tensorrt_llm_bls": "STRING -1 -: text_output\n" + _RESULTS,
}


@dataclass(frozen=True)
class Tensor:
    """One declared tensor. `datatype` is "INT32"-like or a `${variable}`; `dims` are without the batch dimension."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    optional: bool = False
    ragged: bool = False
    scalar: bool = False


def inputs(model: str, generation: str = "new") -> tuple[Tensor, ...]:
    """The inputs of one of the five MODELS; generation: one of GENERATIONS."""
    return _tensors(_INPUTS[model], generation)


def outputs(model: str, generation: str = "new") -> tuple[Tensor, ...]:
    """The outputs of one of the five MODELS."""
    return _tensors(_OUTPUTS[model], generation)


@cache
def _tensors(table: str, generation: str) -> tuple[Tensor, ...]:
    tensors = []
    for line in table.split("\n"):
        head, _, names = line.partition(": ")
        for name in names.split():
            datatype, dims, flags = head.split()
            name = OLD_NAMES.get(name, name) if generation == "old" else name
            shape = tuple(int(size) for size in dims.split(","))
            tensors.append(Tensor(name, datatype, shape, "?" in flags, "r" in flags, "s" in flags))
    return tuple(tensors)


# The ensemble's maps: `inner tensor=ensemble tensor`, a single name meaning both. A leading underscore marks a tensor
# that lives only inside the ensemble.
_PRE_IN = """QUERY=text_input DECODER_QUERY=decoder_text_input REQUEST_OUTPUT_LEN=max_tokens BAD_WORDS_DICT=bad_words
STOP_WORDS_DICT=stop_words EMBEDDING_BIAS_WORDS=embedding_bias_words EMBEDDING_BIAS_WEIGHTS=embedding_bias_weights
END_ID=end_id PAD_ID=pad_id PROMPT_TABLE_EXTRA_ID=prompt_table_extra_id"""
_PRE_OUT = """REQUEST_INPUT_LEN=_REQUEST_INPUT_LEN INPUT_ID=_INPUT_ID DECODER_INPUT_ID=_DECODER_INPUT_ID
REQUEST_DECODER_INPUT_LEN=_REQUEST_DECODER_INPUT_LEN REQUEST_OUTPUT_LEN=_REQUEST_OUTPUT_LEN
STOP_WORDS_IDS=_STOP_WORDS_IDS BAD_WORDS_IDS=_BAD_WORDS_IDS EMBEDDING_BIAS=_EMBEDDING_BIAS
OUT_END_ID=_PREPROCESSOR_END_ID OUT_PAD_ID=_PREPROCESSOR_PAD_ID
OUT_PROMPT_TABLE_EXTRA_IDS=_OUT_PROMPT_TABLE_EXTRA_IDS"""
_LLM_IN = """input_ids=_INPUT_ID decoder_input_ids=_DECODER_INPUT_ID input_lengths=_REQUEST_INPUT_LEN
decoder_input_lengths=_REQUEST_DECODER_INPUT_LEN exclude_input_in_output request_output_len=_REQUEST_OUTPUT_LEN
end_id=_PREPROCESSOR_END_ID pad_id=_PREPROCESSOR_PAD_ID embedding_bias=_EMBEDDING_BIAS runtime_top_k=top_k
runtime_top_p=top_p temperature len_penalty=length_penalty repetition_penalty min_tokens presence_penalty
frequency_penalty seed return_log_probs return_context_logits return_generation_logits return_perf_metrics
num_return_sequences beam_width streaming=stream prompt_embedding_table prompt_vocab_size
stop_words_list=_STOP_WORDS_IDS bad_words_list=_BAD_WORDS_IDS prompt_table_extra_ids=_OUT_PROMPT_TABLE_EXTRA_IDS
lora_task_id lora_weights lora_config guided_decoding_guide_type guided_decoding_guide"""


class Step(NamedTuple):
    """One step of the ensemble: the model (one of MODELS) and {its tensor: the ensemble's tensor}."""

    model: str
    inputs: dict[str, str]
    outputs: dict[str, str]


def ensemble_steps(generation: str = "new") -> tuple[Step, ...]:
    """The three steps. Every output that only the LLM makes goes to the client under its own name."""
    old = OLD_NAMES if generation == "old" else {}
    pairs = [item.partition("=") for item in _LLM_IN.split()]
    llm_in = {old.get(key, key): old.get(value or key, value or key) for key, _, value in pairs}
    client = [t.name for t in outputs("ensemble") if t.name != "text_output"]
    llm_out = {"output_ids": "_TOKENS_BATCH", "sequence_length": "_SEQUENCE_LENGTH"} | {name: name for name in client}
    post_in = {"TOKENS_BATCH": "_TOKENS_BATCH", "SEQUENCE_LENGTH": "_SEQUENCE_LENGTH"}
    pre_in, pre_out = (dict(item.split("=") for item in text.split()) for text in (_PRE_IN, _PRE_OUT))
    steps = (pre_in, pre_out), (llm_in, llm_out), (post_in, {"OUTPUT": "text_output"})
    return tuple(Step(model, *maps) for model, maps in zip(MODELS[:3], steps, strict=True))


# `key=variable:kind`: the parameter's key in config.pbtxt, the name that templates and DeploymentSpec use for it, and
# what it may hold. `!`: the model does not load without it. Triton keeps every parameter as a string; the C++ backend
# converts it and, where that fails, goes on with its default: a mistake would only show as odd behaviour.
_PARAMETERS = {
    "ensemble": "",
    "preprocessing": """tokenizer_dir! add_special_tokens:bool multimodal_model_path gpt_model_path=engine_dir
        max_num_images:int""",
    "postprocessing": "tokenizer_dir! skip_special_tokens:bool",
    # The last two are ours: NVIDIA's model.py has the names "preprocessing" and "postprocessing" written into it, so
    # that one repository cannot hold two deployments.
    "tensorrt_llm_bls": """accumulate_tokens:bool tensorrt_llm_model_name tensorrt_llm_draft_model_name
        multimodal_encoders_name preprocessing_model_name postprocessing_model_name""",
    "tensorrt_llm": """max_beam_width:int gpt_model_type=batching_strategy:inflight_fused_batching|inflight_batching|V1!
        gpt_model_path=engine_dir! encoder_model_path=encoder_engine_dir max_tokens_in_paged_kv_cache:int
        max_attention_window_size sink_token_length:int batch_scheduler_policy:guaranteed_no_evict|max_utilization
        kv_cache_free_gpu_mem_fraction:share cross_kv_cache_fraction:share kv_cache_host_memory_bytes:count
        kv_cache_onboard_blocks:bool exclude_input_in_output:bool cancellation_check_period_ms:count
        stats_check_period_ms:count iter_stats_max_iterations:count request_stats_max_iterations:count
        enable_kv_cache_reuse:bool normalize_log_probs:bool enable_chunked_context:bool gpu_device_ids participant_ids
        num_nodes:int lora_cache_optimal_adapter_size:int lora_cache_max_adapter_size:int
        lora_cache_gpu_memory_fraction lora_cache_host_memory_bytes:count lora_prefetch_dir decoding_mode
        lookahead_window_size:int lookahead_ngram_size:int lookahead_verification_set_size:count medusa_choices
        eagle_choices gpu_weights_percent enable_context_fmha_fp32_acc:bool multi_block_mode:bool cuda_graph_mode:bool
        cuda_graph_cache_size:count speculative_decoding_fast_logits:bool tokenizer_dir guided_decoding_backend
        xgrammar_tokenizer_info_path""",
}

# Written as they are.
LLM_LITERALS = {
    "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
    "executor_worker_path": "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker",
}
# The C++ backend looks these up without a default: absent, the model does not load; empty, they are unset.
LLM_EMPTY = ("tokenizer_dir", "xgrammar_tokenizer_info_path", "guided_decoding_backend")

_KINDS = {  # kind: what the whole text must match, and how that is said
    "int": (r"0*[1-9]\d{0,9}", "a whole number of at least 1"),
    "count": (r"\d{1,19}", "a whole number of at least 0"),
    "share": (r"0?\.\d*[1-9]\d*|[1-9]\.?\d*[eE]-\d+", "a number between 0 and 1, and neither of them"),
    "bool": ("true|false|0|1", "true or false"),
}


class Parameter(NamedTuple):
    """One parameter of a model: its `key` in config.pbtxt, the template `variable` that fills it, what `kind` of value
    it holds (one of _KINDS, choices with | between, or empty: any text), and if it must be filled."""

    key: str
    variable: str
    kind: str
    mandatory: bool

    def text(self, value: object) -> str:
        """The value as it is written. Raises RepositoryError when it does not fit."""
        pattern, wanted = _KINDS.get(self.kind, (self.kind or "(?s:.*)", f"one of {self.kind or 'text or numbers'}"))
        if not isinstance(value, (str, int, float, Path)) or not re.fullmatch(pattern, text_of(value), re.ASCII):
            raise RepositoryError(f"{self.variable} must be {wanted}, not {value!r}.")
        return text_of(value)


def text_of(value: object) -> str:
    """A value as config.pbtxt and templates spell it: true, not True."""
    return {"True": "true", "False": "false"}.get(str(value), str(value))


def parameters(model: str) -> tuple[Parameter, ...]:
    """The string parameters of one of the five models, in the order of NVIDIA's template."""
    found = (re.fullmatch(r"(\w+)=?(\w*):?([^!]*)(!?)", item) for item in _PARAMETERS[model].split())
    return tuple(Parameter(one[1], one[2] or one[1], one[3], bool(one[4])) for one in found)
