"""One look for every figure of the course: colours with fixed meanings, sizes, a title that answers, small print.

Plumbing that no lesson is about. The colours are Okabe and Ito's, which people with the common colour blindnesses can
tell apart (https://jfly.uni-koeln.de/color/).
"""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Sequence

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

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

WIDTH, DPI = 7.5, 110  # inches; with more dots some pictures would exceed 150 kB
DASHES = (0, (4, 3))  # of a limit or a reference

_small_print = ""


def use(small_print: str = "") -> None:
    """Set matplotlib's defaults for this course; call it once, before the first figure. `small_print`: what made the
    numbers of the figures to come."""
    global _small_print
    _small_print = small_print
    warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a token may be of any script; a box stands for it
    # Without a colour of its own a figure is transparent, and dark text vanishes on a dark page.
    mpl.rc("figure", facecolor=CARD, figsize=(WIDTH, 3.4), dpi=DPI)
    mpl.rc("savefig", facecolor=CARD, dpi=DPI)
    mpl.rc("font", size=10, family="DejaVu Sans")  # it ships with matplotlib, so a figure looks the same everywhere
    # A token, a prompt or a file's name may hold "$$"; no figure here needs formulas.
    mpl.rc("text", color=INK, parse_math=False)
    mpl.rc("axes", facecolor=CARD, edgecolor=QUIET, labelcolor=INK, labelsize=10, titlesize=11, titlelocation="left")
    mpl.rc("axes", prop_cycle=mpl.cycler(color=[_BLUE, _ORANGE, _GREEN, _PURPLE, _VERMILION, _SKY]))
    mpl.rc("axes.spines", top=False, right=False)
    mpl.rc(("xtick", "ytick"), color=QUIET, labelsize=9)
    mpl.rc("legend", fontsize=9, frameon=False)
    mpl.rc("svg", hashsalt="servinglab")  # same figure, same bytes


def tint(colour: str, share: float = 0.25) -> str:
    """``colour`` mixed with white: a background on which INK stays readable. ``share`` is how much colour is left."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 - share * (255 - part)):02X}" for part in parts)


def show(fig: Figure, title: str, summary: str, *, drawing: bool = False, photos: bool = False) -> None:
    """Put a title and the small print on a figure, show it, close it, and print the summary, its alt text.

    ``title``: the answer to the question before the figure, at most 80 characters. ``summary``: one line that says the
    same in words; only deterministic words where nbval is to compare it. ``drawing``: nothing in it was measured.
    ``photos``: store it as JPEG, a third of the size when the figure is full of photographs.
    """
    small_print = "" if drawing else _small_print
    height = fig.get_figheight()
    fig.text(0.01, 1 - 0.08 / height, title, ha="left", va="top", fontsize=12, fontweight="bold")
    fig.text(0.01, 0.06 / height, small_print, ha="left", va="bottom", fontsize=9, color=QUIET)
    bottom, top = 0.28 / height * bool(small_print), 1 - (0.42 + 0.2 * title.count("\n")) / height
    if any(axes.get_subplotspec() for axes in fig.axes):  # a drawing has its own fixed place
        fig.set_layout_engine("constrained", rect=(0, bottom, 1, top - bottom))
    if _in_notebook():
        from IPython.display import Image, display

        shown, kind = (Image(_jpeg(fig), format="jpeg"), "image/jpeg") if photos else (fig, "image/png")
        display(shown, metadata={kind: {"alt": summary}})  # what a page says to those who cannot see it
    plt.close(fig)
    print(summary)


def _jpeg(fig: Figure) -> bytes:
    buffer = io.BytesIO()
    fig.savefig(buffer, format="jpeg", bbox_inches="tight", pil_kwargs={"quality": 75, "optimize": True})
    return buffer.getvalue()


def _in_notebook() -> bool:
    """A cell shows figures; a plain script has nowhere to show them."""
    return "IPython" in sys.modules and getattr(sys.modules["IPython"].get_ipython(), "kernel", None) is not None


def name_rows(axes: Axes, names: Sequence[str], *, above: float = 0.6, below: float = 0.6) -> None:
    """Rows 0, 1, … with a name each instead of numbers, the first on top, and that much room around them."""
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.set_ylim(len(names) - 1 + below, -above)


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Lower and upper bound of a proportion, with 95 % confidence (Wilson 1927): inside 0 to 1, never without width."""
    import scipy.stats  # half a second, which not every figure needs

    return tuple(scipy.stats.binomtest(successes, trials).proportion_ci(method="wilson"))


def note(axes: Axes, words: str, x: float, y: float, shift: tuple[float, float] = (6, 0), **more: object) -> None:
    """Words at a point of the data, `shift` points to the right of and above it."""
    axes.annotate(words, (x, y), shift, textcoords="offset points", **{"va": "center", "fontsize": 9, **more})


def beside(axes: Axes, words: str, y: float, **more: object) -> None:
    """Words to the right of the axes, where no mark can run into them."""
    note(axes, words, 1, y, xycoords=("axes fraction", "data"), **more)
