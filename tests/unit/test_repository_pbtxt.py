"""Configs as protobuf messages, as text, and back."""

import pytest
from google.protobuf import text_format
from repository_helpers import spec
from tritonclient.grpc import model_config_pb2 as pb

from servinglab.repository import contract, model_config, parse, placeholders, to_text
from servinglab.repository.pbtxt import PbtxtError


@pytest.mark.parametrize("model", contract.MODELS)
@pytest.mark.parametrize("generation", contract.GENERATIONS)
@pytest.mark.parametrize("decoupled", [True, False])
def test_text_round_trip(tmp_path, model, generation, decoupled):
    config = model_config(spec(tmp_path, generation=generation, decoupled=decoupled), model)
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
    assert text.startswith('name: "tensorrt_llm"\nbackend: "tensorrtllm"\nmax_batch_size: 8\n')


def test_values_with_quotes_and_marks_survive(tmp_path):
    odd = tmp_path / 'o"d, {reshape { } \\ ü'
    config = model_config(spec(tmp_path, tokenizer_dir=odd), "preprocessing")
    read = text_format.Parse(to_text(config), pb.ModelConfig())
    assert read.parameters["tokenizer_dir"].string_value == str(odd)


def test_what_the_cpp_backend_reads_without_a_default_is_there(tmp_path):
    config = model_config(spec(tmp_path), "tensorrt_llm")
    assert config.backend == "tensorrtllm"
    for key in ("tokenizer_dir", "xgrammar_tokenizer_info_path", "guided_decoding_backend"):
        assert key in config.parameters and config.parameters[key].string_value == ""
    assert config.parameters["gpt_model_type"].string_value == "inflight_fused_batching"
    assert config.parameters["executor_worker_path"].string_value.endswith("trtllmExecutorWorker")


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
parameters: {
  key: "k"
  value: { string_value: "p/${q}" " and ${r}" }
}
max_batch_size: ${n}
"""


def test_placeholders_skip_comments_and_know_quotes():
    found = [(p.name, p.line, p.kind) for p in placeholders(SOURCE)]
    assert found == [("q", 4, "quoted"), ("r", 4, "quoted"), ("n", 6, "structural")]
