"""What the frozen trunk sees in the training's pictures, computed once and kept in the cache."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from cliplab.lite0 import SIZE
from cliplab.prepare import PictureError, open_picture, to_array
from cliplab.training_data import Pair

BATCH = 32
STREAM = 3  # of random numbers, apart from those of the training itself
LARGE = 600 * 600  # pixels above which a picture is made smaller first
WHITE = (255, 255, 255)


@dataclass(frozen=True)
class Known:
    """Features float16 [n, 1280] with source, concept, caption and keywords of each picture."""

    features: np.ndarray
    pairs: list[tuple[str, str, str, list[str]]]

    def rows(self, kept: np.ndarray) -> Known:
        """Those for which `kept` [n] is true."""
        pairs = [pair for pair, stays in zip(self.pairs, kept, strict=True) if stays]
        return Known(self.features[kept], pairs)


def features(
    pairs: Iterable[Pair], trunk: Callable[[np.ndarray], np.ndarray], file: Path, *, varied: bool, seed: int
) -> Known:
    """Features of `pairs`, from `file` when it is there. trunk: float32 [n, 3, 224, 224] to [n, 1280], which
    is kept as float16.

    varied: each picture once in a random variant, see `vary`; as it is otherwise. Unreadable pictures are left out.
    """
    if not file.exists():
        rng = np.random.default_rng([seed, STREAM])
        rows, known, waiting = [], [], []
        for pair in pairs:
            try:
                image = open_picture(pair.read())
            except PictureError:
                continue
            if math.prod(image.size) > LARGE:
                image.thumbnail((512, 512))
            waiting.append(to_array(vary(image, rng) if varied else image))
            known.append((pair.source, pair.concept, pair.caption, list(pair.keywords)))
            if len(waiting) == BATCH:
                rows.append(trunk(np.stack(waiting)).astype(np.float16))
                waiting = []
        if waiting:
            rows.append(trunk(np.stack(waiting)).astype(np.float16))
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part.npz")
        np.savez(part, features=np.concatenate(rows), pairs=json.dumps(known))
        part.rename(file)
    with np.load(file) as opened:
        return Known(opened["features"], json.loads(str(opened["pairs"])))


def vary(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Mirrored or not, a little turned, stretched and tinted, smaller, somewhere on a white square."""
    if rng.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    image = image.rotate(rng.uniform(-15, 15), resample=Image.Resampling.BICUBIC, expand=True, fillcolor=WHITE)
    stretch = math.exp(rng.uniform(-0.2, 0.2))
    width, height = image.size[0] * stretch, image.size[1] / stretch
    scale = SIZE * rng.uniform(0.5, 1.0) / max(width, height)
    width, height = max(1, int(width * scale)), max(1, int(height * scale))
    image = image.resize((width, height), Image.Resampling.BICUBIC)
    pixels = np.asarray(image, np.float32)
    grey = pixels.mean(axis=-1, keepdims=True)
    tinted = (grey + (pixels - grey) * rng.uniform(0.6, 1.2)) * rng.uniform(0.85, 1.1)
    background = pixels.min(axis=-1, keepdims=True) > 250
    image = Image.fromarray(np.where(background, 255, np.clip(tinted, 0, 255)).astype(np.uint8))
    square = Image.new("RGB", (SIZE, SIZE), WHITE)
    square.paste(image, (int(rng.integers(0, SIZE + 1 - width)), int(rng.integers(0, SIZE + 1 - height))))
    return square
