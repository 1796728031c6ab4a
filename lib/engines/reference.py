"""What the ranks of an engine compute together, in plain torch: the proof that a converted checkpoint is right.

Every rank works on its own shard; `all_reduce` adds their partial outputs, as NCCL does between GPUs. float32
throughout, no KV cache.

Weight-only quantisation as TensorRT-LLM does it: a converted checkpoint stays float; `trtllm-build` reads quant_algo in
config.json and quantises the weights of qkv, dense, fc, gate and proj (tensorrt_llm/models/modeling_utils.py,
preprocess_weights), each rank its own slice, so a row-parallel weight has other scales than the whole one.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from engines import EngineError
from engines.families import is_quantised
from engines.shards import Checkpoint

BITS = {"W8A16": 8, "W4A16": 4}
ACTIVATIONS = {
    "silu": F.silu,
    "relu": F.relu,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    **dict.fromkeys(("gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh"), partial(F.gelu, approximate="tanh")),
}


def quantize(weight: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`weight` [out, in] as int8 integers [out, in] and scales [out], the scales in the type of the weight.

    The rule of cpp/…/cutlass_preprocessors.cpp, symmetric_quantize: scale = max|w| / 128 for int8, / 8 for int4, in
    float32; w / scale is rounded half away from zero and cut, so the largest weight loses a step where it is positive.
    """
    limit = 2 ** (bits - 1)
    scale = weight.float().abs().amax(dim=1) / limit
    steps = weight.float() / torch.where(scale == 0, 1.0, scale)[:, None]
    integers = torch.sign(steps) * torch.floor(steps.abs() + 0.5)
    return integers.clamp(-limit, limit - 1).to(torch.int8), scale.to(weight.dtype)


class Rank:
    """One rank's shard, in float32; its weights went through int8 or int4 where config.json asks for that."""

    def __init__(self, tensors: dict[str, torch.Tensor], bits: int | None) -> None:
        self._tensors, self._bits = tensors, bits

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor = self._tensors[name]
        if self._bits and is_quantised(name):
            integers, scales = quantize(tensor, self._bits)
            return integers.float() * scales.float()[:, None]  # what the engine multiplies with
        return tensor.float()

    def bias(self, name: str) -> torch.Tensor | float:
        """Of a column-parallel layer this rank's part; of a row-parallel one all of it, added after the all-reduce."""
        return self[f"{name}.bias"] if f"{name}.bias" in self else 0.0

    def column(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """A column-parallel layer: this rank's outputs, with its part of the bias."""
        return x @ self[f"{name}.weight"].T + self.bias(name)

    def row(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """A row-parallel layer: this rank's share of every output, still without the bias."""
        return x @ self[f"{name}.weight"].T


def all_reduce(shares: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.stack(list(shares)).sum(0)


@torch.no_grad()
def logits(checkpoint: Checkpoint, input_ids: Any) -> np.ndarray:
    """float32 [batch, time, vocab] for ids [batch, time] or [time]; the padding of the vocabulary is cut off.

    Raises EngineError for ids outside the vocabulary or more of them than the model has positions.
    """
    config = checkpoint.config
    bits = BITS.get(config["quantization"]["quant_algo"])
    ranks = [Rank(tensors, bits) for tensors in checkpoint.ranks]
    ids = _checked(config, input_ids)

    x = embed(config, ranks, ids)
    halves = (("input_layernorm", attend, "attention.dense"), ("post_layernorm", mlp, "mlp.proj"))
    for n in range(config["num_hidden_layers"]):
        layer = f"transformer.layers.{n}"
        for before, block, after in halves:
            normed = norm(config, ranks[0], x, f"{layer}.{before}")
            shares = [rank.row(block(config, rank, normed, layer), f"{layer}.{after}") for rank in ranks]
            x = x + all_reduce(shares) + ranks[0].bias(f"{layer}.{after}")
    x = norm(config, ranks[0], x, "transformer.ln_f")
    gathered = torch.cat([rank.column(x, "lm_head") for rank in ranks], dim=-1)  # each has its part of the vocabulary
    return gathered[..., : config["vocab_size"]].numpy()


def embed(config: dict[str, Any], ranks: Sequence[Rank], ids: torch.Tensor) -> torch.Tensor:
    """[batch, time, hidden]. Parallel embedding: each rank has a part of the table and looks up the ids that are in it;
    all together find what the whole table holds."""
    tables = [rank["transformer.vocab_embedding.weight"] for rank in ranks]
    x = (torch.cat(tables) if config["use_parallel_embedding"] else tables[0])[ids]
    if config["architecture"].startswith("Gemma"):
        x = x * math.sqrt(config["hidden_size"])
    if config["position_embedding_type"] == "learned_absolute":
        x = x + ranks[0]["transformer.position_embedding.weight"][: ids.shape[-1]]
    return x


def norm(config: dict[str, Any], rank: Rank, x: torch.Tensor, name: str) -> torch.Tensor:
    """LayerNorm where there is a bias (GPT-2), RMSNorm otherwise; every rank has the same weights."""
    weight, epsilon = rank[f"{name}.weight"], config["norm_epsilon"]
    if f"{name}.bias" in rank:
        return F.layer_norm(x, weight.shape, weight, rank[f"{name}.bias"], epsilon)
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon) * weight


def attend(config: dict[str, Any], rank: Rank, x: torch.Tensor, layer: str) -> torch.Tensor:
    """[batch, time, this rank's heads x head_size]: the fused qkv, cut into this rank's q, k and v heads."""
    tp_size, size = config["mapping"]["tp_size"], config["head_size"]
    heads = config["num_attention_heads"] // tp_size
    kv_heads = -(-config["num_key_value_heads"] // tp_size)
    batch, time, _ = x.shape
    qkv = rank.column(x, f"{layer}.attention.qkv").view(batch, time, heads + 2 * kv_heads, size).transpose(1, 2)
    q, k, v = qkv.split([heads, kv_heads, kv_heads], dim=1)  # each [batch, heads, time, head_size]
    if config["position_embedding_type"] == "rope_gpt_neox":
        q, k = rotate(config, q), rotate(config, k)
    k, v = (part.repeat_interleave(heads // kv_heads, dim=1) for part in (k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(size)
    later = torch.ones(time, time, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(later, -torch.inf).softmax(-1)
    return (weights @ v).transpose(1, 2).reshape(batch, time, heads * size)


def mlp(config: dict[str, Any], rank: Rank, x: torch.Tensor, layer: str) -> torch.Tensor:
    """[batch, time, this rank's part of the MLP]."""
    inner = ACTIVATIONS[config["hidden_act"]](rank.column(x, f"{layer}.mlp.fc"))
    return inner * rank.column(x, f"{layer}.mlp.gate") if f"{layer}.mlp.gate.weight" in rank else inner


def rotate(config: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
    """Rotary embedding (Su et al., 2021), first half of a head with the second, at positions 0, 1, …"""
    size = config["head_size"]
    frequency = config["rotary_base"] ** (-torch.arange(0, size, 2).float() / size)
    angle = torch.arange(x.shape[-2]).float()[:, None] * _scaled(frequency, config["rotary_scaling"])
    cos, sin = angle.cos(), angle.sin()
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _scaled(frequency: torch.Tensor, scaling: dict[str, Any] | None) -> torch.Tensor:
    """linear: all waves get longer by `factor`. llama3: the long ones do, the short ones stay, those between blend."""
    if not scaling:
        return frequency
    if scaling["type"] == "linear":
        return frequency / scaling["factor"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * frequency / (2 * math.pi)  # in the original context
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return keep * frequency + (1 - keep) * frequency / scaling["factor"]


def _checked(config: dict[str, Any], input_ids: Any) -> torch.Tensor:
    ids = torch.atleast_2d(torch.as_tensor(input_ids)).long()
    if ids.dim() != 2 or ids.numel() == 0 or ids.min() < 0 or ids.max() >= config["vocab_size"]:
        raise EngineError(f"input_ids must be [batch, time] of ids from 0 to {config['vocab_size'] - 1}.")
    if ids.shape[-1] > config["max_position_embeddings"]:
        raise EngineError(f"{ids.shape[-1]} tokens are more than the model's {config['max_position_embeddings']}.")
    return ids
