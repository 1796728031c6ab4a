"""Figures of notebook 12: which API has a name for what, who samples, and what gets lost."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from servinglab.figures.style import CARD, FAINT, INK, LANES, MODELS, QUIET, STRATEGIES, WIDTH, table, tint

KINDS = {"same name as in the LLM API": tint(LANES["embedded"], 0.75), "another name": tint(MODELS["ensemble"], 0.8),
         "no name": CARD}  # fmt: skip


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


def choices(rule: Mapping[tuple[str, str], str]) -> Figure:
    """(request, API) → "greedy" or "sampling"."""
    requests, apis = (list(dict.fromkeys(names)) for names in zip(*rule, strict=True))
    fig, axes = plt.subplots(figsize=(WIDTH, 0.9 + 0.38 * len(requests)))
    colours = {"greedy": FAINT, "sampling": tint(STRATEGIES["temperature"], 0.6)}
    table(axes, requests, apis, {at: (how, colours[how]) for at, how in rule.items()})
    return fig


def losses(request: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]], apis: Sequence[str]) -> Figure:
    """What each field of an engine's request is called on each of `apis`; `tables`: API → its parameters."""
    fig, axes = plt.subplots(figsize=(WIDTH, 0.9 + 0.36 * len(request)))
    same, other, none = tint(LANES["embedded"], 0.3), tint(MODELS["ensemble"], 0.6), tint(LANES["trtllm"], 0.45)
    cells = {}
    for parameter, ours in tables["engine"].items():
        for api in apis if ours.name in request else ():
            name = tables[api][parameter].name
            cells[ours.name, api] = (name or "lost", none if name is None else same if name == ours.name else other)
    table(axes, list(request), apis, cells)
    return fig
