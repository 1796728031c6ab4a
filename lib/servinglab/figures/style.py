"""One look for every figure of the course: colours with fixed meanings, sizes, what several figures are made of (names,
dots, stacked bars, tables, boxes and arrows), a title that answers, small print.
The colours are Okabe and Ito's, which people with the common colour blindnesses can
tell apart (https://jfly.uni-koeln.de/color/).
"""

import io
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

INK, QUIET, FAINT, CARD = "#222222", "#5F5F5F", "#E4E4E4", "#FFFFFF"

_ORANGE, _SKY, _GREEN, _YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
_BLUE, _VERMILION, _PURPLE = "#0072B2", "#D55E00", "#CC79A7"

# A meaning has one colour in every notebook. Groups never share a figure, so a colour may serve in more than one.
STRATEGIES = {"greedy": INK, "temperature": _ORANGE, "top_k": _SKY, "top_p": _GREEN, "beam": _PURPLE}
LANES = {"embedded": _BLUE, "trtllm": _VERMILION}
MODELS = {
    "preprocessing": _SKY, "tensorrt_llm": _VERMILION, "postprocessing": _GREEN, "tensorrt_llm_bls": _PURPLE,
    "ensemble": _YELLOW,
}  # fmt: skip
BYTES = {"tag": _SKY, "length": _ORANGE, "value": FAINT}

WIDTH = 7.5  # inches, as in course.mplstyle
DASHES = (0, (4, 3))  # of a limit or a reference

_small_print = ""


def use(small_print: str = "") -> None:
    """Set matplotlib's defaults for this course; call it once, before the first figure. `small_print`: what made the
    numbers of the figures to come."""
    global _small_print
    _small_print = small_print
    warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a token may be of any script; a box stands for it
    plt.style.use(Path(__file__).parents[1] / "data" / "course.mplstyle")


def tint(colour: str, share: float = 0.25) -> str:
    """``colour`` mixed with white: a background on which INK stays readable. ``share`` is how much colour is left."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 - share * (255 - part)):02X}" for part in parts)


def show(fig: Figure, title: str, summary: str, *, drawing: bool = False, photos: bool = False) -> None:
    """Put a title and the small print on a figure, show it, and close it.

    ``title``: the answer to the question before the figure, at most 80 characters. ``summary``: its alt text, one line
    that says the same in words; a plain script prints it. ``drawing``: nothing in it was measured. ``photos``: store it
    as JPEG, a third of the size when the figure is full of photographs.
    """
    small_print = "" if drawing else _small_print
    height = fig.get_figheight()
    fig.text(0.01, 1 - 0.08 / height, title, ha="left", va="top", fontsize=12, fontweight="bold")
    fig.text(0.01, 0.06 / height, small_print, ha="left", va="bottom", fontsize=9, color=QUIET)
    bottom, top = 0.28 / height * bool(small_print), 1 - (0.42 + 0.2 * title.count("\n")) / height
    if any(axes.get_subplotspec() for axes in fig.axes):  # a drawing has its own fixed place
        fig.set_layout_engine("constrained", rect=(0, bottom, 1, top - bottom))
    if kernel():
        import PIL.Image
        from IPython.display import Image, display

        fig.savefig(drawn := io.BytesIO(), bbox_inches="tight", dpi=fig.dpi * (1 if photos else 2))
        picture, stored = PIL.Image.open(drawn).convert("RGB"), io.BytesIO()
        if photos:
            picture.save(stored, "jpeg", quality=75, optimize=True)
        else:  # twice as many dots as are shown, for a projector; with a palette, which keeps the file small
            picture.quantize(128).save(stored, "png", optimize=True)
        display(Image(stored.getvalue(), retina=not photos, alt=summary))  # alt: for those who cannot see it
    else:
        print(summary)
    plt.close(fig)


def kernel() -> Any:
    """The Jupyter kernel that runs this cell; None in a plain script, which has nowhere to show a figure."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None)


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Lower and upper bound of a proportion, with 95 % confidence (Wilson 1927): inside 0 to 1, never without width."""
    import scipy.stats  # half a second, which not every figure needs

    return tuple(scipy.stats.binomtest(successes, trials).proportion_ci(method="wilson"))


def name_rows(axes: Axes, names: Sequence[str], *, above: float = 0.6, below: float = 0.6) -> None:
    """Rows 0, 1, … with a name each instead of numbers, the first on top, and that much room around them."""
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.set_ylim(len(names) - 1 + below, -above)


def note(axes: Axes, words: str, x: float, y: float, shift: tuple[float, float] = (6, 0), **more: object) -> None:
    """Words at a point of the data, `shift` points to the right of and above it."""
    axes.annotate(words, (x, y), shift, textcoords="offset points", **{"va": "center", "fontsize": 9, **more})


def beside(axes: Axes, words: str, y: float, **more: object) -> None:
    """Words to the right of the axes, where no mark can run into them."""
    note(axes, words, 1, y, xycoords=("axes fraction", "data"), **more)


def dots(axes: Axes, values: Sequence[float], row: float, colour: str, alpha: float = 0.5) -> None:
    """A small dot a value, above and below the row, so that equal values do not hide each other."""
    spread = np.resize([-0.15, 0.05, -0.05, 0.15, 0.0], len(values))
    axes.plot(values, row + spread, "o", color=colour, alpha=alpha, markersize=4, markeredgewidth=0)


def bars(
    axes: Axes, rows: Mapping[str, Sequence[float]], colours: Mapping[str, Any], words: Sequence[str], **look: object
) -> None:
    """A row of bars behind each other for each of ``rows``: name → the length of each part, and words beside the last.

    ``colours``: part → its colour, or one for each row.
    """
    ends = np.zeros(len(rows))
    for (part, colour), lengths in zip(colours.items(), zip(*rows.values(), strict=True), strict=True):
        axes.barh(range(len(rows)), lengths, left=ends, color=colour, label=part, **look)
        ends = ends + lengths
    for row, text in enumerate(words):
        note(axes, text, ends[row], row, bbox={"facecolor": CARD, "edgecolor": "none", "pad": 1})
    name_rows(axes, list(rows))


def table(
    axes: Axes, rows: Sequence[str], columns: Sequence[str], cells: Mapping[tuple[str, str], tuple[str, Any]]
) -> None:
    """Coloured cells: (row, column) → (words, colour), with the names of the columns on top."""
    for (row, column), (words, colour) in cells.items():
        box(axes, columns.index(column) - 0.48, rows.index(row) - 0.45, 0.96, 0.9, words, colour)
    name_rows(axes, rows)
    axes.set(xlim=(-0.5, len(columns) - 0.5), xticks=range(len(columns)), xticklabels=columns)
    axes.tick_params(axis="x", length=0, labeltop=True, labelbottom=False, labelcolor=INK)
    axes.spines[:].set_visible(False)


def sheet(height: float) -> tuple[Figure, Axes]:
    """A figure for a drawing, whose places are in inches."""
    fig = plt.figure(figsize=(WIDTH, height))
    axes = fig.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(0, height))
    axes.axis("off")
    return fig, axes


def drawing(plan: Mapping[str, Any], colours: Mapping[str, str], named: Callable[[str], str] = str) -> Figure:
    """Frames, boxes, arrows and words at the places of a table such as those in data/drawings.toml.

    ``colours``: by the names in the table; what has none is white. ``named``: what to write in a frame or a box.
    """
    fig, axes = sheet(plan["height"])
    for x, y, width, height, words, colour in plan["frames"]:
        fill, edge = (tint(colours[colour], 0.2), colours[colour]) if colour else (CARD, QUIET)
        box(axes, x, y, width, height, "", fill, edge=edge, lw=1.3, ls=DASHES)
        axes.text(x + 0.08, y + height - 0.07, named(words), va="top", fontsize=9)
    for *place, words, colour in plan["boxes"]:
        fill, edge = (tint(colours[colour]), colours[colour]) if colour else (CARD, QUIET)
        box(axes, *place, named(words), fill, edge=edge, shape=plan["shape"], lw=1.4)
    for *corners, tip in plan["arrows"]:
        axes.plot(*zip(*corners, strict=True), color=INK, lw=1.1)
        arrow(axes, corners[-1], tip)
    for x, y, words, side in plan["tensors"]:
        axes.text(x, y, words, ha=side, va="center", fontsize=9, family="monospace")
    return fig


def box(
    axes: Axes, x: float, y: float, width: float, height: float, words: str, fill: Any, *, edge: str = "none",
    shape: str = "square,pad=0", **look: object,
) -> None:  # fmt: skip
    """A box with words in its middle; x and y are its lower left corner."""
    axes.add_patch(FancyBboxPatch((x, y), width, height, shape, fc=fill, ec=edge, **look))
    axes.text(x + width / 2, y + height / 2, words, ha="center", va="center_baseline", fontsize=9)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str = INK, **look: object) -> None:
    tip = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0, **look}
    axes.annotate("", end, start, arrowprops=tip)
