"""A picture file to what the vision tower takes. PIL and numpy only: the Triton model carries a copy (notebook 14).

The same two functions prepare pictures for training, for the evaluation and in the server. A vision tower that is fed
in another way than it was trained still answers, only worse, and nothing tells you so.

Anybody may send bytes, so what they can cost is bounded before anything is decoded: bytes, parts, pixels, and the scans
of a JPEG, each of which visits all pixels. Only what makes the pixels of the first frame reaches the decoder: texts,
profiles, EXIF blocks and further frames can unpack to gigabytes as well.
"""

from __future__ import annotations

import io
import re
import struct
import warnings

import numpy as np
from PIL import Image

MAX_BYTES = 32 * 2**20
MAX_PARTS = 2**16  # segments of a JPEG, chunks of a PNG, blocks of a GIF
MAX_PIXELS = 50_000_000  # as many as a phone's camera makes; decoded they take 4 bytes each
MAX_SIDE = 2**16 - 1  # as long as a JPEG's
MAX_SCANS = 100  # cameras make 10 at most
MAX_VISITS = 20 * MAX_PIXELS  # scans times pixels
FORMATS = ("JPEG", "PNG", "GIF", "WEBP")  # what cameras and browsers make; a TIFF may hold any of them, and much more
SIZE = 224  # sides of the tower's input, in pixels
MEAN, SCALE = 127.0, 128.0  # as EfficientNet-Lite was trained: (value - 127) / 128
WHITE = (255, 255, 255)
_T = Image.Transpose
_TURNS = {
    2: _T.FLIP_LEFT_RIGHT, 3: _T.ROTATE_180, 4: _T.FLIP_TOP_BOTTOM, 5: _T.TRANSPOSE, 6: _T.ROTATE_270,
    7: _T.TRANSVERSE, 8: _T.ROTATE_90,
}  # fmt: skip
_MARKER = re.compile(rb"\xff([^\x00\x01\xd0-\xd7\xff])")  # the others may stand among a scan's bits and have no length
_PNG_PIXELS = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND", b"eXIf")


class PictureError(ValueError):
    """The bytes are no picture that can be used; the text is one sentence."""


def open_picture(data: bytes) -> Image.Image:
    """Decode to an RGB image, upright, of the file's size; of an animation the first frame.

    EXIF says how the camera was held: the picture is turned accordingly. 16-bit grey becomes 8-bit, CMYK becomes RGB by
    Pillow's formula (colour profiles are not applied), transparent parts become white.

    Raises PictureError: no or broken bytes, another format than `FORMATS`, no pixels, more bytes, parts, pixels, scans
    or longer sides than the limits above.
    """
    if not data:
        raise PictureError("The picture is empty: 0 bytes.")
    if len(data) > MAX_BYTES:
        raise PictureError(f"The picture has {len(data):,} bytes; at most {MAX_BYTES:,} are read. Make it smaller.")
    plain, exif, scans = _only_pixels(data)
    image = _open(plain, len(data))
    _check_size(*image.size, scans)
    try:
        image.load()
    except Exception as error:  # each decoder raises what it likes
        raise PictureError(f"The {image.format} picture is broken or cut off ({_reason(error)}).") from None
    turn = _TURNS.get(_orientation(exif or image.info.get("exif", b"")))
    return _on_white(image if turn is None else image.transpose(turn))


def to_array(image: Image.Image, size: int = SIZE) -> np.ndarray:
    """The tower's `pixel_values` of one RGB image: float32 [3, size, size], from -0.99 to 1.

    Nothing is cut off and nothing distorted: the longer side becomes `size`, the rest of the square is white.
    """
    ratio = size / max(image.size)
    width, height = (max(1, round(side * ratio)) for side in image.size)
    square = Image.new("RGB", (size, size), WHITE)
    square.paste(image.resize((width, height), Image.Resampling.BICUBIC), ((size - width) // 2, (size - height) // 2))
    pixels = (np.asarray(square, np.float32) - MEAN) / SCALE
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _only_pixels(data: bytes) -> tuple[bytes, bytes, int]:
    """The parts of a file that its first frame needs, the EXIF of a JPEG, and the number of its scans."""
    try:
        if data.startswith(b"\xff\xd8"):
            return _jpeg(data)
        if data.startswith(b"\x89PNG"):
            return _png(data), b"", 1
        if data.startswith(b"GIF8"):
            return _gif(data), b"", 1
    except (struct.error, IndexError):
        raise PictureError("The picture is broken or cut off: one of its parts has no end.") from None
    return data, b"", 1


def _jpeg(data: bytes) -> tuple[bytes, bytes, int]:
    kept, exif, scans, place = [data[:2]], b"", 0, 2
    for _ in range(MAX_PARTS):
        found = _MARKER.search(data, place)
        if scans:
            kept.append(data[place : found and found.start()])  # the bits of a scan
        if not found or found[1] == b"\xd9":
            return b"".join(kept) + (b"\xff\xd9" if found else b""), exif, scans
        marker, start = found[1][0], found.end()
        place = start + struct.unpack_from(">H", data, start)[0]
        if marker < 0xC0:  # a decoder may skip these otherwise than we do, and see scans that were not counted
            raise PictureError(f"The JPEG picture is broken: it holds the marker {marker:02X}.")
        scans += marker == 0xDA
        if marker == 0xE1 and data.startswith(b"Exif\0\0", start + 2):
            exif = exif or data[start + 2 : place]
        if not 0xE1 <= marker <= 0xFE or marker == 0xEE:  # E0 and EE name the kind of colours
            kept.append(data[start - 2 : place])
    raise _too_many_parts()


def _png(data: bytes) -> bytes:
    kept, place = [data[:8]], 8
    for _ in range(MAX_PARTS):
        if place >= len(data) or kept[-1][4:8] == b"IEND":
            return b"".join(kept)
        size, name = struct.unpack_from(">I4s", data, place)
        if name in _PNG_PIXELS:
            kept.append(data[place : place + 12 + size])
        place += 12 + size
    raise _too_many_parts()


def _gif(data: bytes) -> bytes:
    head = place = 13 + (3 << (data[10] & 7) + 1 if data[10] & 128 else 0)  # with the palette
    control = b""  # says which colour is transparent
    for _ in range(MAX_PARTS):
        if data[place] == 0x2C:
            return data[:head] + control + data[place:]
        if data[place] != 0x21:
            break
        end = place + 2
        while data[end]:
            end += 1 + data[end]
        if data[place + 1] == 0xF9:
            control = data[place : end + 1]
        place = end + 1
    raise PictureError("The GIF picture is broken: no frame follows its header.")


def _too_many_parts() -> PictureError:
    return PictureError(f"The picture has more than {MAX_PARTS:,} parts, which no camera writes. Save it again.")


def _orientation(exif: bytes) -> int:
    """The tag of the first directory. Pillow's reader would unpack whatever the other tags point to."""
    tiff = exif.removeprefix(b"Exif\0\0")
    order = ">" if tiff.startswith(b"MM") else "<"
    try:
        (place,) = struct.unpack_from(f"{order}I", tiff, 4)
        (count,) = struct.unpack_from(f"{order}H", tiff, place)
        for entry in range(place + 2, place + 2 + 12 * count, 12):
            tag, kind, _, value = struct.unpack_from(f"{order}HHIH", tiff, entry)
            if (tag, kind) == (0x0112, 3):
                return value
    except struct.error:  # a broken block; the pixels are good
        pass
    return 1


def _open(data: bytes, size: int) -> Image.Image:
    """Read the header only."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large pictures; the limit here is lower
            return Image.open(io.BytesIO(data), formats=FORMATS)
    except Image.DecompressionBombError:
        raise PictureError(f"The picture has too many pixels; at most {MAX_PIXELS:,} are decoded.") from None
    except Exception:
        known = ", ".join(FORMATS)
        raise PictureError(f"These {size:,} bytes are no picture that can be read ({known}).") from None


def _check_size(width: int, height: int, scans: int) -> None:
    pixels = width * height
    if pixels < 1:
        raise PictureError(f"The picture has no pixels: its header says {width} x {height}.")
    if pixels > MAX_PIXELS:
        raise PictureError(
            f"The picture has {width:,} x {height:,} pixels; at most {MAX_PIXELS:,} are decoded. Make it smaller."
        )
    if max(width, height) > MAX_SIDE:
        raise PictureError(f"The picture has {width:,} x {height:,} pixels; a side may have {MAX_SIDE:,}.")
    if scans > (most := min(MAX_SCANS, MAX_VISITS // pixels)):
        raise PictureError(
            f"The JPEG has {scans:,} scans over {width:,} x {height:,} pixels; at most {most} are read. Save it again."
        )


def _on_white(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16 bits
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    try:
        if not image.has_transparency_data:
            return image.convert("RGB")
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, (*WHITE, 255))
        return Image.alpha_composite(white, layer).convert("RGB")
    except Exception as error:
        raise PictureError(f"Pixels of the kind {image.mode} cannot be made RGB ({_reason(error)}).") from None


def _reason(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
