"""The thread of `tensorrt_llm_bls` that looks after its running requests: clients that leave, models that die.

A thread of its own, because those that serve the requests sleep until the LLM has something, and because a look at
every token would cost more than the token.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable

import triton_python_backend_utils as pb_utils

from reference_backend.models.bls.reply import Reply

POLL_SECONDS = 0.2  # each look at a client costs a round trip to the server process
SILENT_SECONDS = 1.0  # after so long without a response a model is asked whether it is still there
MAX_QUESTIONS = 2  # one that a dying model never answers, and one that finds it dead


class Monitor:
    """stop(id): ends an inner request, here one whose client has left. check_alive(model): raises when its process has
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
