"""Python values become the tensors that the model declares; the message equals what tritonclient itself builds."""

from __future__ import annotations

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2
from tritonclient.grpc._utils import _get_inference_request
from tritonclient.grpc.model_config_pb2 import ModelConfig

from servinglab.old_client import kserve
from servinglab.old_client.kserve import ClientError
from servinglab.old_client.tensors import ModelSpec, to_tensors

CONFIG = """
name: "m" max_batch_size: 8 model_transaction_policy { decoupled: true }
input { name: "text_input" data_type: TYPE_STRING dims: 1 }
input { name: "max_tokens" data_type: TYPE_INT32 dims: 1 }
input { name: "stop_words" data_type: TYPE_STRING dims: -1 optional: true }
input { name: "temperature" data_type: TYPE_FP32 dims: 1 optional: true }
input { name: "seed" data_type: TYPE_UINT64 dims: 1 optional: true }
input { name: "stream" data_type: TYPE_BOOL dims: 1 optional: true }
input { name: "image" data_type: TYPE_FP16 dims: [3, -1, -1] optional: true }
output { name: "text_output" data_type: TYPE_STRING dims: -1 }
"""
SPEC = ModelSpec.from_config(text_format.Parse(CONFIG, ModelConfig()))
UNBATCHED = ModelSpec.from_config(text_format.Parse(CONFIG.replace("max_batch_size: 8", ""), ModelConfig()))
REQUIRED = {"text_input": "a", "max_tokens": 1}


def tensor(name: str, value, spec: ModelSpec = SPEC) -> np.ndarray:
    return to_tensors(spec, {**REQUIRED, name: value})[name]


def test_spec_reads_the_configuration():
    assert SPEC.decoupled and SPEC.max_batch_size == 8
    image = SPEC.inputs["image"]
    assert (image.datatype, image.shape, image.optional) == ("FP16", [-1, 3, -1, -1], True)
    assert UNBATCHED.inputs["image"].shape == [3, -1, -1]


@pytest.mark.parametrize(
    "name, value, shape, dtype",
    [
        ("text_input", "é", (1, 1), object),
        ("text_input", b"\x00\xff", (1, 1), object),
        ("text_input", ["a", "b", "c"], (3, 1), object),
        ("text_input", [["a"], ["b"]], (2, 1), object),
        ("max_tokens", 5, (1, 1), np.int32),
        ("max_tokens", np.int64(5), (1, 1), np.int32),
        ("max_tokens", [5, 6], (2, 1), np.int32),
        ("stop_words", "x", (1, 1), object),
        ("stop_words", ["x", "y"], (1, 2), object),
        ("stop_words", ("x", "y"), (1, 2), object),
        ("stop_words", [["x", "y"], ["z", ""]], (2, 2), object),
        ("stop_words", [], (1, 0), object),
        ("temperature", 1, (1, 1), np.float32),
        ("temperature", np.float64(0.5), (1, 1), np.float32),
        ("seed", 2**64 - 1, (1, 1), np.uint64),
        ("stream", True, (1, 1), np.bool_),
        ("stream", np.True_, (1, 1), np.bool_),
        ("image", [[[1.0, 2.0]]] * 3, (1, 3, 1, 2), np.float16),
    ],
)
def test_shape_and_datatype_follow_the_declaration(name, value, shape, dtype):
    found = tensor(name, value)
    assert found.dtype == dtype
    assert found.shape[1:] == shape[1:] and found.shape[0] == max(shape[0], found.shape[0])
    expected = np.array(value, dtype=object).reshape(shape)
    for got, want in zip(found.reshape(-1), expected.reshape(-1), strict=True):
        assert got == (want.encode() if isinstance(want, str) else want)


def test_infinity_and_not_a_number_reach_the_model():
    assert tensor("temperature", float("inf"))[0, 0] == np.inf
    assert np.isnan(tensor("temperature", float("nan"))[0, 0])


def test_without_a_batch_dimension():
    assert tensor("text_input", "a", UNBATCHED).shape == (1,)
    assert tensor("stop_words", ["x", "y"], UNBATCHED).shape == (2,)


def test_arrays_are_sent_as_they_are():
    for array in (np.zeros((3, 2, 2), np.float64), np.array([b"x"], object), np.array(3)):
        assert tensor("image", array) is array


def test_single_values_are_repeated_to_the_batch():
    found = to_tensors(SPEC, {"text_input": ["a", "b"], "max_tokens": 5, "stop_words": ["x", "y"], "seed": [1, 2]})
    assert found["max_tokens"].tolist() == [[5], [5]]
    assert found["stop_words"].tolist() == [[b"x", b"y"]] * 2
    assert found["seed"].tolist() == [[1], [2]]
    array = np.array([[5], [6]], np.int32)
    assert to_tensors(SPEC, {"text_input": ["a", "b"], "max_tokens": array})["max_tokens"] is array


def test_none_leaves_an_input_out():
    assert set(to_tensors(SPEC, {**REQUIRED, "seed": None})) == set(REQUIRED)
    with pytest.raises(ClientError, match=r"needs the input 'max_tokens' \(INT32, shape \[-1, 1\]\)"):
        to_tensors(SPEC, {"text_input": "a", "max_tokens": None})


@pytest.mark.parametrize(
    "name, value, words",
    [
        ("max_tokens", "5", "'max_tokens' wants a whole number (INT32), not '5' (str)"),
        ("max_tokens", 5.5, "not 5.5 (float)"),
        ("max_tokens", True, "not True (bool)"),
        ("max_tokens", 2**31, "from -2147483648 to 2147483647: 2147483648 does not fit"),
        ("seed", -1, "from 0 to 18446744073709551615: -1 does not fit"),
        ("temperature", "hot", "wants a number (FP32), not 'hot'"),
        ("temperature", False, "not False (bool)"),
        pytest.param("temperature", 10**5000, "that number does not fit", id="huge integer"),
        ("temperature", -1e39, "e+38: -1e+39 does not fit"),
        ("stream", 1, "wants True or False (BOOL), not 1 (int)"),
        ("text_input", 5, "wants text (BYTES), not 5 (int)"),
        ("text_input", ["a", None], "not None (NoneType)"),
        ("text_input", "\ud800", "half a character"),
        ("text_input", {"a": 1}, "wants text"),
        ("stop_words", [["x"], ["y", "z"]], "wants text (BYTES), not ['x'] (list)"),
        ("stop_words", [[["x"]]], "takes shape [-1, -1] and this has 3 dimensions"),
        ("random_seed", 1, "no input 'random_seed': did you mean 'seed'?"),
        ("temprature", 1, "did you mean 'temperature'?"),
        ("zzzzzz", 1, "it has image, max_tokens, seed, stop_words, stream, temperature, text_input."),
    ],
)
def test_what_does_not_fit_is_said_in_one_sentence(name, value, words):
    with pytest.raises(ClientError) as caught:
        tensor(name, value)
    assert words in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 250


def test_message_equals_the_one_tritonclient_builds():
    arrays = {
        "text_input": np.array([["hé€😀\x00".encode()], [b""]], object),
        "stop_words": np.empty((2, 0), object),
        "max_tokens": np.array([[3], [4]], np.int32),
        "image": np.arange(12, dtype=np.float16).reshape(1, 3, 2, 2).transpose(0, 1, 3, 2),
        "stream": np.array([[True]]),
        "seed": np.array([[2**64 - 1]], np.uint64),
    }
    theirs = []
    for name, array in arrays.items():
        datatype = {"O": "BYTES", "i": "INT32", "f": "FP16", "b": "BOOL", "u": "UINT64"}[array.dtype.kind]
        theirs.append(grpcclient.InferInput(name, list(array.shape), datatype))
        theirs[-1].set_data_from_numpy(array)
    expected = _get_inference_request(
        model_name="m", inputs=theirs, model_version="", request_id="r7", outputs=None, sequence_id=0,
        sequence_start=False, sequence_end=False, priority=0, timeout=None, parameters=None,
    )  # fmt: skip
    expected.parameters["triton_enable_empty_final_response"].bool_param = True
    assert kserve.infer_request("m", arrays, "r7", empty_final=True) == expected


@given(st.lists(st.text(st.characters(codec="utf-8")), min_size=1, max_size=8))
def test_texts_survive_the_wire(texts):
    request = kserve.infer_request("m", to_tensors(SPEC, {"text_input": texts, "max_tokens": 1}), "")
    index = [tensor.name for tensor in request.inputs].index("text_input")
    response = service_pb2.ModelInferResponse()
    response.outputs.add(name="t", datatype="BYTES", shape=request.inputs[index].shape)
    response.raw_output_contents.append(request.raw_input_contents[index])
    found = kserve.read_outputs(service_pb2.ModelInferResponse.FromString(response.SerializeToString()))["t"]
    assert [item.decode() for item in found.reshape(-1)] == texts and found.shape == (len(texts), 1)


def test_numpy_strings_and_arrays_without_a_datatype():
    request = kserve.infer_request("m", {"a": np.array([["é", "ab"]])}, "")
    assert request.inputs[0].datatype == "BYTES" and list(request.inputs[0].shape) == [1, 2]
    assert request.raw_input_contents[0] == b"\x02\x00\x00\x00\xc3\xa9\x02\x00\x00\x00ab"
    with pytest.raises(ClientError, match="array of datetime64"):
        kserve.infer_request("m", {"a": np.array(["2026-01-01"], "datetime64[D]")}, "")
