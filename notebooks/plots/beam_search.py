"""Figures of notebook 09: the tree of a beam search, what a length penalty ranks, strategies beside each other."""

from collections.abc import Callable, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from servinglab.decoding import BeamResult, Node
from servinglab.figures.style import CARD, FAINT, INK, QUIET, STRATEGIES, WIDTH, bars, name_rows, note, tint

_COLOUR = STRATEGIES["beam"]


def draw_tree(
    axes: Axes, result: BeamResult, label: Callable[[Node], str], *, root: str = "", best: Sequence[int] | None = None
) -> None:
    """The tree of a search from left to right: filled boxes were kept, faint ones looked at and pruned.

    label: the text of a node's box. root: that of the start. best: the tokens of one path, by default the winner's,
    whose boxes and edges are drawn in black as far as the search has looked at them.
    """
    best = result.hypotheses[0].tokens if best is None else list(best)
    heights = _heights(result.tree)
    for node in result.tree:
        here, chosen = (node.depth, heights[node.id]), result.path(node.id) == best[: node.depth]
        edge = INK if chosen else _COLOUR if node.kept else FAINT
        if node.parent is not None:
            before = node.depth - 1, heights[node.parent]
            axes.plot(*zip(before, here, strict=True), color=edge, linewidth=1.8 if chosen else 1.2, zorder=1 + chosen)
        face = tint(_COLOUR, 0.35) if node.kept else CARD
        box = {"boxstyle": "round,pad=0.25", "facecolor": face, "edgecolor": edge, "linewidth": 1 + 0.4 * chosen}
        colour, text = INK if node.kept or chosen else QUIET, root if node.parent is None else label(node)
        axes.text(*here, text, ha="center", va="center", fontsize=9, color=colour, bbox=box, zorder=4)
    axes.set(xlim=(-0.35, max(node.depth for node in result.tree) + 0.45), ylim=(-0.06, 1.06))
    axes.axis("off")


def _heights(tree: Sequence[Node]) -> list[float]:
    """A place from 1 (top) to 0 for each node: leaves evenly spread, a parent in the middle of its children."""
    below: list[list[int]] = [[child.id for child in tree if child.parent == node.id] for node in tree]
    leaves = iter(range(len(tree)))
    heights = [0.0] * len(tree)

    def place(node: int) -> float:
        heights[node] = float(np.mean([place(child) for child in below[node]])) if below[node] else float(next(leaves))
        return heights[node]

    place(0)
    most = max(heights) or 1.0
    return [1 - height / most for height in heights]


def tree(result: BeamResult, label: Callable[[Node], str], *, root: str, best: Sequence[int] | None = None) -> Figure:
    """`draw_tree` alone on a figure that is as high as its leaves need."""
    leaves = len({node.id for node in result.tree} - {node.parent for node in result.tree})
    fig, axes = plt.subplots(figsize=(WIDTH, 0.9 + 0.27 * leaves))
    draw_tree(axes, result, label, root=root, best=best)
    return fig


def penalty(short: tuple[float, int], long: tuple[float, int], most: float = 2.0) -> Figure:
    """Which of two answers, each (log prob, tokens), wins over length penalties from 0 to `most`: the short one's score
    divided by the long one's. Both are negative, so above 1 the long answer has the higher score."""
    penalties = np.linspace(0, most, 41)
    ratio = short[0] / long[0] * (long[1] / short[1]) ** penalties
    fig, axes = plt.subplots(figsize=(WIDTH, 3.0))
    axes.plot(penalties, ratio, color=_COLOUR, linewidth=2.5)
    axes.axhspan(1, max(1.2, ratio.max()), color=tint(_COLOUR, 0.15))
    note(axes, f"above: {long[1]} tokens win", 0, max(1.2, ratio.max()), (6, -9))
    note(axes, f"below: {short[1]} tokens win", most, 0, (-6, 9), ha="right")
    axes.set(xlim=(0, most), ylim=(0, max(1.2, ratio.max())), xlabel="length penalty p")
    axes.set_ylabel("score of the short answer\n/ score of the long one")
    return fig


def strategies(panels: Mapping[str, Mapping[str, Sequence[float]]], colours: Mapping[str, str]) -> Figure:
    """One panel a quantity, one row a strategy: a dot a value, a black mark at their mean.

    panels: quantity with its unit → strategy → its values, the same strategies in all. Each panel includes 0.
    """
    size = (WIDTH, 1.2 + 0.27 * max(map(len, panels.values())))
    fig, row = plt.subplots(1, len(panels), figsize=size, sharey=True, squeeze=False)
    for axes, (quantity, rows) in zip(row[0], panels.items(), strict=True):
        whole = {"clip_on": False, "zorder": 3}  # a mark at the edge is not cut in half
        for place, (name, values) in enumerate(rows.items()):
            axes.plot(values, [place] * len(values), "o", color=colours[name], alpha=0.6, markersize=6, **whole)
            axes.plot(np.mean(values), place, "|", color=INK, markersize=11, markeredgewidth=1.8, **whole)
        low, high = axes.get_xlim()
        axes.set_xlim(min(low, 0) if low < 0 and min(map(min, rows.values())) < 0 else 0, max(high, 0))
        axes.grid(axis="y", color=FAINT, linewidth=0.6)
        axes.set_xlabel(quantity, fontsize=9)
        name_rows(axes, list(rows))
    return fig


def counts(panels: Mapping[str, tuple[int, Mapping[str, int]]], colours: Mapping[str, str]) -> Figure:
    """One panel a task: name → (how many puzzles, {strategy: how many it solved}). A bar a strategy, with its count."""
    heights = [len(solved) + 1 for _, solved in panels.values()]
    size = (WIDTH, 1.1 + 0.3 * sum(heights))
    fig, stack = plt.subplots(len(panels), 1, figsize=size, height_ratios=heights, squeeze=False)
    for axes, (task, (most, solved)) in zip(stack.flat, panels.items(), strict=True):
        axes.barh(range(len(solved)), most, color=FAINT)
        rows = {name: (count,) for name, count in solved.items()}
        bars(axes, rows, {"right": [tint(colours[name], 0.7) for name in rows]}, [f"{n}" for n in solved.values()])
        axes.set(xlim=(0, most), xticks=[])
        axes.set_title(f"{task}: right of {most}", fontsize=10)
        axes.spines["bottom"].set_visible(False)
    return fig
