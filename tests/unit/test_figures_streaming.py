"""Messages taken apart: against the encoding guide's own examples and against protobuf's serialisation."""

from __future__ import annotations

import pytest
from google.protobuf import timestamp_pb2, wrappers_pb2
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2, service_pb2

from servinglab.figures.streaming import WireField, matrix, sequence, take_apart


def joined(fields):
    return b"".join(field.tag + field.length + field.value for field in fields)


def test_the_encoding_guide_s_examples():
    """https://protobuf.dev/programming-guides/encoding/: 150 is 08 96 01, "testing" is 07 74 65 …"""
    assert take_apart(wrappers_pb2.Int32Value(value=150)) == [WireField("value (1)", "150", b"\x08", b"", b"\x96\x01")]
    assert take_apart(wrappers_pb2.StringValue(value="testing")) == [
        WireField("value (1)", '"testing"', b"\x0a", b"\x07", b"testing")
    ]


@pytest.mark.parametrize(
    "message, meaning",
    [
        (timestamp_pb2.Timestamp(seconds=-2), "-2"),
        (wrappers_pb2.UInt64Value(value=2**64 - 1), str(2**64 - 1)),
        (wrappers_pb2.BoolValue(value=True), "1"),
        (wrappers_pb2.FloatValue(value=0.5), "4 bytes"),
        (wrappers_pb2.DoubleValue(value=-0.25), "8 bytes"),
        (wrappers_pb2.BytesValue(value=b"\x00\xff"), "2 bytes"),
        (wrappers_pb2.StringValue(value="é" * 40), '"' + "é" * 23 + '…"'),
        (model_config_pb2.ModelOutput(dims=[-1, 1, 300]), "[-1, 1, 300]"),
        (service_pb2.InferTensorContents(fp32_contents=[0.5, 2]), "8 bytes"),
        (service_pb2.InferTensorContents(bool_contents=[True, False]), "[1, 0]"),
    ],
)
def test_values_read_as_they_were_set(message, meaning):
    assert [field.meaning for field in take_apart(message)] == [meaning]


def test_messages_inside_and_maps_go_one_level_deeper():
    request = service_pb2.ModelInferRequest(model_name="tensorrt_llm_bls")
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1, 1])
    assert [(field.depth, field.name, field.meaning) for field in take_apart(request)] == [
        (0, "model_name (1)", '"tensorrt_llm_bls"'),
        (0, "parameters (4)", "ParametersEntry, 40 bytes"),
        (1, "key (1)", '"triton_enable_empty_fin…"'),
        (1, "value (2)", "InferParameter, 2 bytes"),
        (2, "bool_param (1)", "1"),
        (0, "inputs (5)", "InferInputTensor, 23 bytes"),
        (1, "name (1)", '"text_input"'),
        (1, "datatype (2)", '"BYTES"'),
        (1, "shape (3)", "[1, 1]"),
    ]


names = st.text(max_size=40)


@settings(max_examples=60, deadline=None)
@given(
    name=names,
    inputs=st.lists(st.tuples(names, st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4)), max_size=4),
    raw=st.lists(st.binary(max_size=300), max_size=3),
    parameters=st.dictionaries(names, st.integers(-(2**63), 2**63 - 1), max_size=3),
)
def test_no_byte_is_lost_or_doubled(name, inputs, raw, parameters):
    request = service_pb2.ModelInferRequest(model_name=name, raw_input_contents=raw)
    for tensor, shape in inputs:
        request.inputs.add(name=tensor, shape=shape)
    for key, value in parameters.items():
        request.parameters[key].int64_param = value
    assert joined(take_apart(request)) == request.SerializeToString(deterministic=True)


def words(axes):
    return [text.get_text() for text in axes.texts]


def test_a_sequence_has_an_arrow_for_each_letter_and_says_its_flag():
    first, second = sequence({"ensemble": "d D", "tensorrt_llm_bls": "d d F"}).axes
    assert [word for word in words(first) if word] == ["request", "data", "data, final", "client", "Triton"]
    assert words(second)[-3] == "final, no data" and second.get_title(loc="center") == "tensorrt_llm_bls"


def test_a_matrix_has_each_answer_in_its_place_and_errors_in_a_colour_of_their_own():
    cells = {("no", "infer"): "1 × data", ("yes", "infer"): "error 1", ("no", "stream"): "1 × data"}
    (axes,) = matrix(["no", "yes"], ["infer", "stream"], cells).axes
    found = {text.get_position(): text.get_text() for text in axes.texts}
    assert found == {(0, 0): "1 × data", (0, 1): "error 1", (1, 0): "1 × data"}
    colours = [patch.get_facecolor() for patch in axes.patches]
    assert colours[0] == colours[2] != colours[1]
