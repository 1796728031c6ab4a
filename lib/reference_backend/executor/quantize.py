"""Weights [N, K] in four or eight bits, as MatMulNBits multiplies them: blocks of 32 neighbours along K.

`per_channel` is TensorRT-LLM's weight-only quantisation: one scale for each of the N outputs.

`four_bits` stores a block as 16 levels between its smallest and its largest: w = scale * q + low. GGUF calls that Q4_1
(and Q8_0 what `eight_bits` makes), so a checkpoint that came from such a file keeps its weights; rounding it once more
to a grid whose zero must fall on a level changes a third of SmolLM2's greedy tokens. MatMulNBits wants that zero on a
level: w = scale * (q - zero) + rest, with a rest of at most half a step. Over a block, the rest adds rest * 32 *
mean(x) to a product. So the input gets one more column for each block, the mean of its 32 values, and the weights get
the rests as further columns, in four bits like the others: one product, no second pass.
"""

import numpy as np

BLOCK = 32
_LEVELS = 15


def four_bits(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[N, K] float32 → codes uint8 [N, blocks, 32], scales float32 [N, blocks], zeros uint8 [N, blocks].

    blocks = K/32 of weights, then ceil(K/32/32) of rests: those times 32, for a column that holds a block's mean.
    """
    rows, columns = matrix.shape
    blocks = matrix.reshape(rows, columns // BLOCK, BLOCK)
    low = blocks.min(axis=-1)
    scales = (blocks.max(axis=-1) - low) / _LEVELS
    safe = np.where(scales > 0, scales, 1)
    codes = np.rint((blocks - low[..., None]) / safe[..., None]).clip(0, _LEVELS).astype(np.uint8)
    zeros = np.rint(-low / safe).clip(0, _LEVELS)
    rests = (low + scales * zeros) * BLOCK

    count = rests.shape[1]
    padded = np.zeros((rows, -(-count // BLOCK), BLOCK), np.float32)
    padded.reshape(rows, -1)[:, :count] = rests
    rest_scales = np.abs(padded).max(axis=-1) / (_LEVELS / 2)
    safe = np.where(rest_scales > 0, rest_scales, 1)
    rest_codes = np.rint(padded / safe[..., None] + 8).clip(0, _LEVELS).astype(np.uint8)
    return (
        np.concatenate([codes, rest_codes], axis=1),
        np.concatenate([scales, rest_scales], axis=1).astype(np.float32),
        np.concatenate([zeros, np.full_like(rest_scales, 8)], axis=1).astype(np.uint8),
    )


def eight_bits(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[N, K] float32 → codes uint8 [N, K/32, 32], 128 for zero, and scales float32 [N, K/32]."""
    blocks = matrix.reshape(len(matrix), -1, BLOCK)
    scales = np.abs(blocks).max(axis=-1) / 127
    codes = np.rint(blocks / np.where(scales > 0, scales, 1)[..., None]) + 128
    return codes.astype(np.uint8), scales


def per_channel(matrix: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """[N, K] floats → codes uint8 [N, ceil(K/32), 32], 2^(bits-1) for zero, and scales float32 [N].

    The rule of TensorRT-LLM (cpp/…/cutlass_preprocessors.cpp, symmetric_quantize): scale = max|w| / 2^(bits-1); w/scale
    rounded half away from zero and cut, so the largest weight loses a step where it is positive; the scale is then
    rounded to the type of the weights.
    """
    limit = 2 ** (bits - 1)
    weights = matrix.astype(np.float32)
    scales = np.abs(weights).max(axis=1) / limit
    steps = weights / np.where(scales == 0, 1, scales)[:, None]
    integers = (np.sign(steps) * np.floor(np.abs(steps) + 0.5)).clip(-limit, limit - 1)
    codes = np.pad(integers + limit, ((0, 0), (0, -matrix.shape[1] % BLOCK)), constant_values=limit)
    return codes.astype(np.uint8).reshape(len(matrix), -1, BLOCK), scales.astype(matrix.dtype).astype(np.float32)


def pairs(codes: np.ndarray) -> np.ndarray:
    """Codes of four bits, two in a byte along the last axis, the first in its lower half; an odd one stands with 0."""
    if codes.shape[-1] % 2:
        codes = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, 1)])
    return codes[..., 0::2] | codes[..., 1::2] << 4
