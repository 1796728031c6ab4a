"""Who runs next: first come, first served, and nobody is thrown out (TensorRT-LLM's `guaranteed_no_evict`).

A request joins only when a row of the batch is free and the blocks for its prompt and all its `max_tokens` are free; it
then keeps them to its end. The head of the queue is never overtaken, so a long request cannot starve.
No model and no memory in here: the scheduler only decides.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from .cache import BlockPool
from .request import Output, Request
from .sampler import Sampler, ends_with


@dataclass(eq=False)
class Sequence:
    """A request on its way: its tokens, how many of them are in the KV cache, and the slot that holds them."""

    request: Request
    sampler: Sampler
    max_tokens: int
    tokens: list[int] = field(init=False)
    cached: int = 0
    slot: int | None = None
    cancelled: bool = False

    def __post_init__(self) -> None:
        self.tokens = self.request.prompt.tolist()

    @property
    def reserved(self) -> int:
        """Tokens to reserve KV blocks for."""
        return len(self.request.prompt) + self.max_tokens

    def append(self, token: int) -> Output:
        """Takes the chosen token; the output says whether it was the last."""
        request = self.request
        if token == request.end_id:
            return Output(request.id, [], "end_id")
        self.tokens.append(token)
        if any(ends_with(self.tokens, word) for word in request.stop_words):
            return Output(request.id, [token], "stop_words")
        full = len(self.tokens) >= self.reserved
        return Output(request.id, [token], "length" if full else None)


@dataclass(frozen=True)
class Move:
    """The sequence's KV memory must be copied from slot `source` to its new slot."""

    sequence: Sequence
    source: int


class Scheduler:
    """The queue, the one sequence whose prompt is being read, and the running batch in slots 0 … n-1."""

    def __init__(self, pool: BlockPool, max_batch_size: int) -> None:
        self.pool = pool
        self.max_batch_size = max_batch_size
        self.waiting: deque[Sequence] = deque()
        self.prefilling: Sequence | None = None
        self.running: list[Sequence] = []  # running[i] is in slot i

    def add(self, sequence: Sequence) -> None:
        """Puts a new sequence at the end of the queue."""
        self.waiting.append(sequence)

    def everyone(self) -> list[Sequence]:
        """All sequences that have not ended."""
        return [*self.waiting, *([self.prefilling] if self.prefilling else []), *self.running]

    def next_prompt(self) -> Sequence | None:
        """The sequence whose prompt is read next: the one begun, else the head of the queue if there is room for it."""
        if self.prefilling is None and self.waiting and len(self.running) < self.max_batch_size:
            if self.pool.reserve(self.waiting[0].reserved):
                self.prefilling = self.waiting.popleft()
                self.prefilling.slot = len(self.running)
        return self.prefilling

    def join(self) -> Move | None:
        """The prefilled sequence becomes the last row of the batch; its slot may have to move down to the others."""
        sequence, self.prefilling = self.prefilling, None
        source, sequence.slot = sequence.slot, len(self.running)
        self.running.append(sequence)
        return Move(sequence, source) if source != sequence.slot else None

    def retire(self, leaving: list[Sequence]) -> tuple[list[Move], list[int]]:
        """Takes sequences out wherever they are, and closes the holes they leave in the batch.

        Returns the moves to make, and the slots whose memory can be dropped before that.
        """
        gone = set(leaving)
        for sequence in leaving:
            if sequence.slot is None:
                self.waiting.remove(sequence)
            else:
                self.pool.release(sequence.reserved)
        if self.prefilling in gone:
            self.prefilling = None
        staying = [sequence for sequence in self.running if sequence not in gone]
        holes = sorted(set(range(len(staying))) - {sequence.slot for sequence in staying})
        moves = []
        for hole, sequence in zip(holes, (s for s in staying if s.slot >= len(staying)), strict=True):
            moves.append(Move(sequence, sequence.slot))
            sequence.slot = hole
        self.running = sorted(staying, key=lambda sequence: sequence.slot)
        freed = [sequence.slot for sequence in leaving if sequence.slot is not None]
        return moves, freed
