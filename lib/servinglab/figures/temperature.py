"""Figures of notebook 06: what a temperature does to one next-token distribution."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import ArrayLike

from servinglab import decoding
from servinglab.figures.palette import FAINT, INK, QUIET, STRATEGIES, WIDTH, tint

_COLOUR = STRATEGIES["temperature"]
_EDGE = "#9A6A00"  # the same orange, dark enough for a line or a small text


def token_bars(axes: Axes, tokens: Sequence[str], probabilities: ArrayLike) -> None:
    """One bar for each of `tokens`, the first on top, and one for all the others together; numbers beside them in %.

    probabilities: [tokens], a part of a distribution whose sum is 1.
    """
    values = [*np.asarray(probabilities), 1 - float(np.sum(probabilities))]
    colours = [tint(_COLOUR, 0.75)] * len(tokens) + [FAINT]
    axes.barh(range(len(values)), values, height=0.72, color=colours)
    for row, value in enumerate(values):
        axes.annotate(percent(value), (value, row), (3, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_yticks(range(len(values)), [*tokens, "all others"])
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.set_ylim(len(values) - 0.4, -0.6)
    axes.set_xlim(0, 1.32)  # room for "99.9 %" behind the longest bar
    axes.set_xticks([0, 0.5, 1])
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
    axes.set_xlabel("probability")


def percent(share: float) -> str:
    """ "12 %" or "1.3 %", with "< 0.1 %" for what is too small to read off a bar."""
    if 0 < share < 0.001:
        return "< 0.1 %"
    return f"{share:.0%}".replace("%", " %") if share >= 0.095 else f"{share:.1%}".replace("%", " %")


def probability_curves(temperatures: ArrayLike, logits: ArrayLike, ranks: Sequence[int]) -> Figure:
    """Probability of the tokens at some ranks against temperature, both axes logarithmic, with the limit 1/vocabulary.

    temperatures: ascending, above 0. logits: [vocab]. ranks: ascending, 1 is the likeliest token.
    """
    temperatures, logits = np.asarray(temperatures, float), np.asarray(logits, float)
    ids = np.argsort(-logits, kind="stable")[np.asarray(ranks) - 1]
    curves = np.array([decoding.softmax(logits, t)[ids] for t in temperatures])
    fig, axes = plt.subplots(figsize=(WIDTH, 3.9))
    axes.axvline(1, color=FAINT, linewidth=1.2)
    axes.axhline(1 / logits.size, color=QUIET, linewidth=1, linestyle=(0, (4, 3)))
    equal = f"1/{logits.size:,}:\nall equal"
    axes.annotate(equal, (1, 1 / logits.size), (5, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
                  va="center", fontsize=9)  # fmt: skip
    for rank, curve, share in zip(ranks, curves.T, np.linspace(1, 0.5, len(ranks)), strict=True):
        axes.plot(temperatures, curve, color=tint(_EDGE, share), linewidth=1.8)
        at = int(curve.argmax())
        if curve[at] < 2 * curve[-1]:  # no peak to write on, so on the way up
            at = int(np.argmax(curve > 3e-7))
            _beside(axes, f"rank {rank:,}", temperatures[at], curve[at], (6, -4))
        else:
            _beside(axes, f"rank {rank:,}", temperatures[at], curve[at], (4 * (at == 0), 3), "center" if at else "left")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylim(1e-7, 4)
    axes.set_xlim(temperatures[0], temperatures[-1])
    ticks = [t for t in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) if temperatures[0] <= t <= temperatures[-1]]
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("temperature T (no unit, logarithmic)")
    axes.set_ylabel("probability (logarithmic)")
    return fig


def _beside(axes: Axes, words: str, x: float, y: float, shift: tuple[int, int], ha: str = "left") -> None:
    axes.annotate(words, (x, y), shift, textcoords="offset points", ha=ha, va="bottom", fontsize=9)


def entropy_curves(temperatures: ArrayLike, curves: Mapping[str, ArrayLike], vocabulary: int) -> Figure:
    """Entropy against temperature, in nats on the left and in bits on the right, below log(vocabulary).

    temperatures: [n], ascending from near 0. curves: label → entropy in nats [n]; two prompts at most.
    """
    temperatures = np.asarray(temperatures, float)
    ceiling = math.log(vocabulary)
    fig, axes = plt.subplots(figsize=(WIDTH, 3.4))
    axes.axhline(ceiling, color=QUIET, linewidth=1, linestyle=(0, (4, 3)))
    _beside(axes, f"the most there is: {ceiling:.1f} nats = {ceiling / math.log(2):.1f} bits", 0, ceiling, (4, 3))
    axes.axvline(1, color=FAINT, linewidth=1.2)
    for place, (label, curve) in enumerate(curves.items()):
        axes.plot(temperatures, curve, color=_COLOUR, linewidth=2, linestyle=("-", (0, (5, 2)))[place % 2])
        at = np.searchsorted(temperatures, (0.95, 1.3)[place % 2])
        ha, shift = (("right", -8), ("left", 8))[place % 2]
        axes.annotate(label, (temperatures[at], curve[at]), (shift, 0), textcoords="offset points", ha=ha, va="center",
                      fontsize=9)  # fmt: skip
    axes.set_xlim(0, temperatures[-1])
    axes.set_ylim(0, ceiling * 1.12)
    axes.set_xlabel("temperature T (no unit)")
    axes.set_ylabel("entropy (nats)")
    bits = axes.secondary_yaxis("right", functions=(lambda nats: nats / math.log(2), lambda b: b * math.log(2)))
    bits.set_ylabel("entropy (bits)")
    return fig


def samples_against_exact(tokens: Sequence[str], panels: Mapping[str, tuple[ArrayLike, ArrayLike]]) -> Figure:
    """Exact probabilities as bars, shares of served samples as dots with 95 % intervals (Wilson); one panel a setting.

    tokens: labels, the first on top. panels: title → (probabilities [tokens], counts [tokens]); counts sum to the
    number of samples.
    """
    fig, row = plt.subplots(1, len(panels), figsize=(WIDTH, 1.3 + 0.27 * len(tokens)), sharey=True, squeeze=False)
    for axes, (title, (probabilities, counts)) in zip(row[0], panels.items(), strict=True):
        places = np.arange(len(tokens))
        axes.barh(places, probabilities, height=0.72, color=tint(_COLOUR, 0.55), label="exact probability")
        drawn = int(np.sum(counts))
        bounds = np.array([decoding.wilson_interval(int(count), drawn) for count in counts])
        axes.hlines(places, bounds[:, 0], bounds[:, 1], color=INK, linewidth=1.4)
        words = f"{drawn} served samples,\n95 % interval"
        axes.plot(np.asarray(counts) / drawn, places, "o", color=INK, markersize=4, label=words)
        axes.set_yticks(places, tokens)
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.set_ylim(len(tokens) - 0.4, -0.6)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
        axes.set_xlabel("probability")
        axes.set_title(title, fontsize=10)
    dots, bars = row[0][-1].get_legend_handles_labels()[0]
    row[0][-1].legend(handles=[bars, dots], loc="center right")
    return fig
