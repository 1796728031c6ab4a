"""The KServe v2 protocol over gRPC, as thin as possible: channel, request message, response message, error sentence.

It uses tritonclient's generated messages and stubs, not its InferenceServerClient: that allows one stream a client,
and a stream that nobody stopped keeps a script from exiting. Notebook 05 shows both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import InferResult, service_pb2, service_pb2_grpc
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

from servinglab.errors import CourseError

MAX_MESSAGE = 2**31 - 1
EMPTY_FINAL = "triton_enable_empty_final_response"


class ClientError(CourseError):
    """A request was refused, failed, or got no answer in time."""


class ServerGone(ClientError):
    """Nobody is there to answer: no server at the address, a closed connection, a model that died or is not loaded."""


class DeadlinePassed(ClientError):
    """No answer, or no end of it, in the time allowed."""


class ClientWarning(UserWarning):
    """The request is valid, but probably not what was meant."""


def is_local(url: str) -> bool:
    """Whether the address is this machine: then a proxy of the environment must not be asked."""
    return bool(re.match(r"(\w+://)?(127\.|localhost|\[::1\])", url))


def open_channel(url: str) -> grpc.Channel:
    """Without keepalive pings: Triton closes a connection that pings more often than every five minutes."""
    options = [("grpc.max_send_message_length", MAX_MESSAGE), ("grpc.max_receive_message_length", MAX_MESSAGE)]
    return grpc.insecure_channel(url, options=options + [("grpc.enable_http_proxy", 0)] * is_local(url))


def stub(channel: grpc.Channel) -> service_pb2_grpc.GRPCInferenceServiceStub:
    return service_pb2_grpc.GRPCInferenceServiceStub(channel)


def call(channel: grpc.Channel, method: str, timeout: float, headers: Mapping[str, str], **fields: Any) -> grpc.Future:
    """Send a unary request of the service; `fields` of its message. The answer is to come."""
    request = getattr(service_pb2, f"{method}Request")(**fields)
    return getattr(stub(channel), method).future(request, timeout=timeout, metadata=list(headers.items()))


def check_deadline(deadline: Any) -> None:
    """Raises ClientError unless `deadline` is a finite number of seconds above 0."""
    if isinstance(deadline, bool) or not isinstance(deadline, (int, float)) or not 0 < deadline < 1e9:
        raise ClientError(f"deadline must be a number of seconds above 0 and below a billion, not {deadline!r}.")


def infer_request(
    model: str, tensors: Mapping[str, np.ndarray], request_id: str, *, empty_final: bool = False
) -> service_pb2.ModelInferRequest:
    """The message ModelInferRequest; strings are object arrays. Raises ClientError for what has no form in it."""
    if not isinstance(request_id, str):
        raise ClientError(f"request_id must be text, not {request_id!r}.")
    request = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    for name, array in tensors.items():
        if array.dtype.kind == "U":
            array = np.char.encode(array).astype(object)
        datatype = np_to_triton_dtype(array.dtype)
        if datatype is None:
            raise ClientError(f"Input '{name}' is an array of {array.dtype}, which Triton has no datatype for.")
        request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        if datatype == "BYTES":
            content = serialize_byte_tensor(array)
            request.raw_input_contents.append(content.item() if content.size else b"")
        else:
            request.raw_input_contents.append(np.ascontiguousarray(array).tobytes())
    if empty_final:
        request.parameters[EMPTY_FINAL].bool_param = True
    return request


def read_outputs(response: service_pb2.ModelInferResponse) -> dict[str, np.ndarray]:
    """Output tensors by name; strings are object arrays of bytes."""
    result = InferResult(response)
    return {output.name: result.as_numpy(output.name) for output in response.outputs}


def progress(chunks: int) -> str:
    """How far a stream came; empty where nothing of it did."""
    return f" (after {chunks} chunk{'s' * (chunks != 1)})" if chunks else ""


def deadline_passed(url: str, seconds: float, what: str = "") -> DeadlinePassed:
    """`what` says how far the answer came, if there was any of it: then its end is what did not come in time."""
    return DeadlinePassed(f"No {'end of the ' if what else ''}answer from {url} within {seconds:g} s{what}.")


def connection_closed(url: str, what: str = "") -> ServerGone:
    return ServerGone(f"The server at {url} closed the connection{what}: has it stopped? Its log says why.")


def as_client_error(error: grpc.RpcError, url: str, seconds: float, what: str = "") -> ClientError:
    """One sentence for a failed call; `seconds` is the deadline it ran under, `what` how far it came."""
    code, details = error.code(), (error.details() or "").strip()
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return deadline_passed(url, seconds, what)
    if code is grpc.StatusCode.UNAVAILABLE:
        if what or "Socket closed" in details or "recvmsg" in details:
            return connection_closed(url, what)
        if "connect" in details.lower() or "resol" in details.lower():
            return ServerGone(f"No server answers at {url}: is it running, and is this its gRPC port?")
    if code is grpc.StatusCode.UNKNOWN and "Stream removed" in details:
        return connection_closed(url, what)
    if code is grpc.StatusCode.CANCELLED:
        return ClientError(f"The request was cancelled{what}.")
    if code is grpc.StatusCode.UNIMPLEMENTED and not details:
        return ClientError(f"{url} does not speak the KServe v2 protocol: is this Triton's gRPC port?")
    return ClientError(details or f"{url} answered with {code.name}.")
