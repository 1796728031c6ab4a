"""Figures of notebook 15: scores of two groups of queries, index types, growth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from servinglab.figures import style

_GROUPS = ("#009E73", "#D55E00")
_INDEXES = {"flat": style.INK, "hnsw": "#0072B2", "ivf": "#E69F00"}
_NAMES = {"flat": "flat", "hnsw": "HNSW", "ivf": "IVF"}
GOOD = 0.9  # recall that a growing index has to keep


def two_groups(best: Mapping[str, np.ndarray], line: float) -> Figure:
    """How the best scores of two groups of queries are spread, in percent of each group, and a threshold."""
    fig, axes = plt.subplots(figsize=(style.WIDTH, 2.9))
    values = np.concatenate(list(best.values()))
    edges = np.linspace(values.min(), values.max(), 25)
    for (name, scores), colour in zip(best.items(), _GROUPS, strict=True):
        share = np.full(len(scores), 100 / len(scores))
        axes.hist(scores, edges, weights=share, color=colour, alpha=0.6, label=f"{name} ({len(scores)})")
    axes.axvline(line, color=style.INK, linewidth=1.2)
    style.note(axes, f"{line:.2f}", line, 1, (4, -6), xycoords=("data", "axes fraction"), fontsize=10)
    axes.set(xlabel="score of the best hit (cosine)", ylabel="share of the group (%)")
    axes.legend()
    return fig


def trade(points: Iterable[Mapping[str, Any]]) -> Figure:
    """Recall against time, a panel for each number of vectors and a line for each index; each dot is one effort.

    points: dicts as those of `index_types.Point`, of one engine.
    """
    points = list(points)
    sizes = sorted({point["vectors"] for point in points})
    fig, panels = plt.subplots(1, len(sizes), figsize=(style.WIDTH, 3.1), sharex=True, sharey=True, squeeze=False)
    for axes, size in zip(panels[0], sizes, strict=True):
        for index, colour in _INDEXES.items():
            own = [point for point in points if point["vectors"] == size and point["index"] == index]
            own.sort(key=lambda point: point["effort"])
            x, y = [point["p50_ms"] for point in own], [point["recall_at_10"] for point in own]
            axes.plot(x, y, marker="o", markersize=4, color=colour, label=_NAMES[index])
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
        axes.set_title(f"{size:,} vectors", fontsize=10)
        axes.set_xlabel("time of one query (ms)")
    panels[0][0].set_ylabel("recall of the true ten nearest")
    panels[0][-1].legend(loc="lower right")
    return fig


def growth(points: Iterable[Mapping[str, Any]]) -> Figure:
    """Time of a query and size of each index against the number of vectors, at the least effort with recall of GOOD."""
    cheapest = at_recall(points)
    fig, panels = plt.subplots(1, 2, figsize=(style.WIDTH, 3.1))
    wanted = {"p50_ms": "time of one query (ms)", "megabytes": "size (MB)"}
    for axes, (field, label) in zip(panels, wanted.items(), strict=True):
        for index, colour in _INDEXES.items():
            own = [point for point in cheapest if point["index"] == index]
            x = [point["vectors"] for point in own]
            axes.plot(x, [point[field] for point in own], marker="o", markersize=4, color=colour, label=_NAMES[index])
        axes.set(xscale="log", yscale="log", xlabel="vectors", ylabel=label)
        for axis, form in ((axes.xaxis, "{x:,.0f}"), (axes.yaxis, "{x:g}")):
            axis.set_major_formatter(form)
            axis.set_minor_formatter("")
    panels[0].legend()
    return fig


def at_recall(points: Iterable[Mapping[str, Any]], least: float = GOOD) -> list[Mapping[str, Any]]:
    """For each index and number of vectors the fastest point with at least this recall, by number of vectors."""
    best: dict[tuple[str, int], Mapping[str, Any]] = {}
    for point in points:
        key = point["index"], point["vectors"]
        if point["recall_at_10"] >= least and (key not in best or point["p50_ms"] < best[key]["p50_ms"]):
            best[key] = point
    return sorted(best.values(), key=lambda point: point["vectors"])
