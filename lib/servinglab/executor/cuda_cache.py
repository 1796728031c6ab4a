"""The KV cache on a CUDA device: what `cache.KVCache` is on the CPU."""

from __future__ import annotations

from typing import Any

import torch


class CudaCache:
    """Keys and values of every layer: `buffers` [tensors, slots, heads, seq, head_size] on the device."""

    def __init__(
        self, tensors: int, slots: int, heads: int, max_seq_len: int, head_size: int, *, dtype: Any, device: Any
    ) -> None:
        self.buffers = torch.zeros((tensors, slots, heads, max_seq_len, head_size), dtype=dtype, device=device)

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

    def drop(self, slot: int) -> None:
        """Nothing to do: the memory was taken once, and the next owner of the slot writes over it."""
