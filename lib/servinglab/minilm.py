"""MiniLM, a sentence encoder (BERT, 6 layers, 23 million parameters), in numpy: the small model of notebook 04.

It reads all its tokens at once and generates none, so it is what dynamic batching was made for. No PyTorch in here: a
Triton instance that holds it starts in a second. Paper: Wang et al. 2020, https://arxiv.org/abs/2002.10957; pooling as
in sentence-transformers/all-MiniLM-L6-v2 (the mean over the tokens, then length 1).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from servinglab.errors import CourseError

PAD_MASK = np.float32(-1e9)  # what a padded position adds to its score in the attention


class Encoder:
    """Texts to vectors of length 1. `folder` is a checkpoint, `servinglab.assets.resolve("minilm")`.

    Raises CourseError for a folder that holds no such model.
    """

    def __init__(self, folder: str | Path) -> None:
        folder = Path(folder)
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            self._weights = load_file(folder / "model.safetensors")
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            self.layers, self.heads = config["num_hidden_layers"], config["num_attention_heads"]
            self._epsilon, longest = config["layer_norm_eps"], config["max_position_embeddings"]
        except Exception as error:  # tokenizers raises a bare Exception
            raise CourseError(f"{folder} holds no MiniLM checkpoint ({error}); use assets.resolve('minilm').") from None
        self._tokenizer.enable_padding(pad_id=config["pad_token_id"])
        self._tokenizer.enable_truncation(longest)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """One vector for each text: float32 [texts, hidden]. Shorter texts are padded to the longest."""
        rows = self._tokenizer.encode_batch(list(texts))
        mask = np.array([row.attention_mask for row in rows], np.float32)[:, :, None]
        hidden = self.hidden(np.array([row.ids for row in rows]), mask[:, :, 0])
        mean = (hidden * mask).sum(axis=1) / mask.sum(axis=1)
        return mean / np.linalg.norm(mean, axis=-1, keepdims=True)

    def hidden(self, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """The last layer: float32 [batch, tokens, hidden]. `ids` and `mask` (1: token, 0: padding): [batch, tokens]."""
        weights = self._weights
        x = weights["embeddings.word_embeddings.weight"][ids]
        x = x + weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
        x = self._norm("embeddings", x + weights["embeddings.token_type_embeddings.weight"][0])
        hide = PAD_MASK * (1 - mask[:, None, None, :].astype(np.float32))
        for number in range(self.layers):
            layer = f"encoder.layer.{number}."
            x = self._norm(f"{layer}attention.output", x + self._attention(f"{layer}attention.", x, hide))
            wide = self._linear(f"{layer}intermediate.dense", x)
            x = self._norm(f"{layer}output", x + self._linear(f"{layer}output.dense", _gelu(wide)))
        return x

    def _attention(self, name: str, x: np.ndarray, hide: np.ndarray) -> np.ndarray:
        batch, tokens, size = x.shape
        shape = (batch, tokens, self.heads, size // self.heads)
        query, key, value = (
            self._linear(f"{name}self.{part}", x).reshape(shape).swapaxes(1, 2) for part in ("query", "key", "value")
        )
        scores = query @ key.swapaxes(2, 3) / np.float32(shape[-1] ** 0.5) + hide
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = shares / shares.sum(axis=-1, keepdims=True) @ value
        return self._linear(f"{name}output.dense", mixed.swapaxes(1, 2).reshape(x.shape))

    def _linear(self, name: str, x: np.ndarray) -> np.ndarray:
        flat = x.reshape(-1, x.shape[-1])  # one product for the whole batch; numpy would make one for each text
        flat = flat @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]
        return flat.reshape(*x.shape[:-1], -1)

    def _norm(self, name: str, x: np.ndarray) -> np.ndarray:
        x = x - x.mean(axis=-1, keepdims=True)
        x /= np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(self._epsilon))
        return x * self._weights[f"{name}.LayerNorm.weight"] + self._weights[f"{name}.LayerNorm.bias"]


def _gelu(x: np.ndarray) -> np.ndarray:
    """x times the normal distribution's share below x; within 1e-7 (Abramowitz and Stegun 1964, formula 7.1.26)."""
    t = 1 / (1 + np.float32(0.3275911 * 0.5**0.5) * np.abs(x))
    terms = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
    tail = np.zeros_like(x)
    for term in terms:
        tail = (tail + np.float32(term)) * t
    tail *= 0.5 * np.exp(-0.5 * x * x)  # the share beyond |x|
    return x * np.where(x < 0, tail, 1 - tail)
