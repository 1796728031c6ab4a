"""Figures of notebook 06: what a temperature does to one next-token distribution."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import ArrayLike

from servinglab import decoding
from servinglab.figures.style import DASHES, FAINT, INK, QUIET, STRATEGIES, WIDTH, beside, name_rows, note, tint

_COLOUR = STRATEGIES["temperature"]
_EDGE = "#9A6A00"  # the same orange, dark enough for a line or a small text


def token_bars(axes: Axes, tokens: Sequence[str], probabilities: ArrayLike) -> None:
    """One bar for each of `tokens`, the first on top, and one for all the others together; numbers beside them in %.

    probabilities: [tokens], a part of a distribution whose sum is 1.
    """
    values = [*np.asarray(probabilities), 1 - float(np.sum(probabilities))]
    axes.barh(range(len(values)), values, height=0.72, color=[tint(_COLOUR, 0.75)] * len(tokens) + [FAINT])
    for row, value in enumerate(values):
        note(axes, percent(value), value, row, (3, 0))
    name_rows(axes, [*tokens, "all others"])
    axes.set_xlim(0, 1.32)  # room for "99.9 %" behind the longest bar
    axes.set_xticks([0, 0.5, 1])
    in_percent(axes.xaxis)
    axes.set_xlabel("probability")


def percent(share: float) -> str:
    """ "12 %" or "1.3 %", with "< 0.1 %" for what is too small to read off a bar."""
    if 0 < share < 0.001:
        return "< 0.1 %"
    return f"{100 * share:.{0 if share >= 0.095 else 1}f} %"


def in_percent(axis: Axis) -> None:
    axis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))


def probability_curves(temperatures: ArrayLike, logits: ArrayLike, ranks: Sequence[int]) -> Figure:
    """Probability of the tokens at some ranks against temperature, both axes logarithmic, with the limit 1/vocabulary.

    temperatures: ascending, above 0. logits: [vocab]. ranks: ascending, 1 is the likeliest token.
    """
    temperatures, logits = np.asarray(temperatures, float), np.asarray(logits, float)
    ids = np.argsort(-logits, kind="stable")[np.asarray(ranks) - 1]
    curves = np.array([decoding.softmax(logits, t)[ids] for t in temperatures])
    fig, axes = plt.subplots(figsize=(WIDTH, 3.9))
    axes.axvline(1, color=FAINT, linewidth=1.2)
    axes.axhline(1 / logits.size, color=QUIET, linewidth=1, linestyle=DASHES)
    beside(axes, f"1/{logits.size:,}:\nall equal", 1 / logits.size)
    for rank, curve, share in zip(ranks, curves.T, np.linspace(1, 0.5, len(ranks)), strict=True):
        axes.plot(temperatures, curve, color=tint(_EDGE, share), linewidth=1.8)
        at, shift, ha = int(curve.argmax()), (0, 3), "center"
        if at == 0:
            shift, ha = (4, 3), "left"
        if curve[at] < 2 * curve[-1]:  # no peak to write on, so on the way up
            at, shift, ha = int(np.argmax(curve > 3e-7)), (6, -4), "left"
        note(axes, f"rank {rank:,}", temperatures[at], curve[at], shift, ha=ha, va="bottom")
    axes.set(xscale="log", yscale="log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set(ylim=(1e-7, 4), xlim=(temperatures[0], temperatures[-1]))
    ticks = [t for t in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) if temperatures[0] <= t <= temperatures[-1]]
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.set_xticks([], minor=True)
    axes.set(xlabel="temperature T (no unit, logarithmic)", ylabel="probability (logarithmic)")
    return fig


def entropy_curves(temperatures: ArrayLike, curves: Mapping[str, ArrayLike], vocabulary: int) -> Figure:
    """Entropy against temperature, in nats on the left and in bits on the right, below log(vocabulary).

    temperatures: [n], ascending from near 0. curves: label → entropy in nats [n]; two prompts at most.
    """
    temperatures = np.asarray(temperatures, float)
    most, bit = math.log(vocabulary), math.log(2)
    fig, axes = plt.subplots(figsize=(WIDTH, 3.4))
    axes.axhline(most, color=QUIET, linewidth=1, linestyle=DASHES)
    note(axes, f"the most there is: {most:.1f} nats = {most / bit:.1f} bits", 0, most, (4, 3), va="bottom")
    axes.axvline(1, color=FAINT, linewidth=1.2)
    looks = (("-", 0.95, -8, "right"), ((0, (5, 2)), 1.3, 8, "left"))
    for (label, curve), (dashes, where, shift, ha) in zip(curves.items(), looks, strict=False):
        axes.plot(temperatures, curve, color=_COLOUR, linewidth=2, linestyle=dashes)
        at = np.searchsorted(temperatures, where)
        note(axes, label, temperatures[at], curve[at], (shift, 0), ha=ha)
    axes.set(
        xlim=(0, temperatures[-1]), ylim=(0, most * 1.12), xlabel="temperature T (no unit)", ylabel="entropy (nats)"
    )
    bits = axes.secondary_yaxis("right", functions=(lambda nats: nats / bit, lambda bits: bits * bit))
    bits.set_ylabel("entropy (bits)")
    return fig


def samples_against_exact(tokens: Sequence[str], panels: Mapping[str, tuple[ArrayLike, ArrayLike]]) -> Figure:
    """Exact probabilities as bars, shares of served samples as dots with 95 % intervals (Wilson); one panel a setting.

    tokens: labels, the first on top. panels: title → (probabilities [tokens], counts [tokens]); counts sum to the
    number of samples.
    """
    fig, row = plt.subplots(1, len(panels), figsize=(WIDTH, 1.3 + 0.27 * len(tokens)), sharey=True, squeeze=False)
    for axes, (title, (probabilities, counts)) in zip(row.flat, panels.items(), strict=True):
        axes.barh(range(len(tokens)), probabilities, 0.72, color=tint(_COLOUR, 0.55), label="exact probability")
        sample_dots(axes, counts, f"{np.sum(counts)} served samples,\n95 % interval")
        name_rows(axes, tokens)
        axes.set_xlabel("probability")
        axes.set_title(title, fontsize=10)
    dots, bars = axes.get_legend_handles_labels()[0]
    axes.legend(handles=[bars, dots], loc="center right")
    return fig


def sample_dots(axes: Axes, counts: ArrayLike, label: str) -> None:
    """The share of each count in their sum, row by row: a dot in its 95 % interval (Wilson), in percent."""
    rows, drawn = np.arange(len(counts)), int(np.sum(counts))
    low, high = np.transpose([decoding.wilson_interval(int(count), drawn) for count in counts])
    axes.hlines(rows, low, high, color=INK, linewidth=1.4)
    axes.plot(np.asarray(counts) / drawn, rows, "o", color=INK, markersize=4, label=label)
    axes.set_xlim(left=0)
    in_percent(axes.xaxis)
