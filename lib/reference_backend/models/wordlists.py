"""Stop and bad words on the wire: INT32 `[2, L]`, ids one after another above the end offset of each word.

Row 1 is padded with -1: the words [10, 11] and [12] become `[[10, 11, 12], [2, 3, -1]]` (taught in notebook 03).
"""

from __future__ import annotations

import numpy as np

from reference_backend.models.common import InputError

MAX_IDS = 2**15  # of one row; what `preprocessing` lets through has fewer


def encode(rows: list[list[list[int]]]) -> np.ndarray:
    """Words of each batch row (lists of token ids; empty ones are skipped) as INT32 [batch, 2, L], L >= 1."""
    words = [[word for word in row if word] for row in rows]
    length = max([1] + [sum(map(len, row)) for row in words])
    encoded = np.zeros((len(words), 2, length), np.int32)
    encoded[:, 1] = -1
    for target, row in zip(encoded, words, strict=True):
        ids = [token for word in row for token in word]
        target[0, : len(ids)] = ids
        target[1, : len(row)] = np.cumsum([len(word) for word in row])
    return encoded


def decode(encoded: np.ndarray, name: str) -> list[list[int]]:
    """One row's `[2, L]` back to lists of token ids; raises :class:`InputError` naming the tensor."""
    if encoded.ndim != 2 or encoded.shape[0] != 2:
        raise InputError(f"{name} must have shape [batch, 2, L] (ids above offsets), not {list(encoded.shape)} a row.")
    if encoded.shape[1] > MAX_IDS:
        raise InputError(f"{name} holds {encoded.shape[1]:,} ids a row, and at most {MAX_IDS:,} are read; give fewer.")
    ids, offsets = encoded.tolist()
    ends = offsets[: offsets.index(-1)] if -1 in offsets else offsets
    spans = list(zip([0, *ends], ends))  # noqa: B905 (the last end starts nothing)
    if any(end != -1 for end in offsets[len(ends) :]):
        raise InputError(f"{name}: an end offset follows a -1; -1 may only fill the end of the second row: {offsets}.")
    if any(end <= start for start, end in spans) or (ends and ends[-1] > len(ids)):
        raise InputError(f"{name}: end offsets must grow and stay within the {len(ids)} ids of the first row: {ends}.")
    return [ids[start:end] for start, end in spans]
