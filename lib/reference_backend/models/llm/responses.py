"""From executor outputs to Triton responses (notebooks 05 and 08). The executor's thread must never wait for Triton, so
it only puts what it has into a queue; one sender thread keeps the responses of every request in order.

A response while streaming holds the new ids of its step, all log probabilities so far, and the logits of its step; one
without streaming holds everything. context_logits and the performance metrics so far come with each response, as in
TensorRT-LLM. What a cancelled request had generated is answered only while streaming; without, the prompt is left.

Beams are whole in every response, while streaming as well: a path may change from its root at any step. Beams of
different length are filled up with -1 in output_ids, and with 0 in output_log_probs and generation_logits.
"""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from reference_backend.executor.request import METRICS, Output, joined
from reference_backend.models.common import InputError, Tensors, filled, send, send_error, send_last, triton_error

COUNTS = ("num_input_tokens", "num_output_tokens")


@dataclass(frozen=True)
class ResponseFormat:
    """How the responses of a sequence look.

    streaming: a response has only what is new. prompt: the ids before the new ones, which may be left out;
    prompt_length: with those. beams: how many to return, best first, 0 without a beam search. log_probs, metrics:
    whether they are wanted; counts: which of COUNTS. The second is, as in TensorRT-LLM, the number of ids in the
    response, of all beams: those of the prompt as well, where it has them.
    """

    streaming: bool
    prompt: list[int]
    prompt_length: int
    beams: int = 0
    counts: frozenset[str] = frozenset()
    log_probs: bool = False
    metrics: bool = False

    def arrays(self, output: Output, so_far: list[float], context_logits: np.ndarray | None) -> Tensors:
        """output_ids [1, beams, longest], sequence_length [1, beams], and what else there is, by name. so_far: the log
        probabilities since the start; context_logits: of the prompt, once it is read and if they are wanted."""
        found = self._results(output, so_far)
        numbers = zip(COUNTS, (self.prompt_length, found["sequence_length"].sum()), strict=True)
        found |= {name: np.array([[number]], np.int32) for name, number in numbers if name in self.counts}
        if context_logits is not None:
            found["context_logits"] = context_logits[None]
        if self.metrics and output.metrics:
            for name in METRICS:
                kind = np.float32 if name == "acceptance_rate" else np.int64 if name.endswith("_ns") else np.int32
                found[name] = np.array([[getattr(output.metrics, name)]], kind)
        return found

    def _results(self, output: Output, so_far: list[float]) -> Tensors:
        if output.finish_reason == "cancelled" and not (self.streaming and (output.tokens or output.beams)):
            return _ids([self.prompt] * max(self.beams, 1))
        if self.beams:
            beams = output.beams[: self.beams]
            found, generation = _ids([self.prompt + beam.tokens for beam in beams]), [beam.logits for beam in beams]
            log_probs, sums = [beam.log_probs for beam in beams], [beam.cum_log_prob for beam in beams]
        else:
            found, generation = _ids([self.prompt + output.tokens]), [output.generation_logits]
            log_probs, sums = [so_far], [sum(so_far)]
        if self.log_probs:
            found["output_log_probs"] = filled([np.array(row, np.float32) for row in log_probs], 0)[None]
            found["cum_log_probs"] = np.array([sums], np.float32)
        if any(rows is not None and rows.size for rows in generation):
            found["generation_logits"] = filled(generation, 0)[None]
        return found


@dataclass(eq=False)
class PendingRequest:
    """One Triton request: where its responses go, and the sequences that still generate."""

    sender: Any  # InferenceResponseSender
    client_id: str
    errors_as_data: bool = False  # ids that spell the sentence, with sequence_length -1
    rows: int = 1
    sequences: int = 1  # of each row
    open_rows: "dict[str, RowState]" = field(default_factory=dict)  # by executor request id
    context_logits: dict[int, np.ndarray] = field(default_factory=dict)  # by row; all its sequences share them
    given_up: bool = False  # its sequences are being cancelled, so no more of them may start
    closed: bool = False  # FINAL was sent


@dataclass(eq=False)
class RowState:
    """One sequence of one batch row: how its tokens go out."""

    request: PendingRequest
    index: int
    id: str
    format: ResponseFormat
    sequence: int = 0
    waiting: list[Output] = field(default_factory=list)  # for those that follow; the executor's thread only
    log_probs: list[float] = field(default_factory=list)  # since the start; the sender's thread only
    generated: int = 0  # tokens that were sent; of beams those of the last time


class ResponseSender:
    """Owns the sender thread. `cancel(id)` is called for the rows of requests that the client has given up, `ended` for
    each sequence, with the tokens that it has read and generated. logits_type: of the declared outputs."""

    def __init__(
        self, model: str, cancel: Callable[[str], Any], ended: Callable[[int, int], None], poll_seconds: float,
        logits_type: type,
    ) -> None:  # fmt: skip
        self._model, self._cancel, self._ended = model, cancel, ended
        self._poll_seconds, self._logits_type = poll_seconds, logits_type
        self._queue: queue.SimpleQueue = queue.SimpleQueue()
        self._open: dict[PendingRequest, None] = {}  # in order of arrival; sender thread only
        self._next_poll = 0.0
        self._thread = threading.Thread(target=self._run, name="responses", daemon=True)
        self._thread.start()

    def open_request(self, request: PendingRequest) -> None:
        """A request with rows has arrived: watch it for cancellation."""
        self._queue.put((self._open.setdefault, request))

    def stop_request(self, request: PendingRequest) -> None:
        """Cancel every open request with this one's client id; this one itself gets an empty response."""
        self._queue.put((self._stop, request))

    def output(self, row: RowState, output: Output) -> None:
        """The executor's callback, in its thread."""
        if output.context_logits is not None:  # before any output of another sequence of the row
            row.request.context_logits[row.index] = output.context_logits
        row.waiting.append(output)
        if output.finish_reason or row.format.streaming:
            self._queue.put((self._answer, row, row.waiting))
            row.waiting = []
        elif output.beams:  # whole in each output, so earlier ones are of no use
            row.waiting[-1] = replace(output, beams=())

    def fail(self, request: PendingRequest, error: Exception) -> None:
        """End a request with an error."""
        self._queue.put((self._fail, request, error))

    def shutdown(self, timeout: float) -> None:
        """Send what is queued, then end the thread."""
        self._queue.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            items = self._wait()
            for action, about, *more in filter(None, items):
                try:
                    action(about, *more)
                except Exception as error:  # such as a shared memory too small; the other requests must go on
                    self._give_up(about.request if isinstance(about, RowState) else about, error)
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
            return items + [self._queue.get_nowait() for _ in range(self._queue.qsize())]
        except queue.Empty:
            return []

    def _poll(self) -> None:
        """Each look costs a round trip to the server process, so it is rationed rather than done at every token."""
        now = time.monotonic()
        if now < self._next_poll or not self._open:
            return
        self._next_poll = now + self._poll_seconds
        for request in list(self._open):
            if request.sender.is_cancelled():
                self._cancel_rows(request)

    def _cancel_rows(self, request: PendingRequest) -> None:
        request.given_up = True  # before the ids are gone through; see TritonPythonModel._serve
        for row_id in list(request.open_rows):
            self._cancel(row_id)

    def _stop(self, request: PendingRequest) -> None:
        same = [running for running in self._open if running.client_id == request.client_id]
        if not same:  # no error for the client: the request may just have ended
            pb_utils.Logger.log_info(f"{self._model}: stop for request id '{request.client_id}', which is not active.")
        for running in same:
            self._cancel_rows(running)
        self._close(request, lambda: send_last(request.sender, []))

    def _answer(self, row: RowState, outputs: list[Output]) -> None:
        request, output = row.request, joined(outputs)
        if request.closed:
            return
        row.log_probs += output.log_probs
        row.generated = len(output.tokens) + (0 if row.format.beams else row.generated)
        row.generated += sum(len(beam.tokens) for beam in output.beams[: row.format.beams])
        if output.finish_reason:
            request.open_rows.pop(row.id, None)
            self._ended(row.format.prompt_length, row.generated)
        if output.finish_reason == "error":
            self._fail(request, InputError(output.error))
        elif request.open_rows:
            send(request.sender, self._tensors(row, output))
        else:  # FINAL goes with the last data: a BLS model could not decode a response without tensors
            self._close(request, lambda: send_last(request.sender, self._tensors(row, output)))

    def _tensors(self, row: RowState, output: Output) -> list:
        found = row.format.arrays(output, row.log_probs, row.request.context_logits.get(row.index))
        for name in found.keys() & {"context_logits", "generation_logits"}:
            found[name] = found[name].astype(self._logits_type)
        if row.request.rows > 1:
            found["batch_index"] = np.array([[row.index]], np.int32)
        if row.request.sequences > 1:
            found["sequence_index"] = np.array([[row.sequence]], np.int32)
        return [pb_utils.Tensor(name, array) for name, array in found.items()]

    def _fail(self, request: PendingRequest, error: Exception) -> None:
        if request.errors_as_data:
            sentence = np.frombuffer(triton_error(error, self._model).message().encode(), np.uint8)
            output = [
                pb_utils.Tensor("output_ids", sentence.astype(np.int32)[None, None]),
                pb_utils.Tensor("sequence_length", np.array([[-1]], np.int32)),
            ]
            self._close(request, lambda: send_last(request.sender, output))
        else:
            self._close(request, lambda: send_error(request.sender, error, self._model))

    def _give_up(self, request: PendingRequest, error: Exception) -> None:
        """A response was not sent. The ones after it would leave a gap, so the request ends with the reason."""
        pb_utils.Logger.log_error(f"{self._model}: a response could not be sent: {error}")
        try:
            self._fail(request, error)
        except Exception as again:
            request.closed = True
            pb_utils.Logger.log_error(f"{self._model}: nor could that be said: {again}")

    def _close(self, request: PendingRequest, send_it: Callable[[], None]) -> None:
        if not request.closed:
            self._open.pop(request, None)
            self._cancel_rows(request)
            send_it()
            request.closed = True


def _ids(rows: list[list[int]]) -> Tensors:
    """output_ids [1, beams, longest] and sequence_length [1, beams]."""
    ids = filled([np.array(row, np.int32) for row in rows], -1)[None]
    return {"output_ids": ids, "sequence_length": np.array([[len(row) for row in rows]], np.int32)}
