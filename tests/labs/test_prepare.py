"""Picture files, the good and the bad ones, through `open_picture` and `to_array`."""

from __future__ import annotations

import io
import re
import struct
import time
import tracemalloc
import zlib

import numpy as np
import pytest
from PIL import Image

from cliplab.prepare import MAX_BYTES, MAX_PARTS, MAX_PIXELS, MAX_VISITS, PictureError, open_picture, to_array


def encode(image, kind="PNG", **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png_header(width, height, depth=8, colour=2, more=b""):
    """A PNG that ends after its header and a few pixels: what a bomb looks like."""
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + more
    return start + chunk(b"IDAT", zlib.compress(bytes(64))) + chunk(b"IEND", b"")


def many_scans(count, width=1000, height=1000):
    """A JPEG whose last scan, a dozen bytes for all pixels, is repeated."""
    data = encode(Image.new("RGB", (width, height), "red"), "JPEG", progressive=True)
    last = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + last * (count - data.count(b"\xff\xda")) + data[-2:]


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


def test_exact_format(flag):
    close(open_picture(encode(flag)), flag)


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
    "long side": (png_header(65_536, 1), "a side may have 65,535"),
    "other format": (encode(Image.new("RGB", (9, 9)), "TIFF"), r"are no picture .*\(JPEG, PNG, GIF, WEBP\)"),
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


def in_jpeg(data, more):
    return data[:2] + more + data[2:]


def segment(marker, data):
    return b"\xff" + bytes([marker]) + struct.pack(">H", len(data) + 2) + data


def in_gif(comment, image):
    data = encode(image, "GIF")
    place = 13 + (3 << (data[10] & 7) + 1)
    return data[:place] + comment + data[place:]


def exif_of_fractions(count=2600):
    """64 kB whose every tag points to the same 4,100 fractions: Pillow 12 makes ten million objects of them."""
    tags = [struct.pack("<HHII", n, *((3, 1, 6) if n == 0x112 else (5, 4100, 1000))) for n in range(1, count + 1)]
    head = b"Exif\0\0II*\0" + struct.pack("<IH", 8, count)
    return head + b"".join(tags) + bytes(4) + b"\1\2\3\4" * 8000


MANY = MAX_PARTS + 1
COSTLY = {
    "scans": (lambda flag: many_scans(5010), "5,010 scans over 1,000 x 1,000 pixels; at most 100 are"),
    "large": (lambda flag: many_scans(60, 5000, 5000), "60 scans over 5,000 x 5,000 pixels; at most 40 are"),
    # Where a restart marker is damaged, libjpeg may skip this marker only, and we its whole length.
    "hidden": (lambda flag: many_scans(9)[:-2] + segment(2, many_scans(5010)[-30_000:]), "marker 02"),
    "bytes": (lambda flag: encode(flag) + bytes(MAX_BYTES), "bytes; at most 33,554,432 are read"),
    "segments": (lambda flag: in_jpeg(encode(flag, "JPEG"), segment(0xE5, b"") * MANY), "more than 65,536 parts"),
    "chunks": (lambda flag: png_header(9, 9, more=chunk(b"IDAT", b"") * MANY), "more than 65,536 parts"),
    "comments": (lambda flag: in_gif(b"!\xfe\1x\0" * MANY, flag), "no frame follows"),
}


@pytest.mark.parametrize("make, sentence", COSTLY.values(), ids=COSTLY)
def test_what_would_cost_too_much_is_refused_before_it_is_decoded(flag, make, sentence, monkeypatch):
    data = make(flag)
    monkeypatch.setattr(Image.core, "new", None)  # the memory for pixels
    with pytest.raises(PictureError, match=sentence):
        open_picture(data)


bomb = b"x\0\0" + zlib.compress(bytes(2**20 - 1), 9)
black = Image.new("RGB", (48, 32))
HARMLESS = {  # refused by nobody; Pillow alone needs minutes, or time that grows with the square of the length
    "profiles": lambda flag: encode(flag)[:33] + chunk(b"iCCP", bomb) * 20_000 + encode(flag)[33:],
    "texts": lambda flag: encode(flag)[:33] + chunk(b"zTXt", bomb) * 20_000 + encode(flag)[33:],
    "text behind": lambda flag: encode(flag)[:-12] + chunk(b"zTXt", bomb) * 20_000 + encode(flag)[-12:],
    "EXIF in PNG": lambda flag: encode(flag.rotate(90, expand=True), exif=exif_of_fractions()),
    "EXIF in WebP": lambda flag: encode(
        flag.rotate(90, expand=True), "WEBP", lossless=True, exif=exif_of_fractions()
    ),
    "comment": lambda flag: in_gif(b"!\xfe" + b"\1x" * 2_000_000 + b"\0", flag),
    "GIF frames": lambda flag: encode(flag, "GIF", save_all=True, append_images=[black, flag] * 500),
    "PNG frames": lambda flag: encode(flag, save_all=True, append_images=[black, flag] * 500),
}  # fmt: skip


@pytest.mark.parametrize("make", HARMLESS.values(), ids=HARMLESS)
def test_what_pixels_do_not_need_costs_nothing(flag, make):
    data = make(flag)
    before = time.thread_time()
    close(open_picture(data), flag, tolerance=3 * data.startswith(b"GIF"))
    assert time.thread_time() - before < 10  # of computing, mostly a hundredth of a second


def test_exif_in_a_jpeg_costs_nothing_and_other_pictures_of_the_file_are_left_out(flag):
    data = encode(flag.rotate(90, expand=True), "JPEG", quality=100, subsampling=0)
    more = segment(0xE1, exif_of_fractions()) + segment(0xE1, b"Exif\0\0II*\0") + segment(0xE2, b"MPF\0" + bytes(60))
    close(open_picture(in_jpeg(data, more) + data + bytes(1000)), flag, tolerance=90)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_blocks": 1}, {"optimize": True}])
def test_the_pixels_of_a_jpeg_stay_as_they_are(flag, options):
    for mode in ("RGB", "L", "CMYK"):
        data = encode(flag.convert(mode), "JPEG", comment=b"\xff\xda", icc_profile=bytes(70_000), **options)
        close(open_picture(data), Image.open(io.BytesIO(data)).convert("RGB"))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP"])
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


def test_largest_picture_is_within_the_limit():
    assert 7_000 * 7_000 < MAX_PIXELS < 20_000 * 20_000
    assert encode(Image.new("RGB", (9, 9)), "JPEG", progressive=True).count(b"\xff\xda") <= MAX_VISITS // MAX_PIXELS


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
