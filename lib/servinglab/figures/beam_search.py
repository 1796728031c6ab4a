"""Figures of notebook 09: the tree of a beam search, what a length penalty ranks, strategies beside their cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from servinglab import decoding
from servinglab.decoding import BeamResult, Node
from servinglab.figures.style import CARD, DASHES, FAINT, INK, QUIET, STRATEGIES, WIDTH, beside, name_rows, note, tint

_COLOUR = STRATEGIES["beam"]


def draw_tree(
    axes: Axes, result: BeamResult, label: Callable[[Node], str], *, root: str = "", best: Sequence[int] | None = None
) -> None:
    """The tree of a search from left to right: filled boxes were kept, faint ones looked at and pruned.

    label: the text of a node's box. root: that of the start. best: the tokens of one path, by default the winner's,
    whose boxes and edges are drawn in black as far as the search has looked at them.
    """
    best = result.hypotheses[0].tokens if best is None else list(best)
    marked = {node.id for node in result.tree if result.path(node.id) == best[: node.depth]}
    heights = _heights(result.tree)
    for node in result.tree:
        here = node.depth, heights[node.id]
        chosen = node.id in marked
        if node.parent is not None:
            before = node.depth - 1, heights[node.parent]
            edge = INK if chosen else _COLOUR if node.kept else FAINT
            axes.plot(*zip(before, here, strict=True), color=edge, linewidth=1.8 if chosen else 1.2, zorder=1 + chosen)
        text = root if node.parent is None else label(node)
        box = {
            "boxstyle": "round,pad=0.25",
            "facecolor": tint(_COLOUR, 0.35) if node.kept else CARD,
            "edgecolor": INK if chosen else _COLOUR if node.kept else FAINT,
            "linewidth": 1.4 if chosen else 1,
        }
        colour = INK if node.kept or chosen else QUIET
        axes.text(*here, text, ha="center", va="center", fontsize=9, color=colour, bbox=box, zorder=4)
    axes.set(xlim=(-0.35, max(node.depth for node in result.tree) + 0.45), ylim=(-0.06, 1.06))
    axes.axis("off")


def _heights(tree: Sequence[Node]) -> dict[int, float]:
    """A place from 1 (top) to 0 for each node: leaves evenly spread, a parent in the middle of its children."""
    children: dict[int, list[int]] = {}
    for node in tree[1:]:
        children.setdefault(node.parent, []).append(node.id)
    heights: dict[int, float] = {}

    def place(node: int) -> float:
        below = [place(child) for child in children.get(node, [])]
        heights[node] = (below[0] + below[-1]) / 2 if below else float(sum(n not in children for n in heights))
        return heights[node]

    place(0)
    most = max(heights.values()) or 1.0
    return {node: 1 - height / most for node, height in heights.items()}


def tree(result: BeamResult, label: Callable[[Node], str], *, root: str, best: Sequence[int] | None = None) -> Figure:
    """`draw_tree` alone on a figure that is as high as its leaves need."""
    parents = {node.parent for node in result.tree}
    leaves = sum(node.id not in parents for node in result.tree)
    fig, axes = plt.subplots(figsize=(WIDTH, 0.9 + 0.27 * leaves))
    draw_tree(axes, result, label, root=root, best=best)
    return fig


def penalty_lines(penalties: np.ndarray, answers: Mapping[str, tuple[float, int]], crossing: float | None) -> Figure:
    """Score against length penalty, one line an answer: label → (log prob, tokens). Straight, for the axis is a log."""
    fig, axes = plt.subplots(figsize=(WIDTH, 3.2))
    for shade, (label, (log_prob, length)) in zip(np.linspace(1, 0.55, len(answers)), answers.items(), strict=True):
        scores = [decoding.score(log_prob, length, penalty) for penalty in penalties]
        axes.plot(penalties, scores, color=tint(_COLOUR, shade), linewidth=2)
        note(axes, label, penalties[-1], scores[-1])
    if crossing is not None:
        axes.axvline(crossing, color=QUIET, linewidth=1, linestyle=DASHES)
        note(axes, f"{crossing:.2f}", crossing, 1, (4, 0), xycoords=("data", "axes fraction"), va="top")
    axes.set_yscale("symlog", linthresh=1e-2)
    ticks = [-30, -10, -3, -1, -0.3, -0.1, -0.03]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_yticks([], minor=True)
    every = [decoding.score(*answer, penalty) for answer in answers.values() for penalty in penalties[[0, -1]]]
    axes.set(
        ylim=(min(every) * 1.4, max(every) / 1.4),
        xlim=(penalties[0], penalties[-1]),
        xlabel="length penalty (no unit)",
        ylabel="score (nats / tokens^penalty,\nlogarithmic), the highest wins",
    )
    return fig


def strategies(rows: Mapping[str, Mapping[str, Sequence[float]]], colours: Mapping[str, str]) -> Figure:
    """One row a strategy, one panel a quantity; a dot a value, a black mark at the mean, nothing if there is none.

    rows: strategy → quantity with its unit (two lines at most) → its values, one a prompt say. Panels start at 0.
    """
    quantities = list(next(iter(rows.values())))
    size = (WIDTH, 1.0 + 0.27 * len(rows))
    fig, panels = plt.subplots(1, len(quantities), figsize=size, sharey=True, squeeze=False)
    for axes, quantity in zip(panels[0], quantities, strict=True):
        for place, (name, values) in enumerate(rows.items()):
            given = np.asarray(values[quantity], float)
            if given.size:
                whole = {"clip_on": False, "zorder": 3}  # a mark at the edge is not cut in half
                axes.plot(given, np.full(len(given), place), "o", color=colours[name], alpha=0.6, markersize=5, **whole)
                axes.plot(given.mean(), place, "|", color=INK, markersize=11, markeredgewidth=1.8, **whole)
        axes.axvline(0, color=FAINT, linewidth=1, zorder=0)
        low, high = axes.get_xlim()
        every = np.concatenate([np.asarray(values[quantity], float) for values in rows.values()])
        axes.set_xlim(min(low, 0) if (every < 0).any() else 0, max(high, 0) if every.any() else 1)
        axes.grid(axis="y", color=FAINT, linewidth=0.6)
        axes.set_xlabel(quantity, fontsize=9)
        name_rows(axes, list(rows))
    return fig


def right_answers(panels: Mapping[str, Mapping[str, tuple[int, int]]], colours: Mapping[str, str]) -> Figure:
    """Right answers as a share, with 95 % intervals (Wilson): title → strategy → (right, asked)."""
    most = max(len(rows) for rows in panels.values())
    fig, row = plt.subplots(1, len(panels), figsize=(WIDTH, 1.3 + 0.3 * most), squeeze=False)
    for axes, (title, rows) in zip(row[0], panels.items(), strict=True):
        for place, (name, (good, asked)) in enumerate(rows.items()):
            low, high = decoding.wilson_interval(good, asked)
            axes.hlines(place, 100 * low, 100 * high, color=tint(colours[name], 0.6), linewidth=5)
            axes.plot(100 * good / asked, place, "o", color=colours[name], markersize=7, clip_on=False, zorder=3)
            beside(axes, f"{good}/{asked}", place, shift=(8, 0))
        name_rows(axes, list(rows), below=most - len(rows) + 0.6)
        axes.set(xlim=(0, 100), xlabel="right answers (%)")
        axes.set_title(title, fontsize=10)
    return fig
