"""Pictures without data, made in code: the way of a request (notebook 03) and the bytes on the wire (notebook 05)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from servinglab.figures.palette import BYTES, CARD, INK, MODELS, QUIET, WIDTH, tint


@dataclass(frozen=True)
class WireField:
    """One field of a serialised protobuf message: its bytes in wire order and what they mean.

    ``tag`` and ``length`` are varints (``length`` empty for numbers), ``value`` the payload; a message inside shows
    its tag and length only, its own fields follow with ``depth`` one higher.
    """

    name: str
    meaning: str
    tag: bytes
    length: bytes = b""
    value: bytes = b""
    depth: int = 0


def request_path(route: str = "ensemble", *, prefix: str = "") -> Figure:
    """The way of one request through Triton: ``route`` is "ensemble" or "bls"; ``prefix`` starts every model name."""
    if route not in ("ensemble", "bls"):
        raise ValueError(f"route is 'ensemble' or 'bls', not {route!r}")
    fig, axes = _canvas(2.7 if route == "ensemble" else 3.15)
    (_ensemble if route == "ensemble" else _bls)(axes, prefix)
    return fig


def wire_bytes(fields: Sequence[WireField]) -> Figure:
    """Bytes of a message, one field a row: offset, bytes coloured by their job, name and meaning."""
    if not fields:
        raise ValueError("wire_bytes needs at least one field")
    fig, axes = _canvas(_ROW * len(fields) + 1.05)
    y = axes.get_ylim()[1] - 0.6
    _legend(axes, y)
    offset = 0
    for field in fields:
        y -= _ROW
        axes.text(0.38, y, f"{offset}", ha="right", va="center", fontsize=9, color=QUIET, family="monospace")
        end = _cells(axes, field, 0.5 + 0.14 * field.depth, y)
        name = axes.text(max(end + 0.12, _LABEL), y, field.name, va="center", fontsize=9, fontweight="bold")
        axes.annotate(
            field.meaning, (1, 0.5), (6, 0), xycoords=name, textcoords="offset points", va="center", fontsize=9
        )
        offset += len(field.tag) + len(field.length) + len(field.value)
    return fig


_ROW, _CELL, _LABEL, _MOST = 0.27, 0.235, 4.0, 13  # inches; bytes shown of one field


def _cells(axes: plt.Axes, field: WireField, x: float, y: float) -> float:
    """Draw a field's bytes and return where they end. Of a long value the middle is left out."""
    head = [("tag", b) for b in field.tag] + [("length", b) for b in field.length]
    value: list[tuple[str, int | str]] = [("value", b) for b in field.value]
    if len(head) + len(value) > _MOST:
        keep = _MOST - len(head) - 2
        value = [*value[: keep - 1], ("value", "…"), value[-1]]
    for kind, byte in [*head, *value]:
        text = byte if isinstance(byte, str) else f"{byte:02x}"
        axes.add_patch(Rectangle((x, y - 0.1), _CELL, 0.2, fc=tint(BYTES[kind], 0.45), ec=CARD, lw=1))
        axes.text(x + _CELL / 2, y, text, ha="center", va="center_baseline", fontsize=9, family="monospace")
        x += _CELL
    return x


def _legend(axes: plt.Axes, y: float) -> None:
    x = 0.5
    axes.text(0.38, y, "byte", ha="right", va="center", fontsize=9, color=QUIET)
    words = {"tag": "tag: field number and wire type", "length": "length", "value": "value"}
    for kind, width in (("tag", 2.25), ("length", 0.75), ("value", 0.7)):
        axes.add_patch(Rectangle((x, y - 0.1), width - 0.06, 0.2, fc=tint(BYTES[kind], 0.45), ec=CARD))
        axes.text(x + (width - 0.06) / 2, y, words[kind], ha="center", va="center", fontsize=9)
        x += width


def _canvas(height: float) -> tuple[Figure, plt.Axes]:
    """An empty drawing in inches; the upper 0.45 is left to the title, the lower 0.25 to the small print."""
    fig = plt.figure(figsize=(WIDTH, height))
    axes = fig.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(0, height))
    axes.axis("off")
    return fig, axes


def _box(axes: plt.Axes, x: float, y: float, width: float, height: float, text: str, colour: str) -> None:
    shape = FancyBboxPatch((x, y), width, height, "round,pad=0,rounding_size=0.06", fc=tint(colour), ec=colour, lw=1.4)
    axes.add_patch(shape)
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=9)


def _frame(axes: plt.Axes, x: float, y: float, width: float, height: float, text: str, colour: str = QUIET) -> None:
    fill = CARD if colour == QUIET else tint(colour, 0.2)
    axes.add_patch(Rectangle((x, y), width, height, fc=fill, ec=colour, lw=1.3, ls=(0, (4, 3))))
    axes.text(x + 0.08, y + height - 0.07, text, ha="left", va="top", fontsize=9, color=INK)


def _arrow(axes: plt.Axes, *points: tuple[float, float]) -> None:
    """An arrow along straight lines through all points."""
    for start, end in zip(points[:-2], points[1:-1], strict=True):
        axes.plot(*zip(start, end, strict=True), color=INK, lw=1.1, solid_capstyle="projecting")
    tip = FancyArrowPatch(*points[-2:], arrowstyle="-|>", mutation_scale=10, color=INK, lw=1.1, shrinkA=0, shrinkB=0)
    axes.add_patch(tip)


def _tensor(axes: plt.Axes, x: float, y: float, name: str, ha: str = "center") -> None:
    axes.text(x, y, name, ha=ha, va="center", fontsize=9, family="monospace")


def _name(prefix: str, model: str) -> str:
    """A long deployment name on two lines, so that it fits its box."""
    return f"{prefix}\n{model}" if prefix else model


_STEPS = ("preprocessing", "tensorrt_llm", "postprocessing")


def _ensemble(axes: plt.Axes, prefix: str) -> None:
    _box(axes, 0.1, 0.85, 0.8, 0.7, "client", QUIET)
    _frame(axes, 1.85, 0.3, 5.55, 1.95, "Triton")
    _frame(axes, 2.0, 0.4, 5.25, 1.6, f"{prefix}ensemble: a fixed pipeline, no code", MODELS["ensemble"])
    for x, step in zip((2.15, 4.1, 6.05), _STEPS, strict=True):
        _box(axes, x, 0.95, 1.05, 0.6, _name(prefix, step), MODELS[step])
    _arrow(axes, (0.9, 1.35), (2.15, 1.35))
    _tensor(axes, 1.38, 1.48, "text_input")
    for x, name in ((3.2, "input_ids"), (5.15, "output_ids")):
        _arrow(axes, (x, 1.25), (x + 0.9, 1.25))
        _tensor(axes, x + 0.43, 1.38, name)
    _arrow(axes, (6.58, 0.95), (6.58, 0.62), (0.5, 0.62), (0.5, 0.85))
    _tensor(axes, 1.38, 0.5, "text_output")


def _bls(axes: plt.Axes, prefix: str) -> None:
    _box(axes, 0.1, 1.75, 0.8, 0.7, "client", QUIET)
    _frame(axes, 1.85, 0.3, 5.55, 2.4, "Triton")
    text = f"{prefix}tensorrt_llm_bls: Python code that calls the others,\n"
    text += "steps 1 and 2 once, step 3 for every token that 2 sends"
    _box(axes, 2.0, 1.85, 5.25, 0.5, text, MODELS["tensorrt_llm_bls"])
    _arrow(axes, (0.9, 2.2), (2.0, 2.2))
    _tensor(axes, 1.38, 2.33, "text_input")
    _arrow(axes, (2.0, 1.98), (0.9, 1.98))
    _tensor(axes, 1.38, 1.85, "text_output")
    calls = (("QUERY", "INPUT_ID"), ("input_ids", "output_ids"), ("TOKENS_BATCH", "OUTPUT"))
    for number, (step, (down, up)) in enumerate(zip(_STEPS, calls, strict=True)):
        middle = 2.7 + 1.85 * number
        _box(axes, middle - 0.6, 0.45, 1.2, 0.6, f"{number + 1}  {_name(prefix, step)}", MODELS[step])
        _arrow(axes, (middle - 0.1, 1.85), (middle - 0.1, 1.05))
        _tensor(axes, middle - 0.16, 1.62, down, "right")
        _arrow(axes, (middle + 0.1, 1.05), (middle + 0.1, 1.85))
        _tensor(axes, middle + 0.16, 1.28, up, "left")
