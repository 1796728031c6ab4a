"""Exercises of notebook 05: bytes of a message, the loop that reads a stream, the times of its tokens."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable

from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from servinglab.checks import Verdict, exercise, is_stub, repository_of, right, unattempted, wrong
from servinglab.client import inputs
from servinglab.server import TritonServer

# --- 05.1: 32 0d | 0a 0b "text_output" --------------------------------------------------------------------------------

_FIELD = {
    6: None,
    50: "0x32 is the whole tag: the field number is what is left without its lower three bits, 50 >> 3",
    32: "32 is hexadecimal, and the whole tag: write it in bits, then leave out the lower three",
    3: "a tag is not cut between its two hexadecimal digits: three bits are the wire type, the other five the number",
    1: "field 1 is the name inside; the outer field begins with the tag 0x32",
}
_WIRE_TYPE = {
    2: None,
    50: "that is the whole tag; the wire type is its lower three bits, 50 & 7",
    0: "type 0 is a single varint; the lower three bits of 0x32 are 010",
    6: "6 is the field number; the wire type is the lower three bits of the tag",
}
_LENGTH = {
    13: None,
    50: "you read the tag as a length: the length is the byte behind it",
    32: "you read the tag as a length: the length is the byte behind it",
    11: "that is how long the text inside is; the outer length also covers the inner tag and the inner length",
    15: "that counts the tag and the length byte too; a length covers only what comes after it",
    10: "0x0a is the tag of the inner field; the outer length is the byte behind 0x32",
}


@exercise("05.1", expects="a dict with field, wire_type, length and text")
def wire_field(answer: dict[str, object]) -> Verdict:
    parts = {name: answer[name] for name in ("field", "wire_type", "length", "text")}
    if any(is_stub(part) for part in parts.values()):
        return unattempted()
    for name, known in (("field", _FIELD), ("wire_type", _WIRE_TYPE), ("length", _LENGTH)):
        if said := known.get(parts[name], "a tag is five bits of number and three of wire type; a length follows"):
            return wrong(f"{name} {parts[name]!r}: {said}")
    text = parts["text"]
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    if text == "\n\x0btext_output":
        return wrong("the value begins with a tag and a length of its own, 0a 0b; the text comes after them")
    if text != "text_output":
        return wrong(f"text {parts['text']!r}: decode the eleven bytes behind 0a 0b as ASCII")
    return right("field 6 is outputs, and the message in it names one: text_output")


# --- 05.2: the loop, on a Triton whose model ends its answers in both ways --------------------------------------------

_CONFIG = """\
name: "story"
backend: "python"
max_batch_size: 8
model_transaction_policy { decoupled: true }
input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } ]
input [ { name: "max_tokens" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""
_CODE = """\
import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            way = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy().flat[0].decode()
            *first, last = ("A", " red", "", " fox", " ran")  # the third is half a character
            for text in first:
                sender.send(self.piece(text))
            if way == "fails":
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("out of blocks")), flags=FINAL)
            elif way == "with data":
                sender.send(self.piece(last), flags=FINAL)
            else:
                sender.send(self.piece(last))
                sender.send(flags=FINAL)

    def piece(self, text):
        return pb_utils.InferenceResponse([pb_utils.Tensor("text_output", np.array([text.encode()], object))])
"""
_STORY, PATIENCE = "A red fox ran", 3.0


@functools.cache
def _server() -> TritonServer:
    return TritonServer(repository_of("story", _CODE, _CONFIG)).start()


def _read(loop: Callable, way: str, times: int = 1) -> object:
    """What the learner's loop returns, the exception that it raises, or None when it does not end."""
    client, found = InferenceServerClient(_server().grpc_url), []

    def run() -> None:
        try:
            found.append([loop(client, "story", inputs(text_input=way, max_tokens=8)) for _ in range(times)][-1])
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)  # a loop that waits for ever ends with this process
    thread.start()
    thread.join(PATIENCE)
    said = found[0] if found else None
    client.stop_stream(cancel_requests=True)
    return said


@exercise("05.2", expects="a function read_answer(client, model, request) that returns a text")
def stream_loop(read_answer: Callable) -> Verdict:
    if not callable(read_answer):
        return wrong("expected a function read_answer(client, model, request)")
    alone, with_data = _read(read_answer, "alone"), _read(read_answer, "with data")
    for found in (alone, with_data):
        if isinstance(found, Exception):
            raise found
    if alone is None and with_data is None:
        why = "a model may end before max_tokens, and nothing sends a [DONE]; the end is a response parameter"
        return wrong(f"your loop never ends: {why}")
    if alone is None:
        return wrong("it never hears of the end of a BLS model, whose flag comes alone: ask for empty final responses")
    if with_data is None:
        return wrong("an empty response is only how the BLS model ends; the ensemble puts the flag on its last data")
    if not isinstance(alone, str):
        return wrong(f"it returns {type(alone).__name__}: join the pieces to one text")
    if (alone, with_data) != (_STORY, _STORY):
        why = _LOST.get((alone, with_data), "join every text_output, in the order in which they came")
        return wrong(f"of {_STORY!r} you have {alone!r} and, with the flag on the last data, {with_data!r}: {why}")
    if not isinstance(_read(read_answer, "alone", times=2), str):
        return wrong("a second answer fails: a client has one stream, so close it whatever happens")
    if not isinstance(_read(read_answer, "fails"), InferenceServerException):
        return wrong("the model failed in the middle of its answer, and your loop does not raise that error")
    return right("the flag alone decides, wherever it sits; a failure is heard, and the stream is closed")


_LOST = {
    ("A", "A"): "each response has the parameter; look at its bool_param",
    ("A red", "A red"): "an empty text is not the end: it may be half a character, and the rest is lost",
    (_STORY, "A red fox"): "the response with the flag may hold text, too",
}


# --- 05.3: the times of a stream --------------------------------------------------------------------------------------

_TTFT = {
    300: None,
    40: "that is the gap between the first two tokens; the first token is waited for since the request",
    0.3: "that is in seconds",
    510: "that is when the last token arrived",
}
_GAP = {
    52.5: None,
    0.0525: "that is in seconds",
    102: "the whole time divided by all tokens mixes the first wait into the gaps",
    127.5: "the first wait is not a gap: begin at the first token",
    42: "five tokens have four gaps between them",
    50: "that is the median; the mean is asked for",
}


@exercise("05.3", expects="a dict with ttft_ms and mean_gap_ms")
def token_times(answer: dict[str, float]) -> Verdict:
    parts = {name: answer[name] for name in ("ttft_ms", "mean_gap_ms")}
    if any(is_stub(part) for part in parts.values()):
        return unattempted()
    for name, known in (("ttft_ms", _TTFT), ("mean_gap_ms", _GAP)):
        near = [said for value, said in known.items() if math.isclose(float(parts[name]), value, rel_tol=1e-3)]
        if not near or near[0]:
            said = near[0] if near else "gaps are differences of neighbouring times; the first token has none"
            return wrong(f"{name} {parts[name]!r}: {said}")
    return right("300 ms, then 52.5 ms a token: 19 tokens per second, however long the first one took")
