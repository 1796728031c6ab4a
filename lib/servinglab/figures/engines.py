"""Pictures of notebooks 01 and 02: which ONNX nodes became one layer, what files hold, how ranks share work, memory."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from servinglab.figures.style import CARD, DASHES, FAINT, INK, MODELS, QUIET, WIDTH, name_rows, note, tint

# What an operator does to the data; the same colours for the same jobs.
JOBS = {
    "matrix product": ("MatMul", "Gemm", "Conv"),
    "over a row": ("Softmax", "LayerNormalization", "BatchNormalization"),
    "element by element": ("Add", "Sub", "Mul", "Div", "Erf", "Gelu", "Relu", "Tanh", "Sqrt", "Pow", "Where"),
    "moves data": ("Reshape", "Transpose", "Concat", "Slice", "Gather", "Cast", "Unsqueeze", "Expand"),
}
_COLOURS = dict(zip(JOBS, (tint(MODELS["preprocessing"], 0.6), tint(MODELS["postprocessing"], 0.45),
                           tint(MODELS["ensemble"], 0.6), FAINT), strict=True))  # fmt: skip
CONTENTS = {"numbers": tint(MODELS["preprocessing"], 0.6), "program, header": MODELS["tensorrt_llm"]}
# Okabe and Ito's colours, as in `style`.
MEMORY = {"weights": "#0072B2", "KV cache": "#E69F00", "left free": "#F3E3BE", "activations, logits": "#009E73",
          "margin": "#B8B8B8"}  # fmt: skip
RANKS = (tint(MODELS["preprocessing"], 0.6), tint(MODELS["ensemble"], 0.6), tint(MODELS["postprocessing"], 0.45))
_SHORT = {"LayerNormalization": "Norm", "BatchNormalization": "Norm", "Transpose": "Transp"}
_ROW, _GAP, _UNIT = 0.27, 0.03, 0.068  # inches: height of a row, space between boxes, width of a letter


def fusions(engines: Mapping[str, Sequence[str]], operators: Mapping[str, str]) -> Figure:
    """Side by side, the layers of several engines: one row a layer, one box for each ONNX node that it works for.

    A product in a layer that only prepares or cuts its tensors is written "for MatMul" and grey: several layers can
    work for one node.

    ``engines``: name → layers in order, each as the engine inspector's line. ``operators``: ONNX node name → operator,
    in the order of the ONNX file; nodes that are not in it are not drawn.
    """
    rows = {name: [_nodes(layer, operators) for layer in layers] for name, layers in engines.items()}
    height = _ROW * max(map(len, rows.values())) + 1.4
    fig, axes = _canvas(height)
    _legend(axes, 0.42)
    widest = [max(map(_width, each)) for each in rows.values()]
    x, top = 0.12, height - 0.85
    for (name, each), width in zip(rows.items(), widest, strict=True):
        axes.text(x, top + 0.3, f"{name}: {len(each)} layers", fontsize=10, fontweight="bold", va="center")
        for number, nodes in enumerate(each):
            axes.text(x + 0.18, top - _ROW * number, f"{number + 1}", ha="right", va="center", fontsize=9, color=QUIET)
            _boxes(axes, x + 0.27, top - _ROW * number, nodes)
        x += 0.3 + width + max(0.2, (WIDTH - 0.24 - sum(widest) - 0.3 * len(rows)) / max(1, len(rows) - 1))
    return fig


def sizes(files: Mapping[str, tuple[float, float]]) -> Figure:
    """What files hold, as bars: ``files`` maps a name to (bytes of numbers, bytes of everything else)."""
    fig, axes = plt.subplots(figsize=(WIDTH, 0.42 * len(files) + 1.7))
    largest = max(map(sum, files.values())) / 1e6
    for row, each in enumerate(files.values()):
        left = 0.0
        for count, (name, colour) in zip(each, CONTENTS.items(), strict=True):
            axes.barh(row, count / 1e6, left=left, color=colour, height=0.6, label=name if row == 0 else None)
            left += count / 1e6
        rest = f"{each[1] / 1e6:.1f} MB" if each[1] >= 1e5 else f"{each[1] / 1e3:.1f} kB"
        note(axes, f"{each[0] / 1e6:.1f} MB + {rest}", left, row)
    name_rows(axes, list(files))
    axes.set(xlim=(0, largest * 1.35), xlabel="size of the file (MB)")
    axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1), ncols=2, borderaxespad=0, handlelength=1, handleheight=1)
    return fig


def memory_bars(estimates: Mapping[str, Any]) -> Figure:
    """One bar for each estimate, stacked of its parts, against the memory of their card, which CUDA shows.

    ``estimates``: label → ``engines.memory.Estimate`` (bytes on the fullest GPU), all for the same gpu. The axis is in
    GB (10^9 bytes); the name of a card counts in GiB (2^30 bytes).
    """
    fig, axes = plt.subplots(figsize=(WIDTH, 1.9 + 0.42 * len(estimates)))
    for row, e in enumerate(estimates.values()):
        counts = (e.weights_bytes, e.kv_bytes, e.left_free_bytes, e.activation_bytes + e.logits_bytes, e.margin_bytes)
        left = 0.0
        for count, (part, colour) in zip(counts, MEMORY.items(), strict=True):
            axes.barh(row, count / 1e9, left=left, height=0.62, color=colour, edgecolor=CARD, linewidth=0.8,
                      label=part if row == 0 else None)  # fmt: skip
            left += count / 1e9
        note(axes, f"{left:.1f} GB", left, row, bbox={"facecolor": CARD, "edgecolor": "none", "pad": 1})
    name_rows(axes, list(estimates), above=1.4)
    card = next(iter(estimates.values()))
    axes.axvline(card.gpu_bytes / 1e9, ymax=0.85, color=INK, linewidth=1.2, linestyle=DASHES)
    note(axes, f"{card.gpu}: {card.gpu_bytes / 1e9:.1f} GB", card.gpu_bytes / 1e9, -0.95, (-4, 0), ha="right")
    axes.set(xlim=(0, axes.get_xlim()[1] * 1.08), xlabel="memory on one GPU (GB)")
    axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1), borderaxespad=0, ncols=len(MEMORY), handlelength=1,
                handleheight=1, columnspacing=1.5)  # fmt: skip
    return fig


def tensor_parallel(ranks: int = 3) -> Figure:
    """A drawing: the MLP of one layer over several ranks; fc and gate cut by outputs, proj by inputs, then the sum."""
    fig, axes = _canvas(0.62 * ranks + 1.5)
    middle, y = 0.35 + 0.31 * ranks, 0.35 + 0.62 * (ranks - 1)
    _box(axes, 0.1, middle, 0.7, "x", FAINT)
    for rank in range(ranks):
        colour, at = RANKS[rank % len(RANKS)], y - 0.62 * rank + 0.31
        for x, width, words in (
            (1.35, 2.1, f"rows {rank + 1}/{ranks} of fc and gate"),
            (3.85, 1.9, f"columns {rank + 1}/{ranks} of proj"),
        ):
            _box(axes, x, at, width, words, colour)
        for ends in (((0.8, middle), (1.35, at)), ((3.45, at), (3.85, at)), ((5.75, at), (6.25, middle))):
            axes.add_patch(
                FancyArrowPatch(*ends, arrowstyle="-|>", mutation_scale=9, color=QUIET, shrinkA=0, shrinkB=1)
            )
    _box(axes, 6.25, middle, 1.1, "sum: y", FAINT)
    for x, words in (
        (1.35, "column parallel:\neach rank makes other numbers"),
        (3.85, "row parallel:\na share of every number"),
        (6.25, "all-reduce"),
    ):
        axes.text(x, 0.35 + 0.62 * ranks, words, fontsize=9, va="bottom", color=QUIET)
    return fig


def _canvas(height: float) -> tuple[Figure, plt.Axes]:
    """A figure whose axes count in inches."""
    fig = plt.figure(figsize=(WIDTH, height))
    axes = fig.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(0, height))
    axes.axis("off")
    return fig, axes


def _box(axes: plt.Axes, x: float, y: float, width: float, words: str, colour: str, height: float = 0.42) -> None:
    axes.add_patch(Rectangle((x, y - height / 2), width, height, fc=colour, ec="none"))
    axes.text(x + width / 2, y, words, ha="center", va="center_baseline", fontsize=9)


def _nodes(layer: str, operators: Mapping[str, str]) -> list[str]:
    order, listed = (
        {name: number for number, name in enumerate(operators)},
        re.findall(r"\[ONNX Layer: ([^\]]+)\]", layer),
    )
    names = sorted(set(listed) & order.keys(), key=order.__getitem__)
    prepares = "LayerType: kgen" in layer and "gemm" not in layer.partition(", LayerType")[0]
    products = JOBS["matrix product"] if prepares else ()
    return [f"for {operators[name]}" if operators[name] in products else operators[name] for name in names]


def _width(nodes: Sequence[str]) -> float:
    return sum(len(_SHORT.get(node, node)) * _UNIT + 0.12 + _GAP for node in nodes)


def _boxes(axes: plt.Axes, x: float, y: float, nodes: Sequence[str]) -> None:
    if len(nodes) > 1:  # the frame says: one layer
        axes.add_patch(Rectangle((x - 0.02, y - 0.115), _width(nodes) + 0.01, 0.23, fc=CARD, ec=QUIET, lw=0.9))
    for node in nodes:
        jobs = (_COLOURS[job] for job, names in JOBS.items() if node in names)
        colour = FAINT if node.startswith("for ") else next(jobs, CARD)
        _box(axes, x, y, _width([node]) - _GAP, _SHORT.get(node, node), colour, 0.18)
        x += _width([node])


def _legend(axes: plt.Axes, y: float) -> None:
    x = 0.12
    for job, colour in _COLOURS.items():
        axes.add_patch(Rectangle((x, y - 0.07), 0.2, 0.14, fc=colour, ec="none"))
        axes.text(x + 0.27, y, job, va="center", fontsize=9)
        x += 0.5 + 0.075 * len(job)
