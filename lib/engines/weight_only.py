"""Weight-only quantisation as TensorRT-LLM does it: int8 or int4 weights, one scale for each output, float inputs.

A converted checkpoint stays float: `trtllm-build` reads quant_algo in config.json and quantises the weights of qkv,
dense, fc, gate and proj itself (tensorrt_llm/models/modeling_utils.py, preprocess_weights). Each rank does so with its
own slice, so a row-parallel weight has other scales than the whole one. Embeddings, norms, biases and lm_head stay
float.

The rule (cpp/…/cutlass_preprocessors.cpp, symmetric_quantize): scale = max|w| / 128 for int8, / 8 for int4, in float32;
the integers are w / scale, rounded half away from zero and cut to -128…127 or -8…7, so the largest weight loses a step
where it is positive; the scale is then stored in the type of the weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engines.errors import EngineError
from engines.families import is_quantised
from engines.shards import Checkpoint

BITS = {"W8A16": 8, "W4A16": 4}


def quantize(weight: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`weight` [out, in] as int8 integers [out, in] and scales [out], the scales in the type of the weight."""
    limit = 2 ** (bits - 1)
    scale = weight.float().abs().amax(dim=1) / limit
    steps = weight.float() / torch.where(scale == 0, 1.0, scale)[:, None]
    integers = torch.sign(steps) * torch.floor(steps.abs() + 0.5)
    return integers.clamp(-limit, limit - 1).to(torch.int8), scale.to(weight.dtype)


def dequantize(integers: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """float32 [out, in]: what the engine multiplies with."""
    return integers.float() * scales.float()[:, None]


@dataclass(frozen=True)
class LayerError:
    """relative: the norm of the error over the norm of the weight. largest: of one weight. Both without unit."""

    name: str
    rank: int
    relative: float
    largest: float


def errors(checkpoint: Checkpoint, bits: int | None = None) -> list[LayerError]:
    """The error of each quantised weight of each rank, with the checkpoint's own bits unless others are given."""
    bits = bits or BITS.get(checkpoint.config["quantization"]["quant_algo"])
    if bits not in BITS.values():
        raise EngineError("The checkpoint is not quantised: say bits=8 or bits=4 to see what that would cost.")
    found = []
    for rank, tensors in enumerate(checkpoint.ranks):
        for name in filter(is_quantised, tensors):
            weight = tensors[name].float()
            error = dequantize(*quantize(tensors[name], bits)) - weight
            found.append(LayerError(name, rank, float(error.norm() / weight.norm()), float(error.abs().max())))
    return found
