"""The tensors and parameters of the five models, as data (taught in notebook 03).

Source: the model templates of TensorRT-LLM's Triton backend (triton-inference-server/tensorrtllm_backend, v0.19.0 and
c2e65b8). A table line reads `DATATYPE dims flags: names`. Flags: `?` optional, `r` ragged (rows of one batch may have
different lengths), `s` reshaped to a scalar: the wire shape is [batch, 1], the model sees [batch]; `-` none.
The Python backend of Triton 24.10 accepts ragged inputs: requests of different lengths then share one execute() call.
Dims leave out the batch dimension. `${…}` is a datatype that the deployment chooses.

Left out on purpose:
* `return_num_input_tokens`, `return_num_output_tokens` and the outputs `num_input_tokens`, `num_output_tokens`
  (1.0.0rc1 and later): no released table pins the first version that has them, and a client can count tokens itself;
* the second `kv_cache_alloc_total_blocks` of the shipped ensemble, a duplicate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

MODELS = ("preprocessing", "tensorrt_llm", "postprocessing", "tensorrt_llm_bls", "ensemble")
PYTHON_MODELS = ("preprocessing", "postprocessing", "tensorrt_llm_bls")  # the other two have an empty version folder
# A second `tensorrt_llm`, of a smaller engine, for the speculative decoding of `tensorrt_llm_bls`; any name will do.
DRAFT = "tensorrt_llm_draft"

# "old": TensorRT-LLM <= 0.19 (containers <= 25.05); "new": 0.20 and later. Two names differ. (Since 1.1 images too may
# come with a request, and the datatype of prompt_embedding_table is a choice: no text model needs either.)
GENERATIONS = ("old", "new")
OLD_NAMES = {"min_tokens": "min_length", "seed": "random_seed"}

_SAMPLING_TAIL = """
INT32 1 ?: min_tokens
FP32 1 ?: presence_penalty frequency_penalty
UINT64 1 ?: seed
"""
_CLIENT_LOGPROBS = "BOOL 1 {flags}: return_log_probs return_context_logits return_generation_logits\n"
_CLIENT_SAMPLING = (
    """
BOOL 1 ?: exclude_input_in_output
INT32 1 ?: end_id pad_id top_k
FP32 1 ?: top_p temperature length_penalty repetition_penalty
"""
    + _SAMPLING_TAIL
)
_RESULTS_HEAD = """
FP32 -1 -: cum_log_probs
FP32 -1,-1 -: output_log_probs
${logits_datatype} -1,-1 -: context_logits
${logits_datatype} -1,-1,-1 -: generation_logits
INT32 1 -: batch_index sequence_index
"""
_PERF = """
INT32 1 -: kv_cache_alloc_new_blocks kv_cache_reused_blocks kv_cache_alloc_total_blocks
INT64 1 -: arrival_time_ns first_scheduled_time_ns first_token_time_ns last_token_time_ns
FP32 1 -: acceptance_rate
INT32 1 -: total_accepted_draft_tokens total_draft_tokens
"""

_INPUTS = {
    "ensemble": """
STRING 1 -: text_input
STRING 1 ?: decoder_text_input
INT32 1 -: max_tokens
INT32 1 ?: num_return_sequences
STRING -1 ?: bad_words stop_words
"""
    + _CLIENT_SAMPLING
    + _CLIENT_LOGPROBS.format(flags="?")
    + """
BOOL 1 ?: return_perf_metrics
INT32 1 ?: beam_width
BOOL 1 ?: stream
FP16 -1,-1 ?: prompt_embedding_table
UINT64 1 ?: prompt_table_extra_id
INT32 1 ?: prompt_vocab_size
STRING -1 ?: embedding_bias_words
FP32 -1 ?: embedding_bias_weights
UINT64 1 ?: lora_task_id
FP16 -1,-1 ?r: lora_weights
INT32 -1,3 ?r: lora_config
STRING 1 ?r: guided_decoding_guide_type guided_decoding_guide
""",
    "preprocessing": """
STRING 1 -: QUERY
STRING 1 ?: DECODER_QUERY
UINT8 -1,-1,-1,-1 ?: IMAGE_BYTES
STRING 1 ?: IMAGE_URL
UINT8 -1,-1,-1,-1 ?: VIDEO_BYTES
INT32 1 -: REQUEST_OUTPUT_LEN
STRING -1 ?: BAD_WORDS_DICT STOP_WORDS_DICT EMBEDDING_BIAS_WORDS
FP32 -1 ?: EMBEDDING_BIAS_WEIGHTS
INT32 1 ?: END_ID PAD_ID
UINT64 1 ?: PROMPT_TABLE_EXTRA_ID
""",
    "tensorrt_llm": """
INT32 -1 ?r: input_ids
${encoder_input_features_data_type} -1,-1 ?r: encoder_input_features
INT32 1 ?s: encoder_output_lengths
INT32 1 s: input_lengths request_output_len
INT32 1 ?s: num_return_sequences
INT32 -1 ?r: draft_input_ids decoder_input_ids
INT32 1 ?s: decoder_input_lengths
${logits_datatype} -1,-1 ?r: draft_logits
FP32 1 ?s: draft_acceptance_threshold
INT32 1 ?s: end_id pad_id
INT32 2,-1 ?r: stop_words_list bad_words_list
FP32 -1 ?r: embedding_bias
INT32 1 ?s: beam_width
FP32 1 ?s: temperature
INT32 1 ?s: runtime_top_k
FP32 1 ?s: runtime_top_p runtime_top_p_min runtime_top_p_decay
INT32 1 ?s: runtime_top_p_reset_ids
FP32 1 ?s: len_penalty
BOOL 1 ?s: early_stopping
FP32 1 ?s: repetition_penalty
INT32 1 ?s: min_tokens
FP32 1 ?s: beam_search_diversity_rate presence_penalty frequency_penalty
UINT64 1 ?s: seed
BOOL 1 ?s: return_log_probs return_context_logits return_generation_logits return_perf_metrics
BOOL 1 ?s: exclude_input_in_output stop streaming
FP16 -1,-1 ?r: prompt_embedding_table
UINT64 -1 ?r: prompt_table_extra_ids
INT32 1 ?s: prompt_vocab_size
BOOL -1,-1 ?r: cross_attention_mask
FP32 -1 ?: mrope_rotary_cos_sin
INT64 1 ?: mrope_position_deltas
UINT64 1 ?s: lora_task_id
FP16 -1,-1 ?r: lora_weights
INT32 -1,3 ?r: lora_config
UINT8 -1 ?r: context_phase_params
BOOL 1 ?r: skip_cross_attn_blocks
INT32 -1 ?r: retention_token_range_starts retention_token_range_ends
INT32 -1 ?r: retention_token_range_priorities retention_token_range_durations_ms
INT32 1 ?r: retention_decode_priority retention_decode_duration_ms
STRING 1 ?r: guided_decoding_guide_type guided_decoding_guide
INT32 1 ?r: lookahead_window_size lookahead_ngram_size lookahead_verification_set_size
""",
    "postprocessing": """
INT32 -1,-1 -: TOKENS_BATCH
INT32 -1 -: SEQUENCE_LENGTH
""",
    "tensorrt_llm_bls": """
STRING 1 -: text_input
STRING 1 ?: decoder_text_input
FP16 -1,3,-1,-1 ?: image_input
UINT8 -1,-1,-1,-1 ?: image_bytes_input
STRING 1 ?: image_url_input
UINT8 -1,-1,-1,-1 ?: video_bytes_input
INT32 1 -: max_tokens
STRING -1 ?: bad_words stop_words
"""
    + _CLIENT_SAMPLING
    + _CLIENT_LOGPROBS.format(flags="?s")
    + """
INT32 1 ?s: num_return_sequences
INT32 1 ?: beam_width
BOOL 1 ?: stream
FP16 -1,-1 ?: prompt_embedding_table
INT32 1 ?: prompt_vocab_size
UINT64 1 ?: prompt_table_extra_id
STRING -1 ?: embedding_bias_words
FP32 -1 ?: embedding_bias_weights
INT32 1 ?: num_draft_tokens
BOOL 1 ?s: use_draft_logits
UINT64 1 ?s: lora_task_id
FP16 -1,-1 ?r: lora_weights
INT32 -1,3 ?r: lora_config
BOOL 1 ?s: return_perf_metrics
STRING 1 ?: guided_decoding_guide_type guided_decoding_guide
""",
}

_OUTPUTS = {
    "ensemble": "STRING -1 -: text_output\n" + _RESULTS_HEAD + _PERF,
    "preprocessing": """
INT32 -1 -: INPUT_ID
INT32 1 -: REQUEST_INPUT_LEN
INT32 -1 -: DECODER_INPUT_ID
INT32 1 -: REQUEST_DECODER_INPUT_LEN
INT32 2,-1 -: BAD_WORDS_IDS STOP_WORDS_IDS
FP32 -1 -: EMBEDDING_BIAS
INT32 -1 -: REQUEST_OUTPUT_LEN
INT32 1 -: OUT_END_ID OUT_PAD_ID
UINT64 -1 -: OUT_PROMPT_TABLE_EXTRA_IDS
FP16 -1,-1,-1,-1 -: PIXEL_VALUES
INT64 -1 -: ASPECT_RATIO_IDS
INT64 -1,-1 -: ASPECT_RATIO_MASK
INT64 -1,-1,-1 -: CROSS_ATTENTION_MASK
INT64 2 -: IMAGE_SIZES
BOOL 1 -: IS_VIDEO_INPUT
INT64 -1 -: ATTENTION_MASK
INT64 3 -: IMAGE_GRID_THW
INT32 -1 -: VISION_INPUT_ID
""",
    "tensorrt_llm": """
INT32 -1,-1 -: output_ids
INT32 -1 -: sequence_length
"""
    + _RESULTS_HEAD
    + "UINT8 -1 -: context_phase_params\n"
    + _PERF,
    "postprocessing": "STRING -1 -: OUTPUT\n",
    "tensorrt_llm_bls": "STRING -1 -: text_output\n" + _RESULTS_HEAD + _PERF,
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


def _parse(table: str) -> list[Tensor]:
    tensors = []
    for line in filter(None, map(str.strip, table.splitlines())):
        head, names = line.split(": ")
        datatype, dims, flags = head.split()
        shape = tuple(int(d) for d in dims.split(","))
        tensors += [Tensor(n, datatype, shape, "?" in flags, "r" in flags, "s" in flags) for n in names.split()]
    return tensors


@cache
def _tensors(model: str, generation: str, is_input: bool) -> tuple[Tensor, ...]:
    tensors = _parse((_INPUTS if is_input else _OUTPUTS)[model])
    if generation == "old":
        tensors = [replace(t, name=OLD_NAMES.get(t.name, t.name)) for t in tensors]
    return tuple(tensors)


def inputs(model: str, generation: str = "new") -> tuple[Tensor, ...]:
    """The inputs of one of the five MODELS, in the order of NVIDIA's template; generation: one of GENERATIONS."""
    return _tensors(model, generation, True)


def outputs(model: str, generation: str = "new") -> tuple[Tensor, ...]:
    """The outputs of one of the five MODELS."""
    return _tensors(model, generation, False)
