"""What the small vision-language model learns from: drawings with names, scenes with exact answers, and plain chats.

`prepare` writes one folder that needs no network afterwards; a machine with a GPU trains from it. Drawings are split by
name: a name that is held out is in no training picture, whoever drew it.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from cliplab import training_data
from cliplab.conse import class_names
from cliplab.pictures import Picture
from cliplab.prepare import MEAN, SCALE, PictureError, open_picture, to_array
from cliplab.training_data import Pair
from cliplab.vlm_pictures import COLOURS, SHAPE_COLOURS, SHAPES, Scene, Thing, compose, drawing, measured_colour, shape
from servinglab.errors import CourseError

SIDE = 256  # pixels of a stored picture's longer side, at most
HELD_OUT = 8  # one name in so many
NEW_STYLE = "emojione"  # whose drawings of known things are for the evaluation alone
SETS = ("train", "known_things", "new_things")
NUMBERS = ("one", "two", "three", "four")
WHAT = ("What is it?", "What is this?", "What does the picture show?")
KINDS = ("one", "row", "many")
CORES = min(os.cpu_count() or 1, 15)
_ODD = {"mouse": "mice", "goose": "geese", "foot": "feet", "tooth": "teeth", "knife": "knives", "leaf": "leaves",
        "wolf": "wolves", "fish": "fish", "sheep": "sheep", "deer": "deer", "ox": "oxen", "loaf": "loaves"}  # fmt: skip


@dataclass(frozen=True)
class Question:
    """kind: what, colour, count, beside, place or there; `answer` is the only right one."""

    kind: str
    text: str
    answer: str


@dataclass(frozen=True)
class Stored:
    """Pictures as bytes with what is known of each: source, concept, caption, keywords, and for stamps the id."""

    files: list[bytes]
    known: list[dict[str, Any]]

    def save(self, file: Path) -> None:
        ends = np.cumsum([len(data) for data in self.files])
        np.savez(file, data=np.frombuffer(b"".join(self.files), np.uint8), ends=ends, known=json.dumps(self.known))

    @classmethod
    def load(cls, file: Path) -> Stored:
        try:
            with np.load(file) as opened:
                data, ends, known = opened["data"].tobytes(), opened["ends"].tolist(), json.loads(str(opened["known"]))
        except (OSError, ValueError, KeyError) as error:
            raise CourseError(f"{file} cannot be read ({error}); make it with train_vlm.py --prepare.") from None
        return cls([data[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)], known)

    def pixels(self) -> list[np.ndarray]:
        """On a white square: uint8 [224, 224, 3]."""
        return spread(_on_white, self.files)


def names(folder: Path) -> dict[str, Any]:
    """What --prepare wrote into names.json."""
    try:
        return json.loads((folder / "names.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CourseError(f"names.json cannot be read ({error}); make it with train_vlm.py --prepare.") from None


def spread(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """`function` of every item, in as many processes as there are cores when it is worth it."""
    if len(items) < 200:
        return [function(item) for item in items]
    with ProcessPoolExecutor(CORES, multiprocessing.get_context("fork")) as pool:
        return list(pool.map(function, items, chunksize=32))


def _on_white(data: bytes) -> np.ndarray:
    image = Image.open(io.BytesIO(data)).convert("RGBA")
    white = Image.new("RGB", image.size, (255, 255, 255))
    white.paste(image, mask=image)
    return square(white)


def square(image: Image.Image) -> np.ndarray:
    """An RGB picture as the trunk reads it, before the values are scaled: uint8 [224, 224, 3]."""
    return np.rint(to_array(image) * SCALE + MEAN).astype(np.uint8).transpose(1, 2, 0)


def _drawn(data: bytes) -> tuple[np.ndarray, str] | None:
    pixels = drawing(Image.open(io.BytesIO(data)))
    return None if pixels is None else (pixels, measured_colour(pixels))


def small(data: bytes) -> bytes:
    """A picture file as WebP of at most SIDE x SIDE, with its transparency. Raises PictureError."""
    upright = open_picture(data)  # bounds what a file may cost, and turns it
    image = Image.open(io.BytesIO(data))
    image = image.convert("RGBA") if image.size == upright.size else upright
    image.thumbnail((SIDE, SIDE), Image.Resampling.BICUBIC)
    written = io.BytesIO()
    image.save(written, "WEBP", quality=88, method=4)
    return written.getvalue()


def stored(pairs: Iterable[Pair]) -> Stored:
    """Readable pictures of `pairs`."""
    files, known = [], []

    def one(pair: Pair) -> bytes | None:
        try:
            return small(pair.read())
        except PictureError:
            return None

    pairs = list(pairs)
    with ThreadPoolExecutor(2) as threads:
        for pair, data in zip(pairs, threads.map(one, pairs), strict=True):
            if data:
                files.append(data)
                known.append({"source": pair.source, "concept": pair.concept, "caption": pair.caption,
                              "keywords": list(pair.keywords)})  # fmt: skip
    return Stored(files, known)


def prepare(folder: Path, stamps: Sequence[Picture], *, most: int = 0) -> None:
    """Write pictures.npz, photos.npz, stamps.npz and names.json into `folder`; most: of each, for a trial."""
    cache = training_data.cache()
    folder.mkdir(parents=True, exist_ok=True)
    every = [*training_data.emoji(cache), *training_data.clip_art(cache)]
    sets = {
        "pictures": every, "photos": list(training_data.photos(cache)),
        "stamps": [Pair("stamps", p.id, p.caption, read=p.file.read_bytes) for p in stamps],
    }  # fmt: skip
    for name, pairs in sets.items():
        found = stored(pairs[:: max(1, len(pairs) // most)] if most else pairs)
        found.save(folder / f"{name}.npz")
        print(f"{name}: {len(found.files)} pictures", flush=True)
    nouns = training_data.nouns(cache)
    captions = {p.caption for p in every}
    names = {"classes": class_names(), "things": sorted(c for c in captions if is_thing(c, nouns))}
    (folder / "names.json").write_text(json.dumps(names, indent=0) + "\n", encoding="utf-8")


def is_thing(caption: str, nouns: set[str]) -> bool:
    """Whether a caption is a plain name: at most three words that WordNet has, or whose last it has."""
    words = caption.split()
    return len(words) <= 3 and caption.isascii() and (caption in nouns or (len(words) > 1 and words[-1] in nouns))


def plain(name: str, known: set[str]) -> str:
    """The name of a class as one calls the thing: the longest end of it that is known, "great white shark": shark."""
    words = name.lower().split()
    return next((end for n in range(len(words)) if (end := " ".join(words[n:])) in known), name)


def held_out(name: str) -> bool:
    """Whether a name is for the evaluation alone: the last word decides, so "black cats" goes where "cat" goes."""
    last = re.sub(r"(ies|y|s)$", "", name.split()[-1])
    return zlib.crc32(last.encode()) % HELD_OUT == 0


def split(source: str, name: str) -> str:
    """The one of SETS that a drawing belongs to."""
    return "new_things" if held_out(name) else "known_things" if source == NEW_STYLE else "train"


def things(pictures: Stored, names: Sequence[str], left_out: set[int] = frozenset()) -> dict[str, list[Thing]]:
    """Drawings with a name and a background to leave out, by set; `known_things` only with names that were trained.

    left_out: rows of `pictures` that nothing may be learned from.
    """
    found, known = {name: [] for name in SETS}, set(names)
    # Titles of clip art name a thing only when they are one word of the dictionary; emoji have names.
    rows = [row for row, entry in enumerate(pictures.known) if row not in left_out and entry["caption"] in known
            and not (entry["source"] == "clip-art" and " " in entry["caption"])]  # fmt: skip
    for row, drawn in zip(rows, spread(_drawn, [pictures.files[row] for row in rows]), strict=True):
        name, source = pictures.known[row]["caption"], pictures.known[row]["source"]
        if drawn:
            found[split(source, name)].append(Thing(name, *drawn))
    trained = {thing.name for thing in found["train"]}
    found["known_things"] = [thing for thing in found["known_things"] if thing.name in trained]
    return found


def plural(name: str) -> str:
    """More than one of a thing."""
    first, _, last = name.rpartition(" ")
    if last in _ODD:
        last = _ODD[last]
    elif re.search(r"[^aeiou]y$", last):
        last = last[:-1] + "ies"
    elif re.search(r"(s|x|z|ch|sh)$", last):
        last += "es"
    else:
        last += "s"
    return f"{first} {last}".strip()


def is_plural(name: str) -> bool:
    return re.search(r"[^sui]s$", name.split()[-1]) is not None


def article(name: str) -> str:
    """A name with its article: "an owl", "a dog"; a plural has none."""
    return name if is_plural(name) else f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def draw_scene(kind: str, drawings: Sequence[Thing], rng: np.random.Generator) -> Scene:
    """A scene of KINDS: one thing; a row of two or three; one to four of a thing with up to three of another."""

    def pick(others: set[str] = frozenset()) -> Thing:
        for _ in range(100):
            if rng.random() < (0.1 if kind == "one" else 0.3):
                colours = tuple(SHAPE_COLOURS)
                thing = shape(SHAPES[rng.integers(len(SHAPES))], colours[rng.integers(len(colours))], rng)
            else:
                thing = drawings[rng.integers(len(drawings))]
            if not any(thing.name in other or other in thing.name for other in others):
                return thing
        raise CourseError("There are too few names among the drawings to compose a scene of different things.")

    chosen = [pick()]
    for _ in range({"one": 0, "row": int(rng.integers(1, 3)), "many": 1}[kind]):
        chosen.append(pick({thing.name for thing in chosen}))
    if kind == "many":
        chosen = [chosen[0]] * int(rng.integers(1, 5)) + [chosen[1]] * int(rng.integers(0, 4))
    return compose(kind, chosen, rng)


def questions(scene: Scene, names: Sequence[str], rng: np.random.Generator) -> list[Question]:
    """What can be asked about a scene, each with its exact answer. names: things that may be asked for in vain."""
    placed = [item.thing for item in scene.placed]
    counts = {thing.name: 0 for thing in placed}
    for thing in placed:
        counts[thing.name] += 1
    here, found = list(counts), []
    if scene.kind == "one":
        found.append(Question("what", WHAT[rng.integers(len(WHAT))], sentence(article(here[0]))))
    for thing in {thing.name: thing for thing in placed}.values():
        if scene.kind == "one" and thing.colour:
            found.append(Question("colour", "What colour is it?", sentence(thing.colour)))
        elif counts[thing.name] == 1 and thing.colour and not set(thing.name.split()) & set(COLOURS):
            found.append(Question("colour", f"What colour is the {thing.name}?", sentence(thing.colour)))
        if scene.kind == "many" and not is_plural(thing.name):
            found.append(Question("count", f"How many {plural(thing.name)} are there?",
                                  sentence(NUMBERS[counts[thing.name] - 1])))  # fmt: skip
    if scene.kind == "row":
        first, last = placed[0].name, placed[-1].name
        left, right = "What is left of the {}?", "What is right of the {}?"
        found.append(Question("beside", left.format(placed[1].name), sentence(article(first))))
        found.append(Question("beside", right.format(placed[-2].name), sentence(article(last))))
        found.append(Question("place", "What is on the left?", sentence(article(first))))
        found.append(Question("place", "What is on the right?", sentence(article(last))))
        if len(placed) == 3:
            found.append(Question("place", "What is in the middle?", sentence(article(here[1]))))
    if scene.kind != "one" and len(placed) <= len(NUMBERS):
        found.append(Question("count", "How many things are there?", sentence(NUMBERS[len(placed) - 1])))
    asked = here[rng.integers(len(here))]
    if rng.random() < 0.5:
        away = [names[n] for n in rng.integers(len(names), size=20)]
        asked = next((n for n in away if not any(n in h or h in n for h in here)), asked)
    found.append(Question("there", f"Is there {article(asked)}?", "Yes." if asked in here else "No."))
    return [found[n] for n in rng.permutation(len(found))]


def usual(asked: Iterable[Sequence[Question]]) -> dict[str, str]:
    """The most frequent answer to each kind of question."""
    counts: dict[str, Counter[str]] = {}
    for question in (question for some in asked for question in some):
        counts.setdefault(question.kind, Counter())[question.answer] += 1
    return {kind: found.most_common(1)[0][0] for kind, found in sorted(counts.items())}


def normal(answer: str) -> str:
    """An answer as it is compared: small letters, no article, no full stop."""
    return re.sub(r"^(an?|the|some) ", "", re.sub(r"[^a-z0-9 ]+", "", answer.lower()).strip())


def text_prompts(names: Sequence[str], count: int, seed: int) -> list[str]:
    """Questions without a picture, which the language model answers itself before training."""
    forms = ("What is {}?", "Tell me about {}.", "Write one sentence about {}.", "Where do you find {}?",
             "Write a short poem about {}.", "Name three uses of {}.", "Explain {} to a child.",
             "Translate '{}' into French.", "What colour can {} be?", "Write a Python function about {}.")  # fmt: skip
    rng = np.random.default_rng([seed, 1])
    return [forms[rng.integers(len(forms))].format(article(names[rng.integers(len(names))])) for _ in range(count)]
