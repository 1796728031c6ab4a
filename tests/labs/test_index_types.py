"""benchmarks/vector_indexes.py: truth and recall by hand, and the three indexes against them."""

from __future__ import annotations

import sys
from pathlib import Path

import faiss
import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
from vector_indexes import EFFORTS, KINDS, alike, build, measure, nearest, recall  # noqa: E402

BASE = np.random.default_rng(0).standard_normal((50, 24)).astype(np.float32)
BASE /= np.linalg.norm(BASE, axis=1, keepdims=True)


def test_nearest_and_recall_by_hand():
    vectors = np.array([[1, 0], [0, 1], [0.6, 0.8], [-1, 0]], np.float32)
    assert nearest(vectors, np.array([[1, 0], [0, 1]], np.float32), 2).tolist() == [[0, 2], [1, 2]]
    truth = np.array([[0, 2], [1, 2]])
    assert recall([[2, 0], [1, 3]], truth) == 0.75  # order does not matter, one of four is missing
    assert recall([[], ["1", "2"]], truth) == 0.5  # Milvus gives fewer rows, and ids as text


def test_made_vectors_lie_near_the_given_ones_and_are_the_same_again():
    made = alike(BASE, 12_000, seed=1)
    assert made.shape == (12_000, 24) and made.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(made, axis=1), 1, atol=1e-5)
    np.testing.assert_array_equal(made, alike(BASE, 12_000, seed=1))
    assert len(np.unique(made[:, 0])) > 11_900  # no part is a copy of another
    random = alike(BASE[:1], 500, seed=1, noise=100)
    assert (made[:500] @ BASE.T).max(1).mean() > 0.6 > (random @ BASE.T).max(1).mean()


@pytest.mark.parametrize("kind", KINDS)
def test_more_effort_finds_more_and_all_effort_finds_all(kind):
    vectors, queries = alike(BASE, 2000, seed=2), alike(BASE, 50, seed=3)
    truth, threads = nearest(vectors, queries), faiss.omp_get_max_threads()
    points = list(measure(kind, vectors, queries, truth))
    shares = [point.recall_at_10 for point in points]
    assert shares == sorted(shares) and shares[-1] >= 0.999 and (kind == "flat" or shares[0] < 0.99)
    assert tuple(point.effort for point in points) == EFFORTS[kind] and points[0].vectors == 2000
    assert 0 < points[0].p50_ms <= points[0].p99_ms
    assert points[0].megabytes > 0.98 * 2000 * 24 * 4 / 1e6  # vectors lie in the index
    assert faiss.omp_get_max_threads() == threads


def test_a_kind_that_is_not_there():
    assert set(EFFORTS) == set(KINDS)
    with pytest.raises(ValueError, match="flat, hnsw, ivf"):
        build("tree", BASE)
