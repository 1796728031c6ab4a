"""Scenes composed from drawings. What stands where is known, so every answer about a scene is exact.

A drawing's colour is measured, not guessed: it has one only when most of what it paints is of one named colour.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from cliplab.prepare import SIZE

DRAWN = 192  # pixels of a drawing's longer side, at most
MOSTLY = 0.7  # share of a drawing's pixels, black outlines aside, that must agree on its colour
OUTLINE = 0.35  # share of black below which it is an outline and does not count
FILLED = 0.85  # alpha from which a pixel counts as painted
# Hues in degrees where a colour's name is beyond dispute; between them lies what two people name differently.
HUES = (("red", -14, 11), ("orange", 20, 40), ("yellow", 47, 64), ("green", 80, 160), ("blue", 195, 250),
        ("purple", 265, 295), ("pink", 310, 338))  # fmt: skip
SHAPE_COLOURS = {
    "red": (210, 30, 35), "orange": (245, 135, 20), "yellow": (250, 220, 30), "green": (40, 160, 60),
    "blue": (40, 85, 215), "purple": (130, 45, 170), "pink": (250, 110, 185), "brown": (120, 70, 30),
    "black": (20, 20, 22), "grey": (130, 130, 132),
}  # fmt: skip
COLOURS = tuple(SHAPE_COLOURS) + ("white",)
SHAPES = ("circle", "square", "triangle", "star", "heart", "cross")


@dataclass(frozen=True)
class Thing:
    """One drawing: its name, uint8 RGBA [height, width, 4] without an empty border, its colour or ""."""

    name: str
    pixels: np.ndarray
    colour: str = ""


@dataclass(frozen=True)
class Placed:
    """A thing in a scene; box: left, top, width, height in pixels."""

    thing: Thing
    box: tuple[int, int, int, int]


@dataclass(frozen=True)
class Scene:
    """image: RGB of 224 x 224. kind: one thing, a row from left to right, or many that repeat."""

    kind: str
    image: Image.Image
    placed: tuple[Placed, ...]


def colour_names(rgb: np.ndarray) -> np.ndarray:
    """Index into COLOURS of each pixel [n, 3] uint8, -1 where the name is in dispute."""
    value = rgb.astype(np.float32) / 255
    high, low = value.max(axis=-1), value.min(axis=-1)
    chroma = high - low
    saturation = chroma / np.maximum(high, 1e-6)
    red, green, blue = np.moveaxis(value, -1, 0)
    step = np.maximum(chroma, 1e-6)
    hue = np.where(high == red, (green - blue) / step, np.where(high == green, 2 + (blue - red) / step,
                                                                4 + (red - green) / step)) * 60  # fmt: skip
    found = np.full(len(rgb), -1)
    for name, start, end in HUES:
        inside = ((hue - start) % 360 < end - start) & (saturation > 0.45) & (high > 0.35)
        if name in ("red", "orange", "yellow"):  # dark ones are brown, pale oranges beige
            inside &= (high > (0.55 if name == "red" else 0.78)) & (saturation > (0.65 if name == "orange" else 0.45))
        found[inside] = COLOURS.index(name)
    brown = ((hue - 10) % 360 < 32) & (saturation > 0.4) & (high > 0.25) & (high < 0.65)
    found[brown] = COLOURS.index("brown")
    found[high < 0.2] = COLOURS.index("black")
    pale = saturation < 0.08
    found[pale & (high > 0.93)] = COLOURS.index("white")
    found[pale & (high > 0.35) & (high < 0.75)] = COLOURS.index("grey")
    return found


def measured_colour(pixels: np.ndarray) -> str:
    """The colour that most of a drawing has, uint8 RGBA; "" when there is none."""
    names = colour_names(pixels[pixels[..., 3] > 255 * FILLED][:, :3])
    black = names == COLOURS.index("black")
    if len(names) and black.mean() < OUTLINE:
        names = names[~black]
    counts = np.bincount(names[names >= 0], minlength=len(COLOURS))
    return COLOURS[counts.argmax()] if len(names) and counts.max() >= MOSTLY * len(names) else ""


def shape(name: str, colour: str, rng: np.random.Generator) -> Thing:
    """One of SHAPES in a shade of one of SHAPE_COLOURS."""
    shade = np.clip(np.array(SHAPE_COLOURS[colour]) + rng.integers(-8, 9, 3), 0, 255)
    if colour in ("black", "grey"):
        shade[:] = shade[0]
    side = 512
    mask = Image.new("L", (side, side), 0)
    draw, full = ImageDraw.Draw(mask), (0, 0, side - 1, side - 1)
    if name == "circle":
        draw.ellipse(full, 255)
    elif name == "square":
        draw.rectangle(full, 255)
    elif name == "cross":
        draw.rectangle((0, side // 3, side, side * 2 // 3), 255)
        draw.rectangle((side // 3, 0, side * 2 // 3, side), 255)
    elif name == "triangle":
        draw.polygon([(0, side - 1), (side - 1, side - 1), (side // 2, 0)], 255)
    elif name == "star":
        turns = [math.pi * (n / 5 - 0.5) for n in range(10)]
        radii = [side / 2 if n % 2 == 0 else side / 5 for n in range(10)]
        corners = [(r * math.cos(t), r * math.sin(t)) for r, t in zip(radii, turns, strict=True)]
        draw.polygon([(side / 2 + x, side / 2 + y) for x, y in corners], 255)
    else:
        t = np.linspace(0, 2 * math.pi, 200)
        x, y = 16 * np.sin(t) ** 3, 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
        points = np.stack([x, -y], axis=1)
        points = (points - points.min(0)) / np.ptp(points, axis=0) * (side - 1)
        draw.polygon([tuple(point) for point in points.tolist()], 255)
    alpha = np.asarray(mask.resize((DRAWN, DRAWN), Image.Resampling.LANCZOS))
    rgb = np.broadcast_to(shade.astype(np.uint8), (DRAWN, DRAWN, 3))
    return Thing(name, np.dstack([rgb, alpha]), colour)


def drawing(image: Image.Image) -> np.ndarray | None:
    """uint8 RGBA of a drawing without its empty border; None where it has no background to leave out, or nothing."""
    image = image.convert("RGBA")
    image.thumbnail((DRAWN, DRAWN), Image.Resampling.BICUBIC)
    pixels = np.array(image)
    seen = pixels[..., 3] > 25
    if not 0.05 < seen.mean() < 0.97:
        return None
    rows, columns = np.flatnonzero(seen.any(1)), np.flatnonzero(seen.any(0))
    return pixels[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def background(rng: np.random.Generator) -> Image.Image:
    """White as often as not, like the pictures of a shop; else one pale colour or a pale slope of two."""
    if rng.random() < 0.5:
        return Image.new("RGB", (SIZE, SIZE), (255, 255, 255))
    ends = rng.integers(200, 256, (2, 3))
    if rng.random() < 0.5:
        ends[1] = ends[0]
    slope = np.linspace(0, 1, SIZE)[:, None, None]
    rows = ends[0] * (1 - slope) + ends[1] * slope
    pixels = np.broadcast_to(rows, (SIZE, SIZE, 3)).astype(np.uint8)
    return Image.fromarray(pixels if rng.random() < 0.5 else pixels.transpose(1, 0, 2))


def compose(kind: str, things: Sequence[Thing], rng: np.random.Generator) -> Scene:
    """Place `things` without overlap: "one" anywhere, "row" in their order from left to right, "many" in any cells."""
    image, placed = background(rng), []
    if kind == "row":
        width = SIZE / len(things)
        cells = [(n * width, 0, width, SIZE) for n in range(len(things))]
    else:
        columns = 1 if kind == "one" else 2 if len(things) <= 4 else 3
        side = SIZE / columns
        cells = [(n % columns * side, n // columns * side, side, side) for n in rng.permutation(columns**2)]
    for thing, (left, top, width, height) in zip(things, cells, strict=False):  # cells may be left
        drawn = Image.fromarray(thing.pixels)
        if rng.random() < 0.5:
            drawn = drawn.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if rng.random() < 0.5:
            drawn = drawn.rotate(rng.uniform(-12, 12), Image.Resampling.BICUBIC, expand=True)
        scale = min(width / drawn.width, height / drawn.height) * rng.uniform(0.65, 0.97)
        size = (max(1, int(drawn.width * scale)), max(1, int(drawn.height * scale)))
        drawn = drawn.resize(size, Image.Resampling.BICUBIC)
        at = (int(left + rng.uniform(0, width - size[0])), int(top + rng.uniform(0, height - size[1])))
        image.paste(drawn, at, drawn)
        placed.append(Placed(thing, (*at, *size)))
    return Scene(kind, image, tuple(placed))
