"""What a request finds in the KV cache when it begins, and what it leaves there when it ends.

A request whose beginning is that of a kept sequence, or of the prompt of one that runs, gets a copy of those keys and
values and reads only the rest. They are what it would have computed itself, up to the rounding of another order of the
same sums: with fp32 weights its tokens do not change. int4 weights round more, so that a close choice could depend on
how many tokens were read together. There only whole blocks of prompts are kept, for they are read in the same pieces by
every request: what one finds is bit for bit what it would have computed.
"""

from __future__ import annotations

from .cache import KVCache
from .prefix import PrefixTree
from .scheduler import Scheduler, Sequence


class BlockReuse:
    """Moves blocks between the slots and those that are kept. Kept blocks lie where no request has reserved any.

    enabled: if not, nothing is kept or reused. whole_blocks: whole blocks of prompts are, and nothing else.
    Raises OSError when there is no address space for them.
    """

    def __init__(self, cache: KVCache, scheduler: Scheduler, *, enabled: bool, whole_blocks: bool = False) -> None:
        pool = scheduler.pool
        self._cache, self._scheduler, self._pool = cache, scheduler, pool
        self._enabled, self._whole_blocks = enabled, whole_blocks
        self._tree = PrefixTree(pool.tokens_per_block)
        self._counts = {"reused_blocks": 0, "reused_tokens": 0}
        if enabled:
            cache.keep_blocks(pool.total, pool.tokens_per_block)

    @property
    def counts(self) -> dict[str, int]:
        """Kept blocks now; evicted blocks, reused blocks and tokens since the start."""
        return {"cached_blocks": len(self._tree), "evicted_blocks": self._tree.evicted, **self._counts}

    def begin(self, sequence: Sequence) -> None:
        """A sequence has left the queue: the longest beginning that is in memory is copied into its slot. One token is
        always left to read, for its logits."""
        sequence.begun = True
        slot, most = sequence.slots[0], len(sequence.tokens) - 1
        if self._enabled and not sequence.wants_context:
            spans = self._tree.match(sequence.tokens[:most].tolist())
            running, common = _most_alike(self._scheduler.running, sequence)
            if self._whole_blocks:
                spans = [span for span in spans if span.count == self._pool.tokens_per_block]
                common -= common % self._pool.tokens_per_block
            if sum(span.count for span in spans) < common:
                self._cache.copy(running.slots[0], slot, 0, common)
                sequence.cached = common
            else:
                for span in spans:
                    self._cache.load(span.place, slot, span.first, span.count)
                    sequence.cached += span.count
        whole, rest = divmod(sequence.cached, self._pool.tokens_per_block)
        self._counts["reused_tokens"] += sequence.cached
        self._counts["reused_blocks"] += whole + bool(rest)
        needed = self._pool.blocks(len(sequence.tokens)) * sequence.width
        sequence.metrics.scheduled(needed, whole, bool(rest), self.fit())

    def keep(self, sequences: list[Sequence]) -> None:
        """Keeps the blocks of sequences that have given theirs back, while their slots still hold them."""
        for sequence in sequences if self._enabled else ():
            if sequence.slots and sequence.cached:
                tokens = sequence.cached_tokens()
                if self._whole_blocks:
                    tokens = tokens[: len(sequence.tokens)]
                    tokens = tokens[: len(tokens) // self._pool.tokens_per_block * self._pool.tokens_per_block]
                for span in self._tree.keep(tokens, self._pool.free):
                    self._cache.save(sequence.slots[0], span.place, span.first, span.count)
        self._forget()

    def fit(self) -> int:
        """Drops kept blocks until none lies where a request has reserved; returns how many."""
        dropped = self._tree.shrink(self._pool.free)
        self._forget()
        return dropped

    def _forget(self) -> None:
        for place in self._tree.left():
            self._cache.forget(place)


def _most_alike(running: list[Sequence], sequence: Sequence) -> tuple[Sequence | None, int]:
    """The one that has read the longest beginning of the sequence's tokens, the last one aside, and its length."""
    found, longest, ours = None, 0, sequence.tokens[:-1]
    for other in running:
        length = min(len(ours), len(other.tokens))
        same = ours[:length] == other.tokens[:length]
        common = length if same.all() else int(same.argmin())
        if common > longest:
            found, longest = other, common
    return found, longest
