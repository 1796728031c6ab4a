"""Figures of notebook 13: pictures with their captions, what a search found, recall with intervals."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from cliplab.prepare import open_picture
from servinglab.figures.style import INK, MODELS, QUIET, WIDTH, name_rows, note, tint

_SIDE = 132  # pixels of a picture in a figure; a page must load at once
_RIGHT, _OTHER = MODELS["postprocessing"], QUIET


def gallery(items: Sequence[tuple[Path, str]], columns: int = 6) -> Figure:
    """Pictures in rows, each with a line of text below. ``items``: (file, text)."""
    rows = -(-len(items) // columns)
    fig, grid = plt.subplots(rows, columns, figsize=(WIDTH, 10.4 / columns * rows + 0.5), squeeze=False)
    for axes in grid.flat:
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    for axes, (file, text) in zip(grid.flat, items, strict=False):
        _picture(axes, file)
        axes.set_xlabel(_short(text, 96 // columns, 2), fontsize=9, color=INK, labelpad=2)
    return fig


def searches(rows: Sequence[tuple[str, Path, Sequence[Path]]]) -> Figure:
    """One row a search: the sentence, the picture it belongs to, then what was found, best first.

    ``rows``: (sentence, its own picture, found pictures). The own picture has a frame wherever it is found.
    """
    found = max(len(row[2]) for row in rows)
    widths = [1.9] + [1] * (found + 1)
    height = 1.08 * len(rows) + 0.75
    fig, grid = plt.subplots(len(rows), found + 2, figsize=(WIDTH, height), squeeze=False, width_ratios=widths)
    for axes in grid.flat:
        axes.axis("off")
    heads = ["sentence", "its picture", *(f"place {n}" for n in range(1, found + 1))]
    for axes, head in zip(grid[0], heads, strict=True):
        axes.set_title(head, fontsize=9, color=QUIET, loc="left" if head == "sentence" else "center")
    for line, (sentence, own, others) in zip(grid, rows, strict=True):
        line[0].text(0, 0.5, _short(sentence, 22, 4), transform=line[0].transAxes, va="center", fontsize=9)
        _picture(line[1], own)
        for axes, file in zip(line[2:], others, strict=False):
            _picture(axes, file, frame=_RIGHT if file == own else None)
    return fig


def recalls(table: Mapping[str, Mapping[str, tuple[float, float, float]]], chance: float, k: int) -> Figure:
    """Recall of several ways as points with 95 % intervals: ``table``: way → {"1": (mean, low, high), "k": …}."""
    colours = {"1": MODELS["preprocessing"], "k": MODELS["tensorrt_llm"]}
    names = {"1": "recall at 1", "k": f"recall at {k}"}
    fig, axes = plt.subplots(figsize=(WIDTH, 0.55 * len(table) + 1.7))
    for row, measured in enumerate(table.values()):
        for which, shift in (("1", 0.14), ("k", -0.14)):
            mean, low, high = measured[which]
            axes.plot([low, high], [row + shift] * 2, color=colours[which], linewidth=2.4, solid_capstyle="butt")
            axes.plot(mean, row + shift, "o", color=colours[which], markersize=7)
            note(axes, f"{mean:.2f}", high, row + shift)
    axes.axvline(chance, color=INK, linewidth=0.9, linestyle=":")
    note(axes, f"guessing, at {k}", chance, -0.62, (4, 0), color=QUIET, va="baseline")
    for which, name in names.items():
        axes.plot([], [], "o-", color=colours[which], label=name)
    axes.legend(loc="lower right")
    name_rows(axes, list(table), above=0.8, below=0.5)
    axes.set(xlim=(0, 1), xlabel="share of the captions that find their own picture (with 95 % interval)")
    return fig


def curves(series: Mapping[str, tuple[Sequence[float], Sequence[float]]], x: str, y: str) -> Figure:
    """Lines over one axis: ``series`` maps a name to (xs, ys)."""
    fig, axes = plt.subplots(figsize=(WIDTH, 2.8))
    for (name, (xs, ys)), colour in zip(series.items(), MODELS.values(), strict=False):
        axes.plot(xs, ys, color=colour, linewidth=1.8)
        note(axes, name, xs[-1], ys[-1])
    axes.set(xlabel=x, ylabel=y, xlim=(0, 1.13 * max(max(xs) for xs, _ in series.values())))
    return fig


def sizes_and_drift(rows: Mapping[str, tuple[float, float]]) -> Figure:
    """What a smaller file costs: ``rows`` maps a precision to (megabytes, largest 1 - cosine to the reference)."""
    fig, axes = plt.subplots(figsize=(WIDTH, 0.42 * len(rows) + 1.3))
    for row, (megabytes, drift) in enumerate(rows.values()):
        axes.barh(row, megabytes, height=0.6, color=tint(MODELS["preprocessing"], 0.6))
        note(axes, f"{megabytes:.1f} MB, 1 - cosine at most {drift:.1g}", megabytes, row)
    name_rows(axes, list(rows), above=0.5, below=0.5)
    axes.set(xlim=(0, 1.8 * max(megabytes for megabytes, _ in rows.values())), xlabel="size of the file (MB)")
    return fig


def _picture(axes: plt.Axes, file: Path, frame: str | None = None) -> None:
    image = open_picture(file.read_bytes())
    image.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
    square = Image.new("RGB", (_SIDE, _SIDE), "white")
    square.paste(image, ((_SIDE - image.width) // 2, (_SIDE - image.height) // 2))
    axes.imshow(np.asarray(square))
    if frame:
        axes.add_patch(plt.Rectangle((1, 1), _SIDE - 3, _SIDE - 3, fill=False, edgecolor=frame, linewidth=2.5))


def _short(text: str, width: int, lines: int) -> str:
    return "\n".join(textwrap.wrap(text, width, max_lines=lines, placeholder="…")) or "-"
