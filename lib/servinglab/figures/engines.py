"""Figures of notebook 02."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from servinglab.figures.style import CARD, INK, WIDTH

# Okabe and Ito's colours, as in `style`.
PARTS = {
    "weights": "#0072B2",
    "KV cache": "#E69F00",
    "left free": "#F3E3BE",
    "activations, logits": "#009E73",
    "margin": "#B8B8B8",
}


def parts(estimate: Any) -> dict[str, int]:
    """{part: bytes} of one estimate, in the order in which the bars are stacked."""
    sizes = (
        estimate.weights_bytes,
        estimate.kv_bytes,
        estimate.left_free_bytes,
        estimate.activation_bytes + estimate.logits_bytes,
        estimate.margin_bytes,
    )
    return dict(zip(PARTS, sizes, strict=True))


def memory_bars(estimates: Mapping[str, Any], cards: Sequence[Any]) -> tuple[Figure, str]:
    """One bar for each estimate, stacked of its parts, against the memory of cards; and the title, which is the answer.

    "left free" is what the server does not take for its KV cache. A card's line stands at the memory that CUDA shows,
    in GB (10^9 bytes); the name of a card counts in GiB (2^30 bytes).

    ``estimates``: label → estimate, with the attributes of ``engines.memory.Estimate`` (bytes on the fullest GPU).
    ``cards``: with ``label`` and ``bytes``, the smallest first. Raises ValueError without an estimate.
    """
    if not estimates:
        raise ValueError("memory_bars needs at least one estimate")
    sizes = {card.label: card.bytes / 1e9 for card in cards}
    rows = list(estimates)
    fig, axes = plt.subplots(figsize=(WIDTH, 1.75 + 0.42 * len(rows)))
    for row, label in enumerate(rows):
        left = 0.0
        for part, count in parts(estimates[label]).items():
            width = count / 1e9
            axes.barh(row, width, left=left, height=0.62, color=PARTS[part], edgecolor=CARD, linewidth=0.8)
            left += width
        axes.annotate(f"{left:.1f} GB", (left, row), (5, 0), textcoords="offset points", va="center", fontsize=9,
                      bbox={"facecolor": CARD, "edgecolor": "none", "pad": 1})  # fmt: skip
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.set_ylim(len(rows) - 0.4, -1.6)
    for label, size in sizes.items():
        axes.vlines(size, -0.55, len(rows) - 0.4, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
        both = f"{label}:\n{size * 1e9 / 2**30:.1f} GiB = {size:.1f} GB"
        axes.annotate(both, (size, -1.05), (4, 0), textcoords="offset points", va="center", ha="right", fontsize=9)
    widest = max(sum(parts(e).values()) for e in estimates.values()) / 1e9
    axes.set_xlim(0, max(widest * 1.14, *(size * 1.02 for size in sizes.values())))
    axes.set_xlabel("memory on one GPU (GB)")
    axes.spines["left"].set_visible(False)
    _legend(axes)
    return fig, _title(estimates, sizes)


def _legend(axes: plt.Axes) -> None:
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in PARTS.values()]
    axes.legend(handles, PARTS, loc="lower left", bbox_to_anchor=(-0.01, 1), borderaxespad=0, ncols=len(PARTS),
                handlelength=1, handleheight=1, columnspacing=1.6, labelcolor=INK)  # fmt: skip


def _title(estimates: Mapping[str, Any], sizes: Mapping[str, float]) -> str:
    """Who fits the smallest card and who does not."""
    smallest, size = min(sizes.items(), key=lambda item: item[1])
    large = [label for label, e in estimates.items() if e.total_bytes / 1e9 > size]
    if not large:
        return f"Each fits an {smallest}"
    if len(large) == len(estimates):
        return f"None fits an {smallest}"
    return f"{' and '.join(large)} need{'s' * (len(large) == 1)} more than an {smallest} has, the others fit"
