"""Exercises of notebook 13: the options of an export, recall, an acceptance test."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Mapping

import numpy as np
import onnxruntime
import torch

from servinglab.checks import Verdict, exercise, right, wrong

Array = np.ndarray
_CLOSE = 1e-6


# --- 13.1: the options of an export -----------------------------------------------------------------------------------

_INPUTS, _OUTPUT = ["input_ids", "attention_mask"], "text_embedding"


class _Tiny(torch.nn.Module):
    """A text tower of one table: the mean of the rows that the mask keeps, [batch, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(9, 4)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        kept = mask[:, :, None].float()
        return (self.table(ids) * kept).sum(dim=1) / kept.sum(dim=1)


def _exported(options: Mapping[str, object]) -> onnxruntime.InferenceSession:
    """The tiny tower's file, made with these options from two sentences of five tokens, and loaded."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        example, file = torch.ones(2, 5, dtype=torch.int64), f"{folder}/text.onnx"
        torch.onnx.export(_Tiny().eval(), (example, example), file, dynamo=False, opset_version=17, **options)
        return onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])


@exercise("13.1", expects="a dict with input_names, output_names and dynamic_axes")
def open_export(options: Mapping[str, object]) -> Verdict:
    names = {"input_names": _INPUTS, "output_names": [_OUTPUT]}
    for key, expected in names.items():
        found = list(options.get(key, ()))
        if found != expected and sorted(found) == sorted(expected):
            return wrong(f"{key} are given out in the order of the module's arguments, so the ids would get the name "
                         "of the mask")  # fmt: skip
        if found != expected:
            return wrong(f"{key} must be {expected}: a server asks for the tensors by these names")
    if strange := set(options.get("dynamic_axes", {})) - {*_INPUTS, _OUTPUT}:
        return wrong(f"dynamic_axes names {sorted(strange)[0]!r}, which is no input and no output: nothing was opened")
    session = _exported(options)
    for tensor in session.get_inputs():
        if not isinstance(tensor.shape[0], str):
            return wrong(f"the file loads, but {tensor.name} takes {tensor.shape[0]} sentences and no other number: "
                         "the exporter keeps what it saw, so open dimension 0")  # fmt: skip
        if not isinstance(tensor.shape[1], str):
            return wrong(f"the file loads, but each sentence in {tensor.name} must have {tensor.shape[1]} tokens, as "
                         "in the example: open dimension 1 as well")  # fmt: skip
        if tensor.shape[0] == tensor.shape[1]:
            return wrong(f"both dimensions of {tensor.name} have the name {tensor.shape[0]!r}: one name says one "
                         "number, and a request rarely has as many sentences as tokens")  # fmt: skip
    if 1 in options["dynamic_axes"].get(_OUTPUT, ()):
        return wrong("a vector always has the same length: only the batch of the output is open")
    for shape in ((1, 3), (7, 4)):
        ones = np.ones(shape, np.int64)
        assert session.run(None, dict.fromkeys(_INPUTS, ones))[0].shape == (shape[0], 4)
    return right("a file with these options was loaded, and took 1 sentence of 3 tokens and 7 of 4")


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
