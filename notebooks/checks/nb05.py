"""Exercises of notebook 05, judged by a Triton: bytes of a message, a loop that reads a stream, one that leaves it."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator

import grpc
from tritonclient.grpc import InferenceServerClient, service_pb2
from tritonclient.utils import InferenceServerException

from servinglab.checks import Verdict, exercise, repository_of, right, wrong
from servinglab.client import inputs, stream
from servinglab.server import TritonServer

# --- 05.2: the loop, on a Triton whose model ends its answers in both ways --------------------------------------------

_CONFIG = """\
name: "story"
backend: "python"
max_batch_size: 8
model_transaction_policy { decoupled: true }
input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } ]
input [ { name: "max_tokens" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [
  { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] }, { name: "size" data_type: TYPE_INT32 dims: [ 1 ] }
]
instance_group [ { kind: KIND_CPU } ]
"""
_CODE = """\
import time
import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            way = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy().flat[0].decode()
            if way == "sent":
                sender.send(self.piece(str(self.sent)), flags=FINAL)
                continue
            if way == "long":
                for self.sent in range(1, 101):
                    sender.send(self.piece(f" {self.sent}"))
                    time.sleep(0.005)
                    if sender.is_cancelled():
                        break
                sender.send(flags=FINAL)
                continue
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
        text = np.array([text.encode()], object)
        size = np.array([len(text[0])], np.int32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text), pb_utils.Tensor("size", size)])
"""
_STORY, PATIENCE = "A red fox ran", 3.0


@functools.cache
def _server() -> TritonServer:
    return TritonServer(repository_of("story", _CODE, _CONFIG)).start()


def _read(loop: Callable, way: str, times: int = 1, *more: object) -> object:
    """What the learner's loop returns, the exception that it raises, or None when it does not end."""
    client, found = InferenceServerClient(_server().grpc_url), []

    def run() -> None:
        try:
            found.append([loop(client, "story", inputs(text_input=way, max_tokens=8), *more) for _ in range(times)][-1])
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)  # a loop that waits for ever ends with this process
    thread.start()
    thread.join(PATIENCE)
    said = found[0] if found else None
    client.stop_stream(cancel_requests=True)
    return said


@exercise("05.1", expects="bytes")
def one_output(answer: bytes) -> Verdict:
    """Behind a request that is right, they must make Triton send one of the model's two outputs."""
    if not isinstance(answer, bytes):
        return wrong("expected bytes, such as bytes.fromhex gives")
    request = service_pb2.ModelInferRequest(model_name="story")
    for name, datatype, raw in (("text_input", "BYTES", b"\t\0\0\0with data"), ("max_tokens", "INT32", b"\1\0\0\0")):
        request.inputs.add(name=name, datatype=datatype, shape=[1, 1])
        request.raw_input_contents.append(raw)
    said = _answered(request.SerializeToString() + answer)
    if said == "text_output":
        return right("field 6, and in it field 1: Triton sends text_output and leaves out the other")
    return wrong(f"Triton says: {said}. {_why(answer)}")


def _answered(message: bytes) -> str:
    """The outputs of the first response to a serialised request, or the error."""
    ended, found = threading.Event(), []

    def requests() -> Iterator[bytes]:
        yield message
        ended.wait(PATIENCE)  # to close this side before the answer is complete can crash Triton 24.10

    with grpc.insecure_channel(_server().grpc_url) as channel:
        response = service_pb2.ModelStreamInferResponse.FromString
        method = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer", None, response)
        try:
            for said in method(requests(), timeout=PATIENCE):
                found.append(said.error_message or " and ".join(out.name for out in said.infer_response.outputs))
                if said.error_message or said.infer_response.parameters["triton_final_response"].bool_param:
                    ended.set()
        except grpc.RpcError as error:
            return error.details()
        finally:
            ended.set()
    return found[0] if found else "nothing"


def _why(answer: bytes) -> str:
    tag, *rest = answer or b"\0"
    if tag != 0x32:
        return _TAG.get(tag, "The tag of field 6 is its number, shifted by three bits, with the wire type below")
    if not rest or rest[0] != len(rest) - 1:
        return _LENGTH.get(rest[0] - len(rest) if rest else 0, "A length counts the bytes behind it")
    return "The value is a message of its own: a tag, a length, and then the name"


_TAG = {
    0x06: "A tag is not the number alone: three bits below it are the wire type",
    0x30: "Wire type 0 is a single varint, and a message has a length",
    0x62: "A tag is not two digits: its bits are cut, three from the right",
    0x0A: "Field 1 stands inside field 6, so it does not come first",
}
_LENGTH = {
    -3: "The outer length also counts the tag and the length that stand before the name",
    0: "A length does not count itself",
    1: "A length counts neither its tag nor itself",
}


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


# --- 05.3: how to leave -----------------------------------------------------------------------------------------------

_ALL = 100  # what the model sends to a client that stays


@exercise("05.3", expects="a function first_text(client, model, request, n) that returns a text")
def leaving(first_text: Callable) -> Verdict:
    if not callable(first_text):
        return wrong("expected a function first_text(client, model, request, n)")
    said = _read(first_text, "long", 2, 3)
    if said is None:
        return wrong(f"it does not return within {PATIENCE:.0f} s, and the model needs less for its whole answer")
    if isinstance(said, InferenceServerException) and "another stream" in str(said):
        return wrong("a second answer fails: the first stream is still open, and the server fills it")
    if isinstance(said, Exception):
        raise said
    if said != " 1 2 3":
        return wrong(f"of the pieces ' 1', ' 2', ' 3', ' 4' … the first three make ' 1 2 3', and it returns {said!r}")
    with InferenceServerClient(_server().grpc_url) as client:
        (answer,) = stream(client, "story", inputs(text_input="sent", max_tokens=1))
    if (sent := int(answer.as_numpy("text_output").item())) == _ALL:
        return wrong(f"the text is right, and the server sent all {_ALL} pieces for it: a plain stop waits for the end")
    return right(f"the model had sent {sent} of {_ALL} pieces when it heard that nobody reads")
