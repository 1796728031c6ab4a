"""Exercises of notebook 13: similarity of sentences and pictures, recall, the probability of a label."""

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
        float(np.mean(_ranks(_SCORES.T) < _K)): "you ranked captions for each picture (the other axis): a caption "
        "looks for its picture along its row",
        float(np.mean(_ranks(-_SCORES) < _K)): "you took the lowest scores: the best are the highest",
        float(np.mean(ranks < 1)): "that is recall at 1: the own picture may be any of the k best",
        float(np.mean(ranks == _K - 1)): "you look at place k only: the k best are places 1 to k",
        float(np.mean(ranks <= _K)): "those are k + 1 places: a rank that counts from 0 must be below k",
        float(np.mean(ranks < _K)) / _K: "that is precision: of k pictures only one is right, so nothing is divided "
        "by k",
        float(np.sum(ranks < _K)): "that is a count: a share is divided by the number of captions",
        _K / count: "that is what guessing gives, k of all pictures: count how often the own picture is among them",
    }


@exercise("13.2", expects="a function recall(scores, k) that returns a number from 0 to 1")
def recall_at_k(recall: Callable[[Array, int], float]) -> Verdict:
    answer = float(recall(_SCORES.copy(), _K))
    if abs(answer - np.mean(_ranks(_SCORES) < _K)) > _CLOSE:
        near = [said for value, said in _recall_mistakes().items() if abs(answer - value) <= _CLOSE]
        return wrong(near[0] if near else f"{answer:.3g}: in the example 4 of 8 captions find theirs among three")
    scores = np.random.default_rng(13).normal(size=(40, 40))
    for k in (1, 5, 40):
        if abs(float(recall(scores.copy(), k)) - np.mean(_ranks(scores) < k)) > _CLOSE:
            return wrong(f"right for 8 captions and k = 3, wrong for 40 and k = {k}: take both from the arguments")
    return right("0.5: four of eight captions find their own picture among three")


# --- 13.3: the probability of a label ---------------------------------------------------------------------------------

_COSINES = np.array([[0.30, 0.05], [0.10, 0.25], [0.22, 0.24]])  # 3 labels, 2 pictures
_TEMPERATURE = 0.05


def _softmax(scores: Array, axis: int | None) -> Array:
    raised = np.exp(scores - scores.max(axis=axis, keepdims=True))
    return raised / raised.sum(axis=axis, keepdims=True)


def _label_mistakes() -> dict[str, Array]:
    sharp = _COSINES / _TEMPERATURE
    return {
        "you let the pictures compete for a label (axis 1): then an answer depends on which other pictures came in "
        "the same batch": _softmax(sharp, 1),
        "the whole table adds up to 1: each picture has a distribution of its own": _softmax(sharp, None),
        "without the temperature cosines are too near to each other: every label gets about the same": _softmax(
            _COSINES, 0
        ),
        "you multiply by the temperature: a small one must sharpen, so divide": _softmax(_COSINES * _TEMPERATURE, 0),
        "you divide the probabilities: the temperature belongs inside, before exp": _softmax(_COSINES, 0)
        / _TEMPERATURE,
        "those are shares of the cosines: a softmax takes exp of them first": _COSINES / _COSINES.sum(axis=0),
        "those do not add up to 1: divide by the sum over the labels": np.exp(sharp),
        "a sigmoid judges each label alone: here the labels compete": 1 / (1 + np.exp(-sharp)),
        "those are log probabilities: take exp": np.log(_softmax(sharp, 0)),
        "that names the winner only: a probability says how sure": (_COSINES == _COSINES.max(axis=0)).astype(float),
    }


@exercise("13.3", expects="a function probabilities(scores, temperature) that returns an array [labels, pictures]")
def label_probabilities(probabilities: Callable[[Array, float], Array]) -> Verdict:
    answer = np.asarray(probabilities(_COSINES.copy(), _TEMPERATURE), dtype=float)
    truth = _softmax(_COSINES / _TEMPERATURE, 0)
    if _same(answer, truth.T):
        return wrong("rows and columns have changed places: labels are the rows, as in the scores")
    if not _same(answer, truth):
        otherwise = "each column must be a softmax over the labels of scores / temperature"
        return wrong(_said(answer, _label_mistakes()) or otherwise)
    alone = np.asarray(probabilities(_COSINES[:, :1].copy(), _TEMPERATURE), dtype=float)
    if not _same(alone, truth[:, :1]):
        return wrong("a picture alone gets other probabilities than in a batch: nothing may depend on its neighbours")
    with np.errstate(all="ignore"):
        extreme = np.asarray(probabilities(_COSINES.copy(), 1e-4), dtype=float)
    if not np.isfinite(extreme).all():
        return wrong("exp overflows for a small temperature: subtract each column's largest score first")
    return right("picture 0 is label 0 with 82 %, and it would be so in any batch")
