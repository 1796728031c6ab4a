"""The client's side of BLS requests: their responses, and the thread that looks after those that run."""

import contextlib
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from reference_backend.models.common import FINAL, send, send_error, send_last

POLL_SECONDS = 0.2  # each look at a client costs a round trip to the server process
SILENT_SECONDS = 1.0  # after so long without a response a model is asked whether it is still there
MAX_QUESTIONS = 2  # one that a dying model never answers, and one that finds it dead


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
        """The error as the last response."""
        with self._last() as first:
            if first:
                send_error(self._sender, error, self._model)

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


class Monitor:
    """Sees clients that leave and models that die, in a thread of its own: those that serve sleep until the LLM has
    something, and a look at every token would cost more than the token.

    stop(id): ends an inner request, here one whose client has left. check_alive(model): raises when its process has
    died, of which Triton 24.10 does not tell the requests that it was serving: they would wait until their deadline.
    The threads that serve them do wait on, with their places, until the server is restarted.
    """

    def __init__(self, stop: Callable[[str], None], check_alive: Callable[[str], None]) -> None:
        self._stop, self._check_alive = stop, check_alive
        self._replies: dict[Reply, None] = {}
        self._asked: dict[str, float] = {}  # when each model was asked last
        self._unanswered: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
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
            self._look_at_models(replies)
            for reply in replies:
                try:
                    if reply.client_left() and not reply.closed:
                        # At every look until the request has ended: a stop that overtakes its request stops nothing.
                        self._stop(reply.id)
                except Exception as error:
                    pb_utils.Logger.log_error(f"Could not stop the inner request {reply.id}: {error}")

    def _look_at_models(self, replies: list[Reply]) -> None:
        now, silent = time.monotonic(), defaultdict(list)
        for reply in replies:
            if reply.awaited and not reply.closed and now - reply.since > SILENT_SECONDS:
                silent[reply.awaited].append(reply)
        for model, waiting in silent.items():
            if now - self._asked.get(model, 0.0) > SILENT_SECONDS and self._unanswered[model] < MAX_QUESTIONS:
                self._asked[model] = now
                with self._changed:
                    self._unanswered[model] += 1
                threading.Thread(target=self._ask, args=(model, waiting), daemon=True).start()

    def _ask(self, model: str, waiting: list[Reply]) -> None:
        try:
            self._check_alive(model)
        except Exception as error:
            for reply in waiting:
                reply.fail(error)
        with self._changed:
            self._unanswered[model] -= 1
