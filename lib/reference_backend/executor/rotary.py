"""The tables of rotary positions (Su et al., 2021): the first half of a head turns with the second."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def tables(model: Mapping[str, Any], positions: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine, float32 [positions, head_size / 2], of a pretrained_config; computed as transformers does."""
    size = model["head_size"]
    powers = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    frequencies = 1 / np.power(np.float32(model["rotary_base"]), powers)
    frequencies = _scaled(frequencies, model.get("rotary_scaling")).astype(np.float32)
    angles = np.arange(positions, dtype=np.float32)[:, None] * frequencies
    return np.cos(angles), np.sin(angles)


def _scaled(frequencies: np.ndarray, scaling: Mapping[str, Any] | None) -> np.ndarray:
    """linear: all waves get longer by `factor`. llama3: the long ones do, the short ones stay, those between blend."""
    if not scaling:
        return frequencies
    if scaling["type"] == "linear":
        return frequencies / scaling["factor"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)  # in the original context
    keep = ((turns - low) / (high - low)).clip(0, 1)
    return keep * frequencies + (1 - keep) * frequencies / scaling["factor"]
