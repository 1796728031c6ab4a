"""Recall, its intervals, and ConSE: against cases worked by hand and against other ways to compute them."""

from __future__ import annotations

import numpy as np
import pytest

from cliplab import conse, retrieval

CAPTIONS = ["A cat.", "A dog.", "A cat.", "A cow."]
# Row: caption, column: picture. Pictures 0 and 2 share a caption.
SCORES = np.array([[0.1, 0.3, 0.9, 0.2], [0.5, 0.4, 0.1, 0.45], [0.1, 0.3, 0.9, 0.2], [0.7, 0.2, 0.6, 0.6]])


def test_ranks_by_hand():
    # Row 0: its second picture is first. Row 1: two others are better. Row 3: 0.7 is better, and a tie counts as worse.
    assert retrieval.ranks(SCORES, CAPTIONS).tolist() == [1, 3, 1, 3]
    assert retrieval.recall(np.array([1, 3, 1, 3]), 1).value == 0.5
    assert retrieval.recall(np.array([1, 3, 1, 3]), 3).value == 1.0
    assert retrieval.recall(np.array([11]), 10).value == 0.0


def test_ranks_as_a_sort_finds_them():
    rng = np.random.default_rng(1)
    captions = [f"caption {n}" for n in rng.integers(0, 40, size=60)]
    scores = rng.normal(size=(60, 60))
    expected = []
    for row, own in enumerate(captions):
        order = sorted(range(60), key=lambda column: -scores[row, column])
        best = next(column for column in order if captions[column] == own)
        expected.append(1 + sum(captions[column] != own for column in order[: order.index(best)]))
    assert retrieval.ranks(scores, captions).tolist() == expected


def test_similarity_is_the_cosine_with_one_row_a_caption():
    captions, pictures = np.array([[1.0, 0.0], [0.6, 0.8]]), np.array([[0.0, 1.0], [1.0, 0.0], [0.8, 0.6]])
    assert retrieval.similarity(captions, pictures) == pytest.approx(np.array([[0, 1, 0.8], [0.8, 0.6, 0.96]]))


def test_the_interval_is_that_of_a_share():
    """Of independent queries the bootstrap's interval is the normal one: 1.96 standard errors to each side."""
    ranks = np.array([1] * 120 + [50] * 280)
    found = retrieval.recall(ranks, 10)
    error = 1.96 * (0.3 * 0.7 / 400) ** 0.5
    assert (found.low, found.high) == pytest.approx((0.3 - error, 0.3 + error), abs=0.006)
    doubled = retrieval.recall(np.repeat(ranks, 2), 10, [str(n // 2) for n in range(800)])  # no more is known
    assert (doubled.low, doubled.high) == pytest.approx((found.low, found.high), abs=0.006)


def test_the_paired_difference_knows_that_the_queries_are_the_same():
    base = np.array([1] * 100 + [50] * 100)
    better = np.array([1] * 110 + [50] * 90)
    gain = retrieval.difference(better, base, 10)
    assert gain.value == pytest.approx(0.05) and 0.015 < gain.low < 0.03 and 0.07 < gain.high < 0.085
    same = retrieval.difference(base, base, 10)
    assert (same.value, same.low, same.high) == (0, 0, 0)


def test_conse_by_hand():
    texts = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    numbers, shares = np.array([[2, 0, 1]]), np.array([[0.6, 0.3, 0.05]])
    mean = np.array([0.3 - 0.6, 0.05])
    assert conse.image_vectors(numbers, shares, texts) == pytest.approx(mean[None] / np.linalg.norm(mean))


def test_the_names_of_the_classes_are_in_the_classifiers_order():
    names = conse.class_names()
    assert len(names) == 1000 and names[1] == "goldfish" and names[779] == "school bus"
    said = []
    conse.class_texts(lambda texts: said.extend(texts) or np.zeros((len(texts), 2)), ["cat", "dog"])
    assert said == ["a photo of a cat", "a photo of a dog"]
