"""Picture files, the good and the bad ones, through `open_picture` and `to_array`."""

from __future__ import annotations

import io
import re
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from PIL import Image

from cliplab.prepare import MAX_PIXELS, PictureError, open_picture, to_array


def encode(image, kind="PNG", **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def png_header(width, height, depth=8, colour=2):
    """A PNG that ends after its header and a few pixels: what a bomb looks like."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(64))) + chunk(b"IEND", b"")


@pytest.fixture(scope="module")
def flag():
    """48 x 32: red above blue, with a green left edge, so that every turn and mirror shows."""
    pixels = np.zeros((32, 48, 3), np.uint8)
    pixels[:16, :, 0] = pixels[16:, :, 2] = 255
    pixels[:, :8] = (0, 255, 0)
    return Image.fromarray(pixels)


def close(image, expected, tolerance=0):
    assert image.mode == "RGB" and image.size == expected.size
    assert np.abs(np.asarray(image, int) - np.asarray(expected, int)).max() <= tolerance


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF"])
def test_exact_formats(flag, kind):
    close(open_picture(encode(flag, kind)), flag)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_undone(flag, orientation):
    T = Image.Transpose
    # What the camera stored, so that a viewer that obeys the tag shows the flag; the inverses, written out by hand.
    stored = {
        2: T.FLIP_LEFT_RIGHT, 3: T.ROTATE_180, 4: T.FLIP_TOP_BOTTOM, 5: T.TRANSPOSE,
        6: T.ROTATE_90, 7: T.TRANSVERSE, 8: T.ROTATE_270,
    }  # fmt: skip
    held = flag.transpose(stored[orientation]) if orientation in stored else flag
    exif = Image.Exif()
    exif[0x0112] = orientation
    close(open_picture(encode(held, "PNG", exif=exif)), flag)
    close(open_picture(encode(held, "JPEG", exif=exif, quality=100, subsampling=0)), flag, tolerance=90)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_broken_exif_leaves_the_pixels(flag):
    close(open_picture(encode(flag, "PNG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")), flag)


def test_cmyk_jpeg(flag):
    close(open_picture(encode(flag.convert("CMYK"), "JPEG", quality=100, subsampling=0)), flag, tolerance=12)


def test_16_bit_grey():
    ramp = (np.arange(256, dtype=np.uint16) * 257).reshape(16, 16)
    found = np.asarray(open_picture(encode(Image.fromarray(ramp))))
    assert (found == np.arange(256).reshape(16, 16, 1)).all()  # clipped, they would nearly all be 255


def test_transparent_becomes_white(flag):
    layer = flag.convert("RGBA")
    layer.putalpha(0)
    assert np.asarray(open_picture(encode(layer))).min() == 255
    half = Image.new("RGBA", (4, 4), (0, 0, 0, 51))  # a fifth of black over white
    close(open_picture(encode(half)), Image.new("RGB", (4, 4), (204, 204, 204)), tolerance=1)


def test_palette_with_transparency():
    image = Image.new("P", (4, 4), 0)
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putpixel((1, 1), 1)
    found = open_picture(encode(image, "PNG", transparency=0))
    assert found.getpixel((0, 0)) == (255, 255, 255) and found.getpixel((1, 1)) == (0, 0, 255)


def test_grey_and_bilevel():
    assert open_picture(encode(Image.new("L", (3, 2), 100))).getpixel((0, 0)) == (100,) * 3
    assert open_picture(encode(Image.new("1", (3, 2), 1))).getpixel((0, 0)) == (255,) * 3


def test_first_frame_of_an_animation(flag):
    black = Image.new("RGB", flag.size)
    data = encode(flag, "GIF", save_all=True, append_images=[black, black])
    close(open_picture(data), flag, tolerance=3)
    close(open_picture(encode(flag, "WEBP", save_all=True, append_images=[black], lossless=True)), flag)


SENTENCES = {
    "empty": (b"", "is empty: 0 bytes"),
    "text": (b"not a picture, but a letter", "are no picture"),
    "no pixels": (png_header(0, 0), "no p(ixels|icture)"),
    "bomb": (png_header(20_000, 20_000), "at most 50,000,000"),
    "a little too large": (png_header(10_000, 5_001), r"10,000 x 5,001 pixels"),
    "few bytes for many pixels": (png_header(100, 100), "broken or cut off"),
    "vector graphics": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "are no picture"),
}


@pytest.mark.parametrize("data, sentence", SENTENCES.values(), ids=SENTENCES)
def test_refused_with_one_sentence(data, sentence):
    tracemalloc.start()
    with pytest.raises(PictureError, match=sentence) as refused:
        open_picture(data)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
    assert str(refused.value).endswith(".") and "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF"])
def test_cut_off_and_damaged_files(kind):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8))
    data = encode(noise, kind)
    for cut in (len(data) // 2, len(data) * 9 // 10):
        with pytest.raises(PictureError):
            open_picture(data[:cut])
    rng = np.random.default_rng(1)
    for _ in range(30):  # whatever is wrong inside: a picture, or a PictureError
        damaged = bytearray(data)
        for place in rng.integers(0, len(data), 8):
            damaged[place] = rng.integers(256)
        try:
            assert open_picture(bytes(damaged)).mode == "RGB"
        except PictureError as error:
            assert re.fullmatch(r"[^\n]+\.", str(error))


@pytest.mark.parametrize("mode, words", [("F", "real numbers"), ("I", "32-bit values")])
def test_pixels_without_agreed_meaning(mode, words):
    with pytest.raises(PictureError, match=words):
        open_picture(encode(Image.new(mode, (4, 4), 70_000), "TIFF"))


def test_largest_picture_is_within_the_limit():
    assert 7_000 * 7_000 < MAX_PIXELS < 20_000 * 20_000


def test_to_array_is_centred_on_white(flag):
    array = to_array(flag)  # 48 x 32: 224 x 149 in the middle of the square
    assert array.dtype == np.float32 and array.shape == (3, 224, 224) and array.flags["C_CONTIGUOUS"]
    white, black = (255 - 127) / 128, -127 / 128
    assert (array[:, :37] == white).all() and (array[:, -37:] == white).all()
    assert np.allclose(array[:, 60, 150], [white, black, black])
    assert np.allclose(array[:, 160, 150], [black, black, white])
    assert np.allclose(array[:, 112, 10], [black, white, black])


@pytest.mark.parametrize("size", [(1, 1), (1, 3000), (3000, 1), (224, 224), (225, 224)])
def test_to_array_of_any_shape(size):
    array = to_array(Image.new("RGB", size))
    assert array.shape == (3, 224, 224) and array.min() == np.float32(-127 / 128)


def test_to_array_of_another_size(flag):
    assert to_array(flag, 64).shape == (3, 64, 64)
