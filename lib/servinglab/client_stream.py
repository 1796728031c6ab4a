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

from servinglab import kserve
from servinglab.kserve import ClientError

END_SECONDS = 1.0  # how long the end of a call may take after its last response


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


def text_of(outputs: dict[str, np.ndarray]) -> str:
    """First string of `text_output`, "" where there is none."""
    values = outputs.get("text_output")
    return values.reshape(-1)[0].decode(errors="replace") if values is not None and values.size else ""


def read_stream_response(message: Any, index: int, seconds: float, request_id: str, explain: Callable) -> Chunk:
    """ModelStreamInferResponse to Chunk. Raises ClientError, which `explain` makes of an error message."""
    if message.error_message:
        raise explain(ClientError(message.error_message))
    response = message.infer_response
    outputs = kserve.read_outputs(response)
    return Chunk(text_of(outputs), index, seconds, kserve.is_final(response), response.id or request_id, outputs)


class TokenStream:
    """Iterator over the Chunks of one request, which is on its way when this object exists.

    It ends after the final chunk, an error, `cancel()` or the deadline. Leaving the loop early, `close()`, the end of a
    `with` block and garbage collection cancel the request on the server, too.
    """

    def __init__(self, call: Any, request_id: str, deadline: float, url: str, explain: Callable) -> None:
        self.request_id = request_id
        self.cancelled = False
        self._url, self._deadline, self._explain = url, deadline, explain
        self._index = 0
        self._over = False
        self._sent = time.perf_counter()
        self._arrived: queue.SimpleQueue = queue.SimpleQueue()
        self._cancel = weakref.finalize(self, call.cancel)
        # A daemon, and without a reference to self: a forgotten stream keeps neither itself nor the script alive.
        threading.Thread(target=_receive, args=(call, self._arrived, self._sent), daemon=True).start()

    def __iter__(self) -> TokenStream:
        return self

    def __next__(self) -> Chunk:
        if self._over:
            raise StopIteration
        try:
            return self._next()
        except BaseException:  # Ctrl-C as well
            self.close()
            raise

    def _next(self) -> Chunk:
        left = self._deadline - (time.perf_counter() - self._sent)
        progress = f" (after {self._index} chunks)" if self._index else ""
        try:
            seconds, message = self._arrived.get(timeout=max(left, 0) + 1)  # gRPC's own deadline comes first
        except queue.Empty:
            raise ClientError(f"No answer from {self._url} within {self._deadline:g} s{progress}.") from None
        if message is None or self.cancelled:
            raise StopIteration
        if isinstance(message, grpc.RpcError):
            raise self._explain(kserve.as_client_error(message, self._url, self._deadline, progress)) from None
        chunk = read_stream_response(message, self._index, seconds, self.request_id, self._explain)
        self._index += 1
        if chunk.final:
            # The receiving thread reads on to the server's own end of the call. A cancel in that moment can race with
            # it, and Triton 24.10 then believes for ever that the model has a request in flight, so it never unloads.
            self._over = True
            self._cancel.detach()
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


def _receive(call: Any, arrived: queue.SimpleQueue, sent: float) -> None:
    try:
        for message in call:
            arrived.put((time.perf_counter() - sent, message))
    except grpc.RpcError as error:
        arrived.put((time.perf_counter() - sent, error))
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
        self._call = stub.ModelStreamInfer(_one(request), timeout=max(self._deadline - (self._sent - began), 0.001))
        weakref.finalize(self, _cancel_call, self._call).atexit = False

    async def _next(self) -> Chunk:
        url, progress = self._client.grpc_url, f" (after {self._index} chunks)" if self._index else ""
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
        chunk = read_stream_response(message, self._index, seconds, self.request_id, explain)
        self._index += 1
        if chunk.final:
            with contextlib.suppress(grpc.RpcError, asyncio.TimeoutError):
                await asyncio.wait_for(self._call.read(), END_SECONDS)  # see TokenStream: let the server end the call
            await self.aclose()
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
        if self._channel is not None:
            channel, self._channel = self._channel, None
            await channel.close()

    async def __aenter__(self) -> AsyncTokenStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _cancel_call(call: Any) -> None:
    try:
        call.cancel()
    except RuntimeError:  # its event loop has ended, and the call with it
        pass


async def _one(request: Any):
    yield request
