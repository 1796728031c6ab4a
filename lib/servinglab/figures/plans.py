"""Pictures of a plan for notebook 01: which ONNX nodes became one layer, and how many bytes are code or numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from servinglab.figures.style import CARD, FAINT, INK, MODELS, QUIET, WIDTH, tint

# What an operator does to the data; the same colours for the same jobs in every figure about layers.
JOBS = {
    "matrix product": ("MatMul", "Gemm", "Conv"),
    "over a row": ("Softmax", "LayerNormalization", "BatchNormalization"),
    "element by element": ("Add", "Sub", "Mul", "Div", "Erf", "Gelu", "Relu", "Tanh", "Sqrt", "Pow", "Where"),
    "moves data": ("Reshape", "Transpose", "Concat", "Slice", "Gather", "Cast", "Unsqueeze", "Expand"),
}
_COLOURS = dict(zip(JOBS, (tint(MODELS["preprocessing"], 0.6), tint(MODELS["postprocessing"], 0.45),
                           tint(MODELS["ensemble"], 0.6), FAINT), strict=True))  # fmt: skip
PARTS = {"numbers": MODELS["preprocessing"], "other": MODELS["tensorrt_llm"]}
_SHORT = {"LayerNormalization": "Norm", "BatchNormalization": "Norm", "Transpose": "Transp"}
_ROW, _GAP, _UNIT = 0.27, 0.03, 0.068  # inches: height of a row, space between boxes, width of a letter


def fusions(engines: Mapping[str, Sequence[Any]], operators: Mapping[str, str]) -> Figure:
    """Side by side, the layers of several engines: one row a layer, one box for each ONNX node that it works for.

    A product in a layer that only prepares or cuts its tensors is written "for MatMul" and grey: several layers can
    work for one node.

    ``engines``: name → layers in order, each with ``name``, ``kind`` and ``nodes`` (``engines.plan.Layer``).
    ``operators``: ONNX node name → operator, in the order of the ONNX file; nodes that are not in it are not drawn.
    Raises ValueError when there is nothing to draw.
    """
    rows = {name: [_nodes(layer, operators) for layer in layers] for name, layers in engines.items()}
    if not any(nodes for each in rows.values() for nodes in each):
        raise ValueError("fusions needs at least one layer with a node that operators knows")
    deepest = max(len(each) for each in rows.values())
    fig = plt.figure(figsize=(WIDTH, _ROW * deepest + 1.4))
    axes = fig.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(0, fig.get_figheight()))
    axes.axis("off")
    top = fig.get_figheight() - 0.85
    _legend(axes, 0.42)
    widest = [max(_width(nodes) for nodes in each) for each in rows.values()]
    x = 0.12
    for (name, each), width in zip(rows.items(), widest, strict=True):
        axes.text(x, top + 0.3, f"{name}: {len(each)} layers", fontsize=10, fontweight="bold", va="center")
        for number, nodes in enumerate(each):
            _boxes(axes, x, top - _ROW * number, number + 1, nodes)
        x += 0.3 + width + max(0.2, (WIDTH - 0.24 - sum(widest) - 0.3 * len(rows)) / max(1, len(rows) - 1))
    return fig


def sizes(files: Mapping[str, tuple[float, float]]) -> Figure:
    """What files hold, as bars: ``files`` maps a name to (bytes of numbers, bytes of everything else)."""
    if not files:
        raise ValueError("sizes needs at least one file")
    fig, axes = plt.subplots(figsize=(WIDTH, 0.42 * len(files) + 1.5))
    largest = max(map(sum, files.values())) / 1e6
    for row, (numbers, rest) in enumerate(files.values()):
        axes.barh(row, numbers / 1e6, color=tint(PARTS["numbers"], 0.6), height=0.6)
        axes.barh(row, rest / 1e6, left=numbers / 1e6, color=PARTS["other"], height=0.6)
        label = f"{numbers / 1e6:.1f} MB numbers + {_size(rest)} other"
        axes.text((numbers + rest) / 1e6 + largest * 0.01, row, label, va="center", fontsize=9)
    axes.set_yticks(range(len(files)), list(files))
    axes.set_ylim(len(files) - 0.5, -0.5)
    axes.set_xlim(0, largest * 1.75)
    axes.set_xticks([tick for tick in axes.get_xticks() if tick <= largest * 1.1])
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.set_xlabel("size of the file (MB)")
    return fig


def _size(count: float) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB" if count >= 1e3 else f"{count:.0f} B"


def _nodes(layer: Any, operators: Mapping[str, str]) -> list[str]:
    order = {name: number for number, name in enumerate(operators)}
    names = sorted(set(layer.nodes) & order.keys(), key=order.__getitem__)
    products = JOBS["matrix product"] if layer.kind == "kgen" and "gemm" not in layer.name else ()
    return [f"for {operators[name]}" if operators[name] in products else operators[name] for name in names]


def _letters(operator: str) -> str:
    return _SHORT.get(operator, operator)


def _width(nodes: Sequence[str]) -> float:
    return sum(len(_letters(node)) * _UNIT + 0.12 + _GAP for node in nodes)


def _boxes(axes: plt.Axes, x: float, y: float, number: int, nodes: Sequence[str]) -> None:
    axes.text(x + 0.18, y, f"{number}", ha="right", va="center", fontsize=9, color=QUIET)
    x += 0.27
    if len(nodes) > 1:  # the frame says: one layer
        frame = FancyBboxPatch((x - 0.02, y - 0.115), _width(nodes) + 0.01, 0.23, boxstyle="square,pad=0",
                               fc=CARD, ec=QUIET, lw=0.9)  # fmt: skip
        axes.add_patch(frame)
    for node in nodes:
        width = len(_letters(node)) * _UNIT + 0.12
        jobs = (_COLOURS[job] for job, names in JOBS.items() if node in names)
        colour = FAINT if node.startswith("for ") else next(jobs, CARD)
        axes.add_patch(FancyBboxPatch((x, y - 0.09), width, 0.18, boxstyle="square,pad=0", fc=colour, ec="none"))
        axes.text(x + width / 2, y, _letters(node), ha="center", va="center_baseline", fontsize=9)
        x += width + _GAP


def _legend(axes: plt.Axes, y: float) -> None:
    x = 0.12
    for job, colour in _COLOURS.items():
        axes.add_patch(FancyBboxPatch((x, y - 0.07), 0.2, 0.14, boxstyle="square,pad=0", fc=colour, ec="none"))
        axes.text(x + 0.27, y, job, va="center", fontsize=9)
        x += 0.5 + 0.075 * len(job)
