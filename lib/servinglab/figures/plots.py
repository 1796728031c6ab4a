"""Figures: a title that answers, small print that says what produced it, and a line of text for who cannot look.

Colours and sizes are in ``palette``, pictures without data in ``drawings``. ``token_timeline`` belongs to notebook 05.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from servinglab.figures.drawings import WireField, request_path, wire_bytes
from servinglab.figures.palette import FAINT, INK, LANES, MODELS, QUIET, STRATEGIES, WIDTH, style, tint
from servinglab.notebook import device, resolve_lane

__all__ = ["FAINT", "INK", "LANES", "MODELS", "QUIET", "STRATEGIES", "WIDTH", "WireField", "finish", "provenance",
           "request_path", "style", "tint", "token_timeline", "wire_bytes"]  # fmt: skip


def provenance(lane: str = "auto", seed: int | None = None, **more: object) -> str:
    """Small print of a figure: lane, device, seed and whatever else made it, such as ``precision="int4"``."""
    parts = [f"{resolve_lane(lane)} lane", device(lane)]
    parts += [f"seed {seed}"] * (seed is not None) + [f"{name} {value}" for name, value in more.items()]
    return " · ".join(parts)


def finish(fig: Figure, title: str, small_print: str, summary: str, *, photos: bool = False) -> None:
    """Put title and provenance on a figure, show it once, close it, and print the summary.

    ``title``: the answer to the question before the figure. ``small_print``: see ``provenance``; "" for a drawing.
    ``summary``: one line that says the same in words; only deterministic words where nbval is to compare it.
    ``photos``: store it as JPEG, a third of the size when the figure is full of photographs.
    """
    height = fig.get_figheight()
    fig.text(0.01, 1 - 0.08 / height, title, ha="left", va="top", fontsize=12, fontweight="bold")
    fig.text(0.01, 0.06 / height, small_print, ha="left", va="bottom", fontsize=9, color=QUIET)
    bottom, top = 0.28 / height * bool(small_print), 1 - (0.42 + 0.2 * title.count("\n")) / height
    if any(axes.get_subplotspec() for axes in fig.axes):  # a drawing has its own fixed place
        fig.set_layout_engine("constrained", rect=(0, bottom, 1, top - bottom))
    if _in_notebook():
        from IPython.display import Image, display

        alt = {"alt": summary}  # what a page says to those who cannot see it
        if photos:
            display(Image(_jpeg(fig), format="jpeg"), metadata={"image/jpeg": alt})
        else:
            display(fig, metadata={"image/png": alt})
    plt.close(fig)
    print(summary)


def _jpeg(fig: Figure) -> bytes:
    buffer = io.BytesIO()
    fig.savefig(buffer, format="jpeg", bbox_inches="tight", pil_kwargs={"quality": 75, "optimize": True})
    return buffer.getvalue()


def _in_notebook() -> bool:
    """A cell shows figures; a plain script has nowhere to show them."""
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    return getattr(get_ipython(), "kernel", None) is not None


def token_timeline(streams: Mapping[str, Sequence[float]], *, lane: str = "auto") -> Figure:
    """When the tokens of one or several streams arrived, and how long each was waited for.

    ``streams``: name → seconds from the request to each arrival, ascending. Raises ValueError for anything else.
    """
    times = {name: _arrivals(name, arrivals) for name, arrivals in streams.items()}
    if not times:
        raise ValueError("token_timeline needs at least one stream")
    colour, count = LANES[resolve_lane(lane)], len(times)
    heights = (0.45 + 0.28 * count, 1.3 if count == 1 else 0.35 + 0.28 * count)
    fig, (upper, lower) = plt.subplots(2, 1, figsize=(WIDTH, sum(heights) + 1.9), height_ratios=heights)
    for row, arrivals in enumerate(times.values()):
        _arrivals_row(upper, row, arrivals, colour)
    _rows(upper, list(times))
    _beside(upper, -0.85, "first token, then")
    upper.set_xlim(left=0)
    upper.set_xlabel("time since the request (s)")
    if count == 1:
        _waits_by_number(lower, next(iter(times.values())), colour)
    else:
        for row, arrivals in enumerate(times.values()):
            _waits_row(lower, row, arrivals, colour)
        _rows(lower, list(times))
        _beside(lower, -0.85, "half of the waits")
        lower.set_xlim(left=0)
        lower.set_xlabel("wait for the next token (ms)")
    return fig


def _arrivals(name: str, arrivals: Sequence[float]) -> np.ndarray:
    times = np.asarray(arrivals, dtype=float)
    if times.ndim != 1 or len(times) < 2 or times[0] < 0 or np.any(np.diff(times) < 0):
        raise ValueError(f"stream {name!r}: need at least two ascending times in seconds, got {arrivals!r:.80}")
    return times


def _rows(axes: plt.Axes, names: list[str]) -> None:
    """One line of the figure for each stream, the first on top, with room above for a heading."""
    axes.set_ylim(len(names) - 0.4, -1.3)
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.spines["left"].set_visible(False)


def _beside(axes: plt.Axes, row: float, text: str) -> None:
    """Words to the right of the axes, where no mark can run into them."""
    place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center"}
    axes.annotate(text, (1, row), (6, 0), fontsize=9, **place)


def _arrivals_row(axes: plt.Axes, row: int, arrivals: np.ndarray, colour: str) -> None:
    """A bar until the first token, then a mark for every token."""
    axes.barh(row, arrivals[0], height=0.5, color=tint(colour), edgecolor=colour, linewidth=0.8)
    axes.plot(arrivals, np.full(len(arrivals), row), "|", color=colour, markersize=10, markeredgewidth=1.4)
    lasted = arrivals[-1] - arrivals[0]
    rate = f", {(len(arrivals) - 1) / lasted:.0f} tokens/s" if lasted > 0 else ""
    _beside(axes, row, f"{arrivals[0] * 1000:.0f} ms{rate}")


def _waits_row(axes: plt.Axes, row: int, arrivals: np.ndarray, colour: str) -> None:
    """Every wait of one stream as a dot, the middle one as a line."""
    waits = np.diff(arrivals) * 1000
    spread = np.resize([-0.15, 0.05, -0.05, 0.15, 0.0], len(waits))  # so that equal waits do not hide each other
    axes.plot(waits, row + spread, "o", color=colour, alpha=0.5, markersize=4, markeredgewidth=0)
    middle = float(np.median(waits))
    axes.plot([middle, middle], [row - 0.32, row + 0.32], color=INK, linewidth=1.6)
    _beside(axes, row, f"below {middle:.0f} ms")


def _waits_by_number(axes: plt.Axes, arrivals: np.ndarray, colour: str) -> None:
    """The wait before each token of a single stream, and the middle one as a line."""
    waits = np.diff(arrivals) * 1000
    axes.bar(np.arange(2, len(arrivals) + 1), waits, width=0.75, color=tint(colour, 0.6))
    middle = float(np.median(waits))
    axes.axhline(middle, color=INK, linewidth=1.2)
    _beside(axes, middle, f"half of the waits\nare below {middle:.0f} ms")
    axes.set_xlim(0, len(arrivals) + 1)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("token number")
    axes.set_ylabel("wait (ms)")
