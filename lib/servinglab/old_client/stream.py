"""Token streams, one call each: a thread receives, the loop consumes (notebook 05)."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np

from servinglab.old_client import kserve
from servinglab.old_client.kserve import ClientError

_OPEN: weakref.WeakSet[TokenStream] = weakref.WeakSet()  # every one that somebody holds


@dataclass
class Chunk:
    """One response. `seconds` since the request was sent, taken when it arrived, not when it was read.

    The last chunk of a gRPC stream has `final` set; it may be empty (a BLS model says separately that it has ended).
    """

    text: str
    index: int
    seconds: float
    final: bool
    request_id: str
    outputs: dict[str, np.ndarray] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, outputs: dict[str, np.ndarray], index: int, sent: float, final: bool, request_id: str) -> Chunk:
        """sent: when the request was, by time.perf_counter()."""
        chunk = cls("", index, time.perf_counter() - sent, final, request_id, outputs)
        chunk.text = (chunk.texts or [""])[0]
        return chunk

    @property
    def texts(self) -> list[str]:
        """All strings of `text_output`: one for each beam."""
        values = self.outputs.get("text_output")
        return [] if values is None else [value.decode(errors="replace") for value in values.reshape(-1)]


class TokenStream:
    """Iterator over the Chunks of one request, which is on its way when this object exists.

    It ends after the final chunk, an error, `cancel()` or the deadline. Leaving the loop early, `close()`, the end of a
    `with` block and garbage collection cancel the request on the server, too; Ctrl-C while one stream is waited for
    cancels all. (An ensemble of Triton 24.10 passes no cancel on: its LLM goes on to max_tokens. Over HTTP, Triton
    notices at its next write, so a request that does not stream runs to its end; and no chunk is `final`.)

    Args:
        responses: what arrives, each a Chunk or the ClientError that ends it; read in a thread. Ends at the deadline.
        stop: ends the call from any thread; holds no reference to this object.
        explain: adds to an error what helps a learner further.
        wake: called in that thread after each arrival.
    """

    def __init__(
        self, responses: Iterator[Chunk | ClientError], stop: Callable[[], None], request_id: str,
        explain: Callable[[ClientError], ClientError], wake: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.request_id = request_id
        self.cancelled = self._over = False
        self._explain = explain
        self._arrived: queue.SimpleQueue = queue.SimpleQueue()
        self._stop = weakref.finalize(self, stop)
        _OPEN.add(self)
        # A daemon, and without a reference to self: a forgotten stream keeps neither itself nor the script alive.
        threading.Thread(target=_receive, args=(responses, self._arrived, wake), daemon=True).start()

    def __iter__(self) -> TokenStream:
        return self

    def __next__(self) -> Chunk:
        if self._over:
            raise StopIteration
        try:
            item = self._arrived.get()
            if item is None or self.cancelled:
                raise StopIteration
            if isinstance(item, ClientError):
                raise self._explain(item) from None
        except BaseException as error:
            # Ctrl-C, Jupyter's Stop, ends all that was asked for: the traceback holds the others, they would run on.
            for stream in list(_OPEN) if isinstance(error, KeyboardInterrupt) else [self]:
                stream.close()
            raise
        self._over = item.final
        return item

    def waits(self) -> bool:
        """Whether the next chunk, or the end, is yet to come."""
        return not self._over and self._arrived.empty()

    def cancel(self) -> None:
        """Stop the request; the server is told, and the iterator ends. No effect on one that has ended."""
        if not self._over:
            self.cancelled = True
            self._arrived.put(None)  # wakes a reader in another thread
        self.close()

    def close(self) -> None:
        self._over = True
        self._stop()

    def __enter__(self) -> TokenStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _receive(responses: Iterator[Chunk | ClientError], arrived: queue.SimpleQueue, wake: Callable[[], None]) -> None:
    try:
        for item in responses:
            arrived.put(item)
            wake()
    finally:
        arrived.put(None)
        wake()


def grpc_call(
    method: Callable, request: Any, url: str, deadline: float, left: float
) -> tuple[Iterator[Chunk | ClientError], Callable[[], None]]:
    """Send a request over ModelStreamInfer: its responses and its stop, as TokenStream takes them.

    left: seconds until the deadline, which was `deadline` seconds when the caller began. The call stays open on our
    side until its last response is here. An early end of our side, and a cancel when all is over, both race inside
    Triton 24.10's gRPC server with the last write: it can abort ("TOO_MANY_OPERATIONS"), or believe for ever that the
    model has a request in flight. A cancel in between is the only way to give up a request early. When it meets a
    response on its way, Triton 24.10 can crash or lose an answer (upstream issue 7368, mended in 24.12): rare at the
    pace of a language model.
    """
    ended = threading.Event()

    def requests() -> Iterator[Any]:
        yield request
        ended.wait()

    def responses() -> Iterator[Chunk | ClientError]:
        count = 0
        try:
            for message in call:
                response = message.infer_response
                final = response.parameters["triton_final_response"].bool_param
                if final or message.error_message:
                    ended.set()
                if message.error_message:
                    yield ClientError(message.error_message)
                else:
                    yield Chunk.of(kserve.read_outputs(response), count, sent, final, response.id or request.id)
                    count += 1
        except grpc.RpcError as error:
            yield kserve.as_client_error(error, url, deadline, kserve.progress(count))
        finally:
            ended.set()

    def stop() -> None:
        if not ended.is_set():
            call.cancel()
            ended.set()

    sent = time.perf_counter()
    call = method(requests(), timeout=left)
    return responses(), stop


async def as_async(start: Callable[..., TokenStream]) -> AsyncIterator[Chunk]:
    """The chunks of the stream that `start(wake=…)` opens, in an event loop. Whatever ends the iteration closes it."""
    loop, news = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(news.set)

    # In a thread: it may first ask for a configuration.
    with await loop.run_in_executor(None, lambda: start(wake=wake)) as stream:
        while True:
            while stream.waits():
                news.clear()
                if stream.waits():
                    await news.wait()
            try:
                chunk = next(stream)
            except StopIteration:
                return
            yield chunk
