"""Figures of notebooks 00 and 05: bytes on the wire, who may stream, when a stream ends, when its tokens arrive."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from matplotlib.figure import Figure

from servinglab.figures.style import BYTES, CARD, INK, LANES, QUIET, WIDTH, beside, dots, name_rows, note, table, tint

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
        length = data[middle:at] if tag & 7 == 2 else b""  # a length, and so many bytes
        value = at if length else middle
        at = {0: at, 1: middle + 8, 2: at + number, 5: middle + 4}[tag & 7]
        inner, name = field.message_type, f"{field.name} ({field.number})"
        if inner:
            yield WireField(name, f"{inner.name}, {number} bytes", data[start:middle], length, b"", depth)
            yield from _fields(data[value:at], inner, depth + 1)
        else:
            alone = getattr(GetMessageClass(kind).FromString(data[start:at]), field.name)
            yield WireField(name, _meaning(alone, at - value), data[start:middle], length, data[value:at], depth)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that starts at ``data[at]``, seven bits a byte, low ones first; and where the next thing starts."""
    end = next((i for i in range(at, len(data)) if data[i] < 0x80), at)
    return sum((byte & 0x7F) << 7 * i for i, byte in enumerate(data[at : end + 1])), end + 1


def _meaning(found: Any, size: int) -> str:
    """Text in quotes, whole numbers as they are, other values by their count of bytes."""
    several = not isinstance(found, str | bytes | int | float)
    values = list(found) if several else [found]
    if isinstance(values[0], str):
        return f'"{values[0] if len(values[0]) <= 24 else values[0][:23] + "…"}"'
    if not isinstance(values[0], int):
        return f"{size} bytes"
    numbers = ", ".join(str(int(value)) for value in values)  # a bool is a number here
    return f"[{numbers}]" if several else numbers


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
    colours = {at: tint(_BAD if words.startswith("error") else _GOOD, 0.35) for at, words in cells.items()}
    table(axes, rows, columns, {at: (words, colours[at]) for at, words in cells.items()})
    return fig


def sequence(streams: Mapping[str, str]) -> Figure:
    """Model → letters of its responses ("d d D", "d d F"): an arrow each, from the server to the client, its flag."""
    words = {"d": "data", "D": "data, final", "F": "final, no data"}
    fig, panels = plt.subplots(1, len(streams), figsize=(WIDTH, 3.2), sharey=True)
    for axes, (model, letters) in zip(np.atleast_1d(panels), streams.items(), strict=True):
        axes.axis("off")
        axes.set_title(model, loc="center")
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
        dots(lower, waits, row, colour)
        middle = float(np.median(waits))
        lower.plot([middle, middle], [row - 0.32, row + 0.32], color=INK, linewidth=1.6)
        beside(lower, f"half below {middle:.0f} ms", row)
    for axes, label in ((upper, "time since the request (s)"), (lower, "wait for the next token (ms)")):
        name_rows(axes, list(streams))
        axes.spines["left"].set_visible(False)
        axes.set(xlim=(0, None), xlabel=label)
    return fig
