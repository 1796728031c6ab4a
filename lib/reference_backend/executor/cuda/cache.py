"""The KV cache on a CUDA device: what `cache.KVCache` is on the CPU, with memory that is taken at once."""

from __future__ import annotations

from typing import Any

import torch


class CudaCache:
    """Keys and values of every layer: `buffers` [tensors, slots, heads, seq, head_size] on `device`.

    Raises OSError when its memory does not hold them.
    """

    def __init__(
        self, tensors: int, slots: int, heads: int, max_seq_len: int, head_size: int, *, dtype: Any, device: Any
    ) -> None:
        self.buffers = _zeros((tensors, slots, heads, max_seq_len, head_size), dtype, device)

    def keep_blocks(self, places: int, tokens_per_block: int) -> None:
        """Makes room for so many kept blocks. Raises OSError when there is no memory for them."""
        tensors, _, heads, _, head_size = self.buffers.shape
        shape = (places, tensors, heads, tokens_per_block, head_size)
        self._kept = _zeros(shape, self.buffers.dtype, self.buffers.device)

    @property
    def bytes_per_token(self) -> int:
        """Memory that one token takes in one slot."""
        return self.buffers[:, 0, :, 0].numel() * self.buffers.element_size()

    def copy(self, source: int, target: int, first: int, end: int) -> None:
        """Copies the positions first … end - 1 of one slot to another."""
        self.buffers[:, target, :, first:end] = self.buffers[:, source, :, first:end]

    def move(self, source: int, target: int, tokens: int) -> None:
        """Copies the first `tokens` positions of one slot to another."""
        self.copy(source, target, 0, tokens)

    def save(self, slot: int, place: int, first: int, count: int) -> None:
        """Copies `count` positions of a slot, from `first` on, to the beginning of a kept block."""
        self._kept[place, :, :, :count] = self.buffers[:, slot, :, first : first + count]

    def load(self, place: int, slot: int, first: int, count: int) -> None:
        """Copies the first `count` positions of a kept block to a slot, to the positions from `first` on."""
        self.buffers[:, slot, :, first : first + count] = self._kept[place, :, :, :count]

    def forget(self, place: int) -> None:
        """Nothing to do: the memory stays taken, and the next owner of the place writes over it."""

    def drop(self, slot: int) -> None:
        """Nothing to do, as for `forget`."""


def _zeros(shape: tuple[int, ...], dtype: Any, device: Any) -> torch.Tensor:
    try:
        return torch.zeros(shape, dtype=dtype, device=device)
    except torch.OutOfMemoryError as error:
        raise OSError(str(error).split(". ")[0]) from None
