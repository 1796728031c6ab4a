"""The client: plain values become the tensors that the contract declares, and a failed request one sentence."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from servinglab.client import channel_args, explained, inputs
from servinglab.errors import FAULT


def made(**values) -> dict[str, tuple[str, list[int], list]]:
    """name → (datatype, shape, values) as a server would read them from the message."""
    request = grpcclient._utils._get_inference_request(
        "m", inputs(**values), "", "", None, 0, False, False, 0, None, None
    )
    return {
        each.name: (each.datatype, list(each.shape), _read(each.datatype, raw))
        for each, raw in zip(request.inputs, request.raw_input_contents, strict=True)
    }


def _read(datatype: str, raw: bytes) -> list:
    if datatype != "BYTES":
        kinds = {"INT32": "<i4", "FP32": "<f4", "UINT64": "<u8", "BOOL": "?", "FP64": "<f8"}
        return np.frombuffer(raw, kinds[datatype]).tolist()
    found = []
    while raw:  # four bytes say how long each text is
        size = int.from_bytes(raw[:4], "little")
        found.append(raw[4 : 4 + size].decode())
        raw = raw[4 + size :]
    return found


@pytest.mark.parametrize(
    "name, value, expected",
    [
        ("text_input", "é", ("BYTES", [1, 1], ["é"])),
        ("text_input", b"a\0", ("BYTES", [1, 1], ["a\0"])),
        ("text_input", ["a", "bc"], ("BYTES", [2, 1], ["a", "bc"])),
        ("max_tokens", 5, ("INT32", [1, 1], [5])),
        ("max_tokens", np.int64(5), ("INT32", [1, 1], [5])),
        ("stop_words", "x", ("BYTES", [1, 1], ["x"])),
        ("stop_words", ["x", "yz"], ("BYTES", [1, 2], ["x", "yz"])),
        ("stop_words", [["x"], ["y"]], ("BYTES", [2, 1], ["x", "y"])),
        ("temperature", 1, ("FP32", [1, 1], [1.0])),
        ("temperature", float("inf"), ("FP32", [1, 1], [float("inf")])),
        ("seed", 2**64 - 1, ("UINT64", [1, 1], [2**64 - 1])),
        ("stream", True, ("BOOL", [1, 1], [True])),
        ("input_ids", [5, 6, 7], ("INT32", [1, 3], [5, 6, 7])),
        ("max_tokens", np.array([3.0]), ("FP64", [1], [3.0])),  # an array is sent as it is, right or wrong
        ("unknown", 0.5, ("FP64", [1, 1], [0.5])),
    ],
)
def test_shape_datatype_and_bytes_follow_the_contract(name, value, expected):
    assert made(**{name: value}) == {name: expected}


def test_single_values_are_repeated_to_the_batch_and_none_is_left_out():
    found = made(text_input=["a", "b"], max_tokens=5, stop_words=["x", "y"], seed=[1, 2], top_k=None)
    assert found["max_tokens"] == ("INT32", [2, 1], [5, 5])
    assert found["stop_words"] == ("BYTES", [2, 2], ["x", "y", "x", "y"])
    assert found["seed"] == ("UINT64", [2, 1], [1, 2]) and "top_k" not in found


@pytest.mark.parametrize(
    "name, value, error",
    [
        ("max_tokens", "5", TypeError),
        ("max_tokens", 5.5, TypeError),
        ("stream", 1, TypeError),
        ("text_input", 5, TypeError),
        ("seed", 2**70, TypeError),  # numpy has no such integer
        ("max_tokens", 2**31, OverflowError),
        ("seed", -1, OverflowError),
        ("temperature", 1e39, OverflowError),
    ],
)
def test_a_value_that_the_datatype_cannot_hold_is_named(name, value, error):
    with pytest.raises(error, match=f"^{name} is .*{re.escape(repr(value))}"):
        inputs(**{name: value})


@pytest.mark.parametrize(
    "code, said, status, words",
    [
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", 504, "No answer from there:1, or no end of it, within 2 s."),
        ("UNAVAILABLE", "failed to connect to all addresses", 503, "No server answers at there:1: is it running"),
        ("UNAVAILABLE", "Socket closed", 503, "The server at there:1 closed the connection: has it stopped"),
        ("UNAVAILABLE", "recvmsg:Connection reset by peer", 503, "closed the connection"),
        ("UNIMPLEMENTED", "", 400, "there:1 does not speak the KServe v2 protocol"),
        (None, "Request for unknown model: 'm' is not found", 503, "unknown model: 'm' is not found."),
        (None, f"tensorrt_llm {FAULT} MemoryError", 500, f"tensorrt_llm {FAULT} MemoryError."),
        (None, "max_tokens is 0; ask for more", 400, "max_tokens is 0; ask for more."),
        ("INTERNAL", None, 400, "there:1 answered with INTERNAL."),
    ],
)
def test_an_error_is_one_sentence_and_a_status(code, said, status, words):
    error = InferenceServerException(said, code and f"StatusCode.{code}")
    sentence, found = explained(error, "there:1", 2.0)
    assert found == status and words in sentence and sentence[-1] in ".?"


@pytest.mark.parametrize("url, spared", [("127.0.0.1:1", True), ("localhost:1", True), ("[::1]:1", True), ("a:1", 0)])
def test_no_proxy_comes_between_this_machine_and_itself(url, spared):
    assert (("grpc.enable_http_proxy", 0) in channel_args(url)) == spared
