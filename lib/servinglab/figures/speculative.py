"""Figures of notebook 10: what two distributions share, what a draft gets right, and which draft length pays."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from servinglab.figures.style import CARD, DASHES, FAINT, INK, MODELS, QUIET, WIDTH, beside, tint

TARGET, DRAFT, KEPT = MODELS["tensorrt_llm"], MODELS["preprocessing"], MODELS["postprocessing"]


def overlap(words: Sequence[str], p: np.ndarray, q: np.ndarray) -> Figure:
    """Bars of p and q beside each other, with the part that both have filled: it is the probability of being kept."""
    fig, axes = plt.subplots(figsize=(WIDTH, 2.9))
    places, both = np.arange(len(words)), np.minimum(p, q)
    axes.bar(places - 0.2, q, 0.36, color=tint(DRAFT, 0.3), edgecolor=DRAFT, label="draft q")
    axes.bar(places + 0.2, p, 0.36, color=tint(TARGET, 0.3), edgecolor=TARGET, label="target p")
    for shift in (-0.2, 0.2):
        axes.bar(places + shift, both, 0.36, color=KEPT, label="min(p, q)" if shift > 0 else None)
    axes.set_xticks(places, words)
    axes.set(xlabel="next word", ylabel="probability")
    axes.legend(loc="upper right")
    return fig


def kept(tokens: Sequence[str], shared: Sequence[float], agree: Sequence[bool]) -> Figure:
    """For each token of an answer: the probability that a drawn draft is kept there; filled where both models have the
    same likeliest token."""
    fig, axes = plt.subplots(figsize=(WIDTH, 3.3))
    places = np.arange(len(tokens))
    colours = [KEPT if same else tint(KEPT, 0.2) for same in agree]
    axes.bar(places, shared, 0.75, color=colours, edgecolor=KEPT, linewidth=0.8)
    axes.axhline(float(np.mean(shared)), color=INK, linewidth=1.2)
    beside(axes, "mean", float(np.mean(shared)))
    axes.set_xticks(places, tokens, rotation=90)
    axes.set(
        xlim=(-0.7, len(tokens) - 0.3),
        ylim=(0, 1),
        xlabel="the token that the target wrote (filled: the draft's likeliest, too)",
        ylabel="probability of\nbeing kept",
    )
    return fig


def layers(counts: Sequence[int], agreement: Sequence[float], others: Mapping[str, tuple[float, float]]) -> Figure:
    """Agreement (0 to 1) of the first layers of a target with all of them, and of `others`: label → (layers, agreement)
    as points of their own."""
    fig, axes = plt.subplots(figsize=(WIDTH, 3.2))
    axes.plot(counts, 100 * np.asarray(agreement), "o-", color=TARGET, markersize=4, clip_on=False, zorder=3)
    for fill, (label, (count, share)) in zip(itertools.cycle((INK, CARD)), others.items(), strict=False):
        axes.plot(count, 100 * share, "D", color=INK, markerfacecolor=fill, markersize=7, clip_on=False, zorder=4,
                  label=label)  # fmt: skip
    axes.legend(loc="upper center")
    axes.set(xlim=(0, max(counts)), ylim=(0, 100), xlabel="layers that are computed", ylabel="tokens guessed right (%)")
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    return fig


def cost_model(
    lengths: Sequence[int],
    tokens: tuple[Sequence[float], Sequence[float]],
    speedups: tuple[Sequence[float], Sequence[float]],
) -> Figure:
    """Tokens a step (left) and speed-up (right) over the draft length: each (predicted, measured), lines and dots."""
    fig, panels = plt.subplots(1, 2, figsize=(WIDTH, 3.3))
    labels = ("tokens a step of the target", "speed-up (times as fast as without)")
    for axes, (predicted, measured), label in zip(panels, (tokens, speedups), labels, strict=True):
        axes.plot(lengths, predicted, color=DRAFT, linewidth=2, label="predicted")
        axes.plot(lengths, measured, "o", color=INK, markersize=6, label="measured", zorder=3)
        axes.axhline(1, color=QUIET, linewidth=1, linestyle=DASHES)
        axes.set_xticks(list(lengths))
        axes.set(ylim=(0, 1.12 * max(*predicted, *measured)), xlabel="draft length k (tokens)")
        axes.set_title(label, fontsize=10)
        axes.legend(loc="best")
    return fig
