"""The HTTP side of the client: KServe v2 JSON, and Triton's generate extension (notebook 05)."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
from tritonclient.utils import np_to_triton_dtype, triton_to_np_dtype

from servinglab.old_client import kserve
from servinglab.old_client.kserve import ClientError
from servinglab.old_client.stream import Chunk

# Members of a generate answer that are not outputs of the model.
NOT_OUTPUTS = {"id", "model_name", "model_version", "sequence_id", "sequence_start", "sequence_end", "error"}
_ERRORS = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError)


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

    def ask(self, model: str, verb: str, body: Mapping[str, Any], deadline: float) -> dict[str, Any]:
        """POST …/models/MODEL/VERB: the answer's JSON object. An "error" in it is an error, whatever the status."""
        try:
            content = _encode(body)
            answer = self._http.request("POST", self._address(model, verb), content=content, timeout=deadline)
            return self._checked(answer.content, answer.status_code)
        except _ERRORS as error:
            raise self._sentence(error, deadline) from None

    def events(
        self, model: str, body: Mapping[str, Any], deadline: float
    ) -> tuple[Iterator[Chunk | ClientError], Callable[[], None]]:
        """POST …/generate_stream: server-sent events and their stop, as TokenStream takes them."""
        line, sent = _Line(), time.perf_counter()
        more = {"content": _encode(body), "timeout": deadline, "extensions": {"trace": line.trace}}
        timer = threading.Timer(deadline, line.hang_up)
        timer.daemon = True

        def objects() -> Iterator[dict[str, Any]]:
            """Split at line feeds only, for JSON strings may hold other line separators."""
            with self._streams.stream("POST", self._address(model, "generate_stream"), **more) as response:
                rest = b""
                for data in response.iter_bytes():
                    *lines, rest = (rest + data).split(b"\n")
                    yield from (self._checked(each[5:], response.status_code) for each in lines if each[:5] == b"data:")
                if response.status_code != 200:
                    self._checked(rest, response.status_code)

        def responses() -> Iterator[Chunk | ClientError]:
            count, problem = 0, None
            timer.start()
            try:
                for found in objects():
                    outputs = {name: _as_array(value) for name, value in found.items() if name not in NOT_OUTPUTS}
                    yield Chunk.of(outputs, count, sent, False, str(found.get("id", "")))
                    count += 1
            except (ClientError, *_ERRORS) as error:
                problem = error
            timer.cancel()
            if isinstance(problem, ClientError):
                yield problem
            elif line.ended and time.perf_counter() - sent >= deadline:  # by the timer
                yield kserve.deadline_passed(self.url, deadline, kserve.progress(count))
            elif problem:
                yield self._sentence(problem, deadline, kserve.progress(count))

        return responses(), line.hang_up

    def _address(self, model: str, verb: str) -> str:
        return f"{self.url}/v2/models/{quote(model, safe='')}/{verb}"

    def _checked(self, content: bytes, status: int) -> dict[str, Any]:
        """The JSON object, or the server's own error; Triton may put one into an answer with status 200."""
        try:
            found = json.loads(content)
        except ValueError:
            raise ClientError(f"{self.url} answered {status} without JSON: is this Triton's HTTP port?") from None
        if isinstance(found, dict) and "error" in found and "model_name" not in found:
            raise ClientError(str(found["error"]))
        if status >= 400 or not isinstance(found, dict):
            raise ClientError(f"{self.url} answered with HTTP status {status}.")
        return found

    def _sentence(self, error: Exception, deadline: float, what: str = "") -> ClientError:
        """As in kserve: `what` says how far the answer came."""
        if isinstance(error, httpx.TimeoutException):
            return kserve.deadline_passed(self.url, deadline, what)
        if isinstance(error, httpx.ConnectError):
            return kserve.ServerGone(f"No server answers at {self.url}: is it running, and is this its HTTP port?")
        if isinstance(error, (httpx.InvalidURL, httpx.UnsupportedProtocol)):
            return ClientError(f"{self.url} is not an HTTP address: give one like http://127.0.0.1:8000.")
        return kserve.connection_closed(self.url, what)


class _Line:
    """The connection of one stream, which another thread may want to end at any moment, also before it is there."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self.ended = False
        self._lock = threading.Lock()

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """httpcore tells what it does (its extension `trace`): take the socket as soon as there is one."""
        if event == "connection.connect_tcp.complete":
            with self._lock:
                self._socket = info["return_value"].get_extra_info("socket")
            if self.ended:
                self.hang_up()

    def hang_up(self) -> None:
        self.ended = True
        with self._lock, contextlib.suppress(OSError):
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes the reading thread, which then closes the connection


def json_inputs(tensors: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Tensors as the inputs of a KServe JSON request."""
    return [
        {"name": name, "shape": array.shape, "datatype": np_to_triton_dtype(array.dtype), "data": array.reshape(-1)}
        for name, array in tensors.items()
    ]


def json_outputs(answer: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Output tensors of a KServe JSON answer by name; strings as bytes."""
    outputs = answer.get("outputs", [])
    return {o["name"]: _as_array(o["data"], triton_to_np_dtype(o["datatype"])).reshape(o["shape"]) for o in outputs}


def _encode(body: Mapping[str, Any]) -> bytes:
    def plain(value: Any) -> Any:
        if isinstance(value, bytes):
            return value.decode()
        return value.tolist()  # of an array, or of a number of numpy's

    try:
        return json.dumps(body, default=plain, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, TypeError, AttributeError) as error:
        raise ClientError(f"The request cannot be written as JSON: {error}.") from None


def _as_array(value: Any, dtype: Any = None) -> np.ndarray:
    """A JSON value (a scalar or a list) as an array; text as bytes, as gRPC gives it."""
    items = value if isinstance(value, list) else [value]
    if any(isinstance(item, str) for item in items):
        return np.array([item.encode() for item in items], dtype=object)
    return np.array(items, dtype)
