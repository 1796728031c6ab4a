"""The thread of `tensorrt_llm_bls` that turns tokens into text, for all of its streams together.

A call to `postprocessing` costs several times what its decoding does, and a step of the LLM brings one token for every
stream at nearly the same moment. So the tokens of all streams that are waiting go as the beams of one call.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import triton_python_backend_utils as pb_utils

from reference_backend.models.bls.row import LASTING, Row
from reference_backend.models.common import merge


@dataclass
class Chunk:
    """What one response of the LLM brought for one row; `last` ends the row. `beams` are `whole` or what is new."""

    row: Row
    beams: list[list[int]] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)  # outputs that go on to the client
    last: bool = False
    whole: bool = False
    sequences: list[list[int]] = field(default_factory=list)  # what the row needs decoded for it, and the texts
    decoded: list[str] = field(default_factory=list)

    def absorb(self, later: Chunk) -> bool:
        """Become one chunk with the row's next; False when that brings outputs of its own."""
        if later.extra.keys() - LASTING:
            return False
        self.extra = self.extra | later.extra
        if later.beams:
            self.beams = later.beams if self.whole else [a + b for a, b in zip(self.beams, later.beams, strict=True)]
        self.last = later.last
        return True


class Detokenizer:
    """Owns the thread. `decode` turns id lists into texts, in one call.

    The first of several streams waits `gather_seconds` for the others' token of the same step.
    """

    def __init__(self, decode: Callable[[list[list[int]]], list[str]], gather_seconds: float) -> None:
        self._decode, self._gather_seconds = decode, gather_seconds
        self._queue: queue.SimpleQueue = queue.SimpleQueue()
        self._rows: set[Row] = set()  # that have begun to answer and not ended; this thread's only
        self._thread = threading.Thread(target=self._run, name="detokenise", daemon=True)
        self._thread.start()

    def put(self, chunk: Chunk) -> None:
        """Send the chunk's text behind that of the row's earlier chunks."""
        self._queue.put(chunk)

    def shutdown(self, timeout: float) -> None:
        """Serve what is queued, then end the thread."""
        self._queue.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        waiting: list[Chunk | None] = []
        while True:
            if not waiting:
                waiting.append(self._queue.get())
                if self._gather_seconds and len(self._rows) > 1:
                    time.sleep(self._gather_seconds)
            waiting += [self._queue.get_nowait() for _ in range(self._queue.qsize())]
            if waiting == [None]:
                return
            chunks, waiting = _next_round(waiting)
            try:
                self._serve(chunks)
            except Exception as error:  # not even an error could be sent; the other streams must go on
                pb_utils.Logger.log_error(f"Chunks could not be served: {error}")

    def _serve(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            chunk.sequences = chunk.row.sequences(chunk.beams)
        self._decode_together([chunk for chunk in chunks if chunk.sequences])
        for chunk in chunks:
            (self._rows.discard if chunk.last else self._rows.add)(chunk.row)
            try:
                chunk.row.answer(chunk.decoded, chunk.extra, chunk.last)
            except Exception as error:  # such as a shared memory too small; the other streams must go on
                pb_utils.Logger.log_error(f"A response could not be sent: {error}")
                chunk.row.reply.fail(error)

    def _decode_together(self, chunks: list[Chunk]) -> None:
        if not chunks:
            return
        try:
            texts = iter(self._decode([ids for chunk in chunks for ids in chunk.sequences]))
        except Exception as error:
            if len(chunks) == 1:
                chunks[0].row.reply.fail(error)
            else:  # only the one that cannot be decoded may fail
                for chunk in chunks:
                    self._decode_together([chunk])
            return
        for chunk in chunks:
            chunk.decoded = [next(texts) for _ in chunk.sequences]


def _next_round(waiting: list[Chunk | None]) -> tuple[list[Chunk], list[Chunk | None]]:
    """The next chunk of every row, and what stays for later; a row that is far behind gets all of its chunks as one."""
    chunks: dict[Row, Chunk] = {}
    later: list[Chunk | None] = []
    for chunk in merge(waiting):
        if chunk is None or chunk.row in chunks:
            later.append(chunk)
        else:
            chunks[chunk.row] = chunk
    return list(chunks.values()), later
