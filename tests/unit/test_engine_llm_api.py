"""Names and translation between the roads: the table against the contract, SamplingParams and trtllm-serve."""

from __future__ import annotations

import json
import textwrap

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engines import EngineError, llm_api, llm_names, llm_run, llm_values, llmapi_model, migration
from engines.llm_api import decides, translate
from servinglab.repository import contract, pbtxt

# --- the table ------------------------------------------------------------------------------------------------------

# The fields of SamplingParams in 1.0 (published reference), written down apart from the table.
SAMPLING_PARAMS = set(
    """end_id pad_id max_tokens bad bad_token_ids stop stop_token_ids include_stop_str_in_output embedding_bias
    logits_processor apply_batched_logits_processor n best_of use_beam_search top_k top_p top_p_min top_p_reset_ids
    top_p_decay seed temperature min_tokens beam_search_diversity_rate repetition_penalty presence_penalty
    frequency_penalty length_penalty early_stopping no_repeat_ngram_size min_p beam_width_array logprobs
    prompt_logprobs return_context_logits return_generation_logits exclude_input_from_output return_encoder_output
    return_perf_metrics additional_model_outputs lookahead_config guided_decoding ignore_eos detokenize
    add_special_tokens truncate_prompt_tokens skip_special_tokens spaces_between_special_tokens""".split()
)
LATER = {"prompt_ignore_length", "logprobs_mode"}  # fields of 1.3.0rc3 that 1.0 lacks


@pytest.mark.parametrize("generation, road", [("new", "engine"), ("1.1", "engine"), ("old", "engine_old")])
@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_every_engine_name_is_a_tensor_of_the_contract(model, generation, road):
    tensors = {tensor.name: tensor for tensor in contract.inputs(model, generation)}
    for name, row in llm_names.names_of(road).items():
        assert tensors[name].datatype == row.datatype, name
        assert tensors[name].optional != row.on(road).required, name


def test_old_names_are_no_tensors_of_new_engines():
    new, old = llm_names.names_of("engine"), llm_names.names_of("engine_old")
    assert set(new) - set(old) == {"seed", "min_tokens"} and set(old) - set(new) == {"random_seed", "min_length"}
    assert not (set(old) - set(new)) & {tensor.name for tensor in contract.inputs("ensemble", "new")}


def test_every_inner_name_is_an_input_of_tensorrt_llm():
    tensors = {tensor.name: tensor for tensor in contract.inputs("tensorrt_llm")}
    for row in llm_names.rows():
        inner = row.names["tensorrt_llm"].name
        if inner and row.idea not in ("prompt", "stop words", "bad words", "bias", "early stopping"):  # other forms
            assert tensors[inner].datatype == row.datatype, inner
        assert inner is None or inner in tensors


def test_the_llm_api_has_these_fields_and_no_others():
    named = {name for name in llm_names.names_of("llm_api") if name not in llm_names.ARGUMENTS}
    assert named | set(llm_names.OTHERS["llm_api"]) == SAMPLING_PARAMS | LATER
    assert not named & set(llm_names.OTHERS["llm_api"])


def test_rows_are_whole():
    ideas = [row.idea for row in llm_names.rows()]
    assert len(set(ideas)) == len(ideas) == 39
    for road in llm_names.COLUMNS:
        names = [row.names[road].name for row in llm_names.rows() if row.names[road].name]
        assert len(set(names)) == len(names), road
    assert all(any(name.name for name in row.names.values()) for row in llm_names.rows())


@pytest.mark.parametrize(
    "idea, road, default",
    [
        ("max tokens", "llm_api", 32),
        ("max tokens", "llmapi", 32),
        ("max tokens", "completions", None),
        ("temperature", "completions", 1.0),
        ("top p", "completions", 1.0),
        ("top p", "engine", 0.0),
        ("temperature", "llm_api", None),
        ("repeat the prompt", "llm_api", True),  # the names say "exclude"
        ("repeat the prompt", "llmapi", False),
        ("repeat the prompt", "engine", False),
        ("length penalty", "completions", 1.0),
        ("length penalty", "llm_api", 0.0),
        ("early stopping", "completions", 0),
        ("early stopping", "engine", 1),
        ("keep stop word", "engine", True),
        ("keep stop word", "llmapi", False),
    ],
)
def test_what_counts_when_a_name_is_left_out(idea, road, default):
    assert llm_names.row(idea).on(road).default == default


def test_unknown_ideas_and_roads_are_told():
    with pytest.raises(EngineError, match="no idea 'max token'. Did you mean 'max tokens'"):
        llm_names.row("max token")
    with pytest.raises(EngineError, match="There is no road 'openai'; use one of: engine, engine_old, llm_api"):
        llm_names.names_of("openai")


# --- greedy or sampled ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said, engine, llm_api_, completions",
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
        ({"top_p": 0.9, "temperature": 0.0}, "greedy", "greedy", "greedy"),
    ],
)
def test_who_decides_for_sampling(said, engine, llm_api_, completions):
    assert decides(said, "engine") == decides(said, "engine_old") == engine
    assert decides(said, "llm_api") == llm_api_
    assert decides(said, "completions") == decides(said, "chat") == completions
    assert decides({f"sampling_param_{k}": v for k, v in said.items()}, "llmapi") == llm_api_


def test_the_engine_rule_is_the_executor_s():
    from reference_backend.executor.request import SamplingParams

    for temperature in (0.0, 0.7, 1.0):
        for top_k in (0, 5):
            for top_p in (0.0, 0.5, 1.0):
                said = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
                assert (decides(said, "engine") == "greedy") == SamplingParams(**said).greedy, said


def test_beams_are_a_width_here_and_a_switch_there():
    assert decides({"beam_width": 3}, "engine") == "beam search"
    assert decides({"use_beam_search": True, "n": 2}, "llm_api") == "beam search"
    assert decides({"use_beam_search": True}, "llm_api") == "greedy"  # one beam
    assert decides({"n": 3, "temperature": 0.8}, "completions") == "sampling"


# --- one request, by hand -----------------------------------------------------------------------------------------


def kinds(notes, kind):
    return {note.idea for note in notes if note.kind == kind}


def test_an_openai_body_for_the_engine_lane():
    body = {"model": "m", "prompt": "Hi", "max_tokens": 9, "temperature": 0.8, "n": 3, "stop": ".", "seed": 4}
    request, notes = translate(body, "completions", "engine")
    assert request == {
        "text_input": "Hi", "max_tokens": 9, "temperature": 0.8, "top_p": 1.0, "num_return_sequences": 3,
        "stop_words": ["."], "seed": 4, "exclude_input_in_output": True,
    }  # fmt: skip
    assert kinds(notes, "renamed") == {"prompt", "n", "stop words"}
    assert kinds(notes, "written") == {"temperature", "repeat the prompt"}
    assert kinds(notes, "differs") == {"n", "keep stop word"} and not kinds(notes, "lost")


def test_an_engine_request_for_the_llm_api():
    request = {"text_input": "Hi", "max_tokens": 9, "temperature": 0.8, "return_log_probs": True, "seed": 1}
    translated, notes = translate(request, "engine", "llm_api")
    assert translated == {"inputs": "Hi", "max_tokens": 9, "logprobs": 0, "seed": 1, "exclude_input_from_output": False}
    assert kinds(notes, "written") == {"temperature", "repeat the prompt"}
    assert kinds(notes, "differs") == {"seed"}
    assert "leave them out" in next(n.text for n in notes if n.idea == "temperature")


def test_an_engine_request_for_openai_must_say_greedy():
    translated, _ = translate({"text_input": "Hi", "max_tokens": 9, "stream": True}, "engine", "completions")
    assert translated == {"prompt": "Hi", "max_tokens": 9, "stream": True, "temperature": 0.0}


def test_the_llmapi_model_lacks_much():
    request = {
        "inputs": "Hi", "temperature": 0.5, "n": 2, "repetition_penalty": 1.2, "logprobs": 2, "bad": ["x"],
        "min_tokens": 4, "min_p": 0.1,
    }  # fmt: skip
    translated, notes = translate(request, "llm_api", "llmapi")
    assert translated == {
        "text_input": "Hi",
        "sampling_param_temperature": 0.5,
        "sampling_param_exclude_input_from_output": True,
    }
    assert kinds(notes, "lost") == {"n", "repetition penalty", "log probs", "bad words", "min tokens", "min p"}


def test_a_value_that_changes_nothing_is_no_loss():
    request = {"inputs": "Hi", "repetition_penalty": 1.0, "min_tokens": 0, "bad": [], "n": 1}
    assert not kinds(translate(request, "llm_api", "llmapi")[1], "lost")


def test_a_beam_search_loses_only_what_was_said():
    _, notes = translate({"text_input": "Hi", "max_tokens": 5, "beam_width": 3, "top_p": 0.9}, "engine", "llm_api")
    assert [(note.idea, note.text) for note in notes if note.kind == "lost"] == [
        ("top p", "top_p: a beam search does not use it.")
    ]


def test_beam_search_on_each_road():
    there, notes = translate({"text_input": "Hi", "max_tokens": 5, "beam_width": 3}, "engine", "llm_api")
    assert (there["use_beam_search"], there["best_of"], there["n"]) == (True, 3, 3)
    assert "max_beam_width=3" in next(n.text for n in notes if n.kind == "differs")
    back, _ = translate(there, "llm_api", "engine")
    assert back == {"text_input": "Hi", "max_tokens": 5, "beam_width": 3, "exclude_input_in_output": False}
    best, _ = translate({**there, "n": 2}, "llm_api", "engine")
    assert (best["beam_width"], best["num_return_sequences"]) == (3, 2)
    served, _ = translate({"prompt": "Hi", "max_tokens": 5, "use_beam_search": True, "n": 2}, "completions", "llm_api")
    assert (served["length_penalty"], served["early_stopping"]) == (1.0, 0)  # trtllm-serve's own defaults
    lost, notes = translate(there, "llm_api", "llmapi")
    assert kinds(notes, "lost") == {"n", "beams"} and "sampling_param_best_of" not in lost


def test_several_greedy_answers_are_refused_by_the_llm_api():
    request = {"text_input": "Hi", "max_tokens": 5, "num_return_sequences": 2}
    translated, notes = translate(request, "engine", "llm_api")
    assert "n" not in translated and kinds(notes, "lost") == {"n"}


def test_log_probs_are_a_flag_a_count_and_a_pair():
    def logprobs(value, source, target):
        head = {"engine": {"text_input": "x", "max_tokens": 1}, "llm_api": {"inputs": "x", "max_tokens": 1},
                "completions": {"prompt": "x", "max_tokens": 1}}[source]  # fmt: skip
        return translate({**head, llm_names.row("log probs").on(source).name: value}, source, target)

    assert logprobs(True, "engine", "completions")[0]["logprobs"] == 1  # 0 would mean none to trtllm-serve
    assert "logprobs" not in logprobs(0, "completions", "llm_api")[0]
    assert logprobs(3, "completions", "llm_api")[0]["logprobs"] == 3
    request, notes = logprobs(3, "llm_api", "engine")
    assert request["return_log_probs"] is True and kinds(notes, "differs") == {"log probs"}
    chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "logprobs": True, "top_logprobs": 4}
    assert translate(chat, "chat", "llm_api", template=str)[0]["logprobs"] == 4


def test_no_bound_on_the_answer():
    body = {"prompt": "Hi", "temperature": 0}
    assert translate(body, "completions", "llm_api")[0]["max_tokens"] is None
    assert kinds(translate(body, "completions", "llmapi")[1], "lost") == {"max tokens"}
    with pytest.raises(EngineError, match="Give the request max_tokens: without it /v1/completions goes on until"):
        translate(body, "completions", "engine")
    assert translate({"inputs": "Hi"}, "llm_api", "engine")[0]["max_tokens"] == 32
    assert translate({"inputs": "Hi"}, "llm_api", "completions")[0]["max_tokens"] == 32


def test_guides_change_their_form():
    schema = {"type": "object"}
    body = {"prompt": "Hi", "max_tokens": 5, "response_format": {"type": "json_schema", "json_schema": schema}}
    engine, _ = translate(body, "completions", "engine")
    assert engine["guided_decoding_guide_type"] == "json_schema"
    assert json.loads(engine["guided_decoding_guide"]) == schema
    assert translate(engine, "engine", "completions")[0]["response_format"] == body["response_format"]
    assert translate(body, "completions", "llm_api")[0]["guided_decoding"] == {"json": schema}
    assert kinds(translate(body, "completions", "llmapi")[1], "lost") == {"guide"}
    free = {"text_input": "x", "max_tokens": 1, "guided_decoding_guide_type": "json"}
    assert translate(free, "engine", "llm_api")[0]["guided_decoding"] == {"json_object": True}
    with pytest.raises(EngineError, match="is none of: json, json_schema, regex, ebnf_grammar"):
        translate({**free, "guided_decoding_guide_type": "xml"}, "engine", "llm_api")


def test_chat_needs_its_template_and_is_no_target():
    messages = [{"role": "user", "content": "Hi"}]
    body = {"model": "m", "messages": messages, "max_tokens": 4, "temperature": 0}
    request, _ = translate(body, "chat", "engine", template=lambda given: f"<{given[0]['content']}>")
    assert request == {"text_input": "<Hi>", "max_tokens": 4, "exclude_input_in_output": True}
    with pytest.raises(EngineError, match="pass template="):
        translate(body, "chat", "engine")
    with pytest.raises(EngineError, match="a second time"):
        translate(request, "engine", "chat")


# --- there and back -----------------------------------------------------------------------------------------------

VALUES = {
    "max tokens": st.integers(1, 4096),
    "seed": st.integers(0, 2**64 - 1),
    "stop words": st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=3),
    "bad words": st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=3),
    "stop token ids": st.lists(st.integers(0, 10**5), min_size=1, max_size=3),
    "end id": st.integers(0, 10**5),
    "pad id": st.integers(0, 10**5),
    "ignore end id": st.just(True),
    "keep stop word": st.booleans(),
    "min p": st.floats(0.01, 1.0),
    "top p decay": st.floats(0.01, 0.99),
    "min tokens": st.integers(2, 64),
    "repetition penalty": st.floats(0.1, 2.0),
    "presence penalty": st.floats(-2.0, 2.0),
    "frequency penalty": st.floats(-2.0, 2.0),
    "stream": st.booleans(),
    "timings": st.booleans(),
    "prompt logits": st.booleans(),
    "answer logits": st.booleans(),
    "repeat the prompt": st.booleans(),
    "temperature": st.floats(0.0, 2.0),
    "top k": st.integers(0, 1024),
    "top p": st.floats(0.0, 1.0),
    "n": st.integers(1, 4),
}
LABELS = st.sampled_from(["engine", "engine_old", "llm_api", "completions", "llmapi"])


@st.composite
def requests(draw, road):
    request = {llm_names.row("prompt").on(road).name: draw(st.text(min_size=1, max_size=20))}
    for idea, values in VALUES.items():
        name = llm_names.row(idea).on(road)
        if name.name and (name.required or idea == "max tokens" or draw(st.integers(0, 3)) == 0):
            request[name.name] = draw(values)
    return request


def meaning(request, road):
    """Every idea that counts, in the form without a road; what a stop word does to the text only with stop words."""
    said, _ = llm_api._read(request, road)
    ideas = llm_api._ideas(said, road, None)
    left_out = {"temperature", "top k", "top p"} | (set() if ideas["stop words"] else {"keep stop word"})
    if ideas["beams"] == 1:
        left_out |= {"length penalty", "early stopping"}
    return {idea: value for idea, value in ideas.items() if idea not in left_out}


@settings(max_examples=400, deadline=None)
@given(st.data(), LABELS, LABELS)
def test_what_is_not_lost_means_the_same_there_and_back(data, source, target):
    request = data.draw(requests(source))
    there, notes = translate(request, source, target)
    excepted = kinds(notes, "lost") | {"keep stop word"} & kinds(notes, "differs")
    before, after = meaning(request, source), meaning(there, target)
    changed = {idea for idea in before if idea in after and before[idea] != after[idea]}
    assert changed <= excepted
    back, more = translate(there, target, source)
    excepted |= kinds(more, "lost") | {"keep stop word"} & kinds(more, "differs")
    again = meaning(back, source)
    assert {idea for idea in before if idea in again and before[idea] != again[idea]} <= excepted


@settings(max_examples=200, deadline=None)
@given(st.data(), LABELS, LABELS)
def test_a_translated_request_has_only_names_of_its_road(data, source, target):
    assume(source != target)
    there, notes = translate(data.draw(requests(source)), source, target)
    assert set(there) <= set(llm_names.names_of(target))
    for note in notes:
        assert note.kind in ("renamed", "written", "differs", "lost") and note.text.endswith(".")
        assert note.text.count(". ") <= 1, note.text  # one sentence, or two short ones


@settings(max_examples=100, deadline=None)
@given(st.data(), LABELS)
def test_a_road_to_itself_changes_nothing(data, road):
    request = data.draw(requests(road))
    assert translate(request, road, road) == (request, [])


# --- bad input ------------------------------------------------------------------------------------------------------

GOOD = {"text_input": "Hi", "max_tokens": 4}


@pytest.mark.parametrize(
    "change, said",
    [
        ({"max_token": 3}, "There is no 'max_token' on the engine lane. Did you mean 'max_tokens'"),
        ({"n": 3}, "There is no 'n' on the engine lane. It is called 'num_return_sequences' there."),
        ({"runtime_top_k": 3}, "It is called 'top_k' there."),
        ({"sampling_param_seed": 3}, "It is called 'seed' there."),
        ({"random_seed": 3}, "It is called 'seed' there."),
        ({"max_tokens": 0}, "max_tokens is 0; it must be a whole number, 1 or more."),
        ({"max_tokens": True}, "max_tokens is True; it must be a whole number"),
        ({"max_tokens": None}, "A request for the engine lane needs 'max_tokens', and this one has none."),
        ({"text_input": ""}, "text_input is ''; it must be a text."),
        ({"text_input": [{"role": "user"}]}, "it must be a text."),
        ({"temperature": -1}, "temperature is -1; it must be a number, 0 or more."),
        ({"temperature": float("nan")}, "temperature is nan; it must be a number"),
        ({"top_p": 1.5}, "top_p is 1.5; it must be a number from 0 to 1."),
        ({"stop_words": [1]}, "stop_words is [1]; it must be a text or a list of texts."),
        ({"seed": -1}, "seed is -1; it must be a whole number from 0 to 2^64 - 1."),
        ({"stream": 1}, "stream is 1; it must be True or False."),
        ({"beam_width": 0}, "beam_width is 0; it must be a whole number, 1 or more."),
    ],
)
def test_each_mistake_gets_one_sentence(change, said):
    with pytest.raises(EngineError) as error:
        translate({**GOOD, **change}, "engine", "llm_api")
    assert said in str(error.value) and "\n" not in str(error.value)


def test_other_mistakes():
    with pytest.raises(EngineError, match="A request is a dict"):
        translate("Hi", "engine", "llm_api")
    with pytest.raises(EngineError, match="no road 'vllm'"):
        translate(GOOD, "engine", "vllm")
    with pytest.raises(EngineError, match="top_k is 5000; the engine lane takes at most 1024"):
        translate({"inputs": "x", "top_k": 5000}, "llm_api", "engine")
    _, notes = translate({**GOOD, "prompt_vocab_size": 4}, "engine", "llm_api")
    assert kinds(notes, "lost") == {"prompt_vocab_size"}


# --- the program ------------------------------------------------------------------------------------------------------

FAKE = """
import json
class SamplingParams:
    def __init__(self, **fields): self.fields = fields
class LLM:
    def __init__(self, **arguments): self.arguments = arguments
    def generate(self, prompt, params):
        class Answer: text = json.dumps([self.arguments, prompt, params.fields])
        class Output: outputs = [Answer]
        return Output
    def generate_async(self, prompt, params, streaming):
        assert streaming
        for piece in ("a", "b"):
            class Answer: text_diff = piece
            class Output: outputs = [Answer]
            yield Output
"""


@pytest.fixture
def fake_tensorrt_llm(tmp_path, monkeypatch):
    """A package of that name that tells what it was given; programs run in processes of their own and find it."""
    (tmp_path / "tensorrt_llm.py").write_text(textwrap.dedent(FAKE))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_the_program_hands_everything_over(fake_tensorrt_llm):
    request = {"inputs": 'Say "é" {x}\n', "max_tokens": 5, "use_beam_search": True, "n": 2, "stop": "\n"}
    arguments, prompt, fields = json.loads(llm_run.run(llm_run.script(request, "some/model")))
    assert arguments == {"model": "some/model", "max_beam_width": 2} and prompt == request["inputs"]
    assert fields == {"max_tokens": 5, "use_beam_search": True, "n": 2, "stop": "\n"}


def test_the_program_streams(fake_tensorrt_llm):
    assert llm_run.run(llm_run.script({"inputs": "x", "streaming": True}, "m")) == "ab"


def test_a_guide_is_written_as_code():
    program = llm_run.script({"inputs": "x", "guided_decoding": {"regex": "a+"}}, "m")
    compile(program, "ask.py", "exec")
    assert "guided_decoding=GuidedDecodingParams(regex='a+')" in program
    assert "from tensorrt_llm.llmapi import GuidedDecodingParams" in program


def test_a_program_that_fails_says_why(tmp_path, monkeypatch):
    (tmp_path / "tensorrt_llm.py").write_text("raise RuntimeError('no GPU')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(EngineError, match="The program failed: RuntimeError: no GPU"):
        llm_run.run(llm_run.script({"inputs": "x"}, "m"))
    with pytest.raises(EngineError, match="did not end within 0.5 s"):
        llm_run.run("import time; time.sleep(5)", timeout=0.5)


def test_what_is_missing_is_said(monkeypatch):
    monkeypatch.setattr(llm_run.importlib.util, "find_spec", lambda name: None)
    assert llm_run.missing() == "tensorrt_llm is not installed"
    monkeypatch.setattr(llm_run.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(llm_run.shutil, "which", lambda name: None)
    assert llm_run.missing() == "there is no NVIDIA GPU"


# --- the llmapi model -------------------------------------------------------------------------------------------------


def test_the_configuration_has_the_inputs_of_the_upstream_model():
    found = pbtxt.parse(pbtxt.to_text(llmapi_model.config()))
    assert found == llmapi_model.config()
    inputs = {i.name: (llmapi_model.pb.DataType.Name(i.data_type), list(i.dims), i.optional) for i in found.input}
    numbers = {"max_tokens": "INT32", "best_of": "INT32", "top_k": "INT32", "temperature": "FP32", "top_p": "FP32",
               "frequency_penalty": "FP32", "presence_penalty": "FP32", "seed": "UINT64",
               "exclude_input_from_output": "BOOL", "return_perf_metrics": "BOOL"}  # fmt: skip
    wanted = {f"sampling_param_{name}": (f"TYPE_{kind}", [1], True) for name, kind in numbers.items()}
    wanted["sampling_param_stop"] = ("TYPE_STRING", [-1], True)
    wanted["text_input"] = ("TYPE_STRING", [-1], False)
    flags = ("streaming", "stop", "return_finish_reason", "return_stop_reason", "return_cumulative_logprob")
    wanted |= dict.fromkeys(flags, ("TYPE_BOOL", [1], True))
    assert inputs == wanted
    assert found.max_batch_size == 0 and "max_tokens" not in inputs
    assert [o.name for o in found.output][:3] == ["text_output", "finish_reason", "stop_reason"]


def test_model_yaml_is_yaml_and_says_what_it_must():
    text = llmapi_model.yaml("org/model: a", decoupled=True, max_beam_width=4, kv_cache_config={"dtype": "fp8"})
    assert yaml.safe_load(text) == {
        "model": "org/model: a", "backend": "pytorch", "max_beam_width": 4, "kv_cache_config": {"dtype": "fp8"},
        "triton_config": {"max_batch_size": 0, "decoupled": True},
    }  # fmt: skip


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({"model": ""}, "model must be a Hugging Face name or a folder"),
        ({"model": "m", "backend": "tensorrt"}, "PyTorch backend only"),
        ({"model": "m", "triton_config": {}}, "written from `decoupled`"),
        ({"model": "m", "dtype": object()}, "plain values only"),
        ({"model": "m", "x": float("inf")}, "plain values only"),
    ],
)
def test_a_bad_model_file_is_refused_and_nothing_is_written(tmp_path, arguments, said):
    with pytest.raises(EngineError, match=said):
        llmapi_model.write(tmp_path, **arguments)
    assert list(tmp_path.iterdir()) == []


def test_the_folder_is_written_once(tmp_path):
    folder = llmapi_model.write(tmp_path / "repository", "org/model", name="llm")
    assert sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*")) == ["1", "1/model.yaml", "config.pbtxt"]
    assert pbtxt.parse((folder / "config.pbtxt").read_text()).name == "llm"
    with pytest.raises(EngineError, match="is there already"):
        llmapi_model.write(tmp_path / "repository", "org/other", name="llm")
    assert [p.name for p in folder.parent.iterdir()] == ["llm"]
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineError, match="cannot be written"):
        llmapi_model.write(tmp_path / "file", "org/model")


# --- what was removed -----------------------------------------------------------------------------------------------

OLD_SCRIPT = """\
python3 examples/models/core/llama/convert_checkpoint.py --model_dir m --output_dir c
trtllm-build --checkpoint_dir c --output_dir e
cp -r /app/all_models/inflight_batcher_llm repository
trtllm-serve e --backend tensorrt
llm = LLM("e", backend='tensorrt')
config: backend: "tensorrtllm"
from tensorrt_llm._tensorrt_engine import LLM
request = {"random_seed": 3, "min_length": 2}
"""


def test_a_script_is_read_line_by_line():
    found = [(a.line, a.thing, a.since) for a in migration.migrate(OLD_SCRIPT)]
    gone = "1.3.0rc21"
    assert found == [
        (1, "convert_checkpoint.py", gone), (2, "trtllm-build", gone), (3, "inflight_batcher_llm", gone),
        (4, "--backend tensorrt", gone), (5, 'LLM(backend="tensorrt")', gone), (6, 'backend: "tensorrtllm"', gone),
        (7, "tensorrt_llm._tensorrt_engine", gone), (8, "random_seed", "0.20.0"), (8, "min_length", "0.20.0"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        "trtllm-serve HuggingFaceTB/SmolLM2-135M-Instruct --backend pytorch",
        "llm = LLM(model='m')",
        'backend: "python"',
        "seed = 3; min_tokens = 2",
        "my_convert.py",
        "",
    ],
)
def test_what_still_works_is_left_alone(line):
    assert migration.migrate(line) == []


def test_advice_names_a_replacement_for_each_removed_thing():
    for removed in migration.REMOVED:
        assert migration.advice(removed.thing).instead and removed.since in ("0.20.0", "1.3.0rc21")
    with pytest.raises(EngineError, match="Did you mean 'trtllm-build'"):
        migration.advice("trtllm_build")
    with pytest.raises(EngineError, match="Give the text of a script"):
        migration.migrate(None)


def test_the_caveats_speak_of_fields_that_exist():
    for idea in (*llm_values.CAVEATS, *llm_values.WHY_LOST, *llm_values.OTHER_FORM):
        assert llm_names.row(idea)
