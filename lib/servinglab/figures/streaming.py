"""Figures of notebooks 00 and 05: bytes on the wire, who may stream, when a stream ends, when its tokens arrive."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from servinglab.figures.style import BYTES, CARD, INK, LANES, QUIET, WIDTH, beside, name_rows, note, tint

_ROW, _CHAR, _MOST = 0.27, 0.078, 13  # inches; bytes shown of one value
_GOOD, _BAD = LANES["embedded"], LANES["trtllm"]


class WireField(NamedTuple):
    """One field of a serialised protobuf message. ``tag`` and ``length`` are varints (no ``length`` for numbers); a
    message inside shows its tag and length only, its own fields follow with ``depth`` one higher."""

    name: str
    meaning: str
    tag: bytes
    length: bytes = b""
    value: bytes = b""
    depth: int = 0


def take_apart(message: Message) -> list[WireField]:
    """Every field in wire order (protobuf.dev/programming-guides/encoding); their bytes joined are the message's."""
    return list(_fields(message.SerializeToString(deterministic=True), message.DESCRIPTOR, 0))


def _fields(data: bytes, kind: Descriptor, depth: int) -> Iterator[WireField]:
    at = 0
    while at < len(data):
        start, (tag, middle) = at, _varint(data, at)
        field, (number, at) = kind.fields_by_number[tag >> 3], _varint(data, middle)
        name, raw_tag, length = f"{field.name} ({field.number})", data[start:middle], b""
        if tag & 7 == 2:  # a length, and so many bytes
            length, value, at = data[middle:at], data[at : at + number], at + number
            if inner := field.message_type:
                yield WireField(name, f"{inner.name}, {number} bytes", raw_tag, length, b"", depth)
                yield from _fields(value, inner, depth + 1)
                continue
        else:  # a varint, or the eight or four bytes of a fraction
            at = {0: at, 1: middle + 8, 5: middle + 4}[tag & 7]
            value = data[middle:at]
        yield WireField(name, _meaning(field, value), raw_tag, length, value, depth)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that starts at ``data[at]``, seven bits a byte, low ones first; and where the next thing starts."""
    end = next((i for i in range(at, len(data)) if data[i] < 0x80), at)
    return sum((byte & 0x7F) << 7 * i for i, byte in enumerate(data[at : end + 1])), end + 1


def _meaning(field: FieldDescriptor, value: bytes) -> str:
    """Text in quotes, whole numbers as they are, other bytes by their count."""
    if field.type == field.TYPE_STRING:
        text = value.decode()
        return f'"{text if len(text) <= 24 else text[:23] + "…"}"'
    if field.cpp_type in (field.CPPTYPE_STRING, field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return f"{len(value)} bytes"
    numbers, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        signed = field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_INT64) and number >> 63
        numbers.append(str(number - (signed << 64)))
    return f"[{', '.join(numbers)}]" if field.is_repeated else numbers[0]


def wire_bytes(fields: Sequence[WireField]) -> Figure:
    """Bytes of a message, one field a row: offset, bytes coloured by their job, name and meaning."""
    fig, axes = plt.subplots(figsize=(WIDTH, _ROW * len(fields) + 0.9))
    axes.set(xlim=(0, WIDTH / _CHAR), ylim=(len(fields) - 0.4, -1.6))
    axes.axis("off")
    legend = (("tag", "tag: field number and wire type"), ("length", "length"), ("value", "value"))
    offset = 0
    for row, field in enumerate([None, *fields], -1):
        parts = [(kind, _hex(getattr(field, kind))) for kind, _ in legend] if field else legend
        x = 5 + 2 * (field.depth if field else 0)
        for kind, words in parts:
            if words:
                box = {"facecolor": tint(BYTES[kind], 0.45), "edgecolor": CARD, "pad": 1.5}
                axes.text(x, row, words, fontsize=9, family="monospace", va="center", bbox=box)
                x += len(words) + 1
        if field:
            axes.text(3.5, row, f"{offset}", ha="right", va="center", fontsize=9, color=QUIET, family="monospace")
            name = axes.text(max(x + 1, 51), row, field.name, va="center", fontsize=9, fontweight="bold")
            note(axes, field.meaning, 1, 0.5, xycoords=name)
            offset += len(field.tag + field.length + field.value)
    return fig


def _hex(data: bytes) -> str:
    return data.hex(" ") if len(data) <= _MOST else f"{data[: _MOST - 3].hex(' ')} … {data[-1:].hex()}"


def matrix(rows: Sequence[str], columns: Sequence[str], cells: Mapping[tuple[str, str], str]) -> Figure:
    """(row, column) → words: what a way of asking gives. One colour for answers, the other where it is an "error"."""
    fig, axes = plt.subplots(figsize=(WIDTH, 0.9 + 0.38 * len(rows)))
    for (row, column), words in cells.items():
        x, y, colour = columns.index(column), rows.index(row), _BAD if words.startswith("error") else _GOOD
        axes.add_patch(Rectangle((x - 0.48, y - 0.45), 0.96, 0.9, facecolor=tint(colour, 0.35)))
        axes.text(x, y, words, ha="center", va="center", fontsize=9)
    name_rows(axes, rows)
    axes.set(xlim=(-0.5, len(columns) - 0.5), xticks=range(len(columns)), xticklabels=columns)
    axes.tick_params(axis="x", length=0, labeltop=True, labelbottom=False, labelcolor=INK)
    axes.spines[:].set_visible(False)
    return fig


def sequence(streams: Mapping[str, str]) -> Figure:
    """Model → letters of its responses ("d d D", "d d F"): an arrow each, from the server to the client, its flag."""
    words = {"d": "data", "D": "data, final", "F": "final, no data"}
    fig, panels = plt.subplots(1, len(streams), figsize=(WIDTH, 3.2), sharey=True)
    for axes, (model, letters) in zip(np.atleast_1d(panels), streams.items(), strict=True):
        axes.axis("off")
        axes.set_title(model, fontsize=10, loc="center")
        axes.set(xlim=(-0.25, 1.25), ylim=(7.2, -0.6))
        for row, letter in enumerate(["request", *letters.split()], 1):
            ends = ((1, row), (0, row - 0.3)) if row > 1 else ((0, row - 0.3), (1, row))
            colour = INK if row == 1 else _GOOD if letter == "d" else _BAD
            axes.annotate("", ends[1], ends[0], arrowprops={"arrowstyle": "->", "color": colour})
            axes.text(0.5, row - 0.25, words.get(letter, letter), ha="center", va="bottom", fontsize=9, color=colour)
        for x, name in enumerate(("client", "Triton")):
            axes.plot([x, x], [0, 7.2], color=QUIET, linewidth=1)
            axes.text(x, -0.1, name, ha="center", va="bottom", fontsize=9, color=QUIET)
    return fig


def token_timeline(streams: Mapping[str, Sequence[float]], *, lane: str = "embedded") -> Figure:
    """When the tokens of one or several streams arrived, and how long each was waited for.

    ``streams``: name → seconds from the request to each arrival, ascending, two at least.
    """
    colour, height = LANES[lane], 0.45 + 0.28 * len(streams)
    fig, (upper, lower) = plt.subplots(2, 1, figsize=(WIDTH, 2 * height + 1.9))
    for row, arrivals in enumerate(streams.values()):
        first, lasted, waits = arrivals[0], arrivals[-1] - arrivals[0], np.diff(arrivals) * 1000
        upper.barh(row, first, height=0.5, color=tint(colour), edgecolor=colour, linewidth=0.8)
        upper.plot(arrivals, np.full(len(arrivals), row), "|", color=colour, markersize=10, markeredgewidth=1.4)
        rate = f", then {len(waits) / lasted:.0f} tokens/s" if lasted > 0 else ""
        beside(upper, f"first {first * 1000:.0f} ms{rate}", row)
        spread = np.resize([-0.15, 0.05, -0.05, 0.15, 0.0], len(waits))  # so that equal waits do not hide each other
        lower.plot(waits, row + spread, "o", color=colour, alpha=0.5, markersize=4, markeredgewidth=0)
        middle = float(np.median(waits))
        lower.plot([middle, middle], [row - 0.32, row + 0.32], color=INK, linewidth=1.6)
        beside(lower, f"half below {middle:.0f} ms", row)
    for axes, label in ((upper, "time since the request (s)"), (lower, "wait for the next token (ms)")):
        name_rows(axes, list(streams))
        axes.spines["left"].set_visible(False)
        axes.set(xlim=(0, None), xlabel=label)
    return fig
