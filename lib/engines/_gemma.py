"""Gemma (the first): a Llama with other norms, a scaled embedding and a gelu; names and shapes are Llama's.

Hugging Face multiplies by (1 + weight) in its norms; TensorRT-LLM by the weight, so the 1 goes into the checkpoint. The
embedding is stored as it is: the engine multiplies it by the square root of the hidden size when it runs.
"""

from __future__ import annotations

from typing import Any

from engines import _llama
from engines.source import Source
from engines.split import Part

ARCHITECTURE = "GemmaForCausalLM"
PARALLEL_EMBEDDING = True  # with more than one rank, each holds its part of the vocabulary
TIED = True


def config(source: Source) -> dict[str, Any]:
    """The keys of pretrained_config that depend on the model."""
    base, scaling = _llama.rotary(source)
    key = "hidden_activation" if source.get("hidden_activation") else "hidden_act"
    return {
        **_llama.sizes(source),
        "head_size": source.whole("head_dim", 256),
        "hidden_act": source.activation(key, "gelu_pytorch_tanh"),
        "norm_epsilon": source.number("rms_norm_eps", 1e-6),
        "position_embedding_type": "rope_gpt_neox",
        "attn_bias": bool(source.get("attention_bias", False)),
        "mlp_bias": False,
        "rotary_base": base,
        "rotary_scaling": scaling,
        "inter_layernorms": False,
    }


def tensors(source: Source, config: dict[str, Any]) -> dict[str, tuple[Part, ...]]:
    return _llama.tensors(source, config, norm_plus=1.0)
