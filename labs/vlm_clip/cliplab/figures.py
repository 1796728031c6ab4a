"""Figures of notebooks 13 and 14: pictures, answers, sizes, the ensemble."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from cliplab.prepare import open_picture
from servinglab.figures.style import FAINT, INK, MODELS, QUIET, WIDTH, drawing, name_rows, note, tint
from servinglab.root import tomllib

_SIDE = 132  # pixels of a picture in a figure; a page must load at once
_RIGHT, _LEAST = MODELS["postprocessing"], 1e-7  # a drift below that is rounding of the reference itself
_CLEAR = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # so that no line runs through a number
# The course's colours, by what a step does: prepare, compute, collect.
COLOURS = {
    "image_preprocessing": MODELS["preprocessing"], "vision_encoder": MODELS["tensorrt_llm"],
    "text_encoder": MODELS["tensorrt_llm_bls"], "fusion": MODELS["postprocessing"], "clip": MODELS["ensemble"],
}  # fmt: skip
_DRAWINGS = tomllib.loads(Path(__file__).with_name("drawings.toml").read_text(encoding="utf-8"))


def gallery(items: Sequence[tuple[Path, str]], columns: int = 6, rows: Sequence[str] = ()) -> Figure:
    """Pictures in rows, each with a line of text below. ``items``: (file, text). ``rows``: a name for each row."""
    count = -(-len(items) // columns)
    fig, grid = plt.subplots(count, columns, figsize=(WIDTH, 10.4 / columns * count + 0.5), squeeze=False)
    for axes in grid.flat:
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    for axes, (file, text) in zip(grid.flat, items, strict=False):
        _picture(axes, file)
        axes.set_xlabel(_short(text, 96 // columns, 2), fontsize=9, color=INK, labelpad=2)
    for axes, name in zip(grid[:, 0], rows, strict=False):
        axes.set_ylabel(name, fontsize=10, fontweight="bold", color=INK)
    return fig


def answers(rows: Sequence[tuple[np.ndarray, str, str, str, bool]], columns: int = 5) -> Figure:
    """Pictures with a question and what the model said. ``rows``: (uint8 picture, question, right answer, said, good).

    A good answer's frame has the colour of the last step, another's is dashed, with the right answer below it.
    """
    count = -(-len(rows) // columns)
    fig, grid = plt.subplots(count, columns, figsize=(WIDTH, (8.6 / columns + 0.95) * count), squeeze=False)
    for axes in grid.flat:
        axes.axis("off")
    for axes, (picture, question, right, said, good) in zip(grid.flat, rows, strict=False):
        side = len(picture) - 1
        axes.imshow(picture)
        colour, line = (_RIGHT, "-") if good else (INK, "--")
        axes.add_patch(Rectangle((0, 0), side, side, fill=False, clip_on=False, edgecolor=colour, linestyle=line))
        axes.set_title(_short(question, 96 // columns, 2), fontsize=9, color=QUIET)
        text = said if good else f"{said}\n(right: {right})"
        lines = [_short(line, 86 // columns, 2) for line in text.split("\n")]
        axes.text(side / 2, side * 1.04, "\n".join(lines), ha="center", va="top", fontsize=9, color=INK)
    return fig


def sizes_and_drift(rows: Mapping[str, tuple[float, float]], limit: float) -> Figure:
    """What a smaller file saves and costs: ``rows`` maps a file to (megabytes, largest 1 - cosine to the reference).

    ``limit``: the largest drift that an acceptance test lets through.
    """
    fig, (size, turned) = plt.subplots(1, 2, figsize=(WIDTH, 0.36 * len(rows) + 1.3), sharey=True)
    for row, (megabytes, drift) in enumerate(rows.values()):
        size.barh(row, megabytes, height=0.6, color=tint(MODELS["preprocessing"], 0.6))
        note(size, f"{megabytes:.1f} MB", megabytes, row)
        colour = MODELS["tensorrt_llm"] if drift > limit else MODELS["postprocessing"]
        turned.plot(max(drift, _LEAST), row, "o", color=colour, markersize=7)
        note(turned, f"{drift:.0e}" if drift > _LEAST else "none", max(drift, _LEAST), row, bbox=_CLEAR)
    turned.axvline(limit, color=INK, linewidth=0.9, linestyle=":")
    name_rows(size, list(rows), above=0.5, below=0.5)
    size.set(xlim=(0, 1.4 * max(megabytes for megabytes, _ in rows.values())), xlabel="size of the file (MB)")
    turned.set(xscale="log", xlim=(_LEAST / 3, 30), xlabel=f"largest 1 - cosine (dotted: the limit, {limit:g})")
    turned.xaxis.set_major_formatter("{x:.0e}")
    turned.set_xticks([1e-6, 1e-4, 1e-2, 1])
    turned.xaxis.set_minor_formatter("")
    turned.tick_params(axis="y", length=0)
    return fig


def pipeline() -> Figure:
    """The steps of `clip` and the tensors between them."""
    return drawing(_DRAWINGS["pipeline"], COLOURS)


def step_bars(step_ms: Mapping[str, float], ensemble_ms: float) -> Figure:
    """Mean time of the steps, each where it begins when nothing waits for it, above the ensemble's own."""
    fig, axes = plt.subplots(figsize=(WIDTH, 2.6))
    after_images = step_ms["image_preprocessing"] + step_ms["vision_encoder"]
    begins = {
        "image_preprocessing": 0.0, "vision_encoder": step_ms["image_preprocessing"], "text_encoder": 0.0,
        "fusion": max(after_images, step_ms["text_encoder"]), "clip": 0.0,
    }  # fmt: skip
    for row, name in enumerate(begins):
        ms = ensemble_ms if name == "clip" else step_ms[name]
        axes.barh(row, ms, left=begins[name], height=0.62, color=tint(COLOURS[name], 0.6), ec=COLOURS[name])
        note(axes, f"{ms:.1f} ms", begins[name] + ms, row, (4, 0))
    name_rows(axes, list(begins))
    axes.set_xlim(0, 1.15 * max(ensemble_ms, begins["fusion"] + step_ms["fusion"]))
    axes.set_xlabel("time since the request (ms); steps drawn as if nothing waited")
    return fig


def _picture(axes: plt.Axes, file: Path) -> None:
    image = open_picture(file.read_bytes())
    image.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
    square = Image.new("RGB", (_SIDE, _SIDE), "white")
    square.paste(image, ((_SIDE - image.width) // 2, (_SIDE - image.height) // 2))
    axes.imshow(np.asarray(square))
    if all(least == most for least, most in square.getextrema()):
        axes.text(_SIDE / 2, _SIDE / 2, "white\non white", ha="center", va="center", fontsize=9, color=QUIET)
    frame = Rectangle((0, 0), _SIDE - 1, _SIDE - 1, fill=False, clip_on=False, edgecolor=FAINT, linewidth=0.8)
    axes.add_patch(frame)  # white on white is a picture, too


def _short(text: str, width: int, lines: int) -> str:
    return "\n".join(textwrap.wrap(text, width, max_lines=lines, placeholder="…")) or "-"
