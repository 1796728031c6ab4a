"""The client's side of one BLS request: its responses."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from reference_backend.models.common import FINAL, send, send_error, send_last


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
        self.awaited = ""  # the model whose next response this request waits for, and since when
        self.since = 0.0

    def waits_for(self, model: str) -> None:
        """Note that `model` is to respond next, and that it has not been silent so far."""
        self.awaited, self.since = model, time.monotonic()

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
