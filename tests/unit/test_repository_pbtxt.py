"""Configs as protobuf messages, as text, and back."""

import pytest
from google.protobuf import text_format
from repository_helpers import spec
from tritonclient.grpc import model_config_pb2 as pb

from servinglab.repository import contract, model_config, parse, to_text
from servinglab.repository.pbtxt import PbtxtError
from servinglab.repository.pbtxt_source import Lines, spots


@pytest.mark.parametrize("model", contract.MODELS)
@pytest.mark.parametrize("generation", contract.GENERATIONS)
@pytest.mark.parametrize("lane", ["embedded", "trtllm"])
@pytest.mark.parametrize("decoupled", [True, False])
def test_text_round_trip(tmp_path, model, generation, lane, decoupled):
    config = model_config(spec(tmp_path, lane=lane, generation=generation, decoupled=decoupled), model)
    # protobuf's own parser is the reference, not ours.
    assert text_format.Parse(to_text(config), pb.ModelConfig()) == config


def test_message_against_a_config_written_by_hand(tmp_path):
    deployment = spec(tmp_path, postprocessing_instance_count=2, max_batch_size=4, prefix="p-")
    by_hand = f"""
        name: "p-postprocessing" backend: "python" max_batch_size: 4 dynamic_batching {{}}
        input [ {{ name: "TOKENS_BATCH" data_type: TYPE_INT32 dims: [ -1, -1 ] }},
                {{ name: "SEQUENCE_LENGTH" data_type: TYPE_INT32 dims: [ -1 ] }} ]
        output [ {{ name: "OUTPUT" data_type: TYPE_STRING dims: [ -1 ] }} ]
        parameters {{ key: "tokenizer_dir" value {{ string_value: "{deployment.tokenizer_dir}" }} }}
        parameters {{ key: "skip_special_tokens" value {{ string_value: "true" }} }}
        instance_group [ {{ count: 2 kind: KIND_CPU }} ]"""
    assert model_config(deployment, "postprocessing") == text_format.Parse(by_hand, pb.ModelConfig())


def test_text_says_what_protobuf_leaves_out(tmp_path):
    text = to_text(model_config(spec(tmp_path, decoupled=False), "tensorrt_llm"))
    assert "decoupled: false" in text
    assert 'input { name: "stop" data_type: TYPE_BOOL dims: [1] reshape { shape: [] } optional: true }' in text
    assert text.startswith('name: "tensorrt_llm"\nbackend: "python"\nmax_batch_size: 8\n')


def test_values_with_quotes_and_marks_survive(tmp_path):
    odd = tmp_path / 'o"d, {reshape { } \\ ü'
    config = model_config(spec(tmp_path, tokenizer_dir=odd), "preprocessing")
    read = text_format.Parse(to_text(config), pb.ModelConfig())
    assert read.parameters["tokenizer_dir"].string_value == str(odd)


def test_both_lanes_declare_the_same_tensors(tmp_path):
    ours, theirs = (model_config(spec(tmp_path, lane=lane), "tensorrt_llm") for lane in ("embedded", "trtllm"))
    assert ours.input == theirs.input and ours.output == theirs.output
    assert (ours.backend, theirs.backend) == ("python", "tensorrtllm")


def test_trtllm_lane_sets_what_the_cpp_backend_reads_without_a_default(tmp_path):
    parameters = model_config(spec(tmp_path, lane="trtllm"), "tensorrt_llm").parameters
    for key in ("tokenizer_dir", "xgrammar_tokenizer_info_path", "guided_decoding_backend"):
        assert key in parameters and parameters[key].string_value == ""
    assert parameters["gpt_model_type"].string_value == "inflight_fused_batching"
    assert parameters["executor_worker_path"].string_value.endswith("trtllmExecutorWorker")


def test_bf16_prompt_table_reaches_the_ensemble_too(tmp_path):
    deployment = spec(tmp_path, generation="1.1", prompt_embedding_table_data_type="TYPE_BF16")
    for model in ("ensemble", "tensorrt_llm", "tensorrt_llm_bls"):
        table = next(t for t in model_config(deployment, model).input if t.name == "prompt_embedding_table")
        assert table.data_type == pb.TYPE_BF16, model


@pytest.mark.parametrize(
    ("text", "line", "column", "reason"),
    [
        # The first three reasons are what Triton 24.10 writes into its log.
        ('name: "a"\nmax_batch_size: ${triton_max_batch_size}', 2, 17, "Expected integer, got: $"),
        ("input {\n  data_type: ${x} }", 2, 14, "Expected integer or identifier, got: $"),
        ("model_transaction_policy { decoupled: ${y} }", 1, 39, "Expected identifier, got: $"),
        ('input { name: "x" data_type: TYPE_X }', 1, 30, "no value named TYPE_X"),
        ('name: "a"\nfoo: 1', 2, 1, 'no field named "foo"'),
        ('name: "a', 1, 7, "missing ending quote"),
        ('name: "a" name: "b"', 1, 17, "multiple"),
        ("max_batch_size: 99999999999", 1, 17, "out of range"),
        ("\nmax_batch_size: 99999999999999999999", 2, 17, "out of range"),
        ("{{{{", 1, 1, "Expected identifier"),
    ],
)
def test_parse_errors_have_a_place_and_a_reason(text, line, column, reason):
    with pytest.raises(PbtxtError) as caught:
        parse(text, "m/config.pbtxt")
    error = caught.value
    assert (error.line, error.column) == (line, column) and reason in error.reason
    assert str(error).startswith(f"m/config.pbtxt:{line}:{column}: ")


def test_deep_nesting_is_an_error_not_a_crash():
    with pytest.raises(PbtxtError):
        parse("input { reshape " * 5000)


SOURCE = """\
name: "a"   # ${not_this}
input [
  {
    name: "i0"
    dims: [ -1,
            3 ]
  },
  { name: "i1" data_type: TYPE_FP32 dims: 5 dims: 6 }
]
parameters: {
  key: "k"
  value: { string_value: "p/${q}" " and ${r}" }
}
input { name: "i2"
  reshape: { shape: [ ] } }
max_batch_size: ${n}
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("name",), 1), (("input",), 3), (("input", 0, "name"), 4), (("input", 0, "dims", 1), 6),
        (("input", 1, "dims", 1), 8), (("input", 2), 14), (("input", 2, "reshape"), 15),
        (("input", 1, "optional"), 8), (("output",), 1),
    ],
)  # fmt: skip
def test_lines_of_fields(path, line):
    assert Lines(SOURCE).at(*path) == line


def test_lines_of_map_entries():
    lines = Lines(SOURCE)
    assert lines.entry("parameters", key="k") == 10
    assert lines.entry("parameters", key="absent") == 10  # falls back to the field


def test_spots_skip_comments_and_know_quotes():
    assert [(s.name, s.line, s.quoted) for s in spots(SOURCE)] == [("q", 12, True), ("r", 12, True), ("n", 16, False)]
