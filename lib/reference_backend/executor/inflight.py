"""One iteration of in-flight batching, and what follows from it for each request. No threads in here."""

import logging
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from reference_backend import BackendError

from .cache import KVCache
from .model import Model
from .request import Output
from .reuse import BlockReuse
from .scheduler import Move, Scheduler, Sequence

log = logging.getLogger(__name__)


class InflightBatch:
    """Runs the scheduler's decisions on the model and the cache, and hands out what they bring.

    prefill_tokens: prompt tokens read in one iteration.
    on_finished: told of each sequence that ends, just before its last output is handed out.
    reuse: keeps the blocks of those that end, for those that begin.
    """

    def __init__(
        self, model: Model, cache: KVCache, scheduler: Scheduler, prefill_tokens: int,
        on_finished: Callable[[Sequence], None], reuse: BlockReuse,
    ) -> None:  # fmt: skip
        self._model, self._cache, self._scheduler, self._reuse = model, cache, scheduler, reuse
        self._prefill_tokens, self._on_finished = prefill_tokens, on_finished
        self._behind: tuple[np.ndarray, np.ndarray] | None = None  # the prompt that was read last, and its last logits
        names = "steps prompt_tokens generated_tokens completed cancelled failed preempted"
        self.counts = dict.fromkeys(names.split(), 0)

    def iterate(self) -> None:
        """Reads a piece of the waiting prompts, then gives each running request its next token, or several."""
        more = self._read_prompts()
        if not (more and self._scheduler.static):
            if preempted := self._scheduler.grow():  # what is kept of their blocks need not be read again
                self.counts["preempted"] += len(preempted)
                self._reuse.insert(preempted)
                self._close_holes(*self._scheduler.preempt(preempted))
            self._reuse.evict()
            self._scheduler.close()
            drafted = [(sequence, self._draft(sequence)) for sequence in self._scheduler.running]
            if together := [sequence for sequence, draft in drafted if not draft]:
                self._step(together)
            for sequence, draft in drafted:
                if draft:
                    self._verify(sequence, draft)

    def end(self, sequences: list[Sequence], reason: str, error: str | None = None) -> None:
        """Ends sequences from outside: `reason` is "cancelled" or "error"."""
        self._finish([(sequence, Output(sequence.request.id, [], reason, error)) for sequence in sequences])

    def free(self) -> None:
        """Lets go of the weights and the cache, also where the executor is still held; only the counts stay."""
        del self._model, self._cache
        self._reuse.free()

    def _read_prompts(self) -> bool:
        """A long prompt is read in pieces, one an iteration, so that running requests never wait for all of it; short
        prompts go together as long as they fit in one piece. Returns whether there is more to read."""
        read = 0
        while sequence := self._scheduler.next_prompt():
            if not sequence.begun:
                self._reuse.match(sequence)
            if self._takes_over(sequence):
                if read >= self._prefill_tokens:
                    return True
                read += 1
                self._begin(sequence, self._behind[1].copy())
                continue
            tokens = sequence.tokens
            piece = tokens[sequence.cached : sequence.cached + self._prefill_tokens]
            if read and read + len(piece) > self._prefill_tokens:
                return True
            read += len(piece)
            end = sequence.cached + len(piece)
            complete, all_logits = end == len(tokens), sequence.wants_context
            draft = self._draft(sequence) if complete else []
            ids = np.append(piece, np.array(draft, np.int64))
            rows = np.arange(0 if all_logits else len(piece) - 1, len(ids) if complete or all_logits else 0)
            try:
                where = np.array([end + len(draft)]), sequence.slots[0], rows, sequence.request.prompt_embedding_table
                logits = self._model.forward(ids[None], *where)
                sequence.context_logits += [logits[: len(piece)].copy()] if all_logits else []
                self._behind = (tokens, logits[-1 - len(draft), None].copy()) if complete else self._behind
            except Exception as error:
                self._step_failed([sequence], error)
                continue
            sequence.cached = end
            self.counts["prompt_tokens"] += len(piece)
            if not complete:
                return True
            self._begin(sequence, logits[-1 - len(draft) :])
        return False

    def _takes_over(self, sequence: Sequence) -> bool:
        """If another sequence of the same request (num_return_sequences) was the last to read its prompt, its keys and
        values are copied from one that runs. Returns whether nothing is left to read."""
        request, tokens = sequence.request, sequence.tokens
        own = sequence.wants_context or request.drafter or request.draft_tokens
        own = own or request.prompt_embedding_table is not None  # another request's may have the same ids
        if own or self._behind is None or tokens is not self._behind[0]:
            return False
        source = next((other for other in self._scheduler.running if other.tokens is tokens), None)
        if source:
            self._cache.copy(source.slots[0], sequence.slots[0], sequence.cached, len(tokens))
        elif sequence.max_tokens > 1:
            return False
        sequence.cached = len(tokens) if source else sequence.cached
        return True

    def _begin(self, sequence: Sequence, logits: np.ndarray) -> None:
        """The first token of a sequence whose prompt is read."""
        output = self._choose(sequence, logits)
        if not output.finish_reason:
            if move := self._scheduler.join():
                self._cache.move(move.source, move.target, sequence.cached)
            self._copy_beams(sequence)
        self._hand_out([(sequence, output)])

    def _close_holes(self, moves: list[Move], freed: list[int]) -> None:
        for slot in freed:
            self._cache.drop(slot)
        for move in moves:
            self._cache.move(move.source, move.target, move.sequence.cached)

    def _draft(self, sequence: Sequence) -> list[int]:
        """What may come next, as far as it has room in the blocks that the sequence holds."""
        return sequence.decoder.draft(sequence.held * self._scheduler.pool.tokens_per_block - sequence.decoder.length)

    def _step(self, running: list[Sequence]) -> None:
        """One more token for each of these, in one batch. Rows between theirs that have a draft go through it too: to
        compute the same keys and values again is cheaper than a second batch, and does no harm."""
        ids = np.zeros((self._scheduler.rows, 1), np.int64)
        lengths = np.ones(self._scheduler.rows, np.int64)
        for sequence in self._scheduler.running:
            for slot, token in zip(sequence.slots, sequence.decoder.last_tokens, strict=True):
                ids[slot], lengths[slot] = token, sequence.decoder.length
        slots = [slot for sequence in running for slot in sequence.slots]
        first, end = min(slots), max(slots) + 1
        plain = {sequence for sequence in running if self._model.chooses and sequence.decoder.plain}
        wanted = [slot for sequence in running if sequence not in plain for slot in sequence.slots]
        rows = np.array(wanted, np.int64) - first
        step = ids[first:end], lengths[first:end], first, rows
        try:
            logits, best = self._model.decode(*step) if self._model.chooses else (self._model.forward(*step), None)
        except Exception as error:
            self._step_failed(running, error)
            return
        self.counts["steps"] += 1
        outputs, row = [], 0
        for sequence in running:
            sequence.cached = sequence.decoder.length
            if sequence in plain:
                output = self._choose(sequence, best=int(best[sequence.slots[0] - first]))
            else:
                output = self._choose(sequence, logits[row : row + sequence.width])
                row += sequence.width
            if not output.finish_reason:
                self._copy_beams(sequence)
            outputs.append((sequence, output))
        self._hand_out(outputs)

    def _verify(self, sequence: Sequence, draft: list[int]) -> None:
        """The last token of one sequence and its draft, read in a step of their own."""
        decoder = sequence.decoder
        ids = np.array([[*decoder.last_tokens, *draft]])
        lengths = np.array([decoder.length + len(draft)])
        try:
            logits = self._model.forward(ids, lengths, sequence.slots[0], np.arange(ids.size))
        except Exception as error:
            self._step_failed([sequence], error)
            return
        self.counts["steps"] += 1
        sequence.cached = decoder.length
        self._hand_out([(sequence, self._choose(sequence, logits))])

    def _choose(self, sequence: Sequence, logits: np.ndarray | None = None, best: int | None = None) -> Output:
        """The next token of each path of one sequence, from its logits unless it is chosen already. What goes wrong
        here concerns this request alone."""
        try:
            output = sequence.decoder.step(logits) if best is None else sequence.decoder.take(best)
            sequence.metrics.token(sequence.decoder.drafted, sequence.decoder.accepted)
            sequence.wants_context = False
            if sequence.context_logits:
                output = replace(output, context_logits=np.concatenate(sequence.context_logits))
                sequence.context_logits.clear()
        except Exception as error:
            return Output(sequence.request.id, [], "error", sentence(error))
        self.counts["generated_tokens"] += sequence.decoder.added
        sequence.cached += sequence.decoder.accepted  # what was read of the others is overwritten by the next step
        return output

    def _copy_beams(self, sequence: Sequence) -> None:
        """Beams that a step has replaced get the memory of those that go on in their place."""
        for copy in sequence.decoder.copies:
            self._cache.copy(sequence.slots[copy.source], sequence.slots[copy.target], copy.first, sequence.cached)

    def _hand_out(self, outputs: list[tuple[Sequence, Output]]) -> None:
        last = []
        for sequence, output in outputs:
            if output.finish_reason:
                last.append((sequence, output))
                continue
            try:
                _tell(sequence, output)
            except Exception as error:
                log.exception("on_output of request %s failed", output.request_id)
                text = f"The receiver of the output failed: {sentence(error)}"
                last.append((sequence, Output(output.request_id, [], "error", text)))
        if last:
            self._finish(last)

    def _finish(self, outputs: list[tuple[Sequence, Output]]) -> None:
        """The only way a request ends: its memory is free and its id forgotten before its owner hears of it."""
        moves, freed = self._scheduler.retire([sequence for sequence, _ in outputs])
        self._reuse.insert([sequence for sequence, output in outputs if output.finish_reason != "error"])
        self._close_holes(moves, freed)
        for sequence, output in outputs:
            kind = {"cancelled": "cancelled", "error": "failed"}.get(output.finish_reason, "completed")
            self.counts[kind] += 1
            self._on_finished(sequence)
            try:
                _tell(sequence, output)
            except Exception:
                log.exception("on_output of request %s failed on its last output", output.request_id)

    def _step_failed(self, sequences: list[Sequence], error: Exception) -> None:
        log.error("The model step failed", exc_info=error)
        self.end(sequences, "error", f"The model step failed: {sentence(error)}")


def _tell(sequence: Sequence, output: Output) -> None:
    """To the request's owner. Figures that nobody wants are not copied: this is once for each token."""
    if sequence.request.return_perf_metrics:
        output = replace(output, metrics=replace(sequence.metrics))
    sequence.request.on_output(output)


def sentence(error: Exception) -> str:
    """One line that says what happened."""
    text = " ".join(str(error).split())
    return text if isinstance(error, BackendError) else f"{type(error).__name__}: {text}"
