"""The parts of GPU memory, one function each; `memory` adds them up (notebook 02). All results are bytes on one GPU.

Weights and KV cache follow from the shapes and are exact. What TensorRT needs between the layers and what the runtime
needs for logits are bounds; the comments name the public logs that they were compared with.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from engines.shapes import Shape

DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2}
KV_DTYPES = DTYPES | {"int8": 1, "fp8": 1}
WEIGHT_ONLY = {"int8": 1.0, "int4": 0.5}  # bytes of one weight

# Logits of a sequence are copied, penalised, sorted: float32 rows of the vocabulary in the runtime and its decoder.
# Public logs show 7.3 (TensorRT-LLM issue 1188: 2,048 sequences, 151,936 entries) and 11.2 (benchmarking page of the
# 0.12 documentation: 4,096 sequences, 32,000 entries).
LOGIT_ROWS = 12
WORKSPACE = 64 * 2**20  # of matrix products; issue 1188 shows 43 MiB where hardly any tokens are to be held
# CUDA context, libraries, allocator. The example log of TensorRT-LLM's memory page leaves 0.76 GiB after all it names.
MARGIN = 2**30


def weights(shape: Shape, dtype: str, weight_only: str | None, tp_size: int, pp_size: int, pp_rank: int) -> int:
    """Weights of an engine of stage `pp_rank`.

    With weight_only ("int8", "int4") the linear layers of the blocks shrink and get one scale, in dtype, for every
    output. A tied output matrix counts although it equals the embedding: the engine holds both (a build log of GPT-2
    with TensorRT-LLM 0.20 says 326,085,504 bytes). Rotary models add a float32 table of rotations.
    """
    width = DTYPES[dtype]
    total = rotations(shape)
    for weight in shape.weights(tp_size=tp_size, pp_size=pp_size, pp_rank=pp_rank).values():
        if weight.linear and weight_only:
            total += math.ceil(weight.size * WEIGHT_ONLY[weight_only]) + weight.shape[0] * width
        else:
            total += weight.size * width
    return total


def rotations(shape: Shape) -> int:
    """The float32 table of rotations that a build adds to the weights of a rotary model; no checkpoint holds it."""
    return 0 if shape.learned_positions else shape.max_positions * shape.head_size * 4


def kv_per_token(shape: Shape, kv_dtype: str, tp_size: int = 1, pp_size: int = 1) -> int:
    """A key and a value of one token in every layer of the fullest GPU."""
    return 2 * shape.layers(pp_size, 0) * shape.kv_heads(tp_size) * shape.head_size * KV_DTYPES[kv_dtype]


def activations(shape: Shape, dtype: str, tp_size: int, max_num_tokens: int, rows: int) -> int:
    """An upper bound on TensorRT's execution context: all that one layer produces for max_num_tokens tokens, nothing
    reused (norms, residuals, q, k, v, attention, MLP), as TensorRT keeps one layer at a time; the logits of `rows`
    sequences; a workspace. Public logs show 50 to 92 % of it.
    """
    queries = shape.num_heads // tp_size
    split = 2 * (queries + shape.kv_heads(tp_size)) * shape.head_size
    split += (3 if shape.gated else 2) * shape.intermediate_size // tp_size
    layer = max_num_tokens * (6 * shape.hidden_size + split)
    return (layer + rows * shape.vocab(tp_size)) * DTYPES[dtype] + WORKSPACE


def logits(shape: Shape, tp_size: int, rows: int, context_tokens: int = 0) -> int:
    """An upper bound on the runtime's and the decoder's buffers; context_tokens: prompt tokens whose logits are kept.

    The C++ decoder gets the logits of the whole vocabulary on every GPU.
    """
    return (LOGIT_ROWS * rows + context_tokens) * shape.vocab(tp_size) * 4


def pool(free: int, per_token: int, tokens_per_block: int, fraction: float, most: int | None = None) -> tuple[int, int]:
    """(tokens, bytes) of the paged KV cache: a share of the bytes that are free, at most `most` tokens, whole blocks.

    As BaseKVCacheManager::calculateMaxNumBlocks does: the last block is rounded up.
    """
    tokens = max(0, int(free * fraction) // per_token)
    blocks = math.ceil((tokens if most is None else min(tokens, most)) / tokens_per_block)
    return blocks * tokens_per_block, blocks * tokens_per_block * per_token


def left_free(kv_bytes: int, fraction: float) -> int:
    """What a pool of kv_bytes leaves unused, as it is `fraction` of the bytes that are free before it."""
    return math.ceil(kv_bytes / fraction) - kv_bytes


def largest(fits: Callable[[int], bool], most: int = 2**20) -> int:
    """The largest number up to `most` that fits; 0 when not even 1 does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
