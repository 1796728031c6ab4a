"""How the five models hang together: the ensemble's maps, and the parameters that reach each model (notebook 03).

Source: the same templates as contract.py. A map reads `inner tensor=ensemble tensor`, a single name meaning both; a
leading underscore marks a tensor that lives only inside the ensemble."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from servinglab.repository import contract
from servinglab.repository.contract import RepositoryError

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
    """One step of the ensemble: the model (one of contract.MODELS) and {its tensor: the ensemble's tensor}."""

    model: str
    inputs: dict[str, str]
    outputs: dict[str, str]


def ensemble_steps(generation: str = "new") -> tuple[Step, ...]:
    """The three steps. Every output that only the LLM makes goes to the client under its own name."""
    old = contract.OLD_NAMES if generation == "old" else {}
    pairs = [item.partition("=") for item in _LLM_IN.split()]
    llm_in = {old.get(key, key): old.get(value or key, value or key) for key, _, value in pairs}
    client = [t.name for t in contract.outputs("ensemble") if t.name != "text_output"]
    llm_out = {"output_ids": "_TOKENS_BATCH", "sequence_length": "_SEQUENCE_LENGTH"} | {name: name for name in client}
    post_in = {"TOKENS_BATCH": "_TOKENS_BATCH", "SEQUENCE_LENGTH": "_SEQUENCE_LENGTH"}
    pre_in, pre_out = (dict(item.split("=") for item in text.split()) for text in (_PRE_IN, _PRE_OUT))
    steps = (pre_in, pre_out), (llm_in, llm_out), (post_in, {"OUTPUT": "text_output"})
    return tuple(Step(model, *maps) for model, maps in zip(contract.MODELS[:3], steps, strict=True))


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
