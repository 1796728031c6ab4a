"""Figures of notebook 10: what two distributions share, what a draft gets right, what it brings, which length pays."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from servinglab.figures.style import DASHES, INK, MODELS, QUIET, WIDTH, beside, tint

TARGET, DRAFT, KEPT = MODELS["tensorrt_llm"], MODELS["preprocessing"], MODELS["postprocessing"]


def overlap(words: Sequence[str], p: np.ndarray, q: np.ndarray) -> Figure:
    """Bars of p and q beside each other, with the part that both have filled: it is the probability of being kept."""
    fig, axes = plt.subplots(figsize=(WIDTH, 2.9))
    places, both = np.arange(len(words)), np.minimum(p, q)
    for shift, values, colour, label in ((-0.2, q, DRAFT, "draft q"), (0.2, p, TARGET, "target p")):
        axes.bar(places + shift, values, 0.36, color=tint(colour, 0.3), edgecolor=colour, label=label)
        axes.bar(places + shift, both, 0.36, color=KEPT, label="min(p, q)" if shift > 0 else None)
    axes.set_xticks(places, words)
    axes.set(xlabel="next word", ylabel="probability")
    axes.legend(loc="upper right")
    return fig


def bars(places: Sequence[str], series: Mapping[str, Sequence[float]], label: str, words: str = "") -> Figure:
    """For each place a bar of every series, beside each other. ``words``: how a value is written on its bar."""
    fig, axes = plt.subplots(figsize=(WIDTH, 2.9))
    colours = {"draft q": DRAFT, "draft model": DRAFT, "target p": TARGET, "no draft": TARGET}
    others, width = iter((KEPT, MODELS["tensorrt_llm_bls"], MODELS["ensemble"])), 0.8 / max(2, len(series))
    for number, (name, values) in enumerate(series.items()):
        at = np.arange(len(places)) + width * (number - (len(series) - 1) / 2)
        colour = colours.get(name) or next(others)
        drawn = axes.bar(at, values, 0.93 * width, color=tint(colour, 0.6), label=name)
        if words:
            axes.bar_label(drawn, [words.format(value) for value in values], padding=2)
    axes.set_xticks(range(len(places)), places)
    axes.set_ylabel(label)
    if len(series) > 1:
        axes.legend(loc="upper right")
    return fig


def kept(tokens: Sequence[str], shared: Sequence[float], agree: Sequence[bool]) -> Figure:
    """For each token of an answer: the probability that a drawn draft is kept there; filled where both models have the
    same likeliest token."""
    fig, axes = plt.subplots(figsize=(WIDTH, 3.3))
    colours = [KEPT if same else tint(KEPT, 0.2) for same in agree]
    axes.bar(range(len(tokens)), shared, 0.75, color=colours, edgecolor=KEPT, linewidth=0.8)
    axes.axhline(float(np.mean(shared)), color=INK, linewidth=1.2)
    beside(axes, "mean", float(np.mean(shared)))
    axes.set_xticks(range(len(tokens)), tokens, rotation=90)
    axes.set(xlim=(-0.7, len(tokens) - 0.3), ylim=(0, 1), ylabel="probability of\nbeing kept")
    axes.set_xlabel("the token that the target wrote (filled: the draft's likeliest, too)")
    return fig


def verify(cost: Mapping[int, float], ratios: np.ndarray) -> Figure:
    """Number of guesses → cost of the step that reads them, in plain steps; a small dot for each of its measurements,
    a row of ``ratios``. Dashed: a step for each token."""
    fig, axes = plt.subplots(figsize=(WIDTH, 2.9))
    most = max(cost)
    axes.plot([0, most], [1, most + 1], color=QUIET, linewidth=1.2, linestyle=DASHES)
    beside(axes, "a step for\neach token", most + 1)
    axes.plot(np.repeat(list(cost), ratios.shape[1]), ratios.ravel(), ".", color=tint(TARGET, 0.4), markersize=4)
    axes.plot(cost.keys(), cost.values(), "o-", color=TARGET, markersize=5)
    beside(axes, "measured", cost[most])
    axes.set(ylim=(0, most + 1.5), xlim=(-0.2, most + 0.2), xticks=range(most + 1))
    axes.set(xlabel="guesses that one step reads", ylabel="time of the step,\nin plain steps")
    return fig


Pair = tuple[Sequence[float], Sequence[float]]  # predicted, measured


def cost_model(lengths: Sequence[int], tokens: Pair, speedups: Pair) -> Figure:
    """Tokens a step (left) and speed-up (right) over the draft length: each (predicted, measured), lines and dots."""
    fig, panels = plt.subplots(1, 2, figsize=(WIDTH, 3.3))
    labels = ("tokens a step of the target", "speed-up (times as fast as without)")
    for axes, (predicted, measured), label in zip(panels, (tokens, speedups), labels, strict=True):
        axes.plot(lengths, predicted, color=DRAFT, linewidth=2, label="predicted")
        axes.plot(lengths, measured, "o", color=INK, markersize=6, label="measured", zorder=3)
        axes.axhline(1, color=QUIET, linewidth=1, linestyle=DASHES)
        axes.set(xticks=lengths, ylim=(0, 1.12 * max(*predicted, *measured)))
        axes.set(xlabel="guesses a round", title=label)
        axes.legend(loc="best")
    return fig
