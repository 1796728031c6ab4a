"""The KV cache: one slot of memory for each row of the batch, and the accounting that bounds it.

TensorRT-LLM pages its cache: a request owns scattered blocks and a table says which. Here the blocks of a request lie
side by side in its slot, because the attention operator wants each row contiguous; memory is counted in blocks all the
same. The beams of a beam search have a slot each, and each counts in full: TensorRT-LLM lets them share the prompt.
Blocks that are kept for requests to come (`reuse.py`) lie outside the slots; a request gets copies of them.
"""

import mmap

import numpy as np

# Slots for beams are seldom used: without this, Linux refuses address space beyond the memory. (Python 3.11 names it.)
MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


class BlockPool:
    """Counts KV blocks. `total` bounds what all requests together may reserve."""

    def __init__(self, max_tokens: int, tokens_per_block: int) -> None:
        self.tokens_per_block = tokens_per_block
        self.total = max_tokens // tokens_per_block
        self.used = 0

    @property
    def free(self) -> int:
        """Blocks that no request has reserved; kept ones may lie in them."""
        return self.total - self.used

    def blocks(self, tokens: int) -> int:
        """How many blocks hold that many tokens."""
        return -(-tokens // self.tokens_per_block)

    def reserve(self, blocks: int) -> bool:
        """Takes that many blocks, or takes none and returns False when too few are free."""
        if self.used + blocks > self.total:
            return False
        self.used += blocks
        return True

    def release(self, blocks: int) -> None:
        """Gives back what `reserve(blocks)` took."""
        self.used -= blocks


class KVCache:
    """Keys and values of every layer: `buffers` [tensors, slots, heads, seq, head_size].

    The address space is reserved at once; the system commits a page when a token is first written to it, and `drop`
    hands a slot's pages back. So resident memory follows the tokens in use, not slots x max_seq_len. The same goes for
    the kept blocks [places, tensors, heads, tokens_per_block, head_size], of which there are none before `keep_blocks`.
    """

    def __init__(self, tensors: int, slots: int, heads: int, max_seq_len: int, head_size: int) -> None:
        self._memory, self.buffers = self._reserve((tensors, slots, heads, max_seq_len, head_size))

    def keep_blocks(self, places: int, tokens_per_block: int) -> None:
        """Makes room for so many kept blocks. Raises OSError when there is none."""
        tensors, _, heads, _, head_size = self.buffers.shape
        self._kept_memory, self._kept = self._reserve((places, tensors, heads, tokens_per_block, head_size))

    @property
    def bytes_per_token(self) -> int:
        """Memory that one token takes in one slot."""
        return self.buffers[:, 0, :, 0].nbytes

    def copy(self, source: int, target: int, first: int, end: int) -> None:
        """Copies the positions first … end - 1 of one slot to another."""
        self.buffers[:, target, :, first:end] = self.buffers[:, source, :, first:end]

    def move(self, source: int, target: int, tokens: int) -> None:
        """Copies the first `tokens` positions of one slot to another, then drops the source."""
        self.copy(source, target, 0, tokens)
        self.drop(source)

    def save(self, slot: int, place: int, first: int, count: int) -> None:
        """Copies `count` positions of a slot, from `first` on, to the start of a kept block."""
        self._kept[place, :, :, :count] = self.buffers[:, slot, :, first : first + count]

    def load(self, place: int, slot: int, first: int, count: int) -> None:
        """Copies the first `count` positions of a kept block to a slot, to the positions from `first` on."""
        self.buffers[:, slot, :, first : first + count] = self._kept[place, :, :, :count]

    def forget(self, place: int) -> None:
        """Gives the memory of a kept block back to the system."""
        size = self._kept.strides[0]
        _give_back(self._kept_memory, place * size, size)

    def drop(self, slot: int) -> None:
        """Forgets a slot and gives its memory back to the system."""
        tensor_stride, slot_stride = self.buffers.strides[:2]
        for tensor in range(len(self.buffers)):
            _give_back(self._memory, tensor * tensor_stride + slot * slot_stride, slot_stride)

    def _reserve(self, shape: tuple[int, ...]) -> tuple[mmap.mmap, np.ndarray]:
        """Address space for float32 numbers of that shape."""
        size = int(np.prod(shape)) * np.dtype(np.float32).itemsize
        # Not np.zeros: numpy asks for huge pages, which would commit 2 MB for the first token of every head.
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        return memory, np.frombuffer(memory, np.float32).reshape(shape)


def _give_back(memory: mmap.mmap, start: int, size: int) -> None:
    """Whole pages only: a neighbour may share the edges."""
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (start + size - first) // mmap.PAGESIZE * mmap.PAGESIZE
    if length > 0:
        memory.madvise(mmap.MADV_DONTNEED, first, length)
