"""Figures of notebook 07: one distribution under a microscope, samples against it, and what a strategy costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from servinglab.figures.style import CARD, DASHES, FAINT, INK, QUIET, STRATEGIES, WIDTH, name_rows, note, tint
from servinglab.figures.temperature import in_percent, percent, sample_dots

_BLUES = (STRATEGIES["top_k"], "#0072B2", "#00304D")  # one family, light to dark
_COLOURS = {**STRATEGIES, "model": QUIET, "penalty": INK}


def microscope(
    steps: Sequence[tuple[str, str, ArrayLike]], tokens: Mapping[int, str], previous: ArrayLike | None = None
) -> Figure:
    """The same tokens after each step of a strategy, one panel a step; see `zoom` for what a panel shows.

    steps: (title, colour by strategy: "model", "temperature", "top_k", "top_p" or "penalty", probabilities [vocab]).
    tokens: id → label, the first on top. previous: [vocab], what every step but the first begins with, for alternatives
    instead of a sequence of steps.
    """
    fig, row = plt.subplots(1, len(steps), figsize=(WIDTH, 1.35 + 0.26 * len(tokens)), sharey=True, squeeze=False)
    highest = max(_shown(p, tokens).max() for _, _, p in steps)
    before = None
    for axes, (title, kind, p) in zip(row.flat, steps, strict=True):
        zoom(axes, tokens, before, p, kind, highest)
        axes.set_title(title, fontsize=10)
        before = p if previous is None else previous
    return fig


def zoom(
    axes: Axes, tokens: Mapping[int, str], before: ArrayLike | None, after: ArrayLike, kind: str, highest: float
) -> None:
    """One step: bars are the probabilities after it, outlines those before it, hatched what it cut.

    before, after: probabilities [vocab]; None before the first step. highest: the longest bar of all panels.
    """
    new = _shown(after, tokens)
    old = new if before is None else _shown(before, tokens)
    rows, gone = np.arange(new.size), (new == 0) & (old > 0)
    axes.barh(rows, new, height=0.74, color=tint(_COLOURS[kind], 0.6))
    if before is not None:
        axes.barh(rows[~gone], old[~gone], height=0.74, color="none", edgecolor=QUIET, linewidth=0.8)
        axes.barh(rows[gone], old[gone], height=0.74, color=CARD, edgecolor=QUIET, linewidth=0.5, hatch="/////")
        if (left := np.count_nonzero(after)) < np.count_nonzero(before):
            words = f"{left:,}\ntoken{'s' * (left != 1)}\nleft"
            axes.text(0.97, 0.42, words, transform=axes.transAxes, ha="right", va="center", fontsize=9)
    for row, value in enumerate(new):
        words = "cut" if gone[row] else percent(value) if value else ""
        note(axes, words, max(value, old[row]), row, (3, 0), color=QUIET if gone[row] else INK)
    name_rows(axes, [*tokens.values(), "all others"])
    axes.set_xlim(0, highest * 1.4)  # room for the numbers
    axes.set_xticks([0, 0.4, 0.8] if highest > 0.5 else [0, 0.2, 0.4])
    in_percent(axes.xaxis)
    axes.set_xlabel("probability")


def _shown(p: ArrayLike, tokens: Mapping[int, str]) -> np.ndarray:
    """Probabilities of `tokens`, and last of all other tokens together, exactly 0 when they are cut."""
    p = np.asarray(p, float)
    return np.array([*p[list(tokens)], np.delete(p, list(tokens)).sum()])


def served_against_exact(tokens: Sequence[str], counts: ArrayLike, exact: Mapping[str, ArrayLike]) -> Figure:
    """Shares of served samples as dots with 95 % intervals (Wilson), above bars of what each hypothesis predicts.

    tokens: labels, the first on top. counts: [tokens], their sum is the number of samples. exact: one or two
    hypotheses, name → probabilities [tokens]; the first is filled, the second an outline.
    """
    fig, axes = plt.subplots(figsize=(WIDTH, 1.1 + 0.32 * len(tokens)))
    looks = [{"color": tint(STRATEGIES["top_p"], 0.5)}, {"color": "none", "edgecolor": INK, "linestyle": (0, (3, 2))}]
    for (name, probabilities), look in zip(exact.items(), looks, strict=False):
        axes.barh(range(len(tokens)), probabilities, height=0.74, label=name, **look)
    sample_dots(axes, counts, f"{np.sum(counts)} served samples, 95 % interval")
    name_rows(axes, tokens)
    axes.set_xlabel("probability, and share of the samples")
    axes.legend(loc="lower right")
    return fig


def diversity_quality(
    measured: Mapping[tuple[str, str], tuple[tuple[float, float], tuple[float, float]]], reference: tuple[str, float]
) -> Figure:
    """How different the texts of each setting are, against how usual the model finds them; crosses are ±2 std. errors.

    measured: (line, marker) → ((distinct-2, error), (mean log prob in nats per token, error)); settings of one line are
    joined and have one colour. reference: label and mean log prob of a text to compare with.
    """
    lines, marks = (list(dict.fromkeys(key[i] for key in measured)) for i in (0, 1))
    fig, axes = plt.subplots(figsize=(WIDTH, 4.2))
    axes.axhline(reference[1], color=QUIET, linewidth=1, linestyle=DASHES)
    note(axes, reference[0], 0.01, reference[1], (0, 3), xycoords=("axes fraction", "data"), va="baseline")
    for line, colour in zip(lines, _BLUES, strict=False):
        (x, wide), (y, high) = np.transpose([measured[line, mark] for mark in marks], (1, 2, 0))
        axes.plot(x, y, color=colour, linewidth=1.6, label=line)
        for at, shape in zip(range(len(marks)), "os^Dv", strict=False):
            axes.errorbar(x[at], y[at], high[at], wide[at], color=colour, marker=shape, markersize=6, elinewidth=0.9)
    for mark, shape in zip(marks, "os^Dv", strict=False):
        axes.plot([], [], shape, color=QUIET, markersize=6, label=mark)
    axes.set(
        xlabel="distinct-2: different token pairs by all token pairs (1 = no pair occurs twice)",
        ylabel="mean log probability at T = 1\n(nats per token; higher = more usual)",
    )
    axes.legend(loc="lower left", ncols=2)
    return fig


def pass_grid(shares: Mapping[str, Mapping[str, float]]) -> Figure:
    """A regression grid: one row a task, one column a strategy, the share of answers that pass in each cell.

    shares: task → strategy → share from 0 to 1; the last line is the mean over the tasks.
    """
    values = np.array([list(row.values()) for row in shares.values()])
    places = [*range(len(shares)), len(shares) + 0.15]  # the mean stands apart
    fig, axes = plt.subplots(figsize=(WIDTH, 1.2 + 0.32 * len(places)))
    for (row, column), value in np.ndenumerate(np.vstack([values, values.mean(axis=0)])):
        colour = tint("#0072B2", 0.12 + 0.5 * value) if value else FAINT
        axes.add_patch(plt.Rectangle((column - 0.48, places[row] - 0.45), 0.96, 0.9, color=colour))
        axes.text(column, places[row], percent(value) if value else "0 %", ha="center", va="center", fontsize=9)
    axes.set(xlim=(-0.5, values.shape[1] - 0.5), ylim=(len(shares) + 0.65, -0.5))
    axes.set_xticks(range(values.shape[1]), list(next(iter(shares.values()))))
    axes.set_yticks(places, [*shares, "mean"])
    axes.tick_params(length=0, labelcolor=INK)
    axes.xaxis.tick_top()
    axes.spines[:].set_visible(False)
    axes.set_xlabel("share of the answers that pass their test")
    return fig
