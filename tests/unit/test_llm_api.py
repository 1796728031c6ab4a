"""Names and translation between the APIs: the table against the contract, SamplingParams and trtllm-serve."""

from __future__ import annotations

import matplotlib as mpl
import pytest
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.patches import FancyBboxPatch
from tritonclient.grpc import model_config_pb2

from engines import EngineError, llm_api
from engines.llm_api import decides, parameters, translate
from plots import protocols
from servinglab.repository import contract

# The fields of SamplingParams in 1.0 (published reference) and 1.3.0rc3, written down apart from the table.
SAMPLING_PARAMS = set(
    """end_id pad_id max_tokens bad bad_token_ids stop stop_token_ids include_stop_str_in_output embedding_bias
    logits_processor apply_batched_logits_processor n best_of use_beam_search top_k top_p top_p_min top_p_reset_ids
    top_p_decay seed temperature min_tokens beam_search_diversity_rate repetition_penalty presence_penalty
    frequency_penalty length_penalty early_stopping no_repeat_ngram_size min_p beam_width_array logprobs
    prompt_logprobs return_context_logits return_generation_logits exclude_input_from_output return_encoder_output
    return_perf_metrics additional_model_outputs lookahead_config guided_decoding ignore_eos detokenize
    add_special_tokens truncate_prompt_tokens skip_special_tokens spaces_between_special_tokens
    prompt_ignore_length logprobs_mode""".split()
)
mpl.use("Agg")
GOOD = {"text_input": "Hi", "max_tokens": 4}


def names(api):
    return {cell.name for cell in parameters(api).values() if cell.name}


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_every_engine_name_is_a_tensor_of_the_contract(model):
    tensors = {tensor.name: tensor for tensor in contract.tensors("input", model)}
    for parameter, cell in parameters("engine").items():
        if cell.name in tensors:
            assert tensors[cell.name].optional != cell.required, parameter
    assert names("engine") - set(tensors) <= {"return_perf_metrics"}


def test_every_input_of_the_ensemble_has_a_row_or_is_known_to_have_none():
    others = set(llm_api.DATA["others"]["engine"].split())
    assert not names("engine") & others
    assert {tensor.name for tensor in contract.tensors("input", "ensemble")} - names("engine") == others


def test_the_llm_api_has_these_fields_and_no_others():
    named = names("llm_api") - {"inputs", "streaming"}  # arguments of generate_async
    others = set(llm_api.DATA["others"]["llm_api"].split()) - {"lora_request"}
    assert named | others == SAMPLING_PARAMS and not named & others


@pytest.mark.parametrize(
    "parameter, api, default",
    [
        ("max tokens", "llm_api", 32), ("max tokens", "llmapi", 32), ("max tokens", "completions", None),
        ("temperature", "completions", 1.0), ("temperature", "llm_api", None), ("top p", "completions", 1.0),
        ("top p", "engine", 0.0), ("repeat the prompt", "llm_api", True),  # the names say "exclude"
        ("repeat the prompt", "llmapi", False), ("length penalty", "completions", 1.0),
        ("length penalty", "llm_api", 0.0), ("early stopping", "engine", 1), ("keep stop word", "engine", True),
        ("keep stop word", "llmapi", False),
    ],
)  # fmt: skip
def test_what_counts_when_a_name_is_left_out(parameter, api, default):
    assert parameters(api)[parameter].default == default


@pytest.mark.parametrize(
    "said, engine, api, completions",
    [
        ({}, "greedy", "greedy", "sampling"),
        ({"temperature": 0.8}, "greedy", "sampling", "sampling"),
        ({"temperature": 0.0}, "greedy", "greedy", "greedy"),
        ({"top_k": 0}, "greedy", "sampling", "sampling"),
        ({"top_k": 1}, "greedy", "greedy", "greedy"),
        ({"top_k": 5}, "sampling", "sampling", "sampling"),
        ({"top_p": 1.0}, "sampling", "sampling", "sampling"),
        ({"top_p": 0.0}, "greedy", "greedy", "greedy"),
        ({"top_p": 0.0, "top_k": 5}, "sampling", "greedy", "greedy"),
    ],
)
def test_who_decides_for_sampling(said, engine, api, completions):
    assert decides(said, "engine") == engine
    assert decides(said, "llm_api") == api
    assert decides(said, "completions") == decides(said, "chat") == completions
    assert decides({f"sampling_param_{k}": v for k, v in said.items()}, "llmapi") == api


def test_beams_are_a_width_here_and_a_switch_there():
    assert (
        decides({"beam_width": 3}, "engine") == decides({"use_beam_search": True, "n": 3}, "llm_api") == "beam search"
    )
    assert decides({"use_beam_search": True}, "llm_api") == "greedy"  # one beam
    there, notes = translate(GOOD | {"beam_width": 3}, "engine", "llm_api")
    assert there["use_beam_search"] is True and there["best_of"] == there["n"] == 3
    assert translate(there, "llm_api", "engine")[0]["beam_width"] == 3
    assert "beams" in lost(translate(GOOD | {"beam_width": 3}, "engine", "llmapi")[1])


def lost(notes):
    return {note.parameter for note in notes if note.kind == "lost"}


def test_an_openai_body_for_the_engine():
    body = {"messages": "<Hi>", "max_completion_tokens": 4, "temperature": 0.8, "stop": "."}
    request, notes = translate(body, "chat", "engine")
    wanted = {"text_input": "<Hi>", "max_tokens": 4, "temperature": 0.8, "top_p": 1.0, "stop_words": "."}
    assert request == wanted | {"exclude_input_in_output": True}
    assert {note.kind for note in notes} == {"renamed", "written", "differs"}
    with pytest.raises(EngineError, match="template twice"):
        translate(request, "engine", "chat")


def test_an_engine_request_for_openai_must_say_greedy_and_loses_bad_words():
    request, notes = translate(GOOD | {"bad_words": ["no"], "seed": 3}, "engine", "completions")
    assert request == {"prompt": "Hi", "max_tokens": 4, "temperature": 0.0, "seed": 3, "echo": True}
    assert lost(notes) == {"bad words"}
    assert any(note.kind == "differs" and "pull request 17172" in note.text for note in notes)


def test_the_llmapi_model_lacks_much_and_a_value_that_changes_nothing_is_no_loss():
    rich = GOOD | {"min_tokens": 5, "repetition_penalty": 1.2, "return_log_probs": True, "num_return_sequences": 2}
    assert lost(translate(rich, "engine", "llmapi")[1]) == {"min tokens", "repetition penalty", "log probs", "n"}
    same = GOOD | {"min_tokens": 1, "repetition_penalty": 1.0, "num_return_sequences": 1}
    assert lost(translate(same, "engine", "llmapi")[1]) == set()


def test_no_bound_on_the_answer():
    assert translate({"prompt": "x"}, "completions", "llm_api")[0]["max_tokens"] is None
    assert "max tokens" in lost(translate({"prompt": "x"}, "completions", "llmapi")[1])
    with pytest.raises(EngineError, match="needs a number"):
        translate({"prompt": "x"}, "completions", "engine")


SAMPLED = st.fixed_dictionaries(
    GOOD | {"text_input": st.text(min_size=1), "max_tokens": st.integers(1, 99)},
    optional={
        "temperature": st.floats(0, 2), "top_k": st.integers(0, 1024), "top_p": st.floats(0, 1),
        "seed": st.integers(0, 2**64 - 1), "stop_words": st.lists(st.text(min_size=1), min_size=1, max_size=2),
        "exclude_input_in_output": st.booleans(), "stream": st.booleans(), "min_tokens": st.integers(2, 9),
        "repetition_penalty": st.floats(0.1, 2), "end_id": st.integers(0, 9), "return_log_probs": st.booleans(),
    },
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(SAMPLED, st.sampled_from(["llm_api", "completions", "llmapi"]))
def test_what_is_not_lost_means_the_same_there_and_back(request, api):
    there, notes = translate(request, "engine", api)
    assert set(there) <= names(api) and all(note.text.endswith(".") for note in notes)
    assert decides({k: v for k, v in there.items()}, api) == decides(request, "engine")
    back, _ = translate(there, api, "engine")
    assert decides(back, "engine") == decides(request, "engine")
    defaults = {cell.name: cell.default for cell in parameters("engine").values() if cell.name}
    free = {parameters("engine")[parameter].name for parameter in lost(notes)} | {"temperature", "top_k", "top_p"}
    if request.get("stream"):
        free |= {"exclude_input_in_output"}  # a stream never repeats the prompt
    for name in set(request) - free:
        assert back.get(name, defaults[name]) == request[name], name
    if decides(request, "engine") == "sampling":
        for name, off in (("temperature", 1.0), ("top_k", 0)):
            assert back.get(name, off) == request.get(name, off)
        assert (back.get("top_p") or 1.0) == (request.get("top_p") or 1.0)


@pytest.mark.parametrize(
    "change, said",
    [
        ({"max_token": 3}, "There is no 'max_token' on the engine. Did you mean 'max_tokens'"),
        ({"n": 3}, "There is no 'n' on the engine."),
        ({"max_tokens": None}, "A request for the engine needs 'max_tokens', and this one has none."),
    ],
)
def test_each_mistake_gets_one_sentence(change, said):
    with pytest.raises(EngineError) as error:
        translate({**GOOD, **change}, "engine", "llm_api")
    assert said in str(error.value) and "\n" not in str(error.value)


def test_other_mistakes():
    with pytest.raises(EngineError, match="no API 'vllm'"):
        translate(GOOD, "engine", "vllm")
    assert lost(translate({**GOOD, "prompt_vocab_size": 4}, "engine", "llm_api")[1]) == {"prompt_vocab_size"}


def test_the_llmapi_configuration_has_the_inputs_of_the_upstream_model():
    found = text_format.Parse(llm_api.DATA["llmapi_config"], model_config_pb2.ModelConfig())
    inputs = {i.name: (model_config_pb2.DataType.Name(i.data_type), list(i.dims), i.optional) for i in found.input}
    numbers = {"max_tokens": "INT32", "best_of": "INT32", "top_k": "INT32", "temperature": "FP32", "top_p": "FP32",
               "frequency_penalty": "FP32", "presence_penalty": "FP32", "seed": "UINT64",
               "exclude_input_from_output": "BOOL", "return_perf_metrics": "BOOL"}  # fmt: skip
    wanted = {f"sampling_param_{name}": (f"TYPE_{kind}", [1], True) for name, kind in numbers.items()}
    wanted |= {"sampling_param_stop": ("TYPE_STRING", [-1], True), "text_input": ("TYPE_STRING", [-1], False)}
    flags = ("streaming", "stop", "return_finish_reason", "return_stop_reason", "return_cumulative_logprob")
    assert inputs == wanted | dict.fromkeys(flags, ("TYPE_BOOL", [1], True))
    assert inputs.keys() == names("llmapi"), "the table has the same"
    assert [o.name for o in found.output][:3] == ["text_output", "finish_reason", "stop_reason"]


@pytest.mark.usefixtures("course_style")
def test_a_stream_s_boxes_are_its_bytes_in_order_and_the_filled_ones_its_text():
    fig = protocols.wire({"a": [(80, "é!"), (40, "")], "b": [(200, " one")]})
    (axes,) = fig.axes
    boxes = [patch for patch in axes.patches if isinstance(patch, FancyBboxPatch)]
    assert [(box.get_x(), box.get_width()) for box in boxes] == [(0, 80), (80, 40), (0, 200)]
    texts = [patch.get_width() for patch in axes.patches if not isinstance(patch, FancyBboxPatch)]
    assert texts == [3, 0, 4]
    assert "120 bytes in 2 events, 40 for each byte of text" in [text.get_text() for text in axes.texts]
