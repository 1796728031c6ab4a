"""Training of mini-CLIP's head on features that the frozen trunk computed once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from cliplab import retrieval
from cliplab.mini_clip import Head

SAME = 0.9  # captions at least this similar are not told apart


@dataclass(frozen=True)
class Examples:
    """features [n, 1280]; texts: two ways to say what each picture shows, [n, 2, 384]."""

    features: Tensor
    texts: Tensor

    def to(self, device: str) -> Examples:
        return Examples(self.features.to(device), self.texts.to(device))

    def rows(self, chosen: Tensor) -> Examples:
        return Examples(self.features[chosen], self.texts[chosen])


def contrastive(images: Tensor, texts: Tensor, temperature: float) -> Tensor:
    """InfoNCE in both directions (Oord et al. 2018, CLIP's form). Pairs of like captions are left out of the others."""
    scores = images @ texts.T / temperature
    alike = (texts @ texts.T >= SAME).fill_diagonal_(False)
    scores = scores.masked_fill(alike, -math.inf)
    rows = torch.arange(len(scores), device=scores.device)
    return (F.cross_entropy(scores, rows) + F.cross_entropy(scores.T, rows)) / 2


def train(
    head: Head,
    examples: Examples,
    *,
    steps: int,
    batch: int = 1024,
    rate: float = 1e-3,
    decay: float = 0.1,
    dropout: float = 0.3,
    temperature: float = 0.05,
    seed: int = 0,
    watch: Callable[[Head], dict[str, Any]],
    every: int = 50,
) -> list[dict[str, Any]]:
    """Train `head.residual` in place. The curve: step, loss and what `watch` says, every so many steps."""
    generator = torch.Generator().manual_seed(seed)
    head.requires_grad_(False)
    head.residual.requires_grad_(True)
    with torch.inference_mode():
        fixed = head.conse(examples.features)
    fixed = fixed.clone()

    def images(rows: Tensor) -> Tensor:
        kept = (torch.rand(examples.features.shape[1], generator=generator) >= dropout).float() / (1 - dropout)
        seen = examples.features[rows] * kept.to(fixed.device)
        return F.normalize(fixed[rows] + head.residual(seen), dim=-1)

    optimizer = torch.optim.AdamW(head.residual.parameters(), lr=rate, weight_decay=decay)
    warm = 0.1 if steps != 10 else 0.2  # torch would divide by 0.1 * 10 - 1
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=warm)
    curve = []
    for step in range(1, steps + 1):
        rows = torch.randperm(len(examples.texts), generator=generator)[:batch]
        way = torch.randint(2, (len(rows),), generator=generator)
        loss = contrastive(images(rows), examples.texts[rows, way], temperature)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % every == 0 or step == steps:
            curve.append({"step": step, "loss": round(float(loss.detach()), 4), **watch(head)})
    head.requires_grad_(False)
    return curve


@torch.inference_mode()
def recalls(head: Head, features: Tensor, texts: Tensor, captions: Sequence[str]) -> dict[int, float]:
    """Recall at 1 and at 10 of pictures with these features by their captions' vectors."""
    ranks = retrieval.ranks((texts @ head(features).T).cpu().numpy(), captions)
    return {k: float(np.mean(ranks <= k)) for k in (1, 10)}
