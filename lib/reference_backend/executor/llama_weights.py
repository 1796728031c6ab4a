"""The weights of a Llama-type engine as torch tensors, read out of the ONNX graph that the CPU runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .model import EngineConfig, ExecutorError

#: Those whose layer is exactly the one in cuda_kernels.py.
ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")
_LAYER = {
    "input_norm": "input_layernorm",
    "qkv": "attn.qkv_proj.MatMul",
    "out": "attn.o_proj.MatMul",
    "post_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj.MatMul",
    "up": "mlp.up_proj.MatMul",
    "down": "mlp.down_proj.MatMul",
}


@dataclass(frozen=True)
class Layer:
    """Matrices are [out, in]; qkv and gate_up are stacked in that order; the norms are float32 gains [hidden]."""

    input_norm: Any
    qkv: Any
    out: Any
    post_norm: Any
    gate_up: Any
    down: Any


@dataclass(frozen=True)
class Weights:
    """embed and head [vocab, hidden], one tensor if they are tied; head has a row of zeros more if vocab is odd;
    cos and sin float32 [positions, head_size / 2]."""

    embed: Any
    layers: list[Layer]
    norm: Any
    head: Any
    cos: Any
    sin: Any


def load(config: EngineConfig, device: Any, dtype: Any) -> Weights:
    """Reads an engine's weights onto `device`; matrices get `dtype`.

    Raises ExecutorError when the graph is not that of a plain Llama-type model in fp32 or bf16.
    """
    import torch

    found = _initializers(config.folder)

    def take(name: str, kind: Any) -> Any:
        try:
            array = found.pop(name).numpy().copy()  # what is on disk cannot be written, and torch warns of that
        except KeyError:
            raise ExecutorError(f"{config.folder} has no weight {name}, so it cannot run on CUDA.") from None
        if array.dtype.name == "bfloat16":  # numpy knows it only by a package that torch does not
            return torch.from_numpy(array.view("int16")).view(torch.bfloat16).to(device, kind)
        return torch.from_numpy(array).to(device, kind)

    def matrix(name: str) -> Any:
        return take(name, dtype).T.contiguous()  # ONNX stores [in, out]

    layers = []
    for index in range(config.layers):
        named = {key: f"model.layers.{index}.{name}.weight" for key, name in _LAYER.items()}
        layers.append(
            Layer(
                take(named["input_norm"], torch.float32),
                matrix(named["qkv"]),
                matrix(named["out"]),
                take(named["post_norm"], torch.float32),
                torch.cat([matrix(named["gate"]), matrix(named["up"])]),
                matrix(named["down"]),
            )
        )
    head = matrix("lm_head.MatMul.weight")
    if len(head) % 2:  # the kernels compute pairs of outputs
        head = torch.cat([head, torch.zeros_like(head[:1])])
    embed = take("model.embed_tokens.weight", dtype) if "model.embed_tokens.weight" in found else head
    norm = take(f"model.layers.{config.layers}.final_norm_layernorm.weight", torch.float32)
    cos, sin = take("cos_cache", torch.float32).contiguous(), take("sin_cache", torch.float32).contiguous()
    if left := [name for name in found if name.startswith(("model.", "lm_head"))]:
        raise ExecutorError(f"{config.folder} has the weight {left[0]}, which the CUDA executor does not know.")
    return Weights(embed, layers, norm, head, cos, sin)


def _initializers(folder: Path) -> dict[str, Any]:
    import onnx_ir as ir

    graph = ir.load(folder / "model.onnx").graph  # the tensors stay on disk until they are read
    return {name: value.const_value for name, value in graph.initializers.items() if value.const_value is not None}
