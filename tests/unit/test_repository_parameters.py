"""The string parameters of `tensorrt_llm`: types and ranges, versions, what goes together, and every config written."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from repository_helpers import spec

from servinglab.repository import (
    DeploymentSpec,
    RepositoryError,
    build,
    contract,
    lint,
    model_config,
    parse,
    template,
    wiring,
)
from servinglab.repository import template_history as history
from servinglab.repository.parameter_types import KINDS, checked, text_of
from servinglab.repository.spec import LANES

GOOD = {"tokenizer_dir": "/t", "engine_dir": "/e", "lane": "trtllm"}
# Names of placeholders in NVIDIA's templates, read off six versions of them: {version: {model: {kind: names}}}.
NVIDIA = json.loads((Path(__file__).parent / "data" / "nvidia_placeholders.json").read_text())
FREE_TEXT = {"engine_dir", "encoder_engine_dir", "lora_prefetch_dir", "tokenizer_dir", "xgrammar_tokenizer_info_path"}


def refused(words: str, **fields):
    with pytest.raises(RepositoryError, match=words) as caught:
        DeploymentSpec(**(GOOD | fields))
    message = str(caught.value)
    assert "\n" not in message and message[-1] in ".?"


def test_every_parameter_of_the_llm_has_a_type():
    variables = {p.variable for p in wiring.parameters("tensorrt_llm")} | {*wiring.LLM_EXTRAS}
    assert variables - KINDS.keys() == FREE_TEXT
    in_templates = {n for models in NVIDIA.values() for n in models["tensorrt_llm"]["quoted"].split()}
    assert in_templates - KINDS.keys() == FREE_TEXT


FITS = [
    ("max_attention_window_size", 4096, "4096"),
    ("max_attention_window_size", [4096, 1024], "4096,1024"),
    ("max_attention_window_size", "4096, 1024", "4096, 1024"),
    ("sink_token_length", "4", "4"),
    ("kv_cache_free_gpu_mem_fraction", 0.5, "0.5"),
    ("kv_cache_free_gpu_mem_fraction", "5e-1", "5e-1"),
    ("gpu_weights_percent", 1, "1"),
    ("gpu_weights_percent", 0.0, "0.0"),
    ("lora_cache_gpu_memory_fraction", ".05", ".05"),
    ("kv_cache_host_memory_bytes", 2**33, "8589934592"),
    ("enable_kv_cache_reuse", True, "true"),
    ("enable_kv_cache_reuse", "True", "True"),
    ("multi_block_mode", "0", "0"),
    ("cancellation_check_period_ms", 100, "100"),
    ("iter_stats_max_iterations", 0, "0"),
    ("gpu_device_ids", "0,1;2,3", "0,1;2,3"),
    ("gpu_device_ids", [[0, 1], [2, 3]], "0,1;2,3"),
    ("gpu_device_ids", [0, 1], "0,1"),
    ("gpu_device_ids", 0, "0"),
    ("participant_ids", "1,2", "1,2"),
    ("decoding_mode", "eagle", "eagle"),
    ("medusa_choices", "{0, 0, 0}, {0, 1}", "{0, 0, 0}, {0, 1}"),
    ("medusa_choices", [[0, 0, 0], [0, 1]], "{0, 0, 0}, {0, 1}"),
    ("eagle_choices", "{0}", "{0}"),
    ("guided_decoding_backend", "xgrammar", "xgrammar"),
    ("lora_prefetch_dir", Path("/lora: a, b"), "/lora: a, b"),
    ("recv_poll_period_ms", 0, "0"),
    ("accumulate_tokens", "Yes", "Yes"),
]


@pytest.mark.parametrize(("name", "value", "text"), FITS)
def test_values_that_fit(name, value, text):
    assert checked(name, value) == text


MISFITS = [
    ("max_attention_window_size", 0, "at least 1"),
    ("max_attention_window_size", [[1], [2]], "commas"),
    ("max_attention_window_size", "4096;1024", "commas"),
    ("max_attention_window_size", [], "commas"),
    ("max_attention_window_size", 2**31, "at least 1"),
    ("sink_token_length", 0, "at least 1"),  # TensorRT-LLM asserts > 0
    ("sink_token_length", 1.5, "whole number"),
    ("sink_token_length", True, "whole number"),
    ("sink_token_length", "4 tokens", "whole number"),
    ("sink_token_length", "٣", "whole number"),
    ("num_nodes", -1, "at least 1"),
    ("kv_cache_free_gpu_mem_fraction", 1, "between 0 and 1, and neither"),
    ("kv_cache_free_gpu_mem_fraction", 0, "between 0 and 1"),
    ("kv_cache_free_gpu_mem_fraction", 90, "between 0 and 1"),
    ("kv_cache_free_gpu_mem_fraction", "50%", "between 0 and 1"),
    ("kv_cache_free_gpu_mem_fraction", "nan", "between 0 and 1"),
    ("kv_cache_free_gpu_mem_fraction", "inf", "between 0 and 1"),
    ("kv_cache_free_gpu_mem_fraction", "0,5", "between 0 and 1"),
    ("gpu_weights_percent", 1.1, "between 0 and 1"),
    ("gpu_weights_percent", "", "between 0 and 1"),
    ("gpu_weights_percent", True, "between 0 and 1"),
    ("kv_cache_host_memory_bytes", "1GB", "bytes, such as 1073741824"),
    ("kv_cache_host_memory_bytes", -1, "bytes"),
    ("kv_cache_host_memory_bytes", 2**63, "bytes"),
    ("enable_kv_cache_reuse", "yes", "true or false"),  # the C++ backend would take its default
    ("enable_kv_cache_reuse", 1, "true or false"),
    ("enable_kv_cache_reuse", "tRuE", "true or false"),
    ("accumulate_tokens", "Truelogits_datatype:TYPE_FP32", "true or false"),
    ("gpu_device_ids", "0 1", "commas"),
    ("gpu_device_ids", "0,1;", "semicolon"),
    ("gpu_device_ids", "a", "commas"),
    ("decoding_mode", "topk", "one of top_k, top_p.*Did you mean 'top_k'"),
    ("decoding_mode", ["top_k"], "one of"),
    ("medusa_choices", "[0, 0], [1]", "braces"),
    ("medusa_choices", "{0, 0} {1}", "braces"),
    ("medusa_choices", [1], "braces"),
    ("medusa_choices", [["a"]], "braces"),
    ("guided_decoding_backend", "outlines", "xgrammar, not"),
    ("lora_prefetch_dir", None, "text"),
]


@pytest.mark.parametrize(("name", "value", "words"), MISFITS)
def test_values_that_do_not_fit(name, value, words):
    with pytest.raises(RepositoryError, match=f"^here {name} must be .*{words}"):
        checked(name, value, "here ")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=4))
def test_any_value_fits_or_gives_one_sentence(value):
    """What passes is what the C++ backend reads: independent conversions here."""
    for name, (kind, *_) in KINDS.items():
        try:
            text = checked(name, value)
        except RepositoryError:
            continue
        if kind in ("int", "bytes"):
            assert 0 <= int(text) < 2**63
        elif kind == "fraction":
            assert 0 <= float(text) <= 1
        elif kind in ("ints", "ids"):
            assert all(0 <= int(n) < 2**31 for part in text.split(";") for n in part.split(","))
        elif kind == "tree":  # as NVIDIA's Python backend reads it
            tree = json.loads("[" + text.replace("{", "[").replace("}", "]") + "]")
            assert all(isinstance(n, int) for path in tree for n in path)


def test_lists_as_text():
    assert text_of([[0, 1], [2]]) == "0,1;2" and text_of((4096, 1024)) == "4096,1024" and text_of(True) == "true"


# --- versions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", NVIDIA)
@pytest.mark.parametrize("model", contract.MODELS)
def test_the_table_of_versions_is_nvidias(model, version):
    found = NVIDIA[version][model]
    assert history.names(model, version) == {*found["structural"].split(), *found["quoted"].split()}


@pytest.mark.parametrize(("generation", "version"), [("old", "0.19.0"), ("new", "0.20.0"), ("1.1", "1.3.0rc3")])
@pytest.mark.parametrize("model", contract.MODELS)
def test_our_templates_have_the_placeholders_of_nvidias(model, generation, version):
    from servinglab.repository import placeholders

    ours = {p.name: p.kind for p in placeholders(template(model, generation))}
    theirs = {name: kind for kind, names in NVIDIA[version][model].items() for name in names.split()}
    extra, absent = {"preprocessing_model_name", "postprocessing_model_name"}, {"enable_trt_overlap"}
    assert {k: v for k, v in ours.items() if k not in extra} == {k: v for k, v in theirs.items() if k not in absent}


@pytest.mark.parametrize(
    ("generation", "trtllm", "name", "value", "words"),
    [
        ("new", None, "enable_trt_overlap", True, r"Generation 'new' \(TensorRT-LLM 0.20.0 to before 1.1.0\) has no"),
        ("new", "0.21.0", "enable_trt_overlap", True, "0.5.0 to 0.9.0 and 1.1.0 and later"),
        ("old", "0.16.0", "num_nodes", 2, "TensorRT-LLM 0.16.0 has no parameter 'num_nodes': .* 0.19.0 and later"),
        ("old", "0.9.0", "cuda_graph_mode", True, "0.15.0 and later"),
        ("old", "0.12.0", "recv_poll_period_ms", 5, "0.13.0 and later"),
        ("old", "0.15.0", "decoding_mode", "eagle", "takes 'eagle' since TensorRT-LLM 0.16.0, and this is 0.15.0"),
        ("old", "0.12.0", "max_attention_window_size", [1, 2], "takes several values with ',' since TensorRT-LLM 0.13"),
        ("old", "0.11.0", "gpu_device_ids", "0;1", "takes several values with ';' since TensorRT-LLM 0.12.0"),
    ],
)
def test_what_a_version_lacks_is_refused(generation, trtllm, name, value, words):
    refused(words, generation=generation, trtllm=trtllm, parameters={name: value})


@pytest.mark.parametrize(
    ("generation", "trtllm", "parameters"),
    [
        ("old", "0.19.0", {"num_nodes": 2}), ("old", None, {"num_nodes": 2}),
        ("old", "0.9.0", {"decoding_mode": "top_k"}), ("old", "0.9.0", {"enable_trt_overlap": True}),
        ("1.1", "1.3.0rc3", {"enable_trt_overlap": True}),
        ("1.1", "1.2.0rc1", {"cuda_graph_mode": True}), ("old", "0.13.0", {"max_attention_window_size": "1,2"}),
        ("new", "1.0.0", {"recv_poll_period_ms": 5}),
    ],
)  # fmt: skip
def test_what_a_version_has_is_taken(generation, trtllm, parameters):
    made = DeploymentSpec(**GOOD, generation=generation, trtllm=trtllm, parameters=parameters)
    written = model_config(made, "tensorrt_llm").parameters
    for name, value in parameters.items():
        assert written[name].string_value == text_of(value)


def test_versions_that_do_not_go():
    refused("'25.12.1' has none|25.12.1 has none of these templates", generation="1.1", trtllm="25.12.1")
    refused("1.3.0rc21 has none of these templates", generation="1.1", trtllm="1.3.0rc21")
    refused("'latest' is no TensorRT-LLM version", trtllm="latest")
    refused("TensorRT-LLM 0.19.0 has the tensor names of generation 'old', not 'new'", trtllm="0.19.0")


# --- what goes together -----------------------------------------------------------------------------------------------

LOOKAHEAD = {"lookahead_window_size": 7, "lookahead_ngram_size": 7, "lookahead_verification_set_size": 7}


@pytest.mark.parametrize("left_out", LOOKAHEAD)
def test_lookahead_needs_all_three(left_out):
    two = {name: value for name, value in LOOKAHEAD.items() if name != left_out}
    refused(f"all three of its sizes: give {left_out} as well", parameters=two | {"decoding_mode": "lookahead"})
    refused("all three", parameters=two)
    refused("give lookahead_window_size, lookahead_ngram_size, look", parameters={"decoding_mode": "lookahead"})


def test_lookahead_of_one_gram():
    refused("looks nothing ahead", parameters=LOOKAHEAD | {"lookahead_ngram_size": 1})
    one = {"lookahead_window_size": 1, "lookahead_ngram_size": 1, "lookahead_verification_set_size": 0}
    DeploymentSpec(**GOOD, parameters=one)


def test_cross_cache_is_for_encoder_decoder_models():
    refused("encoder-decoder", parameters={"cross_kv_cache_fraction": 0.5})
    DeploymentSpec(**GOOD, parameters={"cross_kv_cache_fraction": 0.5, "encoder_engine_dir": "/enc"})


def test_guided_decoding_needs_the_tokenizers_description():
    refused("xgrammar_tokenizer_info_path", parameters={"guided_decoding_backend": "xgrammar"})
    both = {"guided_decoding_backend": "xgrammar", "xgrammar_tokenizer_info_path": "/x.json"}
    written = model_config(DeploymentSpec(**GOOD, parameters=both), "tensorrt_llm").parameters
    assert written["guided_decoding_backend"].string_value == "xgrammar"


# --- every config written ---------------------------------------------------------------------------------------------

# A value of each kind, and with them all parameters at once that are no fields of the spec and need no partner.
OF_A_KIND = {"int": 3, "bytes": 4096, "fraction": 0.5, "bool": True, "ints": 64, "ids": "0", "tree": "{0}"}
FIELDS = {"max_beam_width", "exclude_input_in_output", "max_tokens_in_paged_kv_cache"}
ALL = {
    p.variable: OF_A_KIND[KINDS[p.variable][0]]
    for p in wiring.parameters("tensorrt_llm")
    if KINDS.get(p.variable, ["text"])[0] in OF_A_KIND and p.variable not in FIELDS | {"cross_kv_cache_fraction"}
}
COMBINATIONS = [
    {},
    {"kv_cache_free_gpu_mem_fraction": 0.4, "enable_kv_cache_reuse": False, "max_attention_window_size": [512, 64]},
    LOOKAHEAD | {"decoding_mode": "lookahead", "gpu_device_ids": "0,1;2,3", "participant_ids": "1,2;3,4"},
    {"medusa_choices": [[0], [0, 1]], "decoding_mode": "medusa", "kv_cache_host_memory_bytes": 2**32},
    {"cross_kv_cache_fraction": 0.3, "encoder_engine_dir": "/encoder: a, b", "lora_prefetch_dir": "/lora"},
    ALL,
]


@pytest.mark.parametrize("combination", range(len(COMBINATIONS)))
@pytest.mark.parametrize(("lane", "generation"), [*product(LANES, contract.GENERATIONS)])
def test_every_config_written_parses_and_passes_the_linter(tmp_path, lane, generation, combination):
    parameters = COMBINATIONS[combination]
    for number, prefix in enumerate(("", "gemma-gly-")):
        made = spec(tmp_path, lane=lane, generation=generation, prefix=prefix, name=f"n{number}", parameters=parameters)
        repository = build(made, tmp_path / "root")
    assert lint(repository, lane=lane) == []
    for prefix, model in product(("", "gemma-gly-"), contract.MODELS):
        config = parse((repository / f"{prefix}{model}" / "config.pbtxt").read_text())
        assert config.name == prefix + model
    llm = parse((repository / "tensorrt_llm" / "config.pbtxt").read_text())
    written = {key: value.string_value for key, value in llm.parameters.items()}
    keys = {p.variable: p.key for p in wiring.parameters("tensorrt_llm")}
    for name, value in parameters.items():
        assert written[keys[name]] == checked(name, value)
    worker = "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker"
    assert written.get("executor_worker_path") == (worker if lane == "trtllm" else None)
    assert not any(value.startswith("${") for value in written.values())
    unset = {"sink_token_length", "kv_cache_onboard_blocks", "num_nodes"} - parameters.keys()
    assert not unset & written.keys()  # what is not set stays out
