"""The tensors and parameters of the five models, as data (taught in notebook 03).

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

from dataclasses import dataclass
from functools import cache

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
