"""Exercises of notebook 13: similarity of sentences and pictures, recall, an acceptance test."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from servinglab.checks import Verdict, exercise, right, wrong

Array = np.ndarray
_CLOSE = 1e-6


def _said(answer: Array, mistakes: Mapping[str, Array]) -> str | None:
    """The sentence of the mistake that gives this answer."""
    return next((text for text, value in mistakes.items() if _same(answer, value)), None)


def _same(answer: Array, value: Array) -> bool:
    return answer.shape == np.shape(value) and bool(np.allclose(answer, value, atol=_CLOSE, equal_nan=True))


def _unit(rows: Array, axis: int | None = 1) -> Array:
    return rows / np.sqrt(np.sum(rows**2, axis=axis, keepdims=True))


# --- 13.1: similarity -------------------------------------------------------------------------------------------------

_TEXTS = np.array([[3.0, 4.0, 0.0], [0.0, 0.5, 0.0], [1.0, -2.0, 2.0], [0.0, 0.0, 7.0]])
_PICTURES = np.array([[0.0, 8.0, 6.0], [0.6, 0.8, 0.0]])


def _similarity_mistakes() -> dict[str, Array]:
    t, p = _TEXTS, _PICTURES
    distance = np.sqrt(((t[:, None] - p) ** 2).sum(-1))
    return {
        "that is the plain dot product: a long vector wins over a near one; bring every vector to length 1 first":
            t @ p.T,
        "only the sentences have length 1: a long picture vector still wins for every sentence": _unit(t) @ p.T,
        "only the pictures have length 1: the ranking for one sentence is right, but no number is a cosine":
            t @ _unit(p).T,
        "you normalised down the columns (axis 0): each vector is a row, so its length is over axis 1":
            _unit(t, 0) @ _unit(p, 0).T,
        "you divided each array by one number for all its rows: every vector has a length of its own":
            _unit(t, None) @ _unit(p, None).T,
        "you divided by the sum of the numbers: the length is the root of the sum of their squares":
            (t / t.sum(1, keepdims=True)) @ (p / p.sum(1, keepdims=True)).T,
        "you divided by the square of the length: the root is missing":
            (t / (t**2).sum(1, keepdims=True)) @ (p / (p**2).sum(1, keepdims=True)).T,
        "you normalised the rows of the result: then a sentence's best picture says 1, however bad it is":
            _unit(t @ p.T),
        "those are distances: near is small there, while a similarity is large": distance,
        "those are distances of normalised vectors: near is small there, while a similarity is large":
            np.sqrt(np.maximum(0, 2 - 2 * _unit(t) @ _unit(p).T)),
    }  # fmt: skip


@exercise("13.1", expects="a function similarity(texts, pictures) that returns an array [texts, pictures]")
def cosine(similarity: Callable[[Array, Array], Array]) -> Verdict:
    truth = _unit(_TEXTS) @ _unit(_PICTURES).T
    texts, pictures = _TEXTS.copy(), _PICTURES.copy()
    answer = np.asarray(similarity(texts, pictures), dtype=float)
    if _same(answer, truth.T):
        return wrong("those are rows for pictures: the rows are asked for sentences, [texts, pictures]")
    if not _same(answer, truth):
        otherwise = "the sentence (3, 4, 0) and the picture (0.6, 0.8, 0) point the same way: their similarity is 1"
        return wrong(_said(answer, _similarity_mistakes()) or otherwise)
    if not (np.array_equal(texts, _TEXTS) and np.array_equal(pictures, _PICTURES)):
        return wrong("right numbers, but you changed the caller's arrays: make new ones instead of dividing in place")
    return right("a cosine: 1 for the same direction, 0 for a right angle, whatever the lengths")


# --- 13.2: recall -----------------------------------------------------------------------------------------------------

_SCORES = np.random.default_rng(25).permutation(64).reshape(8, 8) / 64  # each mistake gives another number here
_K = 3


def _ranks(scores: Array) -> Array:
    """How many pictures are better than the caption's own: 0 when it is first."""
    return (scores > np.diag(scores)[:, None]).sum(axis=1)


def _recall_mistakes() -> dict[float, str]:
    ranks, count = _ranks(_SCORES), len(_SCORES)
    return {
        float(np.mean(_ranks(_SCORES.T) < _K)): "you ranked the sentences for each picture, down a column (the other "
        "axis): compare the own score, on the diagonal, with its row",
        float(np.mean(_ranks(-_SCORES) < _K)): "you took the lowest scores for the best: a cosine is high for what is "
        "alike, so count the scores above the own one",
        float(np.mean(ranks < 1)): "that is recall at 1, whatever k is: the own picture may be any of the k best",
        float(np.mean(ranks == _K - 1)): "you look at place k only: the k best are places 1 to k, so write < or <=, "
        "not ==",
        float(np.mean(ranks <= _K)): "those are k + 1 places: if your rank counts from 0, found means rank < k",
        float(np.mean(ranks < _K)) / _K: "that is precision at k, the share of the k answers that are right: recall "
        "is a share of the sentences, so leave out the division by k",
        float(np.sum(ranks < _K)): "that is a count, how many sentences found their picture: divide it by their "
        "number, len(scores)",
        _K / count: "that is k over the number of pictures, what guessing gives, and it does not look at the scores: "
        "count in which rows the own picture is among the k best",
    }


@exercise("13.2", expects="a function recall(scores, k) that returns a number from 0 to 1")
def recall_at_k(recall: Callable[[Array, int], float]) -> Verdict:
    answer = float(recall(_SCORES.copy(), _K))
    if abs(answer - np.mean(_ranks(_SCORES) < _K)) > _CLOSE:
        near = [said for value, said in _recall_mistakes().items() if abs(answer - value) <= _CLOSE]
        otherwise = (
            f"{answer:.3g} for a table of 8 sentences and k = 3, where 4 of 8 find their picture, so 0.5: count in "
            "each row the scores above the one on the diagonal; found means fewer than k"
        )
        return wrong(near[0] if near else otherwise)
    scores = np.random.default_rng(13).normal(size=(40, 40))
    for k in (1, 5, 40):
        answer = float(recall(scores.copy(), k))
        if abs(answer - np.mean(_ranks(scores) < k)) <= _CLOSE:
            continue
        if abs(answer - np.mean(np.diag(np.argsort(-scores, axis=1)) < k)) <= _CLOSE:
            return wrong(
                "you took the numbers of argsort for places: they say which picture is at a place; look where in the "
                "row's order the own number stands, or count the scores above the own one"
            )
        return wrong(
            f"right for 8 sentences and k = 3, wrong for 40 and k = {k}: a fixed number stands where k or len(scores) "
            "belongs; take both from the arguments"
        )
    return right("0.5: four of eight captions find their own picture among three")


# --- 13.3: the acceptance test ----------------------------------------------------------------------------------------

_TURNED = np.radians([10.0, 20.0, 30.0, 40.0])  # directions of four references in a plane


def _directions(angles: Array) -> Array:
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def _one_bad(number: float) -> Array:
    vectors = _directions(_TURNED)
    vectors[2, 1] = number
    return vectors


# What must be refused at limit 0.1, a drift of 26 degrees, and what it shows when it is not.
_BAD = [
    (_one_bad(np.nan), "a vector with nan passed: nan > limit is False, so ask np.isfinite first"),
    (_one_bad(np.inf), "a vector with an infinite number passed: ask np.isfinite first"),
    (_directions(np.full(4, np.radians(25.0))), "everybody got the same vector, near to every reference, and it "
     "passed: compare the vectors with each other, too"),
    (_directions(_TURNED + [0, 0, 0, np.radians(40.0)]), "one vector of four was turned by 40 degrees and passed: the "
     "mean hides it, take the largest drift"),
    (_directions(_TURNED + np.pi), "all vectors point the other way, a drift of 2, and passed"),
]  # fmt: skip


@exercise("13.3", expects="a function gate(vectors, reference, limit) that raises ValueError or returns the drift")
def gate(answer: Callable[[Array, Array, float], float]) -> Verdict:
    reference, off = _directions(_TURNED), np.radians([0.0, 5.0, 0.0, 20.0])
    truth = 1 - np.cos(off.max())
    for vectors, what in ((reference + 0.0, "the reference itself"), (_directions(_TURNED + off), "a drift of 0.06")):
        try:
            found = answer(vectors.copy(), reference.copy(), 0.1)
        except ValueError as error:
            return wrong(f"limit 0.1, and you refuse {what}: {error}")
    passed = []
    for vectors, said in _BAD:
        try:
            with np.errstate(all="ignore"):
                answer(vectors.copy(), reference.copy(), 0.1)
        except ValueError:
            continue
        passed.append(said)
    if len(passed) == len(_BAD):
        return wrong("it refuses nothing: a build script goes on unless you raise ValueError")
    if passed:
        return wrong(passed[0])
    if not isinstance(found, float | np.floating) or not np.isclose(found, truth):
        return wrong(f"it refuses what it should, but for a largest turn of 20 degrees return 1 - cos = {truth:.3f}")
    return right("finite, different, and none too far: now a bad engine stops the deployment")
