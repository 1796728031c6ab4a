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

from cliplab.mini_clip import VisionTower
from cliplab.prepare import MEAN, SCALE
from cliplab.training import contrastive

EMA = 0.99
BLANK = 1.0  # white


@dataclass(frozen=True)
class Variant:
    """What is trained and how. trained: how many of the trunk's blocks, from the last, -1 for the whole trunk."""

    name: str
    kind: str = "lite0"
    size: int = 224
    trained: int = -1
    rate: float = 1e-4
    keep: float = 1.0  # weight of staying with the packaged classifier's answers
    distilled: float = 1.0  # weight of matching how near the text is to all other texts
    ways: int = 4  # of saying what a picture shows
    scenes: float = 0.0  # share of pictures of two things
    share: float = 1.0  # of the time


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


def plain(pictures: Tensor, size: int) -> Tensor:
    """uint8 [n, 256, 256, 4] on white, as prepare.to_array makes them: float32 [n, 3, size, size]."""
    x = pictures.permute(0, 3, 1, 2).float() / 255
    rgb = x[:, :3] * x[:, 3:] + BLANK * (1 - x[:, 3:])
    if size != rgb.shape[-1]:
        rgb = F.interpolate(rgb, (size, size), mode="bicubic", antialias=True, align_corners=False).clamp(0, 1)
    return normal(rgb)


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
    ways = torch.randint(variant.ways, (len(rows),), device=device)
    rgb = over(placed(data.pictures[rows], variant.size, (0.45, 1.0)), grounds(len(rows), variant.size, data.texts))
    texts = data.ways[rows, ways]
    if two:
        pairs = data.pairs[torch.randint(len(data.pairs), (two,), device=device)]
        side = torch.where(torch.rand(two, 1, device=device) < 0.5, -1.0, 1.0)
        middle = torch.cat([side * 0.48, torch.empty(two, 1, device=device).uniform_(-0.4, 0.4)], dim=1)
        scene = grounds(two, variant.size, data.texts)
        for column, at in ((0, middle), (1, -middle)):
            scene = over(placed(data.pictures[pairs[:, column]], variant.size, (0.4, 0.6), at), scene)
        rgb, texts = torch.cat([rgb, scene]), torch.cat([texts, pairs[:, 2]])
    return normal(rgb).contiguous(memory_format=torch.channels_last), texts


def soft(texts: Tensor, vectors: Tensor, bank: Tensor, temperature: float) -> Tensor:
    """How far the pictures' likeness to all texts of the bank is from that of their own texts: a KL divergence."""
    aim = F.softmax(texts @ bank.T / temperature, dim=-1)
    return F.kl_div(F.log_softmax(vectors @ bank.T / temperature, dim=-1), aim, reduction="batchmean")


def train(
    start: VisionTower, data: Data, variant: Variant, *, seconds: float, steps: int, size: int, seed: int
) -> tuple[VisionTower, dict[str, Any]]:
    """A trained copy of `start`, its weights averaged over the last steps, and what was done.

    It makes `steps` steps of `size` pictures, or as many as fit into `seconds`, which the first ones are timed for.
    """
    torch.manual_seed(seed)
    device = data.texts.device
    tower = copy.deepcopy(start).to(device, memory_format=torch.channels_last)
    trunk, head = tower.trunk, tower.head
    tower.requires_grad_(False)
    slow = []
    if variant.trained:
        parts = [trunk] if variant.trained < 0 else [*trunk.blocks, trunk.head][-variant.trained :]
        slow = [weight for part in (*parts, head.classifier) for weight in part.parameters()]
    fast = list(head.residual.parameters())
    for weight in slow + fast:
        weight.requires_grad_(True)
    groups = [{"params": fast, "lr": 2e-3, "weight_decay": 0.1}]
    groups += [{"params": slow, "lr": variant.rate, "weight_decay": 1e-4}] if slow else []
    optimizer = torch.optim.AdamW(groups)
    rates = [group["lr"] for group in groups]
    every, average = slow + fast, [w.detach().clone() for w in slow + fast]
    bank = data.texts[torch.unique(data.ways[data.trained_on, 0])]
    began, step, total, losses = time.monotonic(), 0, steps, []
    while step < total:
        if step == 8:
            timed = time.monotonic()
        if step == 16:  # by now kernels are chosen
            losses[-1].item()
            each = (time.monotonic() - timed) / 8
            total = max(17, min(steps, 16 + int((seconds - (time.monotonic() - began)) / each)))
        done = step / max(total, 17)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * min(1, done / 0.1 + 0.02) * (0.5 + 0.5 * math.cos(math.pi * done))
        with torch.no_grad():
            pixels, rows = batch(data, variant, size)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            features = trunk(pixels)
            with torch.no_grad():
                old = start.head.classifier(start.trunk(pixels)) if variant.trained and variant.keep else None
        features = features.float()
        logits = head.classifier(features)
        mixed = F.softmax(logits / head.temperature, dim=-1) @ head.class_texts
        vectors = F.normalize(mixed + head.residual(F.dropout(features, 0.4)), dim=-1)
        texts = data.texts[rows]
        loss = contrastive(vectors, texts, 0.07)
        if old is not None:
            now, before = F.log_softmax(logits, dim=-1), F.log_softmax(old.float(), dim=-1)
            loss = loss + variant.keep * F.kl_div(now, before, reduction="batchmean", log_target=True)
        if variant.distilled:
            loss = loss + variant.distilled * soft(texts, vectors, bank, 0.07)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(every, 1.0)
        optimizer.step()
        step += 1
        torch._foreach_lerp_(average, [w.detach() for w in every], 1 - min(EMA, step / (step + 9)))
        losses.append(loss.detach())
    with torch.no_grad():
        for weight, mean in zip(every, average, strict=True):
            weight.copy_(mean)
    first, last = (round(torch.stack(some).mean().item(), 3) for some in (losses[:8], losses[-8:]))
    said = {"steps": total, "batch": size, "loss": [first, last], "seconds": round(time.monotonic() - began, 1)}
    return tower.eval().requires_grad_(False), said
