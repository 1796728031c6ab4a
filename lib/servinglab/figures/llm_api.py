"""Figures of notebook 12: the two ways from a checkpoint to an answer, and which API has a name for what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from servinglab.figures.style import CARD, FAINT, INK, LANES, MODELS, QUIET, WIDTH, tint

KINDS = {"same name as in the LLM API": tint(LANES["embedded"], 0.75), "another name": tint(MODELS["ensemble"], 0.8),
         "no name": CARD}  # fmt: skip
_ENGINE = ["Hugging Face folder", "convert_checkpoint.py", "checkpoint", "trtllm-build", "engine",
           "fill five\nconfigurations", "Triton,\nfive models"]  # fmt: skip
_LLM = ["Hugging Face folder", "LLM(model=…)", "your program\ntrtllm-serve\nTriton, llmapi model"]


def two_ways() -> Figure:
    """From a Hugging Face folder to a server, with an engine above and with the LLM API below, drawn without data."""
    fig = plt.figure(figsize=(WIDTH, 3.4))
    axes = fig.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(0, 3.4))  # inches
    axes.axis("off")
    columns = (0.9, 2.8, 4.6, 6.4)
    engine = [(x, 2.4) for x in columns] + [(x, 1.65) for x in columns[:0:-1]]
    llm = [(x, 0.5) for x in columns[:3]]
    ways = (("With an engine", 2.85, LANES["trtllm"], _ENGINE, engine),
            ("With the LLM API", 1.05, LANES["embedded"], _LLM, llm))  # fmt: skip
    for title, height, colour, steps, points in ways:
        axes.text(0.1, height, title, va="center", color=INK, fontweight="bold")
        boxes = []
        for step, point in zip(steps, points, strict=True):
            box = {"boxstyle": "round,pad=0.4", "facecolor": tint(colour, 0.2), "edgecolor": colour, "linewidth": 1.3}
            boxes.append(axes.text(*point, step, ha="center", va="center", fontsize=9, bbox=box).get_bbox_patch())
        for n, (start, end) in enumerate(zip(points, points[1:], strict=False)):
            ends = {"patchA": boxes[n], "patchB": boxes[n + 1], "arrowstyle": "-|>", "color": INK}
            axes.annotate("", end, start, arrowprops=ends, zorder=4)  # after the boxes, which it must not cross
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
