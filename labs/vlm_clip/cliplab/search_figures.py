"""Figures of notebook 15: scores of two groups of queries, index types, growth."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from servinglab import plots

_GROUPS = ("#009E73", "#D55E00")


def two_groups(best: Mapping[str, np.ndarray], line: float) -> Figure:
    """How the best scores of two groups of queries are spread, in percent of each group, and a threshold."""
    fig, axes = plt.subplots(figsize=(plots.WIDTH, 2.9))
    values = np.concatenate(list(best.values()))
    edges = np.linspace(values.min(), values.max(), 25)
    for (name, scores), colour in zip(best.items(), _GROUPS, strict=True):
        share = np.full(len(scores), 100 / len(scores))
        axes.hist(scores, edges, weights=share, color=colour, alpha=0.6, label=f"{name} ({len(scores)})")
    axes.axvline(line, color=plots.INK, linewidth=1.2)
    axes.annotate(f"{line:.2f}", (line, 1), (4, -10), xycoords=("data", "axes fraction"), textcoords="offset points")
    axes.set_xlabel("score of the best hit (cosine)")
    axes.set_ylabel("share of the group (%)")
    axes.legend()
    return fig
