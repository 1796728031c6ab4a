"""A picture file to what the vision tower takes. PIL and numpy only: the Triton model carries a copy (notebook 14).

The same two functions prepare pictures for training, for the evaluation and in the server. A vision tower that is fed
in another way than it was trained still answers, only worse, and nothing tells you so.
"""

from __future__ import annotations

import io
import warnings

import numpy as np
from PIL import Image, ImageOps

MAX_PIXELS = 50_000_000  # as many as a phone's camera makes; decoded they take 4 bytes each
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF")
SIZE = 224  # sides of the tower's input, in pixels
MEAN, SCALE = 127.0, 128.0  # as EfficientNet-Lite was trained: (value - 127) / 128
WHITE = (255, 255, 255)


class PictureError(ValueError):
    """The bytes are no picture that can be used; the text is one sentence."""


def open_picture(data: bytes) -> Image.Image:
    """Decode to an RGB image, upright, of the file's size; of an animation the first frame.

    EXIF says how the camera was held: the picture is turned accordingly. 16-bit grey becomes 8-bit, CMYK becomes RGB by
    Pillow's formula (colour profiles are not applied), transparent parts become white.

    Raises PictureError: no or broken bytes, another format than `FORMATS`, no pixels, more than `MAX_PIXELS` (this is
    read in the header, before anything is decoded), a kind of pixel with no agreed meaning, such as real numbers.
    """
    if not data:
        raise PictureError("The picture is empty: 0 bytes.")
    image = _open(data)
    _check_size(*image.size)
    try:
        image.load()
    except Exception as error:  # each decoder raises what it likes
        raise PictureError(f"The {image.format} picture is broken or cut off ({_reason(error)}).") from None
    return _on_white(_upright(image))


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


def _open(data: bytes) -> Image.Image:
    """Read the header only."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large pictures; the limit here is lower
            return Image.open(io.BytesIO(data), formats=FORMATS)
    except Image.DecompressionBombError:
        raise PictureError(f"The picture has too many pixels; at most {MAX_PIXELS:,} are decoded.") from None
    except Exception:
        known = ", ".join(FORMATS)
        raise PictureError(f"These {len(data):,} bytes are no picture that can be read ({known}).") from None


def _check_size(width: int, height: int) -> None:
    if width < 1 or height < 1:
        raise PictureError(f"The picture has no pixels: its header says {width} x {height}.")
    if width * height > MAX_PIXELS:
        raise PictureError(
            f"The picture has {width:,} x {height:,} pixels; at most {MAX_PIXELS:,} are decoded. Make it smaller."
        )


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # a broken EXIF block; the pixels are good
        return image


def _on_white(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise PictureError(f"The picture has 32-bit values up to {values.max():,}; save it with 8 or 16 bits.")
        return Image.fromarray((values >> 8).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise PictureError("The picture holds real numbers, whose black and white are not agreed; save it with 8 bits.")
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
