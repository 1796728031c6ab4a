"""A vision tower with weights at random: a patch of 32 x 32 pixels becomes a row of the model's embedding space."""

from __future__ import annotations

import base64
import functools
import io

import numpy as np
import torch
from PIL import Image

from cliplab.prepare import to_array

TOKENS = 49


class Tower(torch.nn.Module):
    """pixel_values float32 [n, 3, 224, 224] to rows [n, 49, hidden] that spread as `embeddings` [vocab, hidden] do."""

    def __init__(self, embeddings: torch.Tensor) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patches = torch.nn.Conv2d(3, embeddings.shape[1], 32, 32)
        with torch.no_grad():
            self.patches.weight.normal_(0, 0.03 * float(embeddings.std()))
            self.patches.bias.normal_(0, 0.3 * float(embeddings.std()))

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return self.patches(pixel_values).flatten(2).transpose(1, 2)


@functools.cache
def picture(seed: int, kind: str = "PNG") -> bytes:
    """A picture file, small and of one coarse pattern for each seed."""
    pixels = np.random.default_rng(seed).integers(0, 256, (7, 7, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).resize((56, 56), Image.Resampling.NEAREST).save(out, kind)
    return out.getvalue()


def url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def table(tower: Tower, *pictures: bytes) -> torch.Tensor:
    """The rows [49 * pictures, hidden] as the server gives them to the model: rounded to float16."""
    pixels = np.stack([to_array(Image.open(io.BytesIO(data)).convert("RGB")) for data in pictures])
    with torch.inference_mode():
        return tower(torch.from_numpy(pixels)).reshape(-1, tower.patches.out_channels).half().float()
