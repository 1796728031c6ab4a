"""From executor outputs to Triton responses: tickets, and the one thread that sends (taught in notebook 05).

The executor's thread must never wait for Triton, so it only puts what it has into a queue; one sender thread keeps the
responses of every request in order.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from reference_backend.models import _backlog
from reference_backend.models._answer import Answer, Form
from reference_backend.models._common import InputError, send, send_error, send_last, triton_error

_OPEN, _STOP = object(), object()  # what is asked for a queued ticket


@dataclass(eq=False)
class Ticket:
    """One Triton request: where its responses go, and the sequences that still generate."""

    sender: Any  # InferenceResponseSender
    client_id: str
    errors_as_data: bool = False  # ids that spell the sentence, with sequence_length -1
    rows: int = 1
    sequences: int = 1  # of each row
    open_rows: dict[str, RowState] = field(default_factory=dict)  # by executor request id
    given_up: bool = False  # its sequences are being cancelled, so no more of them may start
    closed: bool = False  # FINAL was sent


@dataclass(eq=False)
class RowState:
    """One sequence of one batch row: how its tokens go out."""

    ticket: Ticket
    index: int
    id: str
    form: Form
    sequence: int = 0
    answer: Answer = field(default_factory=Answer)  # not sent yet; the executor's thread only
    due: int = 1  # how many outputs make a response
    held: int = 0


@dataclass(eq=False)
class Piece:
    """An answer of one sequence that is to be sent."""

    row: RowState
    answer: Answer

    def absorb(self, later: Piece) -> bool:
        """Become one piece with the row's next."""
        self.answer.absorb(later.answer)
        return True


class ResponseSender:
    """Owns the sender thread. `cancel(id)` is called for the rows of requests that the client has given up.

    A streaming row sends its first token at once and then one response for every `interval` tokens.
    """

    def __init__(self, model: str, cancel: Callable[[str], Any], poll_seconds: float, interval: int) -> None:
        self._model, self._cancel, self._poll_seconds, self._interval = model, cancel, poll_seconds, interval
        self._queue: queue.SimpleQueue = queue.SimpleQueue()
        self._open: dict[Ticket, None] = {}  # in order of arrival; sender thread only
        self._next_poll = 0.0
        self._thread = threading.Thread(target=self._run, name="responses", daemon=True)
        self._thread.start()

    def open_request(self, ticket: Ticket) -> None:
        """A request with rows has arrived: watch it for cancellation."""
        self._queue.put((ticket, _OPEN))

    def stop_request(self, ticket: Ticket) -> None:
        """Cancel every open request with the ticket's client id; the ticket itself gets an empty response."""
        self._queue.put((ticket, _STOP))

    def output(self, row: RowState, output: Any) -> None:
        """The executor's callback, in its thread."""
        row.answer.add(output)
        row.held += 1
        if output.finish_reason or (row.form.streaming and row.held >= row.due):
            following = row.answer.next()  # before the sender's thread has the answer
            self._queue.put(Piece(row, row.answer))
            row.answer, row.held, row.due = following, 0, self._interval

    def fail(self, ticket: Ticket, error: Exception) -> None:
        """End a request with an error."""
        self._queue.put((ticket, error))

    def shutdown(self, timeout: float) -> None:
        """Send what is queued, then end the thread."""
        self._queue.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            items = self._wait()
            for item in _backlog.merge([item for item in items if item is not None]):
                try:
                    self._handle(item)
                except Exception as error:  # such as a shared memory too small; the other requests must go on
                    self._give_up(item[0] if isinstance(item, tuple) else item.row.ticket, error)
            if None in items:
                return
            try:
                self._poll()
            except Exception as error:
                pb_utils.Logger.log_error(f"{self._model}: could not ask for cancelled requests: {error}")

    def _wait(self) -> list:
        """At least one queued item, or none when it is time to look for cancelled requests."""
        try:
            items = [self._queue.get(timeout=self._poll_seconds if self._open else None)]
            for _ in range(self._queue.qsize()):
                items.append(self._queue.get_nowait())
            return items
        except queue.Empty:
            return []

    def _poll(self) -> None:
        """Each look costs a round trip to the server process, so it is rationed rather than done at every token."""
        now = time.monotonic()
        if now < self._next_poll or not self._open:
            return
        self._next_poll = now + self._poll_seconds
        for ticket in list(self._open):
            if ticket.sender.is_cancelled():
                self._cancel_rows(ticket)

    def _cancel_rows(self, ticket: Ticket) -> None:
        ticket.given_up = True  # before the ids are gone through; see TritonPythonModel._submit
        for row_id in list(ticket.open_rows):
            self._cancel(row_id)

    def _handle(self, item: Piece | tuple[Ticket, Any]) -> None:
        if isinstance(item, Piece):
            self._answer(item)
            return
        ticket, asked = item
        if asked is _OPEN:
            self._open[ticket] = None
        elif asked is _STOP:
            self._stop(ticket)
        else:
            self._fail(ticket, asked)

    def _stop(self, ticket: Ticket) -> None:
        same = [running for running in self._open if running.client_id == ticket.client_id]
        if not same:  # no error for the client: the request may just have ended
            pb_utils.Logger.log_info(f"{self._model}: stop for request id '{ticket.client_id}', which is not active.")
        for running in same:
            self._cancel_rows(running)
        self._close(ticket, lambda: send_last(ticket.sender, []))

    def _answer(self, piece: Piece) -> None:
        row, ticket = piece.row, piece.row.ticket
        if ticket.closed:
            return
        if piece.answer.finish_reason:
            ticket.open_rows.pop(row.id, None)
        if piece.answer.finish_reason == "error":
            self._fail(ticket, InputError(piece.answer.error))
        elif ticket.open_rows:
            send(ticket.sender, _tensors(piece))
        else:  # FINAL goes with the last data: a BLS model could not decode a response without tensors
            self._close(ticket, lambda: send_last(ticket.sender, _tensors(piece)))

    def _fail(self, ticket: Ticket, error: Exception) -> None:
        if ticket.errors_as_data:
            sentence = np.frombuffer(triton_error(error, self._model).message().encode(), np.uint8)
            output = [
                pb_utils.Tensor("output_ids", sentence.astype(np.int32)[None, None]),
                pb_utils.Tensor("sequence_length", np.array([[-1]], np.int32)),
            ]
            self._close(ticket, lambda: send_last(ticket.sender, output))
        else:
            self._close(ticket, lambda: send_error(ticket.sender, error, self._model))

    def _give_up(self, ticket: Ticket, error: Exception) -> None:
        """A response was not sent. The ones after it would leave a gap, so the request ends with the reason."""
        pb_utils.Logger.log_error(f"{self._model}: a response could not be sent: {error}")
        try:
            self._fail(ticket, error)
        except Exception as again:
            ticket.closed = True
            pb_utils.Logger.log_error(f"{self._model}: nor could that be said: {again}")

    def _close(self, ticket: Ticket, send_it: Callable[[], None]) -> None:
        if not ticket.closed:
            self._open.pop(ticket, None)
            self._cancel_rows(ticket)
            send_it()
            ticket.closed = True


def _tensors(piece: Piece) -> list:
    row = piece.row
    tensors = row.form.tensors(piece.answer)
    if row.ticket.rows > 1:
        tensors.append(pb_utils.Tensor("batch_index", np.array([[row.index]], np.int32)))
    if row.ticket.sequences > 1:
        tensors.append(pb_utils.Tensor("sequence_index", np.array([[row.sequence]], np.int32)))
    return tensors
