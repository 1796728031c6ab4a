"""Figures of notebooks 01 and 02: which ONNX nodes became one layer, what files hold, memory."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from servinglab.figures.style import CARD, DASHES, FAINT, INK, MODELS, QUIET, WIDTH, bars, box, note, sheet, tint
from servinglab.root import data

# What each operator does to the data; the same colours for the same jobs.
JOBS = data("drawings.toml")["jobs"]
_COLOURS = dict(zip(JOBS, (tint(MODELS["preprocessing"], 0.6), tint(MODELS["postprocessing"], 0.45),
                           tint(MODELS["ensemble"], 0.6), FAINT), strict=True))  # fmt: skip
CONTENTS = {"numbers": tint(MODELS["preprocessing"], 0.6), "program, header": MODELS["tensorrt_llm"]}
# Okabe and Ito's colours, as in `style`.
MEMORY = {"weights": "#0072B2", "KV cache": "#E69F00", "left free": "#F3E3BE", "activations, logits": "#009E73",
          "margin": "#B8B8B8"}  # fmt: skip
_SHORT = {"LayerNormalization": "Norm", "BatchNormalization": "Norm", "Transpose": "Transp"}
_ROW, _GAP, _UNIT = 0.27, 0.03, 0.068  # inches: height of a row, space between boxes, width of a letter


def fusions(engines: Mapping[str, Sequence[str]], operators: Mapping[str, str]) -> Figure:
    """Side by side, the layers of several engines: one row a layer, one box for each ONNX node that it works for.

    A product in a layer that only prepares or cuts its tensors is written "for MatMul" and grey.

    ``engines``: name → layers in order, each as the engine inspector's line. ``operators``: ONNX node name → operator,
    in the order of the ONNX file; nodes that are not in it are not drawn.
    """
    rows = {name: [_nodes(layer, operators) for layer in layers] for name, layers in engines.items()}
    height = _ROW * max(map(len, rows.values())) + 1.4
    fig, axes = sheet(height)
    drawn = {node for each in rows.values() for nodes in each for node in nodes}
    handles = [Patch(fc=colour, label=job) for job, colour in _COLOURS.items() if drawn & set(JOBS[job])]
    _legend(axes, handles=handles, bbox_to_anchor=(0.12, 0.35), bbox_transform=axes.transData, borderpad=0)
    widest = [max(map(_width, each)) for each in rows.values()]
    x, top = 0.12, height - 0.85
    for (name, each), width in zip(rows.items(), widest, strict=True):
        axes.text(x, top + 0.3, f"{name}: {len(each)} layers", fontsize=10, fontweight="bold", va="center")
        for number, nodes in enumerate(each):
            left, y = x + 0.27, top - _ROW * number
            axes.text(x + 0.18, y, f"{number + 1}", ha="right", va="center", fontsize=9, color=QUIET)
            if len(nodes) > 1:  # the frame says: one layer
                box(axes, left - 0.02, y - 0.115, _width(nodes) + 0.01, 0.23, "", CARD, edge=QUIET, lw=0.9)
            for node in nodes:
                jobs = (_COLOURS[job] for job, names in JOBS.items() if node in names)
                colour = FAINT if node.startswith("for ") else next(jobs, CARD)
                _box(axes, left, y, _width([node]) - _GAP, _SHORT.get(node, node), colour, 0.18)
                left += _width([node])
        x += 0.3 + width + max(0.2, (WIDTH - 0.24 - sum(widest) - 0.3 * len(rows)) / max(1, len(rows) - 1))
    return fig


def sizes(files: Mapping[str, tuple[float, float]]) -> Figure:
    """What files hold, as bars: ``files`` maps a name to (bytes of numbers, bytes of everything else)."""
    fig, axes = plt.subplots(figsize=(WIDTH, 0.42 * len(files) + 1.7))
    megabytes = {name: [count / 1e6 for count in each] for name, each in files.items()}
    rest = [f"{more:.1f} MB" if more >= 0.1 else f"{1e3 * more:.1f} kB" for _, more in megabytes.values()]
    words = [f"{each[0]:.1f} MB + {more}" for each, more in zip(megabytes.values(), rest, strict=True)]
    bars(axes, megabytes, CONTENTS, words, height=0.6)
    axes.set(xlim=(0, 1.35 * max(map(sum, megabytes.values()))), xlabel="size of the file (MB)")
    _legend(axes)
    return fig


def memory_bars(estimates: Mapping[str, Any], axes: Axes | None = None) -> Figure:
    """One bar for each estimate, stacked of its parts, against the memory of their card, which CUDA shows.

    ``estimates``: label → ``engines.memory.Estimate`` (bytes on the fullest GPU), all for the same gpu. The axis is in
    GB (10^9 bytes); the name of a card counts in GiB (2^30 bytes). ``axes``: draw there, with the legend inside.
    """
    inside = {"loc": "center right", "bbox_to_anchor": (1, 0.5), "ncols": 1} if axes else {}
    if not axes:
        _, axes = plt.subplots(figsize=(WIDTH, 1.9 + 0.42 * len(estimates)))
    gigabytes = {
        label: [count / 1e9 for count in (e.weights_bytes, e.kv_bytes, e.left_free_bytes,
                                          e.activation_bytes + e.logits_bytes, e.margin_bytes)]
        for label, e in estimates.items()
    }  # fmt: skip
    words = [f"{sum(parts):.1f} GB" for parts in gigabytes.values()]
    bars(axes, gigabytes, MEMORY, words, height=0.62, edgecolor=CARD, linewidth=0.8)
    axes.set_ylim(top=-1.4)  # room for the name of the card
    card = next(iter(estimates.values()))
    axes.axvline(card.gpu_bytes / 1e9, ymax=0.85, color=INK, linewidth=1.2, linestyle=DASHES)
    note(axes, f"{card.gpu}: {card.gpu_bytes / 1e9:.1f} GB", card.gpu_bytes / 1e9, -0.95, (-4, 0), ha="right")
    axes.set(xlim=(0, axes.get_xlim()[1] * (1.45 if inside else 1.08)), xlabel="memory on one GPU (GB)")
    _legend(axes, **inside)
    return axes.figure


def _legend(axes: Axes, **more: Any) -> None:
    """The colours in one line, above the axes unless `more` says another place."""
    look = {"ncols": 5, "borderaxespad": 0, "handlelength": 1, "handleheight": 1, "columnspacing": 1.5}
    axes.legend(**{"loc": "lower left", "bbox_to_anchor": (-0.01, 1), **look, **more})


def _box(axes: Axes, x: float, y: float, width: float, words: str, colour: str, height: float = 0.42) -> None:
    box(axes, x, y - height / 2, width, height, words, colour)


def _nodes(layer: str, operators: Mapping[str, str]) -> list[str]:
    """The operators of a layer's nodes, in the order of the ONNX file."""
    listed = set(re.findall(r"\[ONNX Layer: ([^\]]+)\]", layer))
    prepares = "LayerType: kgen" in layer and "gemm" not in layer.partition(", LayerType")[0]
    products = JOBS["matrix product"] if prepares else ()
    found = [operator for name, operator in operators.items() if name in listed]
    return [f"for {operator}" if operator in products else operator for operator in found]


def _width(nodes: Sequence[str]) -> float:
    return sum(len(_SHORT.get(node, node)) * _UNIT + 0.12 + _GAP for node in nodes)
