"""Figures of notebook 16: words in the cells of a picture, attention over it, shares with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from cliplab.figures import answers
from servinglab.figures.style import INK, MODELS, QUIET, WIDTH, name_rows, note, tint, wilson

__all__ = ["answers", "bars", "grid", "heat", "share_of", "shares"]

_COLOURS = (MODELS["tensorrt_llm"], MODELS["preprocessing"], MODELS["postprocessing"])
_CLEAR = {"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.75}


def grid(picture: np.ndarray, words: Sequence[str]) -> Figure:
    """A picture, uint8 [n, n, 3], alone and with a word in each of its 7 x 7 cells, in the order of reading."""
    fig, axes = plt.subplots(1, 2, figsize=(WIDTH, WIDTH / 2 + 0.5))
    side = len(picture) / 7
    for each in axes:
        _bare(each, picture)
    axes[1].images[0].set_alpha(0.35)
    for n in range(1, 7):
        for each in axes:
            each.axhline(n * side, color=QUIET, linewidth=0.5)
            each.axvline(n * side, color=QUIET, linewidth=0.5)
    for n, word in enumerate(words):
        row, column = divmod(n, 7)
        size = min(7, 56 / max(1, len(word)))  # so that a long word stays in its cell
        axes[1].text((column + 0.5) * side, (row + 0.5) * side, word, ha="center", va="center", fontsize=size)
    return fig


def heat(picture: np.ndarray, maps: Mapping[str, np.ndarray]) -> Figure:
    """The picture, and for each title a map [7, 7] with the outlines of the picture's things on it and one scale."""
    fig, axes = plt.subplots(1, len(maps) + 1, figsize=(WIDTH, WIDTH / (len(maps) + 1) + 0.4))
    for each in axes:
        _bare(each, picture)
    axes[0].set_title("the picture", fontsize=9, color=QUIET)
    most = max(float(values.max()) for values in maps.values())
    for each, (title, values) in zip(axes[1:], maps.items(), strict=True):
        whole = (0, len(picture), len(picture), 0)
        shades = each.imshow(values, cmap="Greens", vmin=0, vmax=most, extent=whole)
        each.contour(picture.mean(axis=2), levels=[192], colors=INK, linewidths=0.9)
        each.set_title(title, fontsize=9, color=INK)
    fig.colorbar(shades, ax=list(axes), shrink=0.8, label="share of all attention")
    return fig


def share_of(cases: Sequence[bool]) -> tuple[float, float, float]:
    """The share of True with its 95 % interval."""
    return (float(np.mean(cases)), *wilson(int(np.sum(cases)), len(cases)))


def shares(rows: Mapping[str, Mapping[str, Sequence[float]]], x: str) -> Figure:
    """Shares with their intervals: row → way → (share, low, high), or True and False for each case."""
    ways = list(dict.fromkeys(way for found in rows.values() for way in found))
    fig, axes = plt.subplots(figsize=(WIDTH, (0.14 + 0.2 * len(ways)) * len(rows) + 1.2))
    for row, found in enumerate(rows.values()):
        for number, (way, values) in enumerate(found.items()):
            share, low, high = values if isinstance(values, tuple) else share_of(values)
            y, colour = row + 0.24 * (number - (len(found) - 1) / 2), _COLOURS[ways.index(way)]
            axes.plot([low, high], [y, y], color=colour, linewidth=2.2, solid_capstyle="butt")
            axes.plot(share, y, "o", color=colour, markersize=6)
            note(axes, f"{share:.2f}", high, y, bbox=_CLEAR)
    for way, colour in zip(ways, _COLOURS, strict=False):
        axes.plot([], [], "o-", color=colour, label=way)
    if len(ways) > 1:
        axes.legend(loc="upper center", bbox_to_anchor=(0.45, 1.0), ncols=len(ways), frameon=False)
    name_rows(axes, list(rows), above=0.55 + 0.5 * (len(ways) > 1), below=0.55)
    axes.set(xlim=(-0.02, 1.08), xlabel=f"{x} (with 95 % interval)")
    return fig


def _bare(axes: plt.Axes, picture: np.ndarray) -> None:
    axes.imshow(picture)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def bars(values: Mapping[str, float], x: str) -> Figure:
    """A bar with its number for each name."""
    fig, axes = plt.subplots(figsize=(WIDTH, 0.4 * len(values) + 1.1))
    axes.barh(range(len(values)), list(values.values()), height=0.6, color=tint(_COLOURS[1], 0.6))
    for row, value in enumerate(values.values()):
        note(axes, f"{value:.0f}", value, row)
    name_rows(axes, list(values))
    axes.set(xlim=(0, 1.12 * max(values.values())), xlabel=x)
    return fig
