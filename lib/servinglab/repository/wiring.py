"""How the five models hang together: the ensemble's maps, and the parameters that reach each model (notebook 03).

Source: the same templates as contract.py. A map reads `inner tensor=ensemble tensor`, a single name meaning both; a
leading underscore marks a tensor that lives only inside the ensemble.
"""

from __future__ import annotations

from dataclasses import dataclass

from servinglab.repository import contract

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


@dataclass(frozen=True)
class Step:
    """One step of the ensemble: the model (one of contract.MODELS) and {its tensor: the ensemble's tensor}."""

    model: str
    inputs: dict[str, str]
    outputs: dict[str, str]


def _map(text: str, generation: str = "new") -> dict[str, str]:
    pairs = [(key, value or key) for key, _, value in (item.partition("=") for item in text.split())]
    if generation == "old":
        return {contract.OLD_NAMES.get(k, k): contract.OLD_NAMES.get(v, v) for k, v in pairs}
    return dict(pairs)


def ensemble_steps(generation: str = "new") -> tuple[Step, ...]:
    """The three steps. Every output that only the LLM makes goes to the client under its own name."""
    client = {t.name for t in contract.outputs("ensemble", generation)}
    llm_out = {"output_ids": "_TOKENS_BATCH", "sequence_length": "_SEQUENCE_LENGTH"}
    llm_out |= {t.name: t.name for t in contract.outputs("tensorrt_llm", generation) if t.name in client}
    return (
        Step("preprocessing", _map(_PRE_IN), _map(_PRE_OUT)),
        Step("tensorrt_llm", _map(_LLM_IN, generation), llm_out),
        Step(
            "postprocessing",
            _map("TOKENS_BATCH=_TOKENS_BATCH SEQUENCE_LENGTH=_SEQUENCE_LENGTH"),
            _map("OUTPUT=text_output"),
        ),
    )


# `key=variable`: the parameter's key in config.pbtxt and the name that templates and DeploymentSpec use for it.
# `!` marks the ones without which the model does not load.
_PARAMETERS = {
    "ensemble": "",
    "preprocessing": "tokenizer_dir! add_special_tokens multimodal_model_path gpt_model_path=engine_dir max_num_images",
    "postprocessing": "tokenizer_dir! skip_special_tokens",
    # The last two are ours: NVIDIA's model.py has the names "preprocessing" and "postprocessing" written into it, so
    # that one repository cannot hold two deployments.
    "tensorrt_llm_bls": """accumulate_tokens tensorrt_llm_model_name tensorrt_llm_draft_model_name
        multimodal_encoders_name preprocessing_model_name postprocessing_model_name""",
    "tensorrt_llm": """max_beam_width gpt_model_type=batching_strategy! gpt_model_path=engine_dir!
        encoder_model_path=encoder_engine_dir max_tokens_in_paged_kv_cache max_attention_window_size sink_token_length
        batch_scheduler_policy kv_cache_free_gpu_mem_fraction cross_kv_cache_fraction kv_cache_host_memory_bytes
        kv_cache_onboard_blocks exclude_input_in_output cancellation_check_period_ms stats_check_period_ms
        iter_stats_max_iterations request_stats_max_iterations enable_kv_cache_reuse normalize_log_probs
        enable_chunked_context gpu_device_ids participant_ids num_nodes lora_cache_optimal_adapter_size
        lora_cache_max_adapter_size lora_cache_gpu_memory_fraction lora_cache_host_memory_bytes lora_prefetch_dir
        decoding_mode lookahead_window_size lookahead_ngram_size lookahead_verification_set_size medusa_choices
        eagle_choices gpu_weights_percent enable_context_fmha_fp32_acc multi_block_mode cuda_graph_mode
        cuda_graph_cache_size speculative_decoding_fast_logits tokenizer_dir guided_decoding_backend
        xgrammar_tokenizer_info_path""",
}

# Parameters that the C++ backend reads and our templates leave out: NVIDIA's have the first since some 1.x only
# (1.3.0rc3 has it), and never the second.
LLM_EXTRAS = ("enable_trt_overlap", "recv_poll_period_ms")

# Template variables outside quotes: left unfilled, they are a syntax error and the model is not loaded at all.
_STRUCTURAL = {
    "ensemble": "triton_max_batch_size logits_datatype",
    "preprocessing": """triton_max_batch_size max_queue_delay_microseconds max_queue_size
        preprocessing_instance_count""",
    "postprocessing": "triton_max_batch_size postprocessing_instance_count",
    "tensorrt_llm_bls": "triton_max_batch_size decoupled_mode logits_datatype bls_instance_count",
    "tensorrt_llm": """triton_max_batch_size decoupled_mode max_queue_delay_microseconds max_queue_size
        encoder_input_features_data_type logits_datatype""",
}

# Written as they are, in the C++ backend's configuration only.
LLM_LITERALS = {
    "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
    "executor_worker_path": "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker",
}


@dataclass(frozen=True)
class Parameter:
    """One parameter of a model: its `key` in config.pbtxt, the template `variable` that fills it, and if it must be."""

    key: str
    variable: str
    mandatory: bool


def parameters(model: str) -> tuple[Parameter, ...]:
    """The string parameters of one of the five models, in the order of NVIDIA's template."""
    found = []
    for item in _PARAMETERS[model].split():
        key, _, variable = item.rstrip("!").partition("=")
        found.append(Parameter(key, variable or key, item.endswith("!")))
    return tuple(found)


def structural(model: str, generation: str = "new") -> tuple[str, ...]:
    """The unquoted template variables of one of the five models."""
    names = tuple(_STRUCTURAL[model].split())
    in_1_1 = generation == "1.1" and model in ("tensorrt_llm", "tensorrt_llm_bls")
    return (*names, "prompt_embedding_table_data_type") if in_1_1 else names
