"""Tensor parallelism as arithmetic: which slice of which Hugging Face tensor becomes which tensor of which rank.

A column-parallel layer (qkv, fc, gate, lm_head) cuts its outputs, axis 0 of a weight [out, in]; a row-parallel one
(dense, proj) cuts its inputs, axis 1, so that the ranks' partial outputs must be added (the all-reduce).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from engines import EngineError

if TYPE_CHECKING:
    from engines.source import Source


@dataclass(frozen=True)
class Part:
    """Rows of a TensorRT-LLM tensor that come from the Hugging Face tensor `name`; a fused tensor has several parts.

    shape: of the whole part over all ranks, [out, in] or [out]. axis: where the ranks' pieces are cut, None: every rank
    has all of it. heads: KV heads that the rows are made of; where there are fewer than ranks, neighbours share one.
    padded: cut into equal pieces with zeros at the end (the vocabulary). offset, rows: the part starts at row `offset`
    of `rows` rows. conv1d: stored transposed, as GPT-2's layers are. plus: added to every value.
    """

    name: str
    shape: tuple[int, ...]
    axis: int | None = None
    heads: int | None = None
    padded: bool = False
    offset: int = 0
    rows: int | None = None
    conv1d: bool = False
    plus: float = 0.0

    def span(self, rank: int, tp_size: int) -> tuple[int, int]:
        """Where this rank's piece begins and ends along `axis`, in the part."""
        length = self.shape[self.axis]
        if self.padded:
            piece = -(-length // tp_size)
            return min(rank * piece, length), min((rank + 1) * piece, length)
        if self.heads and self.heads < tp_size:
            head, size = rank * self.heads // tp_size, length // self.heads
            return head * size, (head + 1) * size
        return rank * length // tp_size, (rank + 1) * length // tp_size

    def piece_shape(self, tp_size: int) -> tuple[int, ...]:
        """What every rank gets: the same shape for all, thanks to padding."""
        if self.axis is None:
            return self.shape
        start, stop = self.span(0, tp_size)
        return (*self.shape[: self.axis], stop - start, *self.shape[self.axis + 1 :])

    def read(self, source: "Source", rank: int, tp_size: int) -> np.ndarray:
        cut = [slice(0, length) for length in self.shape]
        if self.axis is not None:
            cut[self.axis] = slice(*self.span(rank, tp_size))
        cut[0] = slice(cut[0].start + self.offset, cut[0].stop + self.offset)
        stored = (self.rows or self.shape[0], *self.shape[1:])
        if self.conv1d and len(stored) == 2:
            found = source.read(self.name, stored[::-1], tuple(cut[::-1])).T
        else:
            found = source.read(self.name, stored, tuple(cut))
        if self.plus:
            found = found.astype(np.float32) + np.float32(self.plus)
        if self.padded:
            missing = self.piece_shape(tp_size)[0] - len(found)
            found = np.pad(found, [(0, missing)] + [(0, 0)] * (found.ndim - 1)) if missing else found
        return found


def fused_shape(parts: Sequence[Part], tp_size: int) -> tuple[int, ...]:
    """The shape on each rank of the tensor that `parts` make, laid below each other."""
    shapes = [part.piece_shape(tp_size) for part in parts]
    return (sum(shape[0] for shape in shapes), *shapes[0][1:])


def piece(source: "Source", parts: Sequence[Part], rank: int, tp_size: int, dtype: np.dtype) -> np.ndarray:
    """One tensor of one rank, contiguous, its parts below each other, in `dtype`.

    Raises EngineError for a value that `dtype` cannot hold.
    """
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is found below
        pieces = [part.read(source, rank, tp_size).astype(dtype) for part in parts]
    found = np.ascontiguousarray(np.concatenate(pieces) if len(pieces) > 1 else pieces[0])
    if not np.isfinite(found).all():
        raise EngineError(
            f"{source.folder}: tensor {parts[0].name!r} has a value that {dtype.name} cannot hold (not a number, or "
            "too large); use bfloat16 or float32, or fetch the checkpoint again."
        )
    return found
