"""One look for every figure of the course: colours with fixed meanings, sizes, a white card that any theme can show.

Plumbing that no lesson is about. The colours are Okabe and Ito's, which people with the common colour blindnesses can
tell apart (https://jfly.uni-koeln.de/color/).
"""

from __future__ import annotations

import warnings

import matplotlib as mpl

INK, QUIET, FAINT, CARD = "#222222", "#5F5F5F", "#E4E4E4", "#FFFFFF"

_ORANGE, _SKY, _GREEN, _YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
_BLUE, _VERMILION, _PURPLE = "#0072B2", "#D55E00", "#CC79A7"

# A meaning has one colour in every notebook. Groups never share a figure, so a colour may serve in more than one.
STRATEGIES = {"greedy": INK, "temperature": _ORANGE, "top_k": _SKY, "top_p": _GREEN, "beam": _PURPLE}
LANES = {"embedded": _BLUE, "trtllm": _VERMILION}
MODELS = {
    "preprocessing": _SKY,
    "tensorrt_llm": _VERMILION,
    "postprocessing": _GREEN,
    "tensorrt_llm_bls": _PURPLE,
    "ensemble": _YELLOW,
}
BYTES = {"tag": _SKY, "length": _ORANGE, "value": FAINT}

WIDTH = 7.5  # inches


def style() -> None:
    """Set matplotlib's defaults for this course; call it once, before the first figure."""
    warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a token may be of any script; a box stands for it
    mpl.rcParams.update(
        {
            # Without a colour of its own a figure is transparent, and dark text vanishes on a dark page.
            "figure.facecolor": CARD,
            "savefig.facecolor": CARD,
            "axes.facecolor": CARD,
            "figure.figsize": (WIDTH, 3.4),
            "figure.dpi": 110,
            "savefig.dpi": 110,
            "font.size": 10,
            "axes.titlesize": 11,
            "axes.titlelocation": "left",
            "axes.labelsize": 10,
            "xtick.labelsize": 9,
            "ytick.labelsize": 9,
            "legend.fontsize": 9,
            "legend.frameon": False,
            "font.family": "DejaVu Sans",  # ships with matplotlib, so a figure looks the same everywhere
            "text.parse_math": False,  # a token, a prompt or a file's name may hold "$$"; no figure here needs formulas
            "text.color": INK,
            "axes.labelcolor": INK,
            "axes.edgecolor": QUIET,
            "xtick.color": QUIET,
            "ytick.color": QUIET,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.prop_cycle": mpl.cycler(color=[_BLUE, _ORANGE, _GREEN, _PURPLE, _VERMILION, _SKY]),
            "svg.hashsalt": "servinglab",  # same figure, same bytes
        }
    )


def tint(colour: str, share: float = 0.25) -> str:
    """``colour`` mixed with white: a background on which INK stays readable. ``share`` is how much colour is left."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 - share * (255 - part)):02X}" for part in parts)
