"""How well mini-CLIP finds the pictures that belong to sentences, beside ConSE, on pictures it was never trained on.

python labs/vlm_clip/evaluate.py              a table
python labs/vlm_clip/evaluate.py --json       the figures; with --pictures full the ones on the model's card
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cliplab import conse, retrieval, wordnet
from cliplab.lite0 import Trunk
from cliplab.mini_clip import TextTower, VisionTower
from cliplab.pictures import Picture, PicturesError, catalogue, fetch_full
from cliplab.prepare import open_picture, to_array
from servinglab import assets
from servinglab.errors import CourseError
from servinglab.root import find_root

BATCH = 32


@dataclass(frozen=True)
class Measured:
    """Cosines of captions with pictures, [n, n]; row i is the caption of picture i. mini: by mini-CLIP, with its
    explanation too (`wordnet`); plain: by mini-CLIP with the caption alone, and so conse: by ConSE."""

    pictures: list[Picture]
    mini: np.ndarray
    plain: np.ndarray
    conse: np.ndarray

    @property
    def captions(self) -> list[str]:
        return [picture.caption for picture in self.pictures]


@torch.inference_mode()
def features(trunk: Trunk, pictures: list[Picture]) -> Tensor:
    """What the trunk sees in each picture: [n, 1280]."""
    found = []
    for first in range(0, len(pictures), BATCH):
        some = [to_array(open_picture(p.file.read_bytes())) for p in pictures[first : first + BATCH]]
        found.append(trunk(torch.from_numpy(np.stack(some))))
    return torch.cat(found)


@torch.inference_mode()
def measure(
    pictures: list[Picture],
    vision: VisionTower | None = None,
    text: TextTower | None = None,
) -> Measured:
    """Encode pictures and captions. The towers and the dictionary of the course when left out."""
    vision, encode = vision or VisionTower.load(), sentence_encoder(text or TextTower.load())
    mini = vision.head(features(vision.trunk, pictures)).numpy()
    captions = [p.caption for p in pictures]
    dictionary = wordnet.Dictionary(find_root() / "data" / "mini_clip" / wordnet.FILE)
    plain, explained = encode(captions), dictionary.encode(captions, encode)
    by_names = conse.image_vectors(*conse.recorded([p.id for p in pictures]), conse.class_texts(encode))
    scores = ((explained, mini), (plain, mini), (plain, by_names))
    return Measured(pictures, *(retrieval.similarity(texts, images) for texts, images in scores))


def figures(measured: Measured) -> dict[str, Any]:
    """The shares and their 95 % intervals, ready for JSON."""
    captions = measured.captions
    ranks = {
        "": retrieval.ranks(measured.mini, captions),
        "plain_": retrieval.ranks(measured.plain, captions),
        "conse_": retrieval.ranks(measured.conse, captions),
    }
    shares: dict[str, retrieval.Estimate] = {}
    for k in (1, 5, 10):
        for way, found in ranks.items():
            shares[f"{way}recall_at_{k}"] = retrieval.recall(found, k, captions)
        shares[f"gain_at_{k}"] = retrieval.difference(ranks["plain_"], ranks["conse_"], k, captions)
        shares[f"explained_gain_at_{k}"] = retrieval.difference(ranks[""], ranks["plain_"], k, captions)
    categories = {}
    for category in sorted({p.category for p in measured.pictures}):
        rows = [i for i, p in enumerate(measured.pictures) if p.category == category]
        shares_of = {f"{way}recall_at_10": round(float((found[rows] <= 10).mean()), 4) for way, found in ranks.items()}
        categories[category] = {"n": len(rows), **shares_of}
    return {
        "n": len(captions),
        "captions": len(set(captions)),
        **{name: round(share.value, 4) for name, share in shares.items()},
        "intervals": {name: [round(share.low, 4), round(share.high, 4)] for name, share in shares.items()},
        "median_rank": int(np.median(ranks[""])),
        "plain_median_rank": int(np.median(ranks["plain_"])),
        "conse_median_rank": int(np.median(ranks["conse_"])),
        "categories": categories,
    }


def pictures(source: str) -> tuple[list[Picture], str]:
    """The pictures to measure on, and which they are. auto: all if they can be had, else the subset, and it says so."""
    if source == "auto":
        try:
            fetch_full()
            source = "full"
        except (PicturesError, assets.AssetError) as error:
            print(f"Only the subset is measured: {error}", file=sys.stderr)
            source = "subset"
    return catalogue(source), source


def sentence_encoder(tower: TextTower) -> Callable[[Sequence[str]], np.ndarray]:
    """Sentences to vectors of length 1, float32 [n, 384], on the device of the tower."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(assets.resolve("minilm") / "tokenizer.json"))
    tokenizer.enable_padding()
    tokenizer.enable_truncation(256)

    device = next(tower.parameters()).device

    @torch.inference_mode()
    def encode(texts: Sequence[str]) -> np.ndarray:
        found = []
        for first in range(0, len(texts), BATCH):
            rows = tokenizer.encode_batch(list(texts[first : first + BATCH]))
            ids, mask = (torch.tensor([getattr(r, name) for r in rows]) for name in ("ids", "attention_mask"))
            found.append(tower(ids.to(device), mask.to(device)).cpu())
        return torch.cat(found).numpy()

    return encode


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--pictures", choices=("auto", "full", "subset"), default="auto")
    parser.add_argument("--weights", type=Path, help="folder of mini-clip.safetensors; data/mini_clip when left out")
    chosen = parser.parse_args(arguments)
    try:
        found, source = pictures(chosen.pictures)
        began = time.monotonic()
        result = {"pictures": source, **figures(measure(found, VisionTower.load(chosen.weights)))}
    except CourseError as error:
        print(error, file=sys.stderr)
        return 1
    result |= {"seconds": round(time.monotonic() - began, 1), "torch": torch.__version__}
    if chosen.json:
        print(json.dumps(result, indent=2))
        return 0
    print(f"{result['n']} pictures ({source}), {result['captions']} captions; shares with 95 % intervals")
    for name, (low, high) in result["intervals"].items():
        print(f"{name:20} {result[name]:6.3f}   {low:.3f} to {high:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
