"""Token streams over gRPC, one call each: a thread receives, the loop consumes (notebook 05)."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np

from servinglab.client import kserve
from servinglab.client.kserve import ClientError

END_SECONDS = 1.0  # how long the end of a call may take after its last response
_OPEN: weakref.WeakSet = weakref.WeakSet()  # every TokenStream that somebody holds


@dataclass
class Chunk:
    """One response. `seconds` since the request was sent, taken when it arrived, not when it was read.

    The last chunk has `final` set; it may be empty (a BLS model says separately that it has ended).
    """

    text: str
    index: int
    seconds: float
    final: bool
    request_id: str
    outputs: dict[str, np.ndarray] = field(default_factory=dict, repr=False)

    @property
    def texts(self) -> list[str]:
        """All strings of `text_output`: one for each beam."""
        return texts_of(self.outputs)


def texts_of(outputs: dict[str, np.ndarray]) -> list[str]:
    """The strings of `text_output`; [] where there is none."""
    values = outputs.get("text_output")
    return [] if values is None else [value.decode(errors="replace") for value in values.reshape(-1)]


def text_of(outputs: dict[str, np.ndarray]) -> str:
    """First string of `text_output`, "" where there is none."""
    return (texts_of(outputs) or [""])[0]


def read_stream_response(message: Any, index: int, seconds: float, request_id: str, explain: Callable) -> Chunk:
    """ModelStreamInferResponse to Chunk. Raises ClientError, which `explain` makes of an error message."""
    if message.error_message:
        raise explain(ClientError(message.error_message))
    response = message.infer_response
    outputs = kserve.read_outputs(response)
    return Chunk(text_of(outputs), index, seconds, kserve.is_final(response), response.id or request_id, outputs)


def _ends(message: Any) -> bool:
    """Whether this ModelStreamInferResponse is the last of its request."""
    return bool(message.error_message) or kserve.is_final(message.infer_response)


class TokenStream:
    """Iterator over the Chunks of one request, which is on its way when this object exists.

    It ends after the final chunk, an error, `cancel()` or the deadline. Leaving the loop early, `close()`, the end of a
    `with` block and garbage collection cancel the request on the server, too; Ctrl-C while one stream is waited for
    cancels all. (An ensemble of Triton 24.10 passes no cancel on: its LLM goes on to max_tokens.)
    """

    def __init__(
        self, method: Callable, request: Any, request_id: str, deadline: float, left: float, url: str, explain: Callable
    ) -> None:
        self.request_id = request_id
        self.cancelled = False
        self._url, self._deadline, self._explain = url, deadline, explain
        self._index = 0
        self._over = False
        self._sent = time.perf_counter()
        self._arrived: queue.SimpleQueue = queue.SimpleQueue()
        self._ended = threading.Event()
        call = method(_requests(request, self._ended), timeout=left)
        self._cancel = weakref.finalize(self, _cancel_call, call, self._ended)
        _OPEN.add(self)
        # A daemon, and without a reference to self: a forgotten stream keeps neither itself nor the script alive.
        threading.Thread(target=_receive, args=(call, self._arrived, self._sent, self._ended), daemon=True).start()

    def __iter__(self) -> TokenStream:
        return self

    def __next__(self) -> Chunk:
        if self._over:
            raise StopIteration
        try:
            return self._next()
        except BaseException as error:
            # Ctrl-C, Jupyter's Stop, ends all that was asked for: the traceback holds the others, they would run on.
            for stream in list(_OPEN) if isinstance(error, KeyboardInterrupt) else [self]:
                stream.close()
            raise

    def _next(self) -> Chunk:
        left = self._deadline - (time.perf_counter() - self._sent)
        progress = kserve.progress(self._index)
        try:
            seconds, message = self._arrived.get(timeout=max(left, 0) + 1)  # gRPC's own deadline comes first
        except queue.Empty:
            raise kserve.deadline_passed(self._url, self._deadline, progress) from None
        if message is None or self.cancelled:
            raise StopIteration
        if isinstance(message, grpc.RpcError):
            raise self._explain(kserve.as_client_error(message, self._url, self._deadline, progress)) from None
        if _ends(message):
            self._over = True
            self._cancel.detach()
            self._ended.set()
        chunk = read_stream_response(message, self._index, seconds, self.request_id, self._explain)
        self._index += 1
        return chunk

    def cancel(self) -> None:
        """Stop the request; the server is told, and the iterator ends. No effect on one that has ended."""
        if not self._over:
            self.cancelled = True
            self._arrived.put((0.0, None))  # wakes a reader in another thread
        self.close()

    def close(self) -> None:
        self._over = True
        self._cancel()

    def __enter__(self) -> TokenStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _requests(request: Any, ended: threading.Event):
    """The one request; then the call stays open on our side until its last response is here.

    An early end of our side, and a cancel when all is over, both race inside Triton 24.10's gRPC server with the last
    write: it can abort ("TOO_MANY_OPERATIONS"), or believe for ever that the model has a request in flight.
    """
    yield request
    ended.wait()


def _cancel_call(call: Any, ended: threading.Event) -> None:
    # The only way to give up a request early. When it meets a response on its way, Triton 24.10 can crash or lose an
    # answer (upstream issue 7368, mended in 24.12): rare at the pace of a language model.
    call.cancel()
    ended.set()


def _receive(call: Any, arrived: queue.SimpleQueue, sent: float, ended: threading.Event) -> None:
    try:
        for message in call:
            arrived.put((time.perf_counter() - sent, message))
    except grpc.RpcError as error:
        arrived.put((time.perf_counter() - sent, error))
    ended.set()
    arrived.put((time.perf_counter() - sent, None))


class AsyncTokenStream:
    """The same for `async for`. The request is sent by the first `await`, on a channel of the loop that runs then."""

    def __init__(self, client: Any, model: str, values: dict[str, Any], request_id: str, deadline: float) -> None:
        self.request_id = request_id
        self.cancelled = False
        self._client, self._model, self._values, self._deadline = client, model, values, deadline
        self._index = 0
        self._over = False
        self._channel: Any = None
        self._call: Any = None

    def __aiter__(self) -> AsyncTokenStream:
        return self

    async def __anext__(self) -> Chunk:
        if self._over:
            raise StopAsyncIteration
        try:
            if self._call is None:
                await self._send()
            return await self._next()
        except BaseException:  # a cancelled task as well
            await self.aclose()
            raise

    async def _send(self) -> None:
        url, began = self._client.grpc_url, time.perf_counter()
        self._channel = grpc.aio.insecure_channel(url, options=kserve.options(url))
        stub = kserve.stub(self._channel)
        try:
            spec = await self._client.aspec(stub, self._model, self._deadline)
        except grpc.RpcError as error:
            raise self._client.explain(self._model, kserve.as_client_error(error, url, self._deadline)) from None
        request = self._client.request_for(spec, self._values, self.request_id)
        self._sent = time.perf_counter()
        self._ended = asyncio.Event()
        left = max(self._deadline - (self._sent - began), 0.001)
        self._call = stub.ModelStreamInfer(_arequests(request, self._ended), timeout=left)
        weakref.finalize(self, _cancel_acall, self._call).atexit = False

    async def _next(self) -> Chunk:
        url, progress = self._client.grpc_url, kserve.progress(self._index)
        try:
            message = await self._call.read()
        except asyncio.CancelledError:  # the stream's own cancel(), or the task's
            if self.cancelled:
                raise StopAsyncIteration from None
            raise
        except grpc.RpcError as error:
            found = kserve.as_client_error(error, url, self._deadline, progress)
            raise self._client.explain(self._model, found) from None
        if message is grpc.aio.EOF or self.cancelled:
            raise StopAsyncIteration
        seconds = time.perf_counter() - self._sent
        explain = lambda error: self._client.explain(self._model, error)  # noqa: E731
        if _ends(message):
            self._ended.set()
            with contextlib.suppress(grpc.RpcError, asyncio.TimeoutError):
                await asyncio.wait_for(self._call.read(), END_SECONDS)  # see _requests: the server ends the call
            await self.aclose()
        chunk = read_stream_response(message, self._index, seconds, self.request_id, explain)
        self._index += 1
        return chunk

    def cancel(self) -> None:
        """Stop the request; the server is told, and the iterator ends."""
        self.cancelled = self.cancelled or not self._over
        self._over = True
        if self._call is not None:
            self._call.cancel()

    async def aclose(self) -> None:
        self._over = True
        if self._call is not None:
            self._call.cancel()
            self._ended.set()  # or gRPC's task that reads our requests would wait for more
        if self._channel is not None:
            channel, self._channel = self._channel, None
            await channel.close()

    async def __aenter__(self) -> AsyncTokenStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _cancel_acall(call: Any) -> None:
    try:
        call.cancel()
    except RuntimeError:  # its event loop has ended, and the call with it
        pass


async def _arequests(request: Any, ended: asyncio.Event):
    """See _requests."""
    yield request
    await ended.wait()
