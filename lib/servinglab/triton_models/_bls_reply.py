"""The client's side of one BLS request: its responses, and the watch on whether it is still there."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from servinglab.triton_models._common import FINAL, send, send_error, send_last

POLL_SECONDS = 0.2  # each look costs a round trip to the server process


class Reply:
    """Sends the responses of one request of `rows` batch rows, which has ended when `parts` sequences have; `id` is the
    id of the inner request that serves it.

    Decoupled: each response at once, then an empty one with FINAL. Otherwise: the one response together with FINAL.
    """

    def __init__(self, sender: Any, request_id: str, model: str, decoupled: bool) -> None:
        self._sender, self._model, self._decoupled = sender, model, decoupled
        self._only: list = []  # the tensors of the one response when not decoupled
        self._ending = threading.Lock()
        self._ended: set[Any] = set()
        self.rows = self.parts = 1
        self.id = request_id
        self.closed = False
        self.cancelled = False

    def send(self, texts: list[str], index: int, extra: dict[str, Any]) -> None:
        """One response of row `index`: a text for each beam, and further tensors by name."""
        tensors = [pb_utils.Tensor("text_output", np.array(texts, np.object_))]
        if self.rows > 1:
            tensors.append(pb_utils.Tensor("batch_index", np.array([[index]], np.int32)))
        tensors += [pb_utils.Tensor(name, array) for name, array in extra.items()]
        if not self._decoupled:
            self._only = tensors
        else:
            with self._ending:  # Triton 24.10 frees a request at its FINAL, whoever still sends
                if not self.closed and not self.cancelled:
                    send(self._sender, tensors)

    def end_row(self, row: Any) -> None:
        """FINAL when this was the last part that had not ended."""
        self._ended.add(row)
        if len(self._ended) == self.parts:
            self.close()

    def close(self) -> None:
        """FINAL, once."""
        with self._last() as first:
            if first and self._decoupled:
                self._sender.send(flags=FINAL)
            elif first:
                send_last(self._sender, self._only)

    def fail(self, error: Exception) -> None:
        """The error as the last response; a fault that prevents even that goes to the log."""
        with self._last() as first:
            if first:
                try:
                    send_error(self._sender, error, self._model)
                except Exception as unsent:
                    pb_utils.Logger.log_error(f"{self._model}: an error could not be sent: {unsent}")

    @contextlib.contextmanager
    def _last(self):
        """Hold the sender for its last response; yields False when that has gone out already. A response that cannot
        be sent was not the last: there is still the error."""
        with self._ending:
            yield not self.closed
            self.closed = True

    def client_left(self) -> bool:
        """Asks the server, which takes a round trip to its process."""
        with self._ending:  # to ask about a request after its FINAL crashes Triton 24.10
            if not self.closed:
                self.cancelled = self.cancelled or self._sender.is_cancelled()
        return self.cancelled


class CancelWatch:
    """One thread that looks after all running requests: when a client has left, the inner request is stopped.

    A thread of its own, because those that serve the requests sleep until the LLM has something, and because a look at
    every token would cost more than the token.
    """

    def __init__(self, stop: Callable[[str], None]) -> None:
        self._stop = stop
        self._replies: dict[Reply, None] = {}
        self._changed = threading.Condition()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cancel-watch", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def watching(self, reply: Reply):
        """Watch while the block runs."""
        with self._changed:
            self._replies[reply] = None
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                del self._replies[reply]
                self._changed.notify_all()

    def drain(self, timeout: float) -> None:
        """Wait until no request runs, then end the thread."""
        with self._changed:
            self._changed.wait_for(lambda: not self._replies, timeout)
            self._ending.set()
            self._changed.notify_all()
        self._thread.join(timeout)

    def _run(self) -> None:
        while not self._ending.wait(POLL_SECONDS):
            with self._changed:
                self._changed.wait_for(lambda: self._replies or self._ending.is_set())
                replies = list(self._replies)
            for reply in replies:
                try:
                    if reply.client_left() and not reply.closed:
                        # At every look until the request has ended: a stop that overtakes its request stops nothing.
                        self._stop(reply.id)
                except Exception as error:
                    pb_utils.Logger.log_error(f"Could not stop the inner request {reply.id}: {error}")
