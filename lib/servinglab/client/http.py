"""The HTTP side of the client: KServe v2 JSON, and Triton's generate extension (notebook 05)."""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.utils import np_to_triton_dtype, triton_to_np_dtype

from servinglab.client import kserve
from servinglab.client.kserve import ClientError
from servinglab.client.stream import Chunk, text_of
from servinglab.client.tensors import ModelSpec

# Members of a generate answer that are not outputs of the model.
NOT_OUTPUTS = {"id", "model_name", "model_version", "sequence_id", "sequence_start", "sequence_end", "error"}


class HttpSide:
    """One HTTP address of a Triton; every failure is a ClientError. Threads may share it."""

    def __init__(self, url: str) -> None:
        self.url = ("" if "://" in url else "http://") + url.rstrip("/")
        own = not kserve.is_local(self.url)
        try:
            self._http = httpx.Client(trust_env=own)
            # A connection for each stream: leaving one shuts it, and in a pool it could be another request's by then.
            self._streams = httpx.Client(trust_env=own, limits=httpx.Limits(max_keepalive_connections=0))
        except (httpx.InvalidURL, ImportError, ValueError) as error:
            raise ClientError(f"The proxy that the environment names for {self.url} cannot be used: {error}") from None

    def close(self) -> None:
        self._http.close()
        self._streams.close()

    def spec(self, model: str, deadline: float) -> ModelSpec:
        answer = self.send("GET", _path(model, "config"), None, deadline)
        return ModelSpec.from_config(json_format.ParseDict(answer, ModelConfig(), ignore_unknown_fields=True))

    def infer(
        self, model: str, tensors: Mapping[str, np.ndarray], request_id: str, deadline: float
    ) -> dict[str, np.ndarray]:
        """POST …/infer with JSON tensors; output tensors by name, strings as bytes."""
        inputs = [
            {"name": name, "shape": array.shape, "datatype": np_to_triton_dtype(array.dtype), "data": _json_data(array)}
            for name, array in tensors.items()
        ]
        answer = self.send("POST", _path(model, "infer"), {"id": request_id, "inputs": inputs}, deadline)
        return {output["name"]: _array(output) for output in answer.get("outputs", [])}

    def generate(self, model: str, body: Mapping[str, Any], deadline: float) -> dict[str, Any]:
        """POST …/generate; the answer's JSON object."""
        return self.send("POST", _path(model, "generate"), body, deadline)

    def generate_stream(self, model: str, body: Mapping[str, Any], deadline: float, explain: Callable) -> HttpStream:
        return HttpStream(self._streams, self.url + _path(model, "generate_stream"), _encode(body), deadline, explain)

    def send(self, method: str, path: str, body: Any, deadline: float) -> dict[str, Any]:
        """One request; the answer's JSON object. An "error" in it is an error, whatever the status says."""
        try:
            content = None if body is None else _encode(body)
            answer = self._http.request(method, self.url + path, content=content, timeout=deadline)
            found = answer.json()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise as_client_error(error, self.url, deadline) from None
        except ValueError:
            raise ClientError(
                f"{self.url} answered {answer.status_code} without JSON: is this Triton's HTTP port?"
            ) from None
        check(found, answer.status_code, self.url)
        return found


class HttpStream:
    """Iterator over the Chunks of generate_stream; leaving it closes the connection, which cancels the request.

    Triton notices at its next write, so a request with `stream` false runs to its end; and an ensemble of Triton 24.10
    does not pass a cancel on.

    The protocol has no final flag: `final` is False in every chunk and the end of the iteration is the end.
    """

    def __init__(self, http: httpx.Client, url: str, content: bytes, deadline: float, explain: Callable) -> None:
        self._url, self._deadline, self._explain = url, deadline, explain
        self._index = 0
        self._sent = time.perf_counter()
        self._arrived: queue.SimpleQueue = queue.SimpleQueue()
        connection = _Line()
        self._hang_up = weakref.finalize(self, connection.hang_up)
        arguments = (http, url, content, deadline, self._arrived, connection, self._sent)
        threading.Thread(target=_receive, args=arguments, daemon=True).start()

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        try:
            return self._next()
        except BaseException:
            self.close()
            raise

    def _next(self) -> Chunk:
        if not self._hang_up.alive:
            raise StopIteration
        left = self._deadline - (time.perf_counter() - self._sent)
        try:
            seconds, found = self._arrived.get(timeout=max(left, 0.0))
        except queue.Empty:
            seconds, found = self._deadline, httpx.ReadTimeout("")
        if found is None:
            raise StopIteration
        if isinstance(found, ClientError):
            raise self._explain(found) from None
        if isinstance(found, Exception):
            progress = kserve.progress(self._index)
            raise self._explain(as_client_error(found, self._url, self._deadline, progress)) from None
        outputs = {name: _as_array(value) for name, value in found.items() if name not in NOT_OUTPUTS}
        chunk = Chunk(text_of(outputs), self._index, seconds, False, str(found.get("id", "")), outputs)
        self._index += 1
        return chunk

    def cancel(self) -> None:
        self.close()

    def close(self) -> None:
        self._hang_up()

    def __enter__(self) -> HttpStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Line:
    """The connection of one stream, which another thread may want to end at any moment, also before it is there."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._ended = False
        self._lock = threading.Lock()

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """httpcore tells what it does (its extension `trace`): take the socket as soon as there is one."""
        if event == "connection.connect_tcp.complete":
            with self._lock:
                self._socket = info["return_value"].get_extra_info("socket")
            if self._ended:
                self.hang_up()

    def hang_up(self) -> None:
        self._ended = True
        with self._lock, contextlib.suppress(OSError):
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes the reading thread, which then closes the connection


def _receive(http, url, content, deadline, arrived, connection, sent) -> None:
    """Read server-sent events; split at line feeds only, for JSON strings may hold other line separators."""
    try:
        extensions = {"trace": connection.trace}
        with http.stream("POST", url, content=content, timeout=deadline, extensions=extensions) as response:
            rest = b""
            for data in response.iter_bytes():
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    if line.startswith(b"data:"):
                        found = json.loads(line[5:])
                        check(found, response.status_code, url)
                        arrived.put((time.perf_counter() - sent, found))
            if response.status_code != 200:
                check(json.loads(rest), response.status_code, url)
        arrived.put((0.0, None))
    except ValueError:
        arrived.put((0.0, ClientError(f"{url} answered with something that is not JSON: is this Triton's HTTP port?")))
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, ClientError, OSError) as error:
        arrived.put((0.0, error))


def check(found: Any, status: int, url: str) -> None:
    """Raise the server's own error; Triton may put one into an answer with status 200."""
    if isinstance(found, dict) and "error" in found and "model_name" not in found:
        raise ClientError(str(found["error"]))
    if status >= 400 or not isinstance(found, (dict, list)):
        raise ClientError(f"{url} answered with HTTP status {status}.")


def as_client_error(error: Exception, url: str, deadline: float, what: str = "") -> ClientError:
    """As in kserve: `what` says how far the answer came."""
    if isinstance(error, httpx.TimeoutException):
        return kserve.deadline_passed(url, deadline, what)
    if isinstance(error, httpx.ConnectError):
        return ClientError(f"No server answers at {url}: is it running, and is this its HTTP port?")
    if isinstance(error, (httpx.InvalidURL, httpx.UnsupportedProtocol)):
        return ClientError(f"{url} is not an HTTP address: give one like http://127.0.0.1:8000.")
    return ClientError(f"The server at {url} closed the connection{what}: has it stopped? Its log says why.")


def _path(model: str, verb: str) -> str:
    return f"/v2/models/{quote(model, safe='')}/{verb}"


def _encode(body: Any) -> bytes:
    try:
        return json.dumps(body, default=_plain, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, TypeError) as error:
        raise ClientError(f"The request cannot be written as JSON: {error}.") from None


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, bytes):
        return value.decode()
    raise TypeError(f"a {type(value).__name__} has no JSON form")


def _json_data(array: np.ndarray) -> list[Any]:
    flat = array.reshape(-1).tolist()
    try:
        return [item.decode() if isinstance(item, bytes) else item for item in flat]
    except UnicodeDecodeError:
        raise ClientError("JSON holds text only: send bytes that are not UTF-8 over gRPC.") from None


def _array(output: Mapping[str, Any]) -> np.ndarray:
    if output["datatype"] == "BYTES":
        return _as_array(output["data"]).reshape(output["shape"])
    return np.array(output["data"], triton_to_np_dtype(output["datatype"])).reshape(output["shape"])


def _as_array(value: Any) -> np.ndarray:
    """A JSON value of generate (a scalar or a list) as an array; text as bytes, as gRPC gives it."""
    items = value if isinstance(value, list) else [value]
    if any(isinstance(item, str) for item in items):
        return np.array([item.encode() for item in items], dtype=object)
    return np.array(items)
