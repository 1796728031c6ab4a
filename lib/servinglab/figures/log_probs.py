"""Figures of notebook 08: a product that vanishes, what logs cost, the surprise of a text, and whom to believe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from servinglab.decoding import Reliability, wilson_interval
from servinglab.figures.style import CARD, INK, QUIET, WIDTH, beside, name_rows, note, tint

# Meanings of this notebook alone: "C0" and so on are the course's colours.
DTYPES = {"float16": "C5", "float32": "C1", "float64": "C2"}
RIGHT, WRONG = "C0", "C4"


def underflow(products: Mapping[str, np.ndarray], log_sum: np.ndarray) -> Figure:
    """Running products [T], a panel for each dtype, with the running sum of natural logs [T]; both as log10.

    A product's line ends at its last value above 0; the panel's title names the token at which it is 0, counted from 1.
    """
    fig, panels = plt.subplots(1, len(products), figsize=(WIDTH, 3.6), squeeze=False)
    logs = np.asarray(log_sum) / np.log(10)
    for axes, (name, product) in zip(panels.flat, products.items(), strict=True):
        product = np.asarray(product, np.float64)
        alive = int((product > 0).sum())
        shown = min(len(product), max(int(alive * 1.35), alive + 2))
        tokens, colour, limits = np.arange(1, shown + 1), DTYPES[name], np.finfo(name)
        low, high = np.log10(float(limits.smallest_subnormal)), np.log10(float(limits.tiny))
        axes.axhspan(low, high, color=_pale(colour, 0.35), linewidth=0)
        axes.plot(tokens[:alive], np.log10(product[:alive]), color=colour, linewidth=5, alpha=0.8)
        axes.plot(tokens, logs[:shown], color=INK, linewidth=1.2, marker="o" if shown < 20 else "", markersize=3)
        note(axes, "subnormal", 0.03, low, (0, -3), xycoords=("axes fraction", "data"), va="top")
        axes.set_ylim(min(low * 1.15, logs[shown - 1] * 1.05), 0)
        axes.set(xlim=(0, shown + 0.5), xlabel="tokens multiplied")
        gone = f"0 at token {alive + 1}" if alive < len(product) else "not 0 yet"
        axes.set_title(f"{name}: {gone}", fontsize=10)
    panels[0, 0].set_ylabel("log10 of the probability")
    return fig


def costs(samples: Mapping[str, Sequence[float]]) -> Figure:
    """Nanoseconds a token of each way, one row each: every repetition as a dot, the median as a line and in words."""
    fig, axes = plt.subplots(figsize=(WIDTH, 0.9 + 0.31 * len(samples)))
    for row, values in enumerate(samples.values()):
        axes.plot(values, np.full(len(values), row), "o", color="C0", alpha=0.4, markersize=4, markeredgewidth=0)
        middle = float(np.median(values))
        axes.plot([middle, middle], [row - 0.32, row + 0.32], color=INK, linewidth=1.6)
        beside(axes, in_words(middle), row, fontsize=10)
    name_rows(axes, list(samples))
    axes.spines["left"].set_visible(False)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(1000))
    axes.xaxis.set_major_formatter(lambda value, _: in_words(value).replace(".0", ""))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("time for one token (logarithmic)")
    return fig


def in_words(nanoseconds: float) -> str:
    """ "0.61 ns", "960 µs", "22 ms": two digits, in the unit that fits."""
    power = min(max(int(np.log10(nanoseconds * 1.0005)) // 3, 0), 3)
    value = nanoseconds / 1000**power
    digits = 0 if value >= 9.95 else 1 if value >= 0.995 else 2
    return f"{value:.{digits}f} {('ns', 'µs', 'ms', 's')[power]}"


def surprise(texts: Mapping[str, tuple[Sequence[str], Sequence[float]]]) -> Figure:
    """-log p in nats of every token but the first, a panel for each text: name -> (pieces [T], log probs [T - 1])."""
    fig, panels = plt.subplots(len(texts), 1, figsize=(WIDTH, 0.7 + 1.75 * len(texts)), sharey=True, squeeze=False)
    for index, (axes, (name, (pieces, log_probs))) in enumerate(zip(panels.flat, texts.items(), strict=True)):
        colour, values = WRONG if index else RIGHT, -np.asarray(log_probs)  # the first is the one that makes sense
        axes.bar(range(1, len(pieces)), values, width=0.75, color=_pale(colour, 0.6))
        axes.axhline(values.mean(), color=INK, linewidth=1)
        beside(axes, f"mean\n{values.mean():.1f} nats", values.mean())
        axes.set_xticks(range(len(pieces)), [piece.strip() or "␣" for piece in pieces], rotation=30, ha="right")
        axes.tick_params(axis="x", length=0, labelcolor=INK)
        axes.set(xlim=(-0.6, len(pieces) - 0.4), ylabel="surprise (nats)")
        axes.set_title(name, fontsize=10)
    return fig


def reliability(panels: Mapping[str, Reliability]) -> Figure:
    """How often answers are right against the confidence given, with Wilson's 95 % intervals and counts."""
    fig, row = plt.subplots(1, len(panels), figsize=(WIDTH, 3.7), sharey=True, squeeze=False)
    for axes, (name, bins) in zip(row.flat, panels.items(), strict=True):
        axes.plot([0, 1], [0, 1], color=QUIET, linewidth=1, linestyle="--")
        for x, y, n in zip(bins.confidence, bins.accuracy, bins.count, strict=True):
            axes.vlines(x, *wilson_interval(round(y * n), int(n)), color=_pale(RIGHT, 0.5), linewidth=3)
            card = {"facecolor": CARD, "edgecolor": "none", "pad": 0.5}  # over the dashed line
            note(axes, f"{n}", x, y, bbox=card)
        axes.plot(bins.confidence, bins.accuracy, "o", color=RIGHT)
        axes.set(xlim=(0, 1), ylim=(-0.02, 1.02), xlabel="confidence (mean of the bin)")
        axes.set_title(name, fontsize=10)
    row[0, 0].set_ylabel("share of right answers")
    return fig


def trade(thresholds: Sequence[float], confidences: Sequence[float], outcomes: Sequence[bool]) -> Figure:
    """Precision (with its 95 % interval) and coverage of the answers whose confidence reaches each threshold."""
    confidences, outcomes = np.asarray(confidences), np.asarray(outcomes, bool)
    rows = []
    for threshold in thresholds:
        kept = outcomes[confidences >= threshold]
        if kept.size:
            bounds = wilson_interval(int(kept.sum()), kept.size)
            rows.append((threshold, kept.size / outcomes.size, kept.mean(), *bounds))
    at, coverage, precision, low, high = np.array(rows).T
    fig, axes = plt.subplots(figsize=(WIDTH, 3.3))
    axes.fill_between(at, low, high, color=_pale(RIGHT, 0.25), linewidth=0)
    axes.plot(at, precision, color=RIGHT)
    axes.plot(at, coverage, color="C1")
    note(axes, "right among\nthose kept\n(band: 95 %)", at[-1], precision[-1], fontsize=10)
    note(axes, "share kept", at[-1], coverage[-1], fontsize=10)
    axes.set(xlim=(0, max(at[-1], 0.05)), ylim=(0, 1.02), xlabel="threshold on the probability of the answer")
    axes.set_ylabel("share")
    return fig


def kept(axes: Axes, confidences: np.ndarray, outcomes: np.ndarray, threshold: float) -> None:
    """Every answer as a dot at its confidence, right ones above, and how many of each a threshold keeps."""
    axes.axvspan(threshold, 1, color=_pale(RIGHT, 0.12), linewidth=0)
    axes.axvline(threshold, color=INK, linewidth=1)
    for row, (mask, colour) in enumerate(((outcomes, RIGHT), (~outcomes, WRONG))):
        values = np.sort(confidences[mask])
        spread = np.resize([-0.15, 0.05, -0.05, 0.15, 0.0], len(values))  # so that equal values do not hide each other
        axes.plot(values, row + spread, "o", color=colour, alpha=0.6, markersize=4, markeredgewidth=0)
        note(axes, f"{(values >= threshold).sum()} kept", 0.98, row - 0.33, (0, 0), ha="right")
    axes.set_yticks((0, 1), ("right", "wrong"))
    axes.set(xlim=(0, 1), ylim=(1.5, -0.6), xlabel="probability of the answer")


def _pale(colour: str, share: float) -> str:
    return tint(to_hex(colour), share)
