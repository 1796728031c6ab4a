"""Who runs next: first come, first served, and nobody is thrown out (TensorRT-LLM's `guaranteed_no_evict`).

A request joins only when fewer than `max_batch_size` run and the blocks for its prompt and all its `max_tokens` are
free, for each of its beams; it then keeps them to its end. The head of the queue is never overtaken, so a long request
cannot starve. No model and no memory in here: the scheduler only decides.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import cached_property

from .beams import BeamSearch
from .cache import BlockPool
from .request import Request
from .single_path import SinglePath


@dataclass(eq=False)
class Sequence:
    """A request on its way: what chooses its tokens, how many of them are in the KV cache, and in which slots.

    max_tokens: what the engine has room for.
    slots: of the rows 0 … width - 1 while it runs; the one that its prompt is read into before that.
    """

    request: Request
    max_tokens: int
    vocab_size: int
    cached: int = 0
    slots: list[int] = field(default_factory=list)
    cancelled: bool = False
    context_logits: list = field(default_factory=list)  # of the pieces of the prompt, if they are wanted

    @property
    def width(self) -> int:
        """Rows of the batch that it needs."""
        return self.request.sampling.beam_width

    @cached_property
    def decoder(self) -> SinglePath | BeamSearch:
        """Made when it is first used, so that a request that waits holds little memory."""
        kind = BeamSearch if self.width > 1 else SinglePath
        return kind(self.request, self.vocab_size, self.max_tokens)

    def blocks(self, pool: BlockPool) -> int:
        """KV blocks to reserve."""
        return pool.blocks(len(self.request.prompt) + self.max_tokens) * self.width


@dataclass(frozen=True)
class Move:
    """The KV memory of one row of the sequence must be copied from slot `source` to slot `target`."""

    sequence: Sequence
    source: int
    target: int


class Scheduler:
    """The queue, the one sequence whose prompt is being read, and the running batch in slots 0 … rows - 1."""

    def __init__(self, pool: BlockPool, max_batch_size: int) -> None:
        self.pool = pool
        self.max_batch_size = max_batch_size
        self.waiting: deque[Sequence] = deque()
        self.prefilling: Sequence | None = None
        self.running: list[Sequence] = []
        self.rows = 0

    def add(self, sequence: Sequence) -> None:
        """Puts a new sequence at the end of the queue."""
        self.waiting.append(sequence)

    def everyone(self) -> list[Sequence]:
        """All sequences that have not ended."""
        return [*self.waiting, *([self.prefilling] if self.prefilling else []), *self.running]

    def next_prompt(self) -> Sequence | None:
        """The sequence whose prompt is read next: the one begun, else the head of the queue if there is room for it."""
        if self.prefilling is None and self.waiting and len(self.running) < self.max_batch_size:
            if self.pool.reserve(self.waiting[0].blocks(self.pool)):
                self.prefilling = self.waiting.popleft()
                self.prefilling.slots = [self.rows]
        return self.prefilling

    def join(self) -> Move | None:
        """The prefilled sequence becomes the last rows of the batch; its slot may have to move down to the others."""
        sequence, self.prefilling = self.prefilling, None
        source, target = sequence.slots[0], self.rows
        self.rows += sequence.width
        sequence.slots = list(range(target, self.rows))
        self.running.append(sequence)
        return Move(sequence, source, target) if source != target else None

    def retire(self, leaving: list[Sequence]) -> tuple[list[Move], list[int]]:
        """Takes sequences out wherever they are, and closes the holes they leave in the batch.

        Returns the moves to make, and the slots whose memory can be dropped before that.
        """
        gone = set(leaving)
        freed = [slot for sequence in leaving for slot in sequence.slots]
        for sequence in leaving:
            if sequence.slots:
                self.pool.release(sequence.blocks(self.pool))
            else:
                self.waiting.remove(sequence)
        if self.prefilling in gone:
            self.prefilling = None
        self.running = [sequence for sequence in self.running if sequence not in gone]
        self.rows = sum(len(sequence.slots) for sequence in self.running)
        holes = set(range(self.rows)) - {slot for sequence in self.running for slot in sequence.slots}
        moves = []
        for sequence in self.running:
            for row, slot in enumerate(sequence.slots):
                if slot >= self.rows:
                    sequence.slots[row] = holes.pop()
                    moves.append(Move(sequence, slot, sequence.slots[row]))
        return moves, freed
