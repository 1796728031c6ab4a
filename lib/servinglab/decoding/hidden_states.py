"""The forward pass of a small Llama-type model in numpy, open after every layer: what would it say if it stopped here?

The executor's engines give logits only, and loading transformers to see inside takes longer than the pass itself.
Taught in notebook 10.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from servinglab.errors import CourseError


class OpenModel:
    """A checkpoint folder of transformers (config.json, model.safetensors) with the LlamaForCausalLM architecture.

    Raises CourseError for another architecture, biases, a scaled RoPE or an activation other than SiLU.
    """

    def __init__(self, folder: Path | str) -> None:
        from safetensors.numpy import load_file

        self._config = config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        scaled = (config.get("rope_scaling") or config.get("rope_parameters") or {}).get("rope_type", "default")
        found = (config["architectures"], config.get("hidden_act"), scaled)
        if found != (["LlamaForCausalLM"], "silu", "default") or config.get("attention_bias") or config.get("mlp_bias"):
            raise CourseError(f"{folder} is no plain Llama model (SiLU, no biases); open another checkpoint.")
        self._weights = load_file(Path(folder) / "model.safetensors")
        self.layers = range(config["num_hidden_layers"])

    def states(self, ids: Sequence[int], layers: Iterable[int] | None = None) -> Iterator[np.ndarray]:
        """float32 [tokens, hidden] after each of these layers, by default all; each place sees itself and those before
        it."""
        x = self._weights["model.embed_tokens.weight"][np.asarray(ids)]
        for n in self.layers if layers is None else layers:
            layer = f"model.layers.{n}"
            x = x + self._attend(self._norm(x, f"{layer}.input_layernorm"), f"{layer}.self_attn")
            y = self._norm(x, f"{layer}.post_attention_layernorm")
            gate = self._times(y, f"{layer}.mlp.gate_proj")
            y = gate / (1 + np.exp(-gate)) * self._times(y, f"{layer}.mlp.up_proj")
            x = x + self._times(y, f"{layer}.mlp.down_proj")
            yield x

    def logits(self, state: np.ndarray) -> np.ndarray:
        """float32 [tokens, vocab] of what a layer left [tokens, hidden]: the last norm and the output head."""
        tied = "lm_head.weight" not in self._weights
        return self._times(self._norm(state, "model.norm"), "model.embed_tokens" if tied else "lm_head")

    def _times(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self._weights[f"{name}.weight"].T

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        size = np.sqrt(np.mean(x * x, -1, keepdims=True) + np.float32(self._config["rms_norm_eps"]))
        return x / size * self._weights[f"{name}.weight"]

    def _attend(self, x: np.ndarray, name: str) -> np.ndarray:
        count, heads = len(x), self._config["num_attention_heads"]
        size = len(self._weights[f"{name}.q_proj.weight"]) // heads
        q, k, v = (self._times(x, f"{name}.{part}_proj").reshape(count, -1, size) for part in "qkv")
        q, k, v = (part.transpose(1, 0, 2) for part in (self._rotate(q), self._rotate(k), v))  # [heads, tokens, size]
        k, v = (part.repeat(heads // len(part), 0) for part in (k, v))
        scores = q @ k.transpose(0, 2, 1) / np.float32(np.sqrt(q.shape[-1]))
        scores = np.where(np.tri(count, dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = weights / weights.sum(-1, keepdims=True) @ v
        return self._times(mixed.transpose(1, 0, 2).reshape(count, -1), f"{name}.o_proj")

    def _rotate(self, x: np.ndarray) -> np.ndarray:
        """Rotary embedding (Su et al. 2021) of [tokens, heads, size], first half of a head with the second."""
        size = x.shape[-1]
        angles = np.arange(len(x))[:, None, None] * self._config["rope_theta"] ** (-np.arange(0, size, 2) / size)
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        first, second = np.split(x, 2, -1)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)
