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

import re
from dataclasses import dataclass
from typing import Any

import torch

from engines import EngineError
from engines.shards import Checkpoint

ALGORITHMS = {"int8": "W8A16", "int4": "W4A16"}
BITS = {"W8A16": 8, "W4A16": 4}
_QUANTISED = re.compile(r"layers\.\d+\.(attention\.(qkv|dense)|mlp\.(fc|gate|proj))\.weight")


def is_quantised(name: str) -> bool:
    """Whether weight-only quantisation takes this tensor."""
    return bool(_QUANTISED.search(name))


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


def check(config: dict[str, Any]) -> None:
    """Raise EngineError where `trtllm-build` cannot quantise these shards.

    Since 0.13 its layers round each width up to a multiple of 64 x tp_size; NVIDIA's converter pads the weights, but
    float shards would no longer fit. The matrix product knows float16 and bfloat16 inputs only.
    """
    tp_size = config["mapping"]["tp_size"]
    heads, size = config["num_attention_heads"], config["head_size"]
    if config["dtype"] == "float32":
        raise EngineError("Weight-only quantisation works with dtype float16 or bfloat16, not float32.")
    widths = {
        "hidden_size": config["hidden_size"],
        "intermediate_size": config["intermediate_size"],
        "the width of all heads": heads * size,
        "the width of q, k and v": (heads + 2 * max(config["num_key_value_heads"], tp_size)) * size,
    }
    for what, width in widths.items():
        if width % (64 * tp_size):
            raise EngineError(
                f"Weight-only quantisation needs multiples of 64 x tp_size = {64 * tp_size}, and {what} is {width}; "
                "take a smaller tp_size, or leave weight_only out."
            )
