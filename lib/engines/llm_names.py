"""What each road to TensorRT-LLM calls a thing, and what it takes when a request leaves the thing out (notebook 12).

Roads: `engine` (the client side of an engine: ensemble and tensorrt_llm_bls), `tensorrt_llm` (the model inside),
`llm_api` (`tensorrt_llm.LLM` with SamplingParams), `completions` and `chat` (the two OpenAI paths of trtllm-serve),
`llmapi` (Triton's model of that name). `engine_old` is `engine` with the names up to TensorRT-LLM 0.19.

Sources: repository/contract.py, and of TensorRT-LLM 1.3.0rc3 tensorrt_llm/sampling_params.py,
tensorrt_llm/serve/openai_protocol.py and triton_backend/all_models/llmapi.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache

from engines import EngineError
from servinglab.errors import did_you_mean
from servinglab.repository.contract import OLD_NAMES

ROADS = {
    "engine": "the engine lane",
    "engine_old": "the engine lane up to 0.19",
    "llm_api": "the LLM API",
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
    "llmapi": "the llmapi model",
}
ENGINES = ("engine", "engine_old")
COLUMNS = ("engine", "tensorrt_llm", "llm_api", "completions", "chat", "llmapi")

# idea | datatype of its Triton tensors | then one cell for each of COLUMNS:
# `name=value that counts without it`, `name!` when it must be there, `-` when the road has no name for it, `:value`
# when it has none and always acts like this, `"` like the cell before it, `+=value` for sampling_param_ and the name of
# the LLM API. None in `max tokens` means: until the sequence is full. A value in brackets is what the runtime fills in
# where SamplingParams says None.
_TABLE = """
prompt | STRING | text_input! | input_ids=None | inputs! | prompt! | messages! | text_input!
max tokens | INT32 | max_tokens! | request_output_len! | max_tokens=32 |max_tokens=None|max_completion_tokens=None|+=32
temperature | FP32 | temperature=1.0 | " | temperature=None | temperature=1.0 | " | +=None
top k | INT32 | top_k=0 | runtime_top_k=0 | top_k=None | top_k=0 | " | +=None
top p | FP32 | top_p=0.0 | runtime_top_p=0.0 | top_p=None | top_p=1.0 | " | +=None
top p decay | FP32 | - | runtime_top_p_decay=1.0 | top_p_decay=(1.0) | - | - | -
min p | - | - | - | min_p=(0.0) | min_p=0.0 | " | -
seed | UINT64 | seed=0 | " | seed=(0) | " | " | +=(0)
stop words | STRING | stop_words=[] | stop_words_list=[] | stop=[] | " | " | +=[]
keep stop word | - | :True | - | include_stop_str_in_output=False | " | " | -
stop token ids | - | - | - | stop_token_ids=[] | " | " | -
bad words | STRING | bad_words=[] | bad_words_list=[] | bad=[] | - | - | -
end id | INT32 | end_id=None | " | " | - | - | -
pad id | INT32 | pad_id=None | " | " | - | - | -
ignore end id | - | - | - | ignore_eos=False | " | " | -
min tokens | INT32 | min_tokens=1 | " | min_tokens=(1) | min_tokens=0 | " | -
repetition penalty | FP32 | repetition_penalty=1.0 | " | repetition_penalty=(1.0) | repetition_penalty=1.0 | " | -
presence penalty | FP32 | presence_penalty=0.0 | " | presence_penalty=(0.0) | presence_penalty=0.0 | " | +=(0.0)
frequency penalty | FP32 | frequency_penalty=0.0 | " | frequency_penalty=(0.0) | frequency_penalty=0.0 | " | +=(0.0)
n | INT32 | num_return_sequences=1 | " | n=1 | " | " | -
best of | INT32 | - | - | best_of=None | " | " | +=1
beams | INT32 | beam_width=1 | " | use_beam_search=False | " | " | -
length penalty | FP32 | length_penalty=0.0 | len_penalty=0.0 | length_penalty=(0.0) | length_penalty=1.0 | " | -
early stopping | - | - | early_stopping=1 | early_stopping=(1) | early_stopping=False | " | -
log probs | BOOL | return_log_probs=False | " | logprobs=None | " | logprobs=False | -
sum of log probs | BOOL | - | - | - | - | - | return_cumulative_logprob=False
repeat the prompt | BOOL | exclude_input_in_output=False | " | exclude_input_from_output=True | echo=False | - | +=False
stream | BOOL | stream=False | streaming=False | " | stream=False | " | streaming=False
cancel | BOOL | - | stop=False | - | - | - | stop=False
prompt logits | BOOL | return_context_logits=False | " | " | " | - | -
answer logits | BOOL | return_generation_logits=False | " | " | - | - | -
timings | BOOL | return_perf_metrics=False | " | " | - | - | +=False
finish reason | BOOL | - | - | - | - | - | return_finish_reason=False
stop reason | BOOL | - | - | - | - | - | return_stop_reason=False
bias | STRING | embedding_bias_words=[] | embedding_bias=[] | " | logit_bias=[] | " | -
bias weights | FP32 | embedding_bias_weights=[] | - | - | - | - | -
guide | STRING | guided_decoding_guide=None | " | guided_decoding=None | response_format=None | " | -
guide type | STRING | guided_decoding_guide_type=None | " | - | - | - | -
LoRA | UINT64 | lora_task_id=None | " | lora_request=None | " | " | -
"""

# Arguments of LLM.generate_async; every other name of the LLM API is a field of SamplingParams.
ARGUMENTS = ("inputs", "streaming", "lora_request")

# Names that exist and have no row: `translate` says so instead of calling them unknown.
_BOTH_OPENAI = """model stream_options user prompt_ignore_length top_p_min skip_special_tokens
spaces_between_special_tokens truncate_prompt_tokens add_special_tokens disaggregated_params"""
OTHERS = {
    "llm_api": """bad_token_ids logits_processor apply_batched_logits_processor top_p_min top_p_reset_ids
beam_search_diversity_rate no_repeat_ngram_size beam_width_array prompt_logprobs return_encoder_output
additional_model_outputs lookahead_config detokenize add_special_tokens truncate_prompt_tokens skip_special_tokens
spaces_between_special_tokens prompt_ignore_length logprobs_mode""".split(),
    "completions": [*_BOTH_OPENAI.split(), "suffix", "detokenize"],
    "chat": [*_BOTH_OPENAI.split(), *"""max_tokens top_logprobs tools tool_choice reasoning_effort echo documents
add_generation_prompt chat_template chat_template_kwargs cache_salt prompt_token_ids""".split()],
    "llmapi": [],
}  # fmt: skip


@dataclass(frozen=True)
class Name:
    """One cell: the name on a road (None where it has none) and the value that counts when it is left out."""

    name: str | None
    default: object = None
    required: bool = False
    inferred: bool = False


@dataclass(frozen=True)
class Row:
    """One idea. `datatype` is that of its Triton tensors ("-" when it has none), `names` one Name a road."""

    idea: str
    datatype: str
    names: dict[str, Name]

    def on(self, road: str) -> Name:
        if road == "engine_old":
            found = self.names["engine"]
            return Name(OLD_NAMES.get(found.name, found.name), found.default, found.required)
        return self.names[road]


def _parts(cell: str) -> tuple[str | None, str | None]:
    """Name and default of one cell, as text."""
    if cell == "-" or cell.startswith(":"):
        return None, cell[1:] or None
    name, _, value = cell.partition("=")
    return name.rstrip("!"), value or None


def _row(line: str) -> Row:
    idea, datatype, *cells = map(str.strip, line.split("|"))
    for i, cell in enumerate(cells):
        if cell == '"':
            cells[i] = cells[i - 1]
        elif cell.startswith("+"):
            cells[i] = f"sampling_param_{_parts(cells[COLUMNS.index('llm_api')])[0]}{cell[1:]}"
    parts = dict(zip(COLUMNS, map(_parts, cells), strict=True))
    # Where a road has no name, things are as they are in the LLM API without it, which all new roads end in.
    order = ("llm_api", "engine", "llmapi", "tensorrt_llm")
    usual = next((parts[road][1] for road in order if parts[road][1] is not None), "None")
    names = {}
    for (road, (name, value)), cell in zip(parts.items(), cells, strict=True):
        default = ast.literal_eval(usual if value is None else value)
        names[road] = Name(name, default, cell.endswith("!"), "=(" in cell)
    return Row(idea, datatype, names)


@cache
def rows() -> tuple[Row, ...]:
    """The table, one Row an idea."""
    return tuple(_row(line) for line in _TABLE.strip().splitlines())


def row(idea: str) -> Row:
    """One row by its idea, such as "max tokens". Raises EngineError for an unknown one."""
    found = {entry.idea: entry for entry in rows()}
    if idea not in found:
        raise EngineError(f"The name table has no idea {idea!r}.{did_you_mean(str(idea), found)}")
    return found[idea]


def names_of(road: str) -> dict[str, Row]:
    """{name: its row} of one of the ROADS. Raises EngineError for an unknown road."""
    if road not in ROADS:
        raise EngineError(f"There is no road {road!r}; use one of: {', '.join(ROADS)}.")
    return {name: entry for entry in rows() if (name := entry.on(road).name)}
