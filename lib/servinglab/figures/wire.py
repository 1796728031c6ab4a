"""A protobuf message taken apart byte by byte, for drawing (``plots.wire_bytes``). Taught in notebook 05.

Format: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from servinglab.figures.drawings import WireField

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_SIGNED = {FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64}
_ZIGZAG = {FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SINT64}
_FORMATS = {
    FieldDescriptor.TYPE_DOUBLE: "<d",
    FieldDescriptor.TYPE_FLOAT: "<f",
    FieldDescriptor.TYPE_FIXED32: "<I",
    FieldDescriptor.TYPE_FIXED64: "<Q",
    FieldDescriptor.TYPE_SFIXED32: "<i",
    FieldDescriptor.TYPE_SFIXED64: "<q",
}


def take_apart(message: Message) -> list[WireField]:
    """Every field of ``message`` in wire order; the bytes of all fields joined are the serialised message.

    A message inside is one entry of tag and length, then its own fields with ``depth`` one higher.
    """
    return list(_fields(message.SerializeToString(deterministic=True), message.DESCRIPTOR, 0))


def read_varint(data: bytes, at: int = 0) -> tuple[int, int]:
    """The number that starts at ``data[at]``, seven bits a byte, low ones first; and where the next thing starts."""
    value = shift = 0
    while True:
        if at >= len(data):
            raise ValueError(f"the number that starts before byte {at} has no last byte: the message is cut off")
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return value, at


def _fields(data: bytes, kind: Descriptor, depth: int) -> Iterator[WireField]:
    at = 0
    while at < len(data):
        start = at
        tag, at = read_varint(data, at)
        field = kind.fields_by_number.get(tag >> 3)
        name = f"{field.name} ({tag >> 3})" if field else f"unknown ({tag >> 3})"
        raw_tag, wire_type = data[start:at], tag & 7
        if wire_type == _LENGTH:
            start = at
            length, at = read_varint(data, at)
            raw_length, value = data[start:at], data[at : at + length]
            at += length
            if field and field.message_type:
                meaning = f"{field.message_type.name}, {length} byte{'s' * (length != 1)}"
                yield WireField(name, meaning, raw_tag, raw_length, b"", depth)
                yield from _fields(value, field.message_type, depth + 1)
            else:
                yield WireField(name, _text(field, value), raw_tag, raw_length, value, depth)
            continue
        start = at
        if wire_type == _VARINT:
            number, at = read_varint(data, at)
            meaning = _number(field, number)
        elif wire_type in (_FIXED32, _FIXED64):
            at += 4 if wire_type == _FIXED32 else 8
            default = "<I" if wire_type == _FIXED32 else "<Q"
            meaning = f"{struct.unpack(_FORMATS.get(field.type if field else 0, default), data[start:at])[0]:g}"
        else:
            raise ValueError(f"byte {start} of the message has wire type {wire_type}, which is not in use any more")
        yield WireField(name, meaning, raw_tag, b"", data[start:at], depth)


def _number(field: FieldDescriptor | None, number: int) -> str:
    if field is None:
        return str(number)
    if field.enum_type:
        known = field.enum_type.values_by_number.get(number)
        return known.name if known else str(number)
    if field.type == FieldDescriptor.TYPE_BOOL:
        return str(bool(number)).lower()
    if field.type in _SIGNED and number >= 1 << 63:
        return str(number - (1 << 64))
    if field.type in _ZIGZAG:
        return str((number >> 1) ^ -(number & 1))
    return str(number)


def _text(field: FieldDescriptor | None, value: bytes) -> str:
    """What a length-delimited value says: text in quotes, packed numbers as a list, other bytes by their count."""
    if field and field.type == FieldDescriptor.TYPE_STRING:
        text = value.decode("utf-8")
        return f'"{text if len(text) <= 24 else text[:23] + "…"}"'
    if field and field.type in _FORMATS:
        return str([number for (number,) in struct.iter_unpack(_FORMATS[field.type], value)])
    if field and field.type != FieldDescriptor.TYPE_BYTES:
        numbers, at = [], 0
        while at < len(value):
            number, at = read_varint(value, at)
            numbers.append(_number(field, number))
        return f"[{', '.join(numbers)}]"
    return f"{len(value)} bytes"
