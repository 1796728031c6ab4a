"""Figures of notebook 05: the bytes of a request on the wire, and when the tokens of a stream arrive."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from servinglab.figures.style import BYTES, CARD, INK, LANES, QUIET, WIDTH, beside, name_rows, note, tint
from servinglab.notebook import resolve_lane

_VARINT, _FIXED64, _LENGTH = 0, 1, 2  # https://protobuf.dev/programming-guides/encoding/
_WHOLE = {getattr(FieldDescriptor, f"TYPE_{name}") for name in ("INT32", "INT64", "UINT32", "UINT64", "BOOL")}
_ROW, _CELL, _LABEL, _MOST = 0.27, 0.235, 4.0, 13  # inches; bytes shown of one field


class WireField(NamedTuple):
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


def take_apart(message: Message) -> list[WireField]:
    """Every field of one of KServe's requests in wire order; all their bytes joined are the serialised message."""
    return list(_fields(message.SerializeToString(deterministic=True), message.DESCRIPTOR, 0))


def _fields(data: bytes, kind: Descriptor, depth: int) -> Iterator[WireField]:
    at = 0
    while at < len(data):
        tag, value_at = _varint(data, at)
        field, raw_tag = kind.fields_by_number[tag >> 3], data[at:value_at]
        name = f"{field.name} ({tag >> 3})"
        if tag & 7 == _LENGTH:
            length, at = _varint(data, value_at)
            raw_length, value = data[value_at:at], data[at : at + length]
            at += length
            if field.message_type:
                meaning = f"{field.message_type.name}, {length} byte{'s' * (length != 1)}"
                yield WireField(name, meaning, raw_tag, raw_length, b"", depth)
                yield from _fields(value, field.message_type, depth + 1)
            else:
                yield WireField(name, _meaning(field, value), raw_tag, raw_length, value, depth)
            continue
        if tag & 7 == _VARINT:
            number, at = _varint(data, value_at)
            meaning = _number(field, number)
        else:
            at = value_at + (8 if tag & 7 == _FIXED64 else 4)
            meaning = f"{at - value_at} bytes"
        yield WireField(name, meaning, raw_tag, b"", data[value_at:at], depth)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that starts at ``data[at]``, seven bits a byte, low ones first; and where the next thing starts."""
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            return value, at


def _number(field: FieldDescriptor, number: int) -> str:
    if field.type == FieldDescriptor.TYPE_BOOL:
        return str(bool(number)).lower()
    return str(number - (1 << 64) if field.type == FieldDescriptor.TYPE_INT64 and number >> 63 else number)


def _meaning(field: FieldDescriptor, value: bytes) -> str:
    """Text in quotes, packed whole numbers as a list, other bytes by their count."""
    if field.type == FieldDescriptor.TYPE_STRING:
        text = value.decode()
        return f'"{text if len(text) <= 24 else text[:23] + "…"}"'
    if field.type not in _WHOLE:
        return f"{len(value)} bytes"
    numbers, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        numbers.append(_number(field, number))
    return f"[{', '.join(numbers)}]"


def wire_bytes(fields: Sequence[WireField]) -> Figure:
    """Bytes of a message, one field a row: offset, bytes coloured by their job, name and meaning."""
    height = _ROW * len(fields) + 1.05
    fig = plt.figure(figsize=(WIDTH, height))
    axes = fig.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(0, height))  # in inches
    axes.axis("off")
    y, offset = height - 0.6, 0
    _legend(axes, y)
    for field in fields:
        y -= _ROW
        axes.text(0.38, y, f"{offset}", ha="right", va="center", fontsize=9, color=QUIET, family="monospace")
        end = _cells(axes, field, 0.5 + 0.14 * field.depth, y)
        name = axes.text(max(end + 0.12, _LABEL), y, field.name, va="center", fontsize=9, fontweight="bold")
        note(axes, field.meaning, 1, 0.5, xycoords=name)
        offset += len(field.tag + field.length + field.value)
    return fig


def _cells(axes: Axes, field: WireField, x: float, y: float) -> float:
    """Draw a field's bytes and return where they end. Of a long value the middle is left out."""
    cells = [(kind, f"{byte:02x}") for kind in ("tag", "length", "value") for byte in getattr(field, kind)]
    if len(cells) > _MOST:
        cells = [*cells[: _MOST - 3], ("value", "…"), cells[-1]]
    for kind, text in cells:
        axes.add_patch(Rectangle((x, y - 0.1), _CELL, 0.2, fc=tint(BYTES[kind], 0.45), ec=CARD, lw=1))
        axes.text(x + _CELL / 2, y, text, ha="center", va="center_baseline", fontsize=9, family="monospace")
        x += _CELL
    return x


def _legend(axes: Axes, y: float) -> None:
    x = 0.5
    axes.text(0.38, y, "byte", ha="right", va="center", fontsize=9, color=QUIET)
    words = {"tag": "tag: field number and wire type", "length": "length", "value": "value"}
    for kind, width in (("tag", 2.25), ("length", 0.75), ("value", 0.7)):
        axes.add_patch(Rectangle((x, y - 0.1), width - 0.06, 0.2, fc=tint(BYTES[kind], 0.45), ec=CARD))
        axes.text(x + (width - 0.06) / 2, y, words[kind], ha="center", va="center", fontsize=9)
        x += width


def token_timeline(streams: Mapping[str, Sequence[float]], *, lane: str = "auto") -> Figure:
    """When the tokens of one or several streams arrived, and how long each was waited for.

    ``streams``: name → seconds from the request to each arrival, ascending, two at least.
    """
    colour, count = LANES[resolve_lane(lane)], len(streams)
    heights = (0.45 + 0.28 * count, 1.3 if count == 1 else 0.35 + 0.28 * count)
    fig, (upper, lower) = plt.subplots(2, 1, figsize=(WIDTH, sum(heights) + 1.9), height_ratios=heights)
    for row, arrivals in enumerate(streams.values()):
        first, lasted = arrivals[0], arrivals[-1] - arrivals[0]
        upper.barh(row, first, height=0.5, color=tint(colour), edgecolor=colour, linewidth=0.8)
        upper.plot(arrivals, np.full(len(arrivals), row), "|", color=colour, markersize=10, markeredgewidth=1.4)
        rate = f", {(len(arrivals) - 1) / lasted:.0f} tokens/s" if lasted > 0 else ""
        beside(upper, f"{first * 1000:.0f} ms{rate}", row)
    _rows(upper, list(streams), "first token, then")
    upper.set_xlabel("time since the request (s)")
    waits = [np.diff(arrivals) * 1000 for arrivals in streams.values()]
    if count == 1:
        _waits_by_number(lower, waits[0], colour)
        return fig
    for row, values in enumerate(waits):
        spread = np.resize([-0.15, 0.05, -0.05, 0.15, 0.0], len(values))  # so that equal waits do not hide each other
        lower.plot(values, row + spread, "o", color=colour, alpha=0.5, markersize=4, markeredgewidth=0)
        middle = float(np.median(values))
        lower.plot([middle, middle], [row - 0.32, row + 0.32], color=INK, linewidth=1.6)
        beside(lower, f"below {middle:.0f} ms", row)
    _rows(lower, list(streams), "half of the waits")
    lower.set_xlabel("wait for the next token (ms)")
    return fig


def _rows(axes: Axes, names: list[str], heading: str) -> None:
    name_rows(axes, names, above=1.3)
    beside(axes, heading, -0.85)
    axes.spines["left"].set_visible(False)
    axes.set_xlim(left=0)


def _waits_by_number(axes: Axes, waits: np.ndarray, colour: str) -> None:
    """The wait before each token of a single stream, and the middle one as a line."""
    axes.bar(np.arange(2, len(waits) + 2), waits, width=0.75, color=tint(colour, 0.6))
    middle = float(np.median(waits))
    axes.axhline(middle, color=INK, linewidth=1.2)
    beside(axes, f"half of the waits\nare below {middle:.0f} ms", middle)
    axes.set(xlim=(0, len(waits) + 2), ylim=(0, None), xlabel="token number", ylabel="wait (ms)")
