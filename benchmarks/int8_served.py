"""Both picture encoders in fp32 and in int8, behind Triton: what int8 costs in recall, in answers, and saves in time.

    python benchmarks/int8_served.py [--pictures subset] [--from DIR] > data/results/cpu/int8_served.json

Pictures that calibrate int8 are left out. The CLIP ensembles run on two servers at once and take turns, so that the
ratio of their times is paired. The vision-language model is asked "What is it?" about the stamps and, with --from (what
train_vlm.py --prepare wrote), every question about held-out scenes; its encoder is exchanged on the running server.

Keys
    clip        recall at 10 with fp32 and int8 and their paired difference [value, low, high]; lowest and median cosine
                of the vectors; speed: seconds of fp32 by seconds of int8 for whole requests, [median, lowest, highest]
    vlm         for stamps and each set of scenes: n, share right with fp32 and int8 and paired difference [value, low,
                high], same: answers that are the same
    bytes       of each encoder's file
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image
from tritonclient.grpc import InferenceServerClient

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "labs" / "vlm_clip"))

import evaluate  # noqa: E402
import evaluate_vlm  # noqa: E402
from cliplab import encoders, retrieval, vlm, vlm_files  # noqa: E402
from cliplab.client import ROWS, ClipClient, ask  # noqa: E402
from cliplab.deployment import write_repository  # noqa: E402
from cliplab.vlm_data import WHAT, normal  # noqa: E402
from servinglab.client import gather, inputs  # noqa: E402
from servinglab.notebook import device, versions  # noqa: E402
from servinglab.server import TritonServer  # noqa: E402

TOGETHER = 8  # questions at once
KINDS = ("fp32", "int8")


def clip(pictures: list, root: Path) -> dict:
    """Every caption searches all pictures, with the vectors of either server."""
    captions, files = [p.caption for p in pictures], [p.file.read_bytes() for p in pictures]
    labels = sorted({p.category for p in pictures})
    servers = {kind: TritonServer(write_repository(root / kind, kind, labels)).start() for kind in KINDS}
    clients = {kind: ClipClient(server.grpc_url) for kind, server in servers.items()}
    images, ratios = {kind: [] for kind in KINDS}, []
    for start in range(0, len(files), ROWS):
        part, took = files[start : start + ROWS], {}
        for kind in KINDS if start // ROWS % 2 else KINDS[::-1]:
            began = time.perf_counter()
            images[kind].append(ask(clients[kind].client, part, [""] * len(part)).as_numpy("embedding"))
            took[kind] = time.perf_counter() - began
        ratios.append(took["fp32"] / took["int8"])
    found, ranks = {"n": len(files)}, {}
    vectors = {kind: np.concatenate(images[kind]) for kind in KINDS}
    for kind in KINDS:
        ranks[kind] = retrieval.ranks(clients[kind].embed_texts(captions) @ vectors[kind].T, captions)
        found[f"recall_at_10_{kind}"] = rounded(retrieval.recall(ranks[kind], 10, captions))
        clients[kind].close()
        servers[kind].stop()
    found["difference"] = rounded(retrieval.difference(ranks["int8"], ranks["fp32"], 10, captions))
    cosines = (vectors["fp32"] * vectors["int8"]).sum(axis=1)
    found["cosine"] = {"lowest": round(float(cosines.min()), 4), "median": round(float(np.median(cosines)), 4)}
    found["speed"] = [round(of(ratios[1:]), 2) for of in (statistics.median, min, max)]  # the first warms up
    return found


def seeing(asked: dict[str, list[tuple[str, bytes, str, str]]], root: Path) -> dict:
    """asked: set -> (group of the bootstrap, picture, question, right answer)."""
    card = vlm.load()[2]
    said: dict[str, dict[str, list[str]]] = {}
    with TritonServer(vlm_files.deploy(root)) as server, InferenceServerClient(server.grpc_url) as client:
        for kind in KINDS:
            vlm_files.deploy(root, encoder=kind)
            server.load("vision_encoder")
            said[kind] = {name: answers(client, card, rows) for name, rows in asked.items()}
    found = {}
    for name, rows in asked.items():
        groups = [row[0] for row in rows]
        hits = {kind: [1 if normal(a) == normal(row[3]) else 2 for a, row in zip(said[kind][name], rows, strict=True)]
                for kind in KINDS}  # fmt: skip
        found[name] = {"n": len(rows)}
        found[name] |= {kind: rounded(retrieval.recall(np.array(hits[kind]), 1, groups)) for kind in KINDS}
        gain = retrieval.difference(np.array(hits["int8"]), np.array(hits["fp32"]), 1, groups)
        same = np.mean([a == b for a, b in zip(said["fp32"][name], said["int8"][name], strict=True)])
        found[name] |= {"difference": rounded(gain), "same": round(float(same), 4)}
    return found


def answers(client: InferenceServerClient, card: dict, rows: list[tuple[str, bytes, str, str]]) -> list[str]:
    said = []
    for start in range(0, len(rows), TOGETHER):
        requests = {}
        for number, (_, picture, question, _) in enumerate(rows[start : start + TOGETHER]):
            url = b"data:image/png;base64," + base64.b64encode(picture)
            requests[number] = inputs(
                text_input=f"{card['before']}<image>{card['after'].format(question)}", max_tokens=vlm.LONGEST,
                image_url_input=np.array([[url]], object), stream=True,
            )  # fmt: skip
        results = gather(client, "tensorrt_llm_bls", requests)
        print(start, "of", len(rows), file=sys.stderr, flush=True)
        said += ["".join(r.as_numpy("text_output").flat[0].decode() for r in results[n]) for n in requests]
    return said


def rounded(share: retrieval.Estimate) -> list[float]:
    return [round(value, 4) for value in (share.value, share.low, share.high)]


def scenes(folder: Path, count: int) -> dict[str, list[tuple[str, bytes, str, str]]]:
    """Every question about `count` scenes of each held-out set, as PNG files."""
    found = {}
    for name, some in evaluate_vlm.scene_sets(folder, vlm.load()[2]["left_out"], count).items():
        found[name] = []
        for number in range(count):
            image, asked = some[number]
            out = io.BytesIO()
            Image.fromarray(image).save(out, "PNG")
            found[name] += [(str(number), out.getvalue(), question.text, question.answer) for question in asked]
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--pictures", choices=("auto", "full", "subset"), default="auto")
    options.add_argument("--from", dest="folder", type=Path, metavar="DIR", help="adds scenes")
    options.add_argument("--stamps", type=int, default=200, help="that are asked about")
    options.add_argument("--scenes", type=int, default=30, help="of each set")
    chosen = options.parse_args()

    pictures, source = evaluate.pictures(chosen.pictures)
    seen = {picture.id for picture in encoders.calibration_pictures()}
    pictures = [picture for picture in pictures if picture.id not in seen]
    some = pictures[:: max(1, len(pictures) // chosen.stamps)][: chosen.stamps]
    asked = {"stamps": [(p.caption, p.file.read_bytes(), WHAT[0], p.caption) for p in some]}
    asked |= scenes(chosen.folder, chosen.scenes) if chosen.folder else {}
    with tempfile.TemporaryDirectory() as folder:
        found = {"pictures": source, "clip": clip(pictures, Path(folder)), "vlm": seeing(asked, Path(folder, "vlm"))}
    made = {kind: (encoders.prepare(kind).vision, vlm_files.prepare(encoder=kind).vision) for kind in KINDS}
    found["bytes"] = {f"{name}_{kind}": files[number].stat().st_size
                      for number, name in enumerate(("clip", "vlm")) for kind, files in made.items()}  # fmt: skip
    found |= {"date": time.strftime("%Y-%m-%d"), "device": device(), "versions": versions()}
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
