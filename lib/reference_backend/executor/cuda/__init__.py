"""The executor's model on a CUDA device. Its modules need torch and triton; `device.py` decides whether it is used."""

from __future__ import annotations

from reference_backend.executor.model import EngineConfig

PRECISIONS = ("fp32", "bf16")


def runs(config: EngineConfig) -> bool:
    """Whether this flavour can run an engine: one rank of layers that are exactly the one in kernels.py."""
    model = config.pretrained
    plain = config.architecture == "LlamaForCausalLM" and model.get("hidden_act", "silu") == "silu"
    biased = model.get("attn_bias") or model.get("mlp_bias")
    return config.precision in PRECISIONS and config.tp_size == 1 and plain and not biased
