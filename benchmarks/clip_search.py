"""Mixed searches in the CLIP lab under load: is any lost, mixed up or left hanging, and do the stores agree afterwards?

    python benchmarks/clip_search.py [--searches 1000] [--concurrency 8] [--json]

One Triton serves the CLIP models and SmolLM2 (int4). Sentences, pictures, both, filters and pictures that are broken on
purpose arrive in a shuffled order from `concurrency` threads; every 25th search goes on to an answer of the language
model. Meanwhile a writer takes ten pictures out of the catalogue and puts them back, over and over. Each result is
compared with what the same query gave alone before: a response that belongs to another request would show.

Keys of --json
    searches, concurrency, seconds, searches_per_s
    lost          searches that raised, hung or gave another result than alone
    refused       broken pictures, each refused with one sentence (a part of `searches`, not lost)
    answers       sentences of the language model
    rounds        how often the writer took the ten pictures out and put them back
    half_there    hits that had a vector and, for that moment, no document: the writer was between its two writes
    stores_agree  what `indexing.check` says afterwards, against the catalogue
    p50_ms, p99_ms of the searches without an answer; load_average counts whatever else the machine did
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from functools import partial
from pathlib import Path

import numpy as np
from tritonclient.utils import InferenceServerException

from servinglab.errors import CourseError
from servinglab.root import find_root

sys.path.insert(0, str(find_root() / "labs" / "vlm_clip"))

MOVING = 10  # pictures that the writer moves
K = 5
DEADLINE = 60.0


def queries(shop, rng):
    """Arguments of a search by name; `refused` ones hold a broken picture."""
    found = {}
    for number, picture in enumerate(rng.sample(shop, 60)):
        image = picture.file.read_bytes()
        kinds = [
            {"text": picture.caption}, {"image": image}, {"text": "made of wood", "image": image},
            {"text": picture.caption, "category": picture.category, "below_cents": 3000},
            {"image": image, "below_cents": 2000},
        ]  # fmt: skip
        found[f"{number}"] = kinds[number % len(kinds)]
    found |= {f"refused {n}": {"image": shop[n].file.read_bytes()[:100]} for n in range(2)}
    return found


def outcome(search, arguments, moving):
    """(ids of the nearest that do not move, their scores, hits without a document), or the sentence of an error."""
    try:
        found = search(**arguments, k=K + len(moving))
    except (CourseError, InferenceServerException) as error:
        return str(error)
    hits = [hit for hit in found.hits if hit.id not in moving][:K]
    for wanted, value in arguments.items():
        assert wanted != "category" or all(hit.category == value for hit in hits)
        assert wanted != "below_cents" or all(hit.price_cents < value for hit in hits)
    return [hit.id for hit in hits], [hit.score for hit in hits], len(found.missing)


def same(alone, now):
    """Scores to four digits: in a batch with others the last digits differ, and then ties may change places."""
    if isinstance(alone, str) or isinstance(now, str):
        return isinstance(alone, str) and isinstance(now, str)
    return len(alone[0]) == len(now[0]) and np.allclose(alone[1], now[1], atol=2e-4)


def run(search, answerer, shop, moving, build, options):
    rng = random.Random(0)
    asked = queries(shop, rng)
    alone = {name: outcome(search, arguments, moving) for name, arguments in asked.items()}
    for name, result in alone.items():
        assert isinstance(result, str) == name.startswith("refused"), (name, result)
    order = [list(asked)[n % len(asked)] for n in range(options.searches)]
    rng.shuffle(order)
    stop, rounds = threading.Event(), 0

    def write():
        nonlocal rounds
        while not stop.is_set():
            build([picture for picture in shop if picture.id not in moving])
            build(shop)
            rounds += 1
            stop.wait(0.5)

    def one(number):
        name = order[number]
        began = time.perf_counter()
        now = outcome(search, asked[name], moving)
        milliseconds, sentence = 1000 * (time.perf_counter() - began), None
        if number % 25 == 0 and not isinstance(now, str):
            sentence = "".join(answerer.stream(search(**asked[name])))
        return same(alone[name], now), milliseconds, sentence, now

    writer = threading.Thread(target=write)
    writer.start()
    began = time.perf_counter()
    try:
        with ThreadPoolExecutor(options.concurrency) as pool:
            results = list(pool.map(one, range(options.searches), timeout=DEADLINE * 10))
    finally:
        stop.set()
        writer.join()
    seconds = time.perf_counter() - began
    times = [milliseconds for _, milliseconds, sentence, _ in results if sentence is None]
    return {
        "searches": len(results),
        "concurrency": options.concurrency,
        "seconds": round(seconds, 1),
        "searches_per_s": round(len(results) / seconds, 1),
        "lost": sum(not good for good, *_ in results),
        "refused": sum(isinstance(now, str) for *_, now in results),
        "answers": sum(bool(sentence) for _, _, sentence, _ in results),
        "rounds": rounds,
        "half_there": sum(now[2] for *_, now in results if not isinstance(now, str)),
        "p50_ms": round(float(np.percentile(times, 50)), 1),
        "p99_ms": round(float(np.percentile(times, 99)), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--searches", type=int, default=1000)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    from cliplab import indexing
    from cliplab.answer import Answerer
    from cliplab.client import ClipClient
    from cliplab.deployment import write_repository
    from cliplab.pictures import catalogue
    from servinglab.notebook import device
    from servinglab.repository import build_default
    from servinglab.server import TritonServer

    shop = list(catalogue("subset"))
    moving = {picture.id for picture in shop[-MOVING:]}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        repository = build_default(root / "serving", precision="int4", bls_decodes=True)
        write_repository(repository, "fp32", sorted({picture.category for picture in shop}))
        with (
            TritonServer(repository) as server, ClipClient(server.grpc_url) as clip,
            indexing.Stores(root / "stores") as stores,
        ):  # fmt: skip
            build = partial(
                indexing.build, embed=clip.embed_images, vectors=stores.vectors, documents=stores.documents,
                encoder=clip.encoder,
            )  # fmt: skip
            build(shop)
            enough = {"text": 0.25, "image": 0.5, "both": 0.3}
            answerer = Answerer(server.grpc_url, enough)
            result = run(stores.search(clip.embed), answerer, shop, moving, build, options)
            agreement = indexing.check(stores.vectors, stores.documents, shop, encoder=clip.encoder)
            result |= {"stores_agree": agreement.agree, "pictures": agreement.pictures, "device": device()}
            result |= {"date": str(date.today()), "load_average": round(os.getloadavg()[0], 1)}
    if options.json:
        print(json.dumps(result))
    else:
        for key, value in result.items():
            print(f"{key:16} {value}")
    if result["lost"] or not result["stores_agree"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
