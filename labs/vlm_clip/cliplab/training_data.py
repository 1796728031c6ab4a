"""Captioned drawings to train mini-CLIP on, from packages of npm and Debian; none of the pictures of the evaluation.

Only train.py needs this: it wants npm, apt, and the packages resvg-py and pillow.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import struct
import subprocess
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path

from PIL import Image

from cliplab.pictures import download, unpack
from servinglab import assets
from servinglab.errors import CourseError

ICONS = {  # npm package, version, licence
    "noto": ("@iconify-json/noto", "1.2.9", "Apache-2.0"),
    "noto-v1": ("@iconify-json/noto-v1", "1.2.5", "Apache-2.0"),
    "twemoji": ("@iconify-json/twemoji", "1.2.5", "CC-BY-4.0"),
    "emojione": ("@iconify-json/emojione", "1.2.3", "CC-BY-4.0"),
    "fxemoji": ("@iconify-json/fxemoji", "1.2.2", "Apache-2.0"),
    "streamline": ("@iconify-json/streamline-emojis", "1.2.4", "CC-BY-4.0"),
    "icons8": ("@iconify-json/flat-color-icons", "1.2.3", "MIT"),
}
FLUENT = ("@lobehub/fluent-emoji-3d", "1.1.0", "MIT")
NAMES = ("cldr-annotations-full", "48.2.0", "Unicode-3.0")
CLIP_ART = {  # Debian package, SHA-256
    "openclipart-png": "",
    "openclipart-svg": "",
}
PHOTOS = ("gcompris-qt-data", "")
SIDE = 256  # pixels that a drawing in SVG is rendered to
_SKIP_NAME = re.compile(r"skin-tone|tone[1-5]|^flag|-flag$|keycap|^(blank|no-entry)|clock\d|-facing-|^regional")
_SKIP_ART = ("signs_and_symbols/flags", "shapes/", "unsorted/flags", "special/")


@dataclass(frozen=True)
class Pair:
    """One picture with what is known about it. `concept` joins drawings of the same thing, for an honest split."""

    source: str
    concept: str
    caption: str
    keywords: tuple[str, ...] = field(default=())
    load: Callable[[], Image.Image] = field(default=lambda: Image.new("RGB", (8, 8)), compare=False)


def emoji(folder: Path) -> Iterator[Pair]:
    """Emoji in eight styles; names and keywords from Unicode's CLDR."""
    text = (npm(*NAMES[:2], folder) / "annotations" / "en" / "annotations.json").read_text(encoding="utf-8")
    known = json.loads(text)["annotations"]["annotations"]
    words = {_slug(e["tts"][0]): tuple(e.get("default", ())) for e in known.values() if "tts" in e}
    names = {_points(char): e["tts"][0] for char, e in known.items() if "tts" in e}
    for file in sorted((npm(*FLUENT[:2], folder) / "assets").glob("*.webp")):
        if name := names.get(file.stem.replace("-fe0f", "")):
            slug = _slug(name)
            if not _SKIP_NAME.search(slug):
                yield Pair("fluent", slug, _plain(slug), words.get(slug, ()), lambda file=file: Image.open(file))
    for source, (package, version, _) in ICONS.items():
        icons = json.loads((npm(package, version, folder) / "icons.json").read_text(encoding="utf-8"))
        for slug, icon in icons["icons"].items():
            if _SKIP_NAME.search(slug):
                continue
            size = [icon.get(side, icons.get(side, 16)) for side in ("width", "height")]
            yield Pair(source, slug, _plain(slug), words.get(slug, ()), _svg(icon["body"], *size))


def clip_art(folder: Path) -> Iterator[Pair]:
    """Open Clip Art Library 0.18 (public domain): pictures as PNG, titles and keywords from the SVG files."""
    places = [_debian(package, digest, folder) / "usr/share/openclipart" for package, digest in CLIP_ART.items()]
    for file in sorted((places[0] / "png").rglob("*.png")):
        name = file.relative_to(places[0] / "png").with_suffix("").as_posix()
        if name.startswith(_SKIP_ART):
            continue
        text = (places[1] / "svg" / f"{name}.svg").read_text(encoding="utf-8", errors="replace")
        title = re.search(r"<dc:title[^>]*>([^<]+)", text)
        # A license is a Work's property, and the words of its subject come in a bag of list items.
        bag = re.search(r"<dc:subject[^>]*>(.*?)</dc:subject>", text, re.DOTALL)
        words = [unescape(w).strip().lower() for w in re.findall(r"<rdf:li[^>]*>([^<]+)", bag.group(1))] if bag else []
        caption = _plain(unescape(title.group(1)) if title else file.stem)
        keywords = tuple(dict.fromkeys([w for w in words if 2 < len(w) < 30] + name.split("/")[:-1]))
        if len(caption) > 2:
            yield Pair("clip-art", f"art/{caption}", caption, keywords, lambda file=file: Image.open(file))


def photos(folder: Path) -> Iterator[Pair]:
    """Photos of GCompris with the names of their files: to choose by, not to train on."""
    rcc = _debian(*PHOTOS, folder) / "usr/share/gcompris-qt/rcc"
    for activity in ("lang", "categorization", "erase", "explore_farm_animals", "explore_world_animals", "babyshapes"):
        for name, data in _qt_resources((rcc / f"{activity}.rcc").read_bytes()):
            stem = re.sub(r"[\d_]+$", "", Path(name).stem)
            if name.endswith((".webp", ".png")) and len(stem) > 2:
                yield Pair(activity, stem, _plain(stem), (), lambda data=data: Image.open(io.BytesIO(data)))


def npm(package: str, version: str, folder: Path) -> Path:
    """The folder of an npm package, fetched by npm (which checks what it gets). Raises CourseError."""
    place = folder / "npm" / package.replace("/", "+") / version
    if not place.is_dir():
        if not (tool := shutil.which("npm")):
            raise CourseError("Training needs npm, which brings the drawings; install Node.js.")
        part = place.with_name(f"{version}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        done = subprocess.run(
            [tool, "pack", f"{package}@{version}", "--silent"], cwd=part, capture_output=True, text=True
        )
        archives = list(part.glob("*.tgz"))
        if done.returncode or not archives:
            raise CourseError(f"npm brought no {package} {version}: {done.stderr.strip()[-200:]}")
        shutil.unpack_archive(archives[0], part)
        part.rename(place)
    return place / "package"


def cache() -> Path:
    """Where packages and features of the training lie."""
    return assets.cache_dir() / "clip-training"


def _debian(package: str, digest: str, folder: Path) -> Path:
    place = folder / "debian" / package
    if not place.is_dir():
        part = place.with_name(f"{package}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        unpack(download(package, part, digest), part / "unpacked")
        (part / "unpacked").rename(place)
        shutil.rmtree(part)
    return place


def _svg(body: str, width: float, height: float) -> Callable[[], Image.Image]:
    def load() -> Image.Image:
        from resvg_py import svg_to_bytes

        text = (
            '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
            f'width="{width}" height="{height}" viewBox="0 0 {width} {height}">{body}</svg>'
        )
        return Image.open(io.BytesIO(bytes(svg_to_bytes(svg_string=text, width=SIDE))))

    return load


def _qt_resources(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Names and contents of a Qt resource file: a header, then a tree of nodes, the names, the contents."""
    version, tree, contents, names = struct.unpack(">4I", data[4:20])
    size = 22 if version > 1 else 14

    def walk(number: int, above: str) -> Iterator[tuple[str, bytes]]:
        at = tree + number * size
        name_at, flags = struct.unpack(">IH", data[at : at + 6])
        name_at += names
        length = struct.unpack(">H", data[name_at : name_at + 2])[0]
        name = above + (data[name_at + 6 : name_at + 6 + 2 * length].decode("utf-16-be") if number else "")
        if flags & 2:  # a folder
            count, first = struct.unpack(">II", data[at + 6 : at + 14])
            for child in range(first, first + count):
                yield from walk(child, f"{name}/")
        else:
            begin = contents + struct.unpack(">I", data[at + 10 : at + 14])[0]
            end = begin + 4 + struct.unpack(">I", data[begin : begin + 4])[0]
            raw = data[begin + 4 : end]
            yield name, zlib.decompress(raw[4:]) if flags & 1 else raw

    yield from walk(0, "")


def _points(char: str) -> str:
    return "-".join(f"{ord(c):04x}" for c in char if c != "\ufe0f")


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _plain(name: str) -> str:
    """A file name or title as words."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    return re.sub(r"\s+", " ", re.sub(r"[-_.]+|\b\d+\b", " ", spaced)).strip().lower()
