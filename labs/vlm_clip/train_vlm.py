"""Train the small vision-language model: a projector and low-rank updates of SmolLM2, on drawings and scenes.

    pip install --require-hashes --no-deps --requirement requirements/training.txt
    python labs/vlm_clip/train_vlm.py                    writes data/vlm/vlm.safetensors and vlm.json

In two steps, where the machine with the GPU has no network:

    python labs/vlm_clip/train_vlm.py --prepare DIR      fetches and packs the pictures; no GPU
    python labs/vlm_clip/train_vlm.py --from DIR --out DIR
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import evaluate_vlm
from cliplab import pictures, training, training_data, vlm, vlm_data, vlm_training
from cliplab.lite0 import Trunk
from cliplab.mini_clip import FILE, VisionTower
from cliplab.vlm_data import WHAT, Stored, article, sentence
from cliplab.vlm_training import Scenes, look
from servinglab.assets.store import sha256
from servinglab.errors import CourseError
from servinglab.notebook import device as device_name
from servinglab.root import find_root

ALIKE = 0.8  # cosine from which a drawing is taken for that of a stamp
LAST = 45  # seconds kept for the evaluation
HELD = 256  # scenes of known things that the held-out loss is measured on


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prepare", type=Path, metavar="DIR", help="only fetch and pack the pictures into DIR")
    parser.add_argument("--from", dest="folder", type=Path, metavar="DIR", help="train from what --prepare wrote")
    parser.add_argument("--out", type=Path, help="folder to write to; data/vlm when left out")
    parser.add_argument("--smoke", action="store_true", help="a few steps on a few pictures: does it run at all?")
    parser.add_argument("--scenes", type=int, default=100_000)
    parser.add_argument("--lessons", type=int, default=24, help="grids for each class of ImageNet; 0: none")
    parser.add_argument("--untold", action="store_true", help="tell no names of the classifier's classes, to compare")
    parser.add_argument("--chats", type=int, default=3_000, help="turns without a picture; 0: none")
    parser.add_argument("--steps", type=int, nargs=2, default=(300, 4_000), help="of the projector, and of both")
    parser.add_argument("--rates", type=float, nargs=2, default=(1e-3, 5e-4))
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--count", type=int, default=evaluate_vlm.COUNT, help="scenes of each set to measure on")
    parser.add_argument("--minutes", type=float, default=0, help="end about then, by fewer steps; 0: all the steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if args.smoke:
        args.scenes, args.lessons, args.chats, args.steps, args.batch, args.count = 48, 1, 8, (2, 2), 8, 4
    try:
        check(args)
        folder = args.folder or args.prepare or training_data.cache() / "vlm"
        if args.prepare or not (args.folder or (folder / "names.json").is_file()):
            vlm_data.prepare(folder, pictures.catalogue("full"))
        return 0 if args.prepare else run(args, folder, args.out or find_root() / "data" / "vlm")
    except CourseError as error:
        print(error, file=sys.stderr)
        return 1


def check(args: argparse.Namespace) -> None:
    """Refuse what would fail after the pictures were fetched."""
    if args.prepare and args.folder:
        raise CourseError("--prepare writes a folder and --from reads one; give one of them.")
    least = {"scenes": 1, "lessons": 0, "chats": 0, "batch": 1, "rank": 1, "count": 1, "minutes": 0, "seed": 0}
    for name, value in [*((name, getattr(args, name)) for name in least), *(("steps", steps) for steps in args.steps)]:
        if not value >= least.get(name, 1):
            raise CourseError(f"--{name} is {value}; give {least.get(name, 1)} or more.")
    training.usable(args.device)


@torch.inference_mode()
def features(trunk: Trunk, stored: Stored, most: int = 0) -> Tensor:
    """Of each picture, of length 1: [pictures, 1280]. most: of them, for a trial."""
    device = next(trunk.parameters()).device
    images = Stored(stored.files[: most or None], stored.known).pixels()
    found = [trunk(vlm.pixel_values(images[n : n + 128], device)) for n in range(0, len(images), 128)]
    return F.normalize(torch.cat(found), dim=-1)


def run(args: argparse.Namespace, folder: Path, out: Path) -> int:
    times, began = {}, time.monotonic()

    def lap(name: str) -> None:
        times[name] = round(time.monotonic() - began - sum(times.values()), 1)
        print(f"{name}: {times[name]} s", flush=True)

    device, cuda = args.device, args.device.startswith("cuda")
    torch.manual_seed(args.seed)
    stored, stamps = (Stored.load(folder / f"{name}.npz") for name in ("pictures", "stamps"))
    named = vlm_data.names(folder)
    tower = VisionTower.load().to(device)
    drawn, measured_on = (features(tower.trunk, some, 64 if args.smoke else 0) for some in (stored, stamps))
    alike = drawn @ measured_on.T
    left_out = set((alike.max(dim=1).values >= ALIKE).nonzero()[:, 0].tolist())
    sets = vlm_data.things(stored, named["things"], left_out)
    names = sorted({thing.name for thing in sets["train"]})
    classes = [vlm_data.plain(name, set(named["things"])) for name in named["classes"]]
    taught = ["" if vlm_data.held_out(plain) or vlm_data.held_out(whole) else plain
              for plain, whole in zip(classes, named["classes"], strict=True)]  # fmt: skip
    captions = [known["caption"] for known in stored.known[: len(drawn)]]
    may = [row for row, caption in enumerate(captions) if row not in left_out and caption in names]
    best = alike[may].argmax(dim=0).tolist()
    nearest = {known["concept"]: sentence(article(captions[may[row]]))
               for known, row in zip(stamps.known, best, strict=False)}  # fmt: skip
    lap("drawings")

    model, tokenizer = vlm.language_model(dtype=torch.bfloat16 if cuda else torch.float32)
    model.to(device)
    others = sorted({thing.name for thing in sets["new_things"]})
    chats, kept = (vlm_training.own_chats(model, tokenizer, vlm_data.text_prompts(some, count, args.seed)) if count
                   else [] for some, count in ((names, args.chats), (others, min(args.chats, 256))))  # fmt: skip
    lap("own chats")

    grid = vlm.Grid(tower.trunk)
    shown = look(grid, Scenes(sets["train"], names, args.scenes, args.seed))
    if args.lessons:
        shown += vlm_training.lessons(shown, tower.head.classifier, taught, args.lessons, args.seed)
    watched = look(grid, Scenes(sets["known_things"], names, min(HELD, args.scenes), args.seed + 1))
    rows = [vlm_training.conversation(tokenizer, asked[:1]) for asked in watched.asked]
    held = (*vlm_training.padded(rows), watched.seen)
    usual = vlm_data.usual(shown.asked)
    lap("scenes")

    before = text_loss(model, kept, device)
    projector, factors, curves = vlm_training.train(
        model, tokenizer, shown, chats, held, classifier=tower.head.classifier, names=[] if args.untold else classes,
        steps=tuple(args.steps), batch=args.batch, rates=tuple(args.rates), rank=args.rank, seed=args.seed,
        seconds=args.minutes * 60 - sum(times.values()) - LAST if args.minutes else inf,
    )  # fmt: skip
    after = text_loss(model, kept, device)
    lap("training")

    card = {
        "trunk": "data/mini_clip", "trunk_sha256": sha256(find_root() / "data" / "mini_clip" / FILE),
        "language_model": "smollm2", "visual_tokens": vlm.TOKENS,
        "before": vlm.BEFORE, "after": vlm.AFTER, "rank": args.rank, "nearest": nearest,
        "left_out": sorted(left_out), "usual": usual,
    }  # fmt: skip
    vlm.save(out, projector, factors, card)
    del model, shown, watched, held
    whole = vlm.Vlm.load(out, device=device)
    batch = 1024 if cuda else evaluate_vlm.BATCH
    figures, answers = evaluate_vlm.measure(whole, evaluate_vlm.scenes_of(sets, args.count), usual, batch)
    for name, some in (("stamps", stamps), ("photos", Stored.load(folder / "photos.npz"))):
        limit = min(8, len(some.known)) if args.smoke else len(some.known)
        few = Stored(some.files[:limit], some.known[:limit])
        right = [known["caption"] for known in few.known]
        said, blind = evaluate_vlm.answer(whole, few.pixels(), [WHAT[0]] * limit, batch)
        near = [nearest[known["concept"]] for known in few.known] if name == "stamps" else None
        figures[name] = evaluate_vlm.captions(said, blind, near, right, None)
        answers[name] = evaluate_vlm.table([known["concept"] for known in few.known], right, said, blind)
    lap("evaluation")

    settings = ("scenes", "lessons", "untold", "chats", "steps", "rates", "batch", "rank", "seed")
    card |= {
        "training": {name: getattr(args, name) for name in settings} | {"curves": curves},
        "text_loss": {"before": before, "after": after, "chats": len(kept)},
        "drawings": {name: len(some) for name, some in sets.items()} | {"names": len(names), "left_out": len(left_out)},
        "measured": figures, "seconds": times, "device": torch.cuda.get_device_name() if cuda else device_name(),
        "torch": torch.__version__, "date": time.strftime("%Y-%m-%d"), "bytes": (out / vlm.FILE).stat().st_size,
    }  # fmt: skip
    (out / vlm.CARD).write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    (out / "answers.json").write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8")
    for name, found in figures.items():
        shares = found if name in ("stamps", "photos") else found["all"]
        print(name, {key: value["share"] for key, value in shares.items() if isinstance(value, dict)})
    print("text loss", before, "->", after)
    return 0


@torch.inference_mode()
def text_loss(model: Any, rows: list[Any], device: str) -> float:
    """Mean loss on chats about names that were not trained: what the language model said before training."""
    if not rows:
        return 0.0
    found = []
    for first in range(0, len(rows), 64):
        some = vlm_training.padded(rows[first : first + 64])
        with vlm_training.precise(device):
            found.append(float(vlm_training.answer_loss(model, *some, None)))
    return round(float(np.mean(found)), 4)


if __name__ == "__main__":
    sys.exit(main())
