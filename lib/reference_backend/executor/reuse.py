"""What a request finds in the KV cache when it begins, and what it leaves there when it ends.

A request whose prefix is that of a kept sequence, or of the prompt of one that runs, gets a copy of those keys and
values and reads only the rest. How many tokens are read together changes what they give, in the last digits (with
weights of four bits far more, executor/graph.py). So a request takes only whole blocks of prompts, which everyone reads
in the same pieces: they are bit for bit what it would have computed itself. Generated tokens and parts of blocks are
taken where `partial` is on (TensorRT-LLM's enable_partial_reuse), and in the rounds of speculative decoding.

Keys and values depend on all tokens before, so a block may be used again only behind the same prefix. Hence a tree: a
block hangs below the block that came before it, and a path from the root spells the tokens from the first one on. Only
the last block of a path may be shorter than a whole one. When blocks are needed, the least recently used one goes; to
use a block is to use those above it, so it is never one that others hang on.
"""

from collections import OrderedDict
from collections.abc import Callable
from itertools import count
from os.path import commonprefix  # which takes any tuples
from typing import NamedTuple

from .cache import KVCache
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
        self.enabled, self._partial, self._aligned = enabled, partial, aligned
        self._tree = PrefixTree(pool.tokens_per_block, cache.forget)
        self._counts = {"reused_blocks": 0, "reused_tokens": 0}
        if enabled:
            cache.keep_blocks(pool.total, pool.tokens_per_block)

    @property
    def counts(self) -> dict[str, int]:
        """Kept blocks now; evicted blocks, reused blocks and tokens since the start."""
        return {"cached_blocks": len(self._tree), "evicted_blocks": self._tree.evicted, **self._counts}

    def free(self) -> None:
        """Lets go of the cache, which the tree's callback holds, too; the counts stay."""
        del self._cache, self._tree._forget

    def match(self, sequence: Sequence) -> None:
        """A sequence has left the queue: the longest prefix that is in memory is copied into its slot. One token is
        always left to read, for its logits."""
        sequence.begun = True
        slot, most = sequence.slots[0], len(sequence.tokens) - 1
        if self.enabled and not sequence.wants_context:
            exact = not self._is_partial(sequence)
            spans = self._tree.match(sequence.keys()[:most].tolist(), exact=exact)
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
        for sequence in sequences if self.enabled else ():
            if sequence.slots and sequence.cached:
                exact = 0 if self._is_partial(sequence) or not self._aligned else len(sequence.tokens)
                for span in self._tree.insert(sequence.cached_keys(), self._pool.free, exact):
                    self._cache.save(sequence.slots[0], span.place, span.first, span.count)

    def evict(self) -> int:
        """Drops kept blocks until none lies where a request has reserved; returns how many."""
        return self._tree.evict(self._pool.free)

    def _is_partial(self, sequence: Sequence) -> bool:
        return self._partial or sequence.request.generated > 0

    def _most_alike(self, sequence: Sequence) -> tuple[Sequence | None, int]:
        """The running one that has read the longest prefix of the sequence's tokens, the last one aside, and its
        length."""
        found, longest, ours = None, 0, sequence.keys()[:-1]
        for other in self._scheduler.running:
            if not self._is_partial(sequence) and (self._is_partial(other) or not self._aligned):
                continue
            length = min(len(ours), len(other.tokens))
            same = ours[:length] == other.keys()[:length]
            common = length if same.all() else int(same.argmin())
            if common > longest:
                found, longest = other, common
        return found, longest


class Span(NamedTuple):
    """Positions first … first + count - 1 of a sequence are the first `count` of the block in `place`."""

    place: int
    first: int
    count: int


class _Block:
    """A block in the tree. exact: of a prompt, read in the same pieces by everyone."""

    __slots__ = ("children", "exact", "parent", "place", "tokens")

    def __init__(self, parent: "_Block | None", tokens: tuple[int, ...], place: int, exact: bool = True) -> None:
        self.parent, self.tokens, self.place, self.exact = parent, tokens, place, exact
        self.children: list[_Block] = []

    def closest(self, tokens: tuple[int, ...]) -> "tuple[_Block | None, int]":
        """The child that shares the longest prefix with `tokens`, and the length of that."""
        found, longest = None, 0
        for child in self.children:
            common = len(commonprefix([child.tokens, tokens]))
            if common > longest:
                found, longest = child, common
        return found, longest


class PrefixTree:
    """The kept blocks, at most as many as the caller has `room` for; it holds place 0 … most - 1 at any time.
    forget(place): a place holds nothing any more."""

    def __init__(self, tokens_per_block: int, forget: Callable[[int], None]) -> None:
        self._size, self._forget = tokens_per_block, forget
        self._root = _Block(None, (), -1)
        self._order: OrderedDict[_Block, None] = OrderedDict()  # least recently used first, children before parents
        self._unused = count()  # places
        self._free: list[int] = []
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._order)

    def match(self, tokens: list[int], *, exact: bool = False) -> list[Span]:
        """What is kept of the prefix of `tokens`, as far as possible, in order; `exact`: of whole exact blocks."""
        spans, path, block, first = [], [], self._root, 0
        while first < len(tokens) and first % self._size == 0:
            block, common = block.closest(tuple(tokens[first : first + self._size]))
            if not block or (exact and not (block.exact and common == self._size)):
                break
            spans.append(Span(block.place, first, common))
            path.append(block)
            first += common
        self._touch(path)
        return spans

    def insert(self, tokens: list[int], room: int, exact: int = 0) -> list[Span]:
        """Keeps a sequence's blocks, from its start as far as there is room for; older ones give way. The whole
        blocks within its first `exact` tokens are marked as exact.

        Returns those whose memory has to be copied to its place; the others are there already.
        """
        spans, path, block, first = [], [], self._root, 0
        missing = [tuple(tokens[at : at + self._size]) for at in range(0, len(tokens), self._size)]
        while missing:
            child, common = block.closest(missing[0])
            if child and common == len(missing[0]):
                if not child.exact and common == self._size and first + common <= exact:
                    child.exact = True
                    spans.append(Span(child.place, first, common))
                path.append(child)
                block, first = child, first + common
                del missing[0]
                continue
            if child and common == len(child.tokens):  # the new one goes on where that one ends
                self._remove(child)
            break
        self._touch(path)
        while missing and len(self) + len(missing) > room:
            oldest = next(iter(self._order), None)
            if oldest is None or oldest in path:
                missing.pop()
            else:
                self._evict_block(oldest)
        for piece in missing:
            place = self._free.pop() if self._free else next(self._unused)
            child = _Block(block, piece, place, len(piece) == self._size and first + len(piece) <= exact)
            block.children.append(child)
            spans.append(Span(child.place, first, len(piece)))
            path.append(child)
            block, first = child, first + len(piece)
        self._touch(path)
        return spans

    def evict(self, room: int) -> int:
        """Drops the least recently used blocks until at most `room` are kept; returns how many."""
        before = self.evicted
        while len(self) > room:
            self._evict_block(next(iter(self._order)))
        return self.evicted - before

    def _touch(self, path: list[_Block]) -> None:
        for block in reversed(path):
            self._order[block] = None
            self._order.move_to_end(block)

    def _evict_block(self, block: _Block) -> None:
        self._remove(block)
        self.evicted += 1

    def _remove(self, block: _Block) -> None:
        del self._order[block]
        block.parent.children.remove(block)
        self._forget(block.place)
        self._free.append(block.place)
