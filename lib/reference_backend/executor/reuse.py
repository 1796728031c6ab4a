"""What a request finds in the KV cache when it begins, and what it leaves there when it ends.

A request whose prefix is that of a kept sequence, or of the prompt of one that runs, gets a copy of those keys and
values and reads only the rest. How many tokens are read together changes the last digits of what they give, and so may
change a close choice of a token. To depend on nobody who came before, a request takes only whole blocks of prompts:
they are read in the same pieces by everyone, so they are bit for bit what it would have computed itself. Generated
tokens and parts of blocks are taken where `partial` is on, and in the rounds of speculative decoding, which go on with
a text of their own. (TensorRT-LLM calls it enable_partial_reuse, and takes generated tokens in any case.)
"""

from __future__ import annotations

from .cache import KVCache
from .prefix import PrefixTree
from .scheduler import Scheduler, Sequence


class BlockReuse:
    """Moves blocks between the slots and those that are kept. Kept blocks lie where no request has reserved any.

    enabled: if not, nothing is kept or reused. partial: parts of blocks and generated tokens are reused as well.
    aligned: prompts are read in pieces that end where blocks end, or it does not matter; else no block is exact.
    Raises OSError when there is no address space for them.
    """

    def __init__(
        self, cache: KVCache, scheduler: Scheduler, *, enabled: bool, partial: bool, aligned: bool = True
    ) -> None:
        pool = scheduler.pool
        self._cache, self._scheduler, self._pool = cache, scheduler, pool
        self._enabled, self._partial, self._aligned = enabled, partial, aligned
        self._tree = PrefixTree(pool.tokens_per_block)
        self._counts = {"reused_blocks": 0, "reused_tokens": 0}
        if enabled:
            cache.keep_blocks(pool.total, pool.tokens_per_block)

    @property
    def counts(self) -> dict[str, int]:
        """Kept blocks now; evicted blocks, reused blocks and tokens since the start."""
        return {"cached_blocks": len(self._tree), "evicted_blocks": self._tree.evicted, **self._counts}

    def match(self, sequence: Sequence) -> None:
        """A sequence has left the queue: the longest prefix that is in memory is copied into its slot. One token is
        always left to read, for its logits."""
        sequence.begun = True
        slot, most = sequence.slots[0], len(sequence.tokens) - 1
        if self._enabled and not sequence.wants_context:
            exact = not self._is_partial(sequence)
            spans = self._tree.match(sequence.tokens[:most].tolist(), exact=exact)
            running, common = self._most_alike(sequence)
            if exact:
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
        sequence.metrics.scheduled(needed, whole, bool(rest), self.evict())

    def insert(self, sequences: list[Sequence]) -> None:
        """Keeps the blocks of sequences that have given theirs back, while their slots still hold them."""
        for sequence in sequences if self._enabled else ():
            if sequence.slots and sequence.cached:
                exact = 0 if self._is_partial(sequence) or not self._aligned else len(sequence.tokens)
                for span in self._tree.insert(sequence.cached_tokens(), self._pool.free, exact):
                    self._cache.save(sequence.slots[0], span.place, span.first, span.count)
        self._forget()

    def evict(self) -> int:
        """Drops kept blocks until none lies where a request has reserved; returns how many."""
        dropped = self._tree.evict(self._pool.free)
        self._forget()
        return dropped

    def _forget(self) -> None:
        for place in self._tree.left():
            self._cache.forget(place)

    def _is_partial(self, sequence: Sequence) -> bool:
        return self._partial or sequence.request.generated > 0

    def _most_alike(self, sequence: Sequence) -> tuple[Sequence | None, int]:
        """The running one that has read the longest prefix of the sequence's tokens, the last one aside, and its
        length."""
        found, longest, ours = None, 0, sequence.tokens[:-1]
        for other in self._scheduler.running:
            if not self._is_partial(sequence) and (self._is_partial(other) or not self._aligned):
                continue
            length = min(len(ours), len(other.tokens))
            same = ours[:length] == other.tokens[:length]
            common = length if same.all() else int(same.argmin())
            if common > longest:
                found, longest = other, common
        return found, longest
