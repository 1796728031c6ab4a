"""One iteration of in-flight batching, and what follows from it for each request. No threads in here."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from servinglab.errors import CourseError

from .cache import KVCache
from .model import Model
from .request import Output
from .scheduler import Scheduler, Sequence

log = logging.getLogger(__name__)


class InflightBatch:
    """Runs the scheduler's decisions on the model and the cache, and hands out what they bring.

    prefill_tokens: prompt tokens read in one iteration.
    on_finished: told of each sequence that ends, just before its last output is handed out.
    """

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        scheduler: Scheduler,
        prefill_tokens: int,
        on_finished: Callable[[Sequence], None],
    ) -> None:
        self._model = model
        self._cache = cache
        self._scheduler = scheduler
        self._prefill_tokens = prefill_tokens
        self._on_finished = on_finished
        self.counts = dict.fromkeys(
            ("steps", "prompt_tokens", "generated_tokens", "completed", "cancelled", "failed"), 0
        )

    def iterate(self) -> None:
        """Reads a piece of the waiting prompts, then gives each running request one more token."""
        self._read_prompts()
        if self._scheduler.running:
            self._decode()

    def end(self, sequences: list[Sequence], reason: str, error: str | None = None) -> None:
        """Ends sequences from outside: `reason` is "cancelled" or "error"."""
        self._finish([(sequence, Output(sequence.request.id, [], reason, error)) for sequence in sequences])

    def _read_prompts(self) -> None:
        """A long prompt is read in pieces, one an iteration, so that running requests never wait for all of it; short
        prompts go together as long as they fit in one piece."""
        read = 0
        while sequence := self._scheduler.next_prompt():
            piece = sequence.tokens[sequence.cached : sequence.cached + self._prefill_tokens]
            if read and read + len(piece) > self._prefill_tokens:
                return
            read += len(piece)
            end = sequence.cached + len(piece)
            complete = end == len(sequence.tokens)
            rows = np.array([len(piece) - 1] if complete else [], np.int64)
            try:
                logits = self._model.forward(np.array([piece]), np.array([end]), sequence.slot, rows)
            except Exception as error:
                self._step_failed([sequence], error)
                continue
            sequence.cached = end
            self.counts["prompt_tokens"] += len(piece)
            if not complete:
                return
            output = self._choose(sequence, logits[0])
            if not output.finish_reason and (move := self._scheduler.join()):
                self._cache.move(move.source, sequence.slot, sequence.cached)
            self._hand_out([(sequence, output)])

    def _decode(self) -> None:
        running = list(self._scheduler.running)
        ids = np.array([sequence.tokens[-1:] for sequence in running])
        lengths = np.array([len(sequence.tokens) for sequence in running])
        try:
            logits = self._model.forward(ids, lengths, 0, np.arange(len(running)))
        except Exception as error:
            self._step_failed(running, error)
            return
        self.counts["steps"] += 1
        for sequence in running:
            sequence.cached = len(sequence.tokens)
        self._hand_out([(s, self._choose(s, row)) for s, row in zip(running, logits, strict=True)])

    def _choose(self, sequence: Sequence, logits: np.ndarray) -> Output:
        """The next token of one sequence. What goes wrong here concerns this request alone."""
        try:
            output = sequence.append(sequence.sampler.choose(logits, sequence.tokens))
        except Exception as error:
            return Output(sequence.request.id, [], "error", sentence(error))
        self.counts["generated_tokens"] += len(output.tokens)
        return output

    def _hand_out(self, outputs: list[tuple[Sequence, Output]]) -> None:
        last = []
        for sequence, output in outputs:
            if output.finish_reason:
                last.append((sequence, output))
                continue
            try:
                sequence.request.on_output(output)
            except Exception as error:
                log.exception("on_output of request %s failed", output.request_id)
                text = f"The receiver of the output failed: {sentence(error)}"
                last.append((sequence, Output(output.request_id, [], "error", text)))
        if last:
            self._finish(last)

    def _finish(self, outputs: list[tuple[Sequence, Output]]) -> None:
        """The only way a request ends: its memory is free and its id forgotten before its owner hears of it."""
        moves, freed = self._scheduler.retire([sequence for sequence, _ in outputs])
        for slot in freed:
            self._cache.drop(slot)
        for move in moves:
            self._cache.move(move.source, move.sequence.slot, move.sequence.cached)
        for sequence, output in outputs:
            kind = {"cancelled": "cancelled", "error": "failed"}.get(output.finish_reason, "completed")
            self.counts[kind] += 1
            self._on_finished(sequence)
            try:
                sequence.request.on_output(output)
            except Exception:
                log.exception("on_output of request %s failed on its last output", output.request_id)

    def _step_failed(self, sequences: list[Sequence], error: Exception) -> None:
        log.error("The model step failed", exc_info=error)
        self.end(sequences, "error", f"The model step failed: {sentence(error)}")


def sentence(error: Exception) -> str:
    """One line that says what happened."""
    text = " ".join(str(error).split())
    return text if isinstance(error, CourseError) else f"{type(error).__name__}: {text}"
