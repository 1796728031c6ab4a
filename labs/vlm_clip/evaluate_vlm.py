"""How well the small vision-language model answers, on pictures and things that it was never trained on.

    python labs/vlm_clip/evaluate_vlm.py                 a table
    python labs/vlm_clip/evaluate_vlm.py --json          the figures; with --pictures full the ones on the model's card

Stamps are asked "What is it?". Scenes are composed from drawings that no training scene had, of things whose names
were trained (known_things) and of things whose names were not (new_things). Blind: the same weights and question, and
in every picture's place the mean visual tokens of 4,096 training pictures. Usual: the answer that the training gave
most often to this kind of question. Nearest: the caption of the training drawing that the trunk finds most alike.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import evaluate
from cliplab import retrieval, vlm, vlm_data
from cliplab.mini_clip import TextTower
from cliplab.prepare import open_picture
from cliplab.vlm import Vlm, pixel_values
from cliplab.vlm_data import WHAT, normal, square
from cliplab.vlm_pictures import Thing
from cliplab.vlm_training import Scenes, drawn
from servinglab.errors import CourseError

BATCH = 16
SEED = 1_000_003  # of the scenes: no training uses it
COUNT = 200  # scenes of each set
WAYS = {"exact_match": "said", "blind_exact_match": "blind", "usual_exact_match": "usual"}
SCENE_SETS = ("known_things", "new_things")


def estimate(right: Sequence[bool], groups: Sequence[str] | None = None) -> dict[str, Any]:
    """A share with its 95 % interval. groups: what the bootstrap draws together."""
    found = retrieval.recall(np.where(np.asarray(right), 1, 2), 1, groups)
    return {"n": len(right), "share": round(found.value, 4), "interval": [round(found.low, 4), round(found.high, 4)]}


def answer(model: Vlm, images: Sequence[np.ndarray], asked: Sequence[str], batch: int) -> tuple[list[str], list[str]]:
    """Answers to questions, one for each picture [224, 224, 3]: with the picture, and blind."""
    device, seen, blind = model.model.device, [], []
    for first in range(0, len(asked), batch):
        some = list(asked[first : first + batch])
        seen += model.answers(some, model.see(pixel_values(images[first : first + batch], device)))
        blind += model.answers(some, model.projector.usual.expand(len(some), -1, -1))
    return seen, blind


def scenes(model: Vlm, chosen: Scenes, usual: Mapping[str, str], batch: int = BATCH) -> list[dict[str, str]]:
    """Every question about every scene: scene, kind, question, right, said, blind, usual."""
    rows, images = [], []
    for number, (image, asked) in enumerate(pair for some in drawn(chosen, BATCH) for pair in some):
        for question in asked:
            rows.append({"scene": str(number), "kind": question.kind, "question": question.text,
                         "right": question.answer, "usual": usual.get(question.kind, "")})  # fmt: skip
            images.append(image)
    said, blind = answer(model, images, [row["question"] for row in rows], batch)
    return [row | {"said": s, "blind": b} for row, s, b in zip(rows, said, blind, strict=True)]


def by_kind(rows: Sequence[dict[str, str]]) -> dict[str, Any]:
    """Shares of exact answers by kind of question, of the model and the baselines; scenes are drawn together."""
    found = {}
    for kind in (*sorted({row["kind"] for row in rows}), "all"):
        some = [row for row in rows if kind in ("all", row["kind"])]
        groups = [row["scene"] for row in some]
        found[kind] = {name: estimate([normal(row[way]) == normal(row["right"]) for row in some], groups)
                       for name, way in WAYS.items()}  # fmt: skip
    return found


def captions(
    said: Sequence[str], blind: Sequence[str], nearest: Sequence[str] | None, right: Sequence[str],
    encode: Callable[[Sequence[str]], np.ndarray] | None,
) -> dict[str, Any]:  # fmt: skip
    """Answers to "What is it?" against captions. exact_match: the same words; named: the answer's words stand in the
    caption; caption_recall_at_10: of all captions, the right one is among the ten nearest to the answer."""
    found: dict[str, Any] = {"n": len(right)}
    for way, answers in (("", said), ("blind_", blind), ("nearest_", nearest)):
        if answers is None:
            continue
        exact = [normal(a) == normal(r) for a, r in zip(answers, right, strict=True)]
        named = [bool(normal(a)) and re.search(rf"\b{re.escape(normal(a))}\b", normal(r)) is not None
                 for a, r in zip(answers, right, strict=True)]  # fmt: skip
        found[f"{way}exact_match"] = estimate(exact, right)
        found[f"{way}named"] = estimate(named, right)
        if encode:
            ranks = retrieval.ranks(retrieval.similarity(encode(list(answers)), encode(list(right))), right)
            for k in (1, 10):
                found[f"{way}caption_recall_at_{k}"] = estimate(ranks <= k, right)
    return found


def table(ids: Sequence[str], right: Sequence[str], said: Sequence[str], blind: Sequence[str]) -> list[dict[str, str]]:
    """Single answers as rows."""
    return [{"picture": i, "right": r, "said": s, "blind": b}
            for i, r, s, b in zip(ids, right, said, blind, strict=True)]  # fmt: skip


def scene_sets(folder: Path, left_out: Sequence[int] = (), count: int = COUNT) -> dict[str, Scenes]:
    """The scenes of the evaluation, from a folder of train_vlm.py --prepare."""
    named = vlm_data.names(folder)["things"]
    sets = vlm_data.things(vlm_data.Stored.load(folder / "pictures.npz"), named, set(left_out))
    return scenes_of(sets, count)


def scenes_of(sets: Mapping[str, Sequence[Thing]], count: int = COUNT) -> dict[str, Scenes]:
    """The same, from drawings by set."""
    return {name: Scenes(sets[name], sorted({thing.name for thing in sets[name]}), count, SEED) for name in SCENE_SETS}


def measure(
    model: Vlm, sets: dict[str, Scenes], usual: Mapping[str, str], batch: int = BATCH
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Figures and single answers of the scenes. usual: the answer of the training by kind of question."""
    rows = {name: scenes(model, some, usual, batch) for name, some in sets.items()}
    return {name: by_kind(found) for name, found in rows.items()}, rows


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--answers", type=Path, help="write every answer as JSON into this file")
    parser.add_argument("--pictures", choices=("auto", "full", "subset"), default="auto")
    parser.add_argument("--weights", type=Path, help="folder of vlm.safetensors; data/vlm when left out")
    parser.add_argument("--from", dest="folder", type=Path, help="folder of train_vlm.py --prepare: adds the scenes")
    parser.add_argument("--count", type=int, default=COUNT, help="scenes of each set")
    chosen = parser.parse_args(arguments)
    try:
        result = run(chosen)
    except CourseError as error:
        print(error, file=sys.stderr)
        return 1
    if chosen.json:
        print(json.dumps(result, indent=1))
        return 0
    for name, found in result["sets"].items():
        print(name)
        for kind, shares in {"": found}.items() if name == "stamps" else found.items():
            for measured, value in shares.items():
                if isinstance(value, dict):
                    print(f"  {kind:8} {measured:28} {value['share']:6.3f}   {value['interval']}   n {value['n']}")
    return 0


def run(chosen: argparse.Namespace) -> dict[str, Any]:
    began = time.monotonic()
    if chosen.count < 1:
        raise CourseError(f"--count is {chosen.count}; give 1 or more.")
    card = vlm.load(chosen.weights)[2]
    if chosen.folder and not card.keys() >= {"left_out", "usual"}:
        raise CourseError(f"{vlm.CARD} lacks left_out or usual, which scenes need; write it with train_vlm.py.")
    sets_of = scene_sets(chosen.folder, card["left_out"], chosen.count) if chosen.folder else {}
    model = Vlm.load(chosen.weights)
    found, source = evaluate.pictures(chosen.pictures)
    right = [picture.caption for picture in found]
    images = [square(open_picture(picture.file.read_bytes())) for picture in found]
    said, blind = answer(model, images, [WHAT[0]] * len(found), BATCH)
    known = card.get("nearest", {})
    nearest = [known.get(picture.id, "") for picture in found] if known else None
    encode = evaluate.sentence_encoder(TextTower.load())
    sets: dict[str, Any] = {"stamps": captions(said, blind, nearest, right, encode)}
    ids = [picture.id for picture in found]
    answers: dict[str, Any] = {"stamps": table(ids, right, said, blind)}
    if chosen.folder:
        figures, rows = measure(model, sets_of, card["usual"])
        sets, answers = sets | figures, answers | rows
    if chosen.answers:
        chosen.answers.write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8")
    every = [row for name in SCENE_SETS for row in answers.get(name, [])]
    total = by_kind([row | {"scene": f"{row['kind']}{row['scene']}"} for row in every]) if every else {}
    return {
        "pictures": source, "n": len(found) + len(every),
        "exact_match": {kind: shares["exact_match"]["share"] for kind, shares in total.items()},
        "blind_exact_match": {kind: shares["blind_exact_match"]["share"] for kind, shares in total.items()},
        "usual_exact_match": {kind: shares["usual_exact_match"]["share"] for kind, shares in total.items()},
        "caption_recall_at_10": sets["stamps"]["caption_recall_at_10"]["share"],
        "intervals": {kind: shares["exact_match"]["interval"] for kind, shares in total.items()},
        "sets": sets, "seconds": round(time.monotonic() - began, 1), "torch": torch.__version__,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
