"""Who runs next: first come, first served. Nobody overtakes the head of the queue, so a long request cannot starve.

A request joins when fewer than `max_batch_size` run and its KV cache blocks are free. How many those are is the policy:

* guaranteed_no_evict: for its prompt and all its `max_tokens`, for each of its beams; it keeps them to its end.
* max_utilization: for the tokens there are, and one more; each further block is taken when it is needed. When none is
  free, the youngest request is preempted: it gives all its blocks back and waits at the head of the queue, to read its
  prompt and what it has generated once more. Its tokens and its random numbers stay, so its text does not change. A
  beam search cannot read its paths again; it reserves as under guaranteed_no_evict and is never preempted.

With `static` (batching_strategy "V1") nobody joins a batch that has begun to generate. No model and no memory in here.
"""

from collections import deque
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import NamedTuple

import numpy as np

from .beams import BeamSearch
from .cache import BlockPool
from .request import Request, RequestMetrics
from .sequence_decoder import SequenceDecoder

POLICIES = ("guaranteed_no_evict", "max_utilization")


@dataclass(eq=False)
class Sequence:
    """A request on its way: what chooses its tokens, how many of them are in the KV cache, and in which slots.

    max_tokens: what the engine has room for.
    tokens: int64 [T], what is read before it can generate: the prompt, and once preempted what it had generated too.
    cached: positions of the KV cache that are right; slots: of the rows 0 … width - 1 while it runs; the one that its
    tokens are read into before that; none while it waits. held: the KV blocks it has reserved.
    """

    request: Request
    max_tokens: int
    vocab_size: int
    cached: int = 0
    slots: list[int] = field(default_factory=list)
    held: int = 0
    begun: bool = False  # since it was taken from the queue
    cancelled: bool = False
    age: int = -1  # lower is older
    context_logits: list = field(default_factory=list)  # of the pieces of the prompt, if they are wanted
    metrics: RequestMetrics = field(default_factory=RequestMetrics)

    def __post_init__(self) -> None:
        self.tokens: np.ndarray = self.request.prompt
        self.wants_context = self.request.return_context_logits

    @property
    def width(self) -> int:
        """Rows of the batch that it needs."""
        return self.request.sampling.beam_width

    @cached_property
    def decoder(self) -> SequenceDecoder | BeamSearch:
        """Made when it is first used, so that a request that waits holds little memory."""
        kind = BeamSearch if self.width > 1 else SequenceDecoder
        return kind(self.request, self.vocab_size, self.max_tokens)

    def blocks(self, pool: BlockPool) -> int:
        """KV blocks that it needs at most."""
        return pool.blocks(len(self.request.prompt) + self.max_tokens) * self.width

    def keys(self, tokens: np.ndarray | None = None) -> np.ndarray:
        """What tells the KV memory of these tokens, by default those it reads, from that of others: the ids, and with a
        fake id whose table it means."""
        tokens, extra_ids = self.tokens if tokens is None else tokens, self.request.prompt_table_extra_ids
        if extra_ids is None:
            return tokens
        keys = tokens.astype(object)  # whole numbers of any size
        keys[: len(extra_ids)] += extra_ids.astype(object) << 64
        return keys

    def cached_keys(self) -> list[int]:
        """The keys in its first slot; of a beam search those of the prompt, which all its slots share."""
        whole = self.width > 1 or self.cached <= len(self.tokens)
        return self.keys(None if whole else np.array(self.decoder.tokens))[: self.cached].tolist()


class Move(NamedTuple):
    """The KV memory of one row of the sequence must be copied from slot `source` to slot `target`."""

    sequence: Sequence
    source: int
    target: int


class Scheduler:
    """The queue, the one sequence whose prompt is being read, and the running batch in slots 0 … rows - 1."""

    def __init__(
        self, pool: BlockPool, max_batch_size: int, *, policy: str = POLICIES[0], static: bool = False
    ) -> None:
        self.pool = pool
        self.max_batch_size = max_batch_size
        self.grows = policy == "max_utilization"
        self.static = static
        self.waiting: deque[Sequence] = deque()
        self.prefilling: Sequence | None = None
        self.running: list[Sequence] = []
        self.rows = 0
        self._closed = False  # the static batch has begun to generate
        self._ages = count()

    def add(self, sequence: Sequence) -> None:
        """Puts a new sequence at the end of the queue."""
        sequence.age = next(self._ages)
        self.waiting.append(sequence)

    def everyone(self) -> list[Sequence]:
        """All sequences that have not ended."""
        return [*self.waiting, *([self.prefilling] if self.prefilling else []), *self.running]

    def next_prompt(self) -> Sequence | None:
        """The sequence whose prompt is read next: the one begun, else the head of the queue if there is room for it."""
        if self.prefilling is None and self.waiting and len(self.running) < self.max_batch_size:
            self._closed = self._closed and bool(self.running)
            head = self.waiting[0]
            if not self._closed and self._take(head, self._first_blocks(head)):
                self.prefilling = self.waiting.popleft()
                self.prefilling.slots = [self.rows]
        return self.prefilling

    def close(self) -> None:
        """The batch begins to generate: if it is static, nobody joins it any more."""
        self._closed = self.static and bool(self.running)

    def join(self) -> Move | None:
        """The prefilled sequence becomes the last rows of the batch; its slot may have to move down to the others."""
        sequence, self.prefilling = self.prefilling, None
        source, target = sequence.slots[0], self.rows
        self.rows += sequence.width
        sequence.slots = list(range(target, self.rows))
        self.running.append(sequence)
        return Move(sequence, source, target) if source != target else None

    def grow(self) -> list[Sequence]:
        """Takes the blocks that the running sequences need for their next token (under guaranteed_no_evict they have
        them). Returns those that must be preempted for it; their blocks are free already."""
        preempted: list[Sequence] = []
        if not self.grows:
            return preempted
        size = self.pool.tokens_per_block
        for sequence in [s for s in self.running if s.width == 1 and s.decoder.length > s.held * size]:
            while sequence not in preempted and not self._take(sequence, self.pool.blocks(sequence.decoder.length)):
                begun = [*self.running, *([self.prefilling] if self.prefilling else [])]
                youngest = max((s for s in begun if s.width == 1 and s not in preempted), key=lambda s: s.age)
                self._release(youngest)
                preempted.append(youngest)
        return preempted

    def preempt(self, preempted: list[Sequence]) -> tuple[list[Move], list[int]]:
        """Puts sequences back into the queue, in the order in which they came; returns what `retire` returns."""
        for sequence in self.running:
            if sequence in preempted:
                sequence.tokens = np.array(sequence.decoder.tokens, np.int64)
        outcome = self.retire(preempted)
        for sequence in preempted:
            sequence.cached, sequence.slots, sequence.begun = 0, [], False
            sequence.context_logits.clear()
        self.waiting = deque(sorted([*preempted, *self.waiting], key=lambda sequence: sequence.age))
        return outcome

    def retire(self, leaving: list[Sequence]) -> tuple[list[Move], list[int]]:
        """Takes sequences out wherever they are, and closes the holes they leave in the batch.

        Returns the moves to make, and the slots whose memory can be dropped before that.
        """
        gone = set(leaving)
        freed = [slot for sequence in leaving for slot in sequence.slots]
        for sequence in leaving:
            self._release(sequence)
            if not sequence.slots:
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

    def _first_blocks(self, sequence: Sequence) -> int:
        """What it reserves to begin with."""
        if not self.grows or sequence.width > 1:
            return sequence.blocks(self.pool)
        # A given draft is read together with the prompt; cut short, the answer would look as if it had ended there.
        given = len(sequence.request.draft_tokens) if sequence.tokens is sequence.request.prompt else 0
        return min(self.pool.blocks(len(sequence.tokens) + 1 + given), sequence.blocks(self.pool))

    def _take(self, sequence: Sequence, blocks: int) -> bool:
        """Reserves what the sequence lacks of so many blocks, or returns False."""
        lacking = max(0, blocks - sequence.held)
        if not self.pool.reserve(lacking):
            return False
        sequence.held += lacking
        return True

    def _release(self, sequence: Sequence) -> None:
        self.pool.release(sequence.held)
        sequence.held = 0
