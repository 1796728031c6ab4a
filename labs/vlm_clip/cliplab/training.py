"""Training of mini-CLIP's whole tower on a GPU: pictures are composed, turned and tinted there, a batch at a time."""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cliplab.lite0 import SIZE
from cliplab.mini_clip import VisionTower
from cliplab.prepare import MEAN, SCALE
from servinglab.errors import CourseError

SAME = 0.9  # captions at least this similar are not told apart
TEMPERATURE = 0.07
EMA = 0.99
BLANK = 1.0  # white


def usable(device: str) -> None:
    """Raise CourseError for a device that torch does not have here."""
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise CourseError(f"--device {device} cannot be used here ({str(error).splitlines()[0]:.100}).") from None


@dataclass(frozen=True)
class Variant:
    """How a tower is trained. side: of the pictures, in pixels."""

    name: str
    rate: float = 1e-4
    keep: float = 0.0  # weight of staying with the packaged classifier's answers
    distilled: float = 1.0  # weight of matching how near the text is to all other texts
    scenes: float = 0.0  # share of pictures of two things
    seed: int = 0
    side: int = SIZE


@dataclass(frozen=True)
class Data:
    """All on one device. pictures uint8 [n, 256, 256, 4]; ways: rows of `texts` [n, w]; pairs: two pictures, a text."""

    pictures: Tensor
    ways: Tensor
    texts: Tensor
    pairs: Tensor
    trained_on: Tensor


def normal(rgb: Tensor) -> Tensor:
    """Colours from 0 to 1 as the trunk reads them."""
    return (rgb * 255 - MEAN) / SCALE


def plain(pictures: Tensor) -> Tensor:
    """uint8 [n, 256, 256, 4] on white, as prepare.to_array makes them: float32 [n, 3, 224, 224]."""
    x = pictures.permute(0, 3, 1, 2).float() / 255
    rgb = x[:, :3] * x[:, 3:] + BLANK * (1 - x[:, 3:])
    rgb = F.interpolate(rgb, (SIZE, SIZE), mode="bicubic", antialias=True, align_corners=False)
    return normal(rgb.clamp(0, 1))


def between(low: float, high: float, count: int, like: Tensor) -> Tensor:
    return torch.rand(count, device=like.device) * (high - low) + low


def placed(pictures: Tensor, size: int, scale: tuple[float, float], at: Tensor | None = None) -> Tensor:
    """Mirrored, turned, stretched, tinted, smaller, somewhere: [n, 4, size, size], colour times alpha, and alpha.

    at: middles from -1 to 1, [n, 2]; anywhere inside when left out.
    """
    x, n = pictures.permute(0, 3, 1, 2).float() / 255, len(pictures)
    x = torch.cat([x[:, :3] * x[:, 3:], x[:, 3:]], dim=1)
    turn = between(-0.3, 0.3, n, x) * (torch.rand(n, device=x.device) < 0.6)
    small, stretch = between(*scale, n, x), torch.exp(between(-0.15, 0.15, n, x))
    mirror = torch.where(torch.rand(n, device=x.device) < 0.5, -1.0, 1.0)
    if at is None:
        at = torch.stack([between(-1, 1, n, x), between(-1, 1, n, x)], dim=1) * (1 - small)[:, None]
    cos, sin = torch.cos(turn), torch.sin(turn)
    wide, high = mirror / (small * stretch), stretch / small
    rows = torch.stack([torch.stack([cos * wide, sin * wide], 1), torch.stack([-sin * high, cos * high], 1)], 1)
    moved = -(rows @ at[:, :, None])
    grid = F.affine_grid(torch.cat([rows, moved], dim=2), [n, 4, 2 * size, 2 * size], align_corners=False)
    x = F.avg_pool2d(F.grid_sample(x, grid, align_corners=False), 2)  # twice as fine first: no jagged edges
    rgb, alpha = x[:, :3], x[:, 3:]
    grey = rgb.mean(dim=1, keepdim=True)
    rgb = grey + (rgb - grey) * between(0.5, 1.3, n, x)[:, None, None, None]
    gains = between(0.8, 1.15, n, x)[:, None] * (1 + 0.08 * torch.randn(n, 3, device=x.device))
    return torch.cat([torch.minimum((rgb * gains[:, :, None, None]).clamp_min(0), alpha), alpha], dim=1)


def grounds(count: int, size: int, like: Tensor) -> Tensor:
    """White for half of the pictures, else a pale colour or a blur of colours: [n, 3, size, size]."""
    kind = torch.rand(count, 1, 1, 1, device=like.device)
    one = 1 - 0.25 * torch.rand(count, 3, 1, 1, device=like.device)
    many = F.interpolate(torch.rand(count, 3, 4, 4, device=like.device), (size, size), mode="bilinear")
    return torch.where(kind < 0.5, torch.ones_like(many), torch.where(kind < 0.75, one.expand_as(many), many))


def over(front: Tensor, back: Tensor) -> Tensor:
    return front[:, :3] + back * (1 - front[:, 3:])


def batch(data: Data, variant: Variant, count: int) -> tuple[Tensor, Tensor]:
    """pixel_values of `count` random pictures and rows of their texts."""
    device, two = data.texts.device, round(count * variant.scenes)
    rows = data.trained_on[torch.randint(len(data.trained_on), (count - two,), device=device)]
    ways = torch.randint(data.ways.shape[1], (len(rows),), device=device)
    rgb = over(placed(data.pictures[rows], variant.side, (0.45, 1.0)), grounds(len(rows), variant.side, data.texts))
    texts = data.ways[rows, ways]
    if two:
        pairs = data.pairs[torch.randint(len(data.pairs), (two,), device=device)]
        side = torch.where(torch.rand(two, 1, device=device) < 0.5, -1.0, 1.0)
        middle = torch.cat([side * 0.48, torch.empty(two, 1, device=device).uniform_(-0.4, 0.4)], dim=1)
        scene = grounds(two, variant.side, data.texts)
        for column, at in ((0, middle), (1, -middle)):
            scene = over(placed(data.pictures[pairs[:, column]], variant.side, (0.4, 0.6), at), scene)
        rgb, texts = torch.cat([rgb, scene]), torch.cat([texts, pairs[:, 2]])
    return normal(rgb).contiguous(memory_format=torch.channels_last), texts


def contrastive(images: Tensor, texts: Tensor) -> Tensor:
    """InfoNCE in both directions (Oord et al. 2018, CLIP's form). Pairs of like captions are left out of the others."""
    scores = images @ texts.T / TEMPERATURE
    alike = (texts @ texts.T >= SAME).fill_diagonal_(False)
    scores = scores.masked_fill(alike, -math.inf)
    rows = torch.arange(len(scores), device=scores.device)
    return (F.cross_entropy(scores, rows) + F.cross_entropy(scores.T, rows)) / 2


def soft(texts: Tensor, vectors: Tensor, bank: Tensor) -> Tensor:
    """How far the pictures' likeness to all texts of the bank is from that of their own texts: a KL divergence."""
    aim = F.softmax(texts @ bank.T / TEMPERATURE, dim=-1)
    return F.kl_div(F.log_softmax(vectors @ bank.T / TEMPERATURE, dim=-1), aim, reduction="batchmean")


def train(
    start: VisionTower, data: Data, variant: Variant, *, steps: int, size: int, seed: int
) -> tuple[VisionTower, dict[str, Any]]:
    """A copy of `start` trained for `steps` steps of `size` pictures, its weights averaged over the last steps, and
    what was done. Trunk, classifier and residual map move."""
    torch.manual_seed(seed)
    device = data.texts.device
    tower = copy.deepcopy(start).to(device, memory_format=torch.channels_last)
    trunk, head = tower.trunk, tower.head
    slow, fast = [*trunk.parameters(), *head.classifier.parameters()], list(head.residual.parameters())
    every = slow + fast
    for weight in every:
        weight.requires_grad_(True)
    optimizer = torch.optim.AdamW([{"params": fast, "lr": 2e-3, "weight_decay": 0.1},
                                   {"params": slow, "lr": variant.rate, "weight_decay": 1e-4}])  # fmt: skip
    rates = [group["lr"] for group in optimizer.param_groups]
    average = [weight.detach().clone() for weight in every]
    bank = data.texts[torch.unique(data.ways[data.trained_on, 0])]
    began, losses = time.monotonic(), []
    for step in range(steps):
        done = step / steps
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * min(1, done / 0.1 + 0.02) * (0.5 + 0.5 * math.cos(math.pi * done))
        with torch.no_grad():
            pixels, rows = batch(data, variant, size)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            features = trunk(pixels)
            with torch.no_grad():
                old = start.head.classifier(start.trunk(pixels)) if variant.keep else None
        features = features.float()
        logits = head.classifier(features)
        mixed = F.softmax(logits / head.temperature, dim=-1) @ head.class_texts
        vectors = F.normalize(mixed + head.residual(F.dropout(features, 0.4)), dim=-1)
        texts = data.texts[rows]
        loss = contrastive(vectors, texts)
        if old is not None:
            now, before = F.log_softmax(logits, dim=-1), F.log_softmax(old.float(), dim=-1)
            loss = loss + variant.keep * F.kl_div(now, before, reduction="batchmean", log_target=True)
        if variant.distilled:
            loss = loss + variant.distilled * soft(texts, vectors, bank)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(every, 1.0)
        optimizer.step()
        torch._foreach_lerp_(average, [w.detach() for w in every], 1 - min(EMA, (step + 1) / (step + 10)))
        losses.append(loss.detach())
    with torch.no_grad():
        for weight, mean in zip(every, average, strict=True):
            weight.copy_(mean)
    first, last = (round(torch.stack(some).mean().item(), 3) for some in (losses[:8], losses[-8:]))
    return tower.eval().requires_grad_(False), {"loss": [first, last], "seconds": round(time.monotonic() - began, 1)}
