"""Random Hugging Face models of the three families, a few kilobytes each, saved as real checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

VOCABULARY = 301  # divides by no tp_size
LLAMA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
}
GPT2 = {
    "vocab_size": VOCABULARY,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 8,
    "n_positions": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
KINDS = {"llama": ("Llama", LLAMA), "gpt2": ("GPT2", GPT2), "gemma": ("Gemma", {**LLAMA, "head_dim": 16})}


def write(folder: Path, family: str, **settings: Any) -> transformers.PreTrainedModel:
    """A model whose every weight, norm and bias matters; saved as float32 in `folder` and returned."""
    kind, sizes = KINDS[family]
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **settings})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    random = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=random)
            if parameter.dim() > 1:
                parameter.copy_(0.15 * noise)
            else:
                parameter.add_(0.2 * noise)
    model.save_pretrained(folder)
    return model


def ids(vocabulary: int = VOCABULARY, time: int = 24) -> torch.Tensor:
    """[2, time]; the first row has the smallest and the largest id."""
    found = torch.randint(0, vocabulary, (2, time), generator=torch.Generator().manual_seed(3))
    found[0, 0], found[0, 1] = vocabulary - 1, 0
    return found


@torch.no_grad()
def logits(model: transformers.PreTrainedModel, input_ids: torch.Tensor) -> np.ndarray:
    """What Hugging Face says, float32 [batch, time, vocab]."""
    return model(input_ids).logits.float().numpy()
