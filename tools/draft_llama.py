"""A Llama in plain PyTorch for `train_draft.py`: all rows of a batch stand at the same position, so nothing is masked.

The weights keep the names of their checkpoint. One token of 2,048 rows is some 700 short launches here, which a GPU
overlaps with its work; transformers spends 40 ms of Python on it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

EMBEDDING, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


@dataclass
class Llama:
    """weights: name to tensor. The residual stream has the type of the norms, products that of `compute`."""

    config: dict
    weights: dict[str, Tensor]
    compute: torch.dtype = torch.float32

    @classmethod
    def load(cls, checkpoint: Path, device: torch.device, dtype: torch.dtype) -> Llama:
        """Read config.json and *.safetensors. Raises SystemExit with one sentence for what this file cannot run."""
        config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
        if config.get("model_type") != "llama" or config.get("attention_bias") or config.get("mlp_bias"):
            raise SystemExit(f"{checkpoint} is no Llama without biases; give the checkpoint of smollm2.")
        if ((config.get("rope_parameters") or {}).get("rope_type") or "default") != "default":
            raise SystemExit(f"{checkpoint} scales its positions, which this script does not; use smollm2.")
        weights: dict[str, Tensor] = {}
        for file in sorted(checkpoint.glob("*.safetensors")):
            weights |= load_file(file)
        return cls(config, {name: w.to(device, torch.float32) for name, w in weights.items()}).to(dtype)

    def to(self, compute: torch.dtype) -> Llama:
        """This model with matrices in `compute`; the norms, and so the residual stream, stay in float32."""
        return Llama(self.config, {n: w.to(compute) if w.dim() > 1 else w for n, w in self.weights.items()}, compute)

    @property
    def head(self) -> Tensor:
        """[vocabulary, hidden]; the embedding where the two are tied."""
        return self.weights[HEAD if HEAD in self.weights else EMBEDDING]

    @property
    def head_size(self) -> int:
        return self.config.get("head_dim") or self.config["hidden_size"] // self.config["num_attention_heads"]

    def truncated(self, layers: list[int]) -> Llama:
        """Those layers alone, as copies; embedding and head are shared with this model."""
        kept = {NORM: self.weights[NORM]}
        for new, old in enumerate(layers):
            was, now = (f"model.layers.{number}." for number in (old, new))
            kept |= {n.replace(was, now): w for n, w in self.weights.items() if n.startswith(was)}
        copies = {name: w.clone() for name, w in kept.items()}
        shared = {name: self.weights[name] for name in (EMBEDDING, HEAD) if name in self.weights}
        return Llama({**self.config, "num_hidden_layers": len(layers)}, {**shared, **copies}, self.compute)

    def own(self) -> dict[str, Tensor]:
        """The weights of the layers and the final norm: what a draft trains and stores."""
        return {name: w for name, w in self.weights.items() if name not in (EMBEDDING, HEAD)}

    def rope(self, length: int) -> Tensor:
        """Cosines, and sines with the sign of `rotate_half`, [2, length, head_size], float32."""
        theta = self.config.get("rope_theta") or self.config["rope_parameters"]["rope_theta"]
        device = self.weights[EMBEDDING].device
        even = torch.arange(0, self.head_size, 2, device=device, dtype=torch.float32) / self.head_size
        angle = torch.arange(length, device=device, dtype=torch.float32)[:, None] / theta**even
        return torch.stack([torch.cat([angle.cos(), angle.cos()], -1), torch.cat([-angle.sin(), angle.sin()], -1)])

    def logits(self, hidden: Tensor) -> Tensor:
        """[tokens, vocabulary] float32 of hidden states [tokens, hidden]: bfloat16 logits would be steps of 1/8."""
        hidden = hidden.to(self.compute)
        if hidden.is_cuda and self.compute != torch.float32:
            return torch.mm(hidden, self.head.T, out_dtype=torch.float32)
        return hidden @ self.head.T

    def cache(self, rows: int, length: int) -> Tensor:
        """An empty key and value store [layers, 2, rows, kv_heads, length, head_size]."""
        shape = self.config["num_hidden_layers"], 2, rows, self.config["num_key_value_heads"], length, self.head_size
        return torch.empty(shape, dtype=self.compute, device=self.weights[EMBEDDING].device)

    def hidden(self, ids: Tensor, rope: Tensor, cache: Tensor | None = None, at: int = 0) -> Tensor:
        """What the head sees, [rows, tokens, hidden], for ids [rows, tokens].

        Without a cache: whole sequences from position 0. With one: a single token a row, at position `at`.
        """
        eps, width = self.config["rms_norm_eps"], (self.config["hidden_size"],)
        heads, groups = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        rows, tokens = ids.shape
        cos, sin = rope[:, at : at + tokens]
        h = F.embedding(ids, self.weights[EMBEDDING]).to(self.weights[NORM].dtype)

        def linear(x: Tensor, name: str) -> Tensor:
            return F.linear(x.to(self.compute), self.weights[name].to(self.compute))

        def turn(x: Tensor, count: int) -> Tensor:  # split into heads, then rotate by the position
            x = x.view(rows, tokens, count, self.head_size).transpose(1, 2)
            return (x * cos + x.roll(self.head_size // 2, -1) * sin).to(x.dtype)

        for layer in range(self.config["num_hidden_layers"]):
            prefix = f"model.layers.{layer}"
            x = F.rms_norm(h, width, self.weights[f"{prefix}.input_layernorm.weight"], eps)
            q, k = (linear(x, f"{prefix}.self_attn.{name}_proj.weight") for name in ("q", "k"))
            q, k = turn(torch.cat([q, k], -1), heads + groups).split([heads, groups], 1)
            v = linear(x, f"{prefix}.self_attn.v_proj.weight")
            v = v.view(rows, tokens, groups, self.head_size).transpose(1, 2)
            if cache is None:
                k, v = (t.repeat_interleave(heads // groups, 1) for t in (k, v))
                mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:  # the query heads of one key head stand side by side, as if they were positions
                cache[layer, 0, :, :, at], cache[layer, 1, :, :, at] = k[:, :, 0], v[:, :, 0]
                k, v = cache[layer, :, :, :, : at + 1]
                mixed = F.scaled_dot_product_attention(q.reshape(rows, groups, heads // groups, self.head_size), k, v)
                mixed = mixed.reshape(rows, heads, 1, self.head_size)
            mixed = mixed.transpose(1, 2).reshape(rows, tokens, heads * self.head_size)
            h = h + linear(mixed, f"{prefix}.self_attn.o_proj.weight")
            x = F.rms_norm(h, width, self.weights[f"{prefix}.post_attention_layernorm.weight"], eps)
            gate, up = (linear(x, f"{prefix}.mlp.{name}_proj.weight") for name in ("gate", "up"))
            h = h + linear(F.silu(gate) * up, f"{prefix}.mlp.down_proj.weight")
        return F.rms_norm(h, width, self.weights[NORM], eps)
