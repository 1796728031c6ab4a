"""From the LLM's token ids to the text that clients see: a `Row` for each sequence, and one thread for all streams.

A call to `postprocessing` costs several times what its decoding does, and a step of the LLM brings one token for every
stream. So the tokens of all streams that are waiting go as the beams of one call. What else the LLM sends goes on with
the text of the same response; a text that was held back comes with the latest of it.

A stop word that only the text shows (its letters are part of a longer token, or of several) ends the text but not the
LLM's work. Log probabilities, logits and metrics then cover tokens behind it as well: while streaming the one or two
that came before the LLM was stopped, otherwise all that it generated. Beams that differ only behind such a stop word
give the same text.
"""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import triton_python_backend_utils as pb_utils

from reference_backend.executor.request import METRICS
from reference_backend.models.bls.reply import Reply
from reference_backend.models.common import Tensors, texts
from reference_backend.models.text import IncrementalText, StopText

# Outputs that one response's newer value replaces.
LASTING = {"sequence_index", "cum_log_probs", "output_log_probs", "context_logits", "num_input_tokens", *METRICS}


class Row:
    """Text of a sequence of batch row `index`.

    inputs: the client's; given: the inputs of `tensorrt_llm`. With `accumulate` every streamed text is the whole text
    so far. Of several beams each text is whole in any case, for they may change from the root at any step.
    """

    def __init__(self, reply: Reply, inputs: Tensors, given: Tensors, index: int, accumulate: bool) -> None:
        words = texts(inputs["stop_words"][index], "stop_words") if "stop_words" in inputs else []
        self.reply, self.index = reply, index
        streaming = "stream" in inputs and bool(inputs["stream"][index])
        several = "beam_width" in inputs and int(inputs["beam_width"][index].item()) > 1
        self._in_pieces = streaming and not several
        self._stop, self._detokenizer = StopText(words), IncrementalText()
        self._prompt = given["input_ids"][index, : int(given["input_lengths"][index, 0])].copy()
        excluded = "exclude_input_in_output" in inputs and bool(inputs["exclude_input_in_output"][index])
        self._may_hold_prompt = not (streaming or excluded)
        self._accumulate = accumulate
        self._text = ""
        self._count = 1  # texts of a response
        self._latest: dict[str, Any] = {}  # outputs of the LLM that stay true until newer ones come
        self._answered = self._ended = False

    def sequences(self, beams: list[list[int]]) -> list[list[int]]:
        """The id lists to decode for a chunk of the LLM's tokens; none when nothing is to be shown."""
        self._count = len(beams) or self._count
        if self._stop.stopped or self.reply.closed or not any(beams):
            return []
        if self._in_pieces:
            return list(self._detokenizer.windows(beams[0]))
        return [*beams, self._prompt.tolist()] if self._stop.words else beams

    def answer(self, decoded: list[str], extra: dict[str, Any], last: bool) -> None:
        """Send what the texts of `sequences` bring; `last` also gives out what is still held back, and ends the row."""
        if self._ended:
            return
        shown = self._next(decoded, last) if self._in_pieces else self._whole(decoded)
        self._latest |= {name: extra[name] for name in LASTING if name in extra}
        if not shown and (extra.keys() - {"sequence_index"} or (last and not self._answered)):
            shown = [self._text if self._accumulate else ""] * self._count
        if shown:
            self._answered = True
            self.reply.send(shown, self.index, self._latest | extra)
        if last or self._stop.stopped:
            self._ended = True
            self.reply.end_row(self)

    def _next(self, decoded: list[str], last: bool) -> list[str]:
        piece = self._stop.feed(self._detokenizer.advance(*decoded)) if decoded else ""
        if last and not self._stop.stopped:
            piece += self._stop.feed(self._detokenizer.flush())
        if last and not self._stop.stopped:
            piece += self._stop.flush()
        if not decoded and not piece:
            return []
        self._text += piece
        return [self._text if self._accumulate else piece]

    def _whole(self, decoded: list[str]) -> list[str]:
        """One text for each beam, cut behind a stop word that was generated (not one of the prompt)."""
        if not decoded or not self._stop.words:
            return decoded
        *beams, prompt = decoded
        start = len(prompt) if self._may_hold_prompt else 0
        return [self._cut(text, start if text.startswith(prompt) else 0) for text in beams]

    def _cut(self, text: str, start: int) -> str:
        return text[: start + (self._stop.end_of_first(text[start:]) or len(text))]


@dataclass
class Chunk:
    """What one response of the LLM brought for one row; `last` ends the row."""

    row: Row
    beams: list[list[int]] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)  # outputs that go on to the client
    last: bool = False
    sequences: list[list[int]] = field(default_factory=list)  # what the row needs decoded for it, and the texts
    decoded: list[str] = field(default_factory=list)


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
    """The next chunk of every row, and what stays for later."""
    chunks: dict[Row, Chunk] = {}
    later: list[Chunk | None] = []
    for chunk in waiting:
        if chunk is None or chunk.row in chunks:
            later.append(chunk)
        else:
            chunks[chunk.row] = chunk
    return list(chunks.values()), later
