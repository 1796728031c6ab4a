"""Figures of notebooks 06 and 07: what a temperature and the filters do to one next-token distribution, samples against
it, and what a strategy costs."""

import math
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import scipy.special
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, PercentFormatter
from numpy.typing import ArrayLike

from servinglab.figures import style
from servinglab.figures.style import CARD, DASHES, FAINT, INK, QUIET, WIDTH, beside, name_rows, note, tint, wilson

_COLOUR = style.STRATEGIES["temperature"]
_EDGE = "#9A6A00"  # the same orange, dark enough for a line or a small text
_BLUE = "#0072B2"
_COLOURS = {**style.STRATEGIES, "model": QUIET, "penalty": INK}
Step = tuple[str, str, ArrayLike]  # title, colour by strategy (or "model", "penalty"), probabilities [vocab]


def token_bars(axes: Axes, tokens: Sequence[str], probabilities: ArrayLike) -> None:
    """One bar for each of `tokens`, the first on top, and one for all the others together; numbers beside them in %.

    probabilities: [tokens], a part of a distribution whose sum is 1.
    """
    values = [*np.asarray(probabilities), 1 - float(np.sum(probabilities))]
    bars = axes.barh(range(len(values)), values, height=0.72, color=[tint(_COLOUR, 0.75)] * len(tokens) + [FAINT])
    axes.bar_label(bars, list(map(percent, values)), padding=3, fontsize=9)
    name_rows(axes, [*tokens, "all others"])
    axes.set(xlim=(0, 1.32), xticks=[0, 0.5, 1], xlabel="probability")  # room for "99.9 %" behind the longest bar
    in_percent(axes.xaxis)


def percent(share: float) -> str:
    """ "12 %" or "1.3 %", with "< 0.1 %" for what is too small to read off a bar."""
    if 0 < share < 0.001:
        return "< 0.1 %"
    return f"{100 * share:.{0 if share >= 0.095 else 1}f} %"


def in_percent(axis: Axis) -> None:
    axis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))


def probability_curves(temperatures: np.ndarray, logits: np.ndarray, ranks: Sequence[int]) -> Figure:
    """Probability of the tokens at some ranks against temperature, both axes logarithmic, with the limit 1/vocabulary.

    temperatures: ascending, above 0. logits: [vocab]. ranks: ascending, 1 is the likeliest token.
    """
    ids = np.argsort(-logits, kind="stable")[np.asarray(ranks) - 1]
    curves = np.array([scipy.special.softmax(logits / t)[ids] for t in temperatures])
    fig, axes = plt.subplots(figsize=(WIDTH, 3.9))
    axes.axvline(1, color=FAINT, linewidth=1.2)
    axes.axhline(1 / logits.size, color=QUIET, linewidth=1, linestyle=DASHES)
    beside(axes, f"1/{logits.size:,}:\nall equal", 1 / logits.size)
    for rank, curve, share in zip(ranks, curves.T, np.linspace(1, 0.5, len(ranks)), strict=True):
        axes.plot(temperatures, curve, color=tint(_EDGE, share), linewidth=1.8)
        at = int(np.argmax(curve > curve.max() / 2))  # on the way up, or at the left end
        note(axes, f"rank {rank:,}", temperatures[at], curve[at], (8, -4), va="top")
    axes.set(xscale="log", yscale="log", ylim=(1e-7, 4), xlim=(temperatures[0], temperatures[-1]))
    axes.set(xlabel="temperature T (no unit, logarithmic)", ylabel="probability (logarithmic)")
    axes.xaxis.set(major_locator=LogLocator(subs=(1, 2, 5)), minor_locator=NullLocator(), major_formatter="{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    return fig


def entropy_curves(temperatures: np.ndarray, curves: Mapping[str, ArrayLike], vocabulary: int) -> Figure:
    """Entropy against temperature, in nats on the left and in bits on the right, below log(vocabulary).

    temperatures: [n], ascending from near 0. curves: label → entropy in nats [n]; two prompts at most.
    """
    most, bit = math.log(vocabulary), math.log(2)
    fig, axes = plt.subplots(figsize=(WIDTH, 3.4))
    axes.axhline(most, color=QUIET, linewidth=1, linestyle=DASHES)
    note(axes, f"the most there is: {most:.1f} nats = {most / bit:.1f} bits", 0, most, (4, 3), va="bottom")
    axes.axvline(1, color=FAINT, linewidth=1.2)
    for (label, curve), dashes in zip(curves.items(), ("-", (0, (5, 2))), strict=False):
        axes.plot(temperatures, curve, color=_COLOUR, linewidth=2, linestyle=dashes, label=label)
    axes.legend(loc="center right")
    axes.set(xlim=(0, temperatures[-1]), ylim=(0, most * 1.12), xlabel="temperature T", ylabel="entropy (nats)")
    bits = axes.secondary_yaxis("right", functions=(lambda nats: nats / bit, lambda bits: bits * bit))
    bits.set_ylabel("entropy (bits)")
    return fig


def samples_against_exact(
    tokens: Sequence[str], panels: Mapping[str, tuple[Mapping[str, ArrayLike], ArrayLike]]
) -> Figure:
    """Exact probabilities as bars, shares of served samples as dots with 95 % intervals (Wilson); one panel a setting.

    panels: title → ({hypothesis: probabilities [tokens]}, counts [tokens]): one hypothesis, or a second as an outline.
    """
    fig, row = plt.subplots(1, len(panels), figsize=(WIDTH, 1.3 + 0.3 * len(tokens)), sharey=True, squeeze=False)
    looks = ({"color": tint(_COLOUR, 0.55)}, {"color": "none", "edgecolor": INK, "linestyle": (0, (3, 2))})
    for axes, (title, (hypotheses, counts)) in zip(row.flat, panels.items(), strict=True):
        rows, drawn = np.arange(len(tokens)), int(np.sum(counts))
        for (name, probabilities), look in zip(hypotheses.items(), looks, strict=False):
            axes.barh(rows, probabilities, height=0.74, label=name, **look)
        axes.hlines(rows, *np.transpose([wilson(int(count), drawn) for count in counts]), color=INK, linewidth=1.4)
        axes.plot(np.asarray(counts) / drawn, rows, "o", color=INK, markersize=4, label=f"{drawn} served samples")
        name_rows(axes, tokens)
        axes.set(xlim=(0, None), xlabel="probability; line: 95 % interval", title=title)
        in_percent(axes.xaxis)
    axes.legend(loc="lower right" if len(panels) == 1 else "center right")
    return fig


def microscope(steps: Sequence[Step], tokens: Mapping[int, str], previous: ArrayLike | None = None) -> Figure:
    """The same tokens after each step of a strategy, one panel a step; see `zoom` for what a panel shows.

    tokens: id → label. previous: [vocab], what later panels are compared with if not with their left.
    """
    fig, row = plt.subplots(1, len(steps), figsize=(WIDTH, 1.35 + 0.26 * len(tokens)), sharey=True, squeeze=False)
    highest = max(_shown(p, tokens).max() for _, _, p in steps)
    before = None
    for axes, (title, kind, p) in zip(row.flat, steps, strict=True):
        zoom(axes, tokens, before, p, kind, highest)
        axes.set_title(title)
        before = p if previous is None else previous
    return fig


def zoom(
    axes: Axes, tokens: Mapping[int, str], before: ArrayLike | None, after: ArrayLike, kind: str, highest: float
) -> None:
    """One step: bars are the probabilities after it, outlines those before it (None: no step yet), hatched what it cut.

    before, after: probabilities [vocab]. highest: the longest bar of all panels.
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
    ticks = [0, 0.4, 0.8] if highest > 0.5 else [0, 0.2, 0.4]
    axes.set(xlim=(0, highest * 1.4), xticks=ticks, xlabel="probability")  # room for the numbers
    in_percent(axes.xaxis)


def _shown(p: np.ndarray, tokens: Mapping[int, str]) -> np.ndarray:
    """Probabilities of `tokens`, and last of all other tokens together, exactly 0 when they are cut."""
    return np.array([*p[list(tokens)], np.delete(p, list(tokens)).sum()])


def pass_grid(passed: Mapping[str, Mapping[str, tuple[int, int]]]) -> Figure:
    """A regression grid: one row a task, one column a strategy, how many answers pass in each cell.

    passed: task → strategy → (answers that pass, answers). The last row has the 95 % interval of their share (Wilson).
    """
    columns = list(next(iter(passed.values())))
    shade = LinearSegmentedColormap.from_list("", [FAINT, tint(_BLUE, 0.6)])
    cells = {(task, at): (f"{n} of {of}", shade(n / of)) for task, row in passed.items() for at, (n, of) in row.items()}
    for at in columns:
        n, of = map(sum, zip(*(row[at] for row in passed.values()), strict=True))
        low, high = wilson(n, of)
        cells["share, 95 %", at] = (f"{100 * low:.0f} to {100 * high:.0f} %", shade(n / of))
    fig, axes = plt.subplots(figsize=(WIDTH, 1.52 + 0.32 * len(passed)))
    style.table(axes, [*passed, "share, 95 %"], columns, cells)
    axes.axhline(len(passed) - 0.5, color=CARD, linewidth=5)  # the last row stands apart
    axes.set_xlabel("answers that pass their test; last row: 95 % interval of the share")
    return fig
