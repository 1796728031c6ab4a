"""The KV cache: one slot of memory for each row of the batch, and the accounting that bounds it.

TensorRT-LLM pages its cache: a request owns scattered blocks and a table says which. Here the blocks of a request lie
side by side in its slot, because the attention operator wants each row contiguous. What a user sees is the same: memory
is counted in blocks of `tokens_per_block`, and a request waits until its blocks are free. The beams of a beam search
have a slot each, and each counts in full: TensorRT-LLM lets them share the blocks of the prompt.
"""

from __future__ import annotations

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
    hands a slot's pages back. So resident memory follows the tokens in use, not slots x max_seq_len.
    """

    def __init__(self, tensors: int, slots: int, heads: int, max_seq_len: int, head_size: int) -> None:
        shape = (tensors, slots, heads, max_seq_len, head_size)
        size = int(np.prod(shape)) * np.dtype(np.float32).itemsize
        # Not np.zeros: numpy asks for huge pages, which would commit 2 MB for the first token of every head.
        self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
        self._memory.madvise(mmap.MADV_NOHUGEPAGE)
        self.buffers = np.frombuffer(self._memory, np.float32).reshape(shape)

    @property
    def bytes_per_token(self) -> int:
        """Memory that one token takes in one slot."""
        return self.buffers[:, 0, :, 0].nbytes

    def rows(self, tensor: int, slot: int, count: int) -> np.ndarray:
        """The view [count, heads, seq, head_size] of `count` slots of one tensor, contiguous in memory."""
        return self.buffers[tensor, slot : slot + count]

    def copy(self, source: int, target: int, first: int, end: int) -> None:
        """Copies the positions first … end - 1 of one slot to another."""
        self.buffers[:, target, :, first:end] = self.buffers[:, source, :, first:end]

    def move(self, source: int, target: int, tokens: int) -> None:
        """Copies the first `tokens` positions of one slot to another, then drops the source."""
        self.copy(source, target, 0, tokens)
        self.drop(source)

    def drop(self, slot: int) -> None:
        """Forgets a slot and gives its memory back to the system."""
        tensor_stride, slot_stride = self.buffers.strides[:2]
        for tensor in range(len(self.buffers)):
            start = tensor * tensor_stride + slot * slot_stride
            first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE  # whole pages only: a neighbour may share the edges
            length = (start + slot_stride - first) // mmap.PAGESIZE * mmap.PAGESIZE
            if length > 0:
                self._memory.madvise(mmap.MADV_DONTNEED, first, length)
