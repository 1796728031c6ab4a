"""Figures of notebook 12: the two ways from a checkpoint to an answer, and which API has a name for what."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from servinglab.figures.style import CARD, FAINT, INK, LANES, MODELS, QUIET, WIDTH, sheet, tint
from servinglab.root import data

KINDS = {"same name as in the LLM API": tint(LANES["embedded"], 0.75), "another name": tint(MODELS["ensemble"], 0.8),
         "no name": CARD}  # fmt: skip


def two_ways() -> Figure:
    """From a Hugging Face folder to a server, with an engine above and with the LLM API below, drawn without data."""
    fig, axes = sheet(3.4)
    for title, height, lane, steps in data("drawings.toml")["two_ways"]["ways"]:
        axes.text(0.1, height, title, va="center", color=INK, fontweight="bold")
        box = {"boxstyle": "round,pad=0.4", "fc": tint(LANES[lane], 0.2), "ec": LANES[lane], "linewidth": 1.3}
        words = [axes.text(*step, ha="center", va="center", fontsize=9, bbox=box) for step in steps]
        for start, end in pairwise(words):
            ends = {"patchA": start.get_bbox_patch(), "patchB": end.get_bbox_patch(), "arrowstyle": "-|>", "color": INK}
            # after the boxes, which it must not cross
            axes.annotate("", end.get_position(), start.get_position(), arrowprops=ends, zorder=4)
    return fig


def names(kinds: Mapping[str, Sequence[int]], apis: Sequence[str]) -> Figure:
    """One row a parameter, one column an API, in two halves beside each other; kinds: parameter → place in KINDS."""
    half = -(-len(kinds) // 2)
    fig, panels = plt.subplots(1, 2, figsize=(WIDTH, 1.5 + 0.21 * half))
    for axes, part in zip(panels, (list(kinds.items())[:half], list(kinds.items())[half:]), strict=True):
        cells = np.array([values for _, values in part])
        axes.pcolormesh(cells, cmap=ListedColormap(list(KINDS.values())), vmin=0, vmax=2, edgecolor=FAINT, linewidth=1)
        axes.set_yticks(np.arange(len(part)) + 0.5, [parameter for parameter, _ in part])
        axes.set_xticks(np.arange(len(apis)) + 0.5, apis, rotation=40, ha="left", rotation_mode="anchor")
        axes.xaxis.tick_top()
        axes.set(ylim=(half, 0), frame_on=False)
        axes.tick_params(length=0, labelcolor=INK)
    legend = [Patch(facecolor=colour, edgecolor=QUIET, label=label) for label, colour in KINDS.items()]
    fig.legend(handles=legend, loc="outside lower center", ncols=3)
    return fig
