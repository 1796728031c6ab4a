"""Flat, HNSW and IVF indexes: recall against time (notebook 15).

By FAISS, whose code Milvus's own index library is based on. benchmarks/vector_indexes.py runs this with up to 100,000
vectors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np

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
