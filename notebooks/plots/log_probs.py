"""Figures of notebook 08: a product that vanishes, the surprise of a text, and whom to believe."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from servinglab.figures.style import CARD, DASHES, INK, QUIET, WIDTH, beside, dots, note, tint, wilson

# Meanings of this notebook alone, in the course's colours.
DTYPES = {"float16": "#56B4E9", "float32": "#E69F00", "float64": "#009E73"}
RIGHT, WRONG = "#0072B2", "#D55E00"


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
        axes.axhspan(low, high, color=tint(colour, 0.35), linewidth=0)
        axes.plot(tokens[:alive], np.log10(product[:alive]), color=colour, linewidth=5, alpha=0.8)
        axes.plot(tokens, logs[:shown], color=INK, linewidth=1.2, marker="o" if shown < 20 else "", markersize=3)
        note(axes, "subnormal", 0.03, low, (0, -3), xycoords=("axes fraction", "data"), va="top")
        lowest = min(low * 1.15, logs[shown - 1] * 1.05)
        gone = f"0 at token {alive + 1}" if alive < len(product) else "not 0 yet"
        axes.set(xlim=(0, shown + 0.5), ylim=(lowest, 0), xlabel="tokens multiplied", title=f"{name}: {gone}")
    panels[0, 0].set_ylabel("log10 of the probability")
    return fig


def surprise(texts: Mapping[str, tuple[Sequence[str], Sequence[float]]]) -> Figure:
    """-log p in nats of every token but the first, a panel for each text: name -> (pieces [T], log probs [T - 1])."""
    fig, panels = plt.subplots(len(texts), 1, figsize=(WIDTH, 0.7 + 1.75 * len(texts)), sharey=True, squeeze=False)
    for index, (axes, (name, (pieces, log_probs))) in enumerate(zip(panels.flat, texts.items(), strict=True)):
        colour, values = WRONG if index else RIGHT, -np.asarray(log_probs)  # the first is the one that makes sense
        axes.bar(range(1, len(pieces)), values, width=0.75, color=tint(colour, 0.6))
        axes.axhline(values.mean(), color=INK, linewidth=1)
        beside(axes, f"mean\n{values.mean():.1f} nats", values.mean())
        axes.set_xticks(range(len(pieces)), [piece.strip() or "␣" for piece in pieces], rotation=30, ha="right")
        axes.tick_params(axis="x", length=0, labelcolor=INK)
        axes.set(xlim=(-0.6, len(pieces) - 0.4), ylabel="surprise (nats)", title=name)
    return fig


def reliability(signals: Mapping[str, np.ndarray], outcomes: np.ndarray, bins: int = 5) -> Figure:
    """How often answers are right against the confidence given, with Wilson's 95 % intervals and counts.

    signals: name → confidence of each answer, 0 to 1 [N]. outcomes: right or not [N]. Bins are equally wide, and a dot
    stands at the mean confidence of its bin.
    """
    fig, row = plt.subplots(1, len(signals), figsize=(WIDTH, 3.7), sharey=True, squeeze=False)
    for axes, (name, confidences) in zip(row.flat, signals.items(), strict=True):
        axes.plot([0, 1], [0, 1], color=QUIET, linewidth=1, linestyle=DASHES)
        bin_of = np.minimum((confidences * bins).astype(int), bins - 1)
        for rights, values in ((outcomes[bin_of == b], confidences[bin_of == b]) for b in np.unique(bin_of)):
            axes.vlines(values.mean(), *wilson(int(rights.sum()), rights.size), color=tint(RIGHT, 0.5), linewidth=3)
            axes.plot(values.mean(), rights.mean(), "o", color=RIGHT)
            note(axes, f"{rights.size}", values.mean(), rights.mean(), bbox={"fc": CARD, "ec": "none", "pad": 0.5})
        axes.set(xlim=(0, 1), ylim=(-0.02, 1.02), xlabel="confidence (mean of the bin)", title=name)
    row[0, 0].set_ylabel("share of right answers")
    return fig


def kept(axes: Axes, confidences: np.ndarray, outcomes: np.ndarray, threshold: float) -> None:
    """Every answer as a dot at its confidence, right ones above, and how many of each a threshold keeps."""
    share = outcomes[confidences >= threshold].mean() if (confidences >= threshold).any() else 0
    axes.axvspan(threshold, 1, color=tint(RIGHT, 0.12), linewidth=0)
    axes.axvline(threshold, ymin=0.22, color=INK, linewidth=1)  # the share stands below it
    for row, (mask, colour) in enumerate(((outcomes, RIGHT), (~outcomes, WRONG))):
        dots(axes, np.sort(confidences[mask]), row, colour, alpha=0.6)
        note(axes, f"{(confidences[mask] >= threshold).sum()} kept", 0.98, row - 0.33, (0, 0), ha="right")
    note(axes, f"{share:.0%} right", 0.98, 1.4, (0, 0), ha="right")
    axes.set_yticks((0, 1), ("right", "wrong"))
    axes.set(xlim=(0, 1), ylim=(1.65, -0.6), xlabel="probability of the answer")
