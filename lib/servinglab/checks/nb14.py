"""Exercises of notebook 14: a picture and a text in one vector, the batch dimension, the maps of an ensemble's step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from servinglab.checks import Verdict, exercise, right, wrong
from servinglab.checks._core import is_stub, unattempted

Array = np.ndarray


def _same(answer: object, value: object) -> bool:
    answer, value = np.asarray(answer, dtype=float), np.asarray(value, dtype=float)
    return answer.shape == value.shape and bool(np.allclose(answer, value, atol=1e-6))


# --- 14.2: fusion -----------------------------------------------------------------------------------------------------

_IMAGE, _TEXT = np.array([3.0, 4.0, 0.0]), np.array([0.0, 0.0, 2.0])
_TRUTH = np.array([0.6, 0.8, 1.0]) / np.sqrt(2)
_BOTH = {
    "you added the vectors as they came: the picture's is 2.5 times as long, so it has 2.5 times the say; bring both "
    "to length 1 before you add": np.array([3, 4, 2]) / np.sqrt(29),
    "you added the vectors as they came and kept the sum: neither part nor result has length 1": np.array([3.0, 4, 2]),
    "that is the plain mean: the longer vector has the greater say, and the result has not length 1":
        np.array([1.5, 2, 1]),
    "a mean of vectors of length 1 is shorter than 1: bring the result to length 1 again, or its scores are no cosines":
        np.array([0.3, 0.4, 0.5]),
    "a sum of vectors of length 1 is longer than 1 here: bring the result to length 1 again": np.array([0.6, 0.8, 1]),
    "you put one vector behind the other: that is 6 numbers, and nothing in the space of 3 can be compared with them":
        np.array([0.6, 0.8, 0, 0, 0, 1]),
    "you multiplied the vectors: what only one of them says vanishes": np.zeros(3),
}  # fmt: skip


@exercise("14.2", expects="a function fuse(image, text) that returns a vector; either argument may be None")
def fuse(answer: Callable[[Array | None, Array | None], Array]) -> Verdict:
    image, text = _IMAGE.copy(), _TEXT.copy()
    both = answer(image, text)
    if not _same(both, _TRUTH):
        said = next((text for text, value in _BOTH.items() if _same(both, value)), None)
        return wrong(said or "of (3, 4, 0) and (0, 0, 2) comes the direction of (0.6, 0.8, 0) + (0, 0, 1), of length 1")
    if not (_same(image, _IMAGE) and _same(text, _TEXT)):
        return wrong("right, but you changed the caller's vectors: make new ones instead of dividing in place")
    mixed = np.array([-1.0, 0.0, 0.0])
    if not _same(answer(mixed, np.array([0.0, -3.0, 0.0])), np.array([-1.0, -1.0, 0.0]) / np.sqrt(2)):
        return wrong("right for positive numbers only: negative ones count as well, so add, do not take the larger")
    for name, given, expected in (
        ("text", (_IMAGE.copy(), None), [0.6, 0.8, 0]),
        ("image", (None, _TEXT.copy()), [0, 0, 1]),
    ):
        try:
            alone = answer(*given)
        except (TypeError, AttributeError):
            return wrong(f"{name} may be None: then the vector of the other one is the answer, at length 1")
        if not _same(alone, expected):
            return wrong(f"with {name} None the answer is the other vector at length 1, {tuple(expected)}")
    return right("each has the same say, and the result has length 1, so a dot product with a label is a cosine")


# --- 14.3: the batch dimension ----------------------------------------------------------------------------------------

_DIMS = {
    (-1, 3, 224, 224): "Triton puts the batch in front by itself: with -1 in dims it would want five dimensions",
    (1, 3, 224, 224): "the 1 is the batch, and Triton adds that by itself: it would want five dimensions",
    (16, 3, 224, 224): "16 is max_batch_size, which is written above; dims is one row",
    (2, 3, 224, 224): "2 is the number of rows of one request; dims is one row, whatever a request sends",
    (224, 224, 3): "that is how PIL stores a picture; this graph takes the colours first",
    (-1, 224, 224): "three colours are three numbers for each pixel: write 3, the batch is not in dims",
    (150528,): "that is the right number of values, flattened: the graph takes [3, 224, 224]",
}
_SHAPES = {
    (3, 224, 224): "that is one picture without a batch dimension: Triton would take 3 for the number of rows",
    (1, 3, 224, 224): "that is one picture; two of them are two rows",
    (2, 1, 3, 224, 224): "each row is a picture already, of dims [3, 224, 224]: no 1 between",
    (1, 2, 3, 224, 224): "a request has one batch dimension: its 2 rows",
    (6, 224, 224): "two pictures are not one with six colours: rows have their own dimension",
    (-1, 3, 224, 224): "-1 stands in metadata, for any number; a request has a real number of rows",
    (16, 3, 224, 224): "16 is the most that may come; this request has two rows",
    (2, 224, 224, 3): "that is how PIL stores a picture; this graph takes the colours first",
}


@exercise("14.3", expects="a dict with dims and shape, two lists of whole numbers")
def batch(answer: Mapping[str, list[int]]) -> Verdict:
    if any(is_stub(answer[part]) for part in ("dims", "shape")):
        return unattempted()
    for part, truth, known in (("dims", (3, 224, 224), _DIMS), ("shape", (2, 3, 224, 224), _SHAPES)):
        given = tuple(int(size) for size in answer[part])
        if given != truth:
            hint = "one row, without the batch" if part == "dims" else "the rows first, then dims"
            return wrong(f"{part}: {known.get(given, hint)}")
    return right("dims is one row; max_batch_size above 0 puts the number of rows in front, on every way to the model")


# --- 14.1: maps of a step ---------------------------------------------------------------------------------------------

_MAPS = {"input_map": {"images": "pixel_values"}, "output_map": {"features": "image_embedding"}}
_ADVICE = {
    "input_map": "the key is the step's own input, the value the ensemble's tensor that it gets",
    "output_map": "the key is the step's own output, the value the name that the ensemble gives it",
}
_KNOWN = {
    "input_map": {
        ("pixel_values", "images"): "it is the wrong way round: the key is what the model calls its input, images",
        ("images", "images"): "no tensor of the ensemble is called images: the value is what step 1 makes",
        ("pixel_values", "pixel_values"): "ours has the same name on both sides, this model calls its input images",
        ("images", "image"): "image holds the file's bytes: this step wants what image_preprocessing made of it",
    },
    "output_map": {
        ("image_embedding", "features"): "it is the wrong way round: also for outputs the key is the model's own name",
        ("features", "features"): "then fusion waits for image_embedding, and no step makes it",
        ("image_embedding", "image_embedding"): "the model declares no image_embedding, it calls its output features",
        ("features", "embedding"): "embedding is what fusion makes at the end; this step makes image_embedding",
    },
}  # fmt: skip


@exercise("14.1", expects="a dict with input_map and output_map, each a dict of one name to another")
def maps(answer: Mapping[str, Mapping[str, str]]) -> Verdict:
    if any(is_stub(answer[part]) for part in _MAPS):
        return unattempted()
    if all({value: key for key, value in answer[part].items()} == _MAPS[part] for part in _MAPS):
        return wrong("both are the wrong way round: the key is always the model's name, the value the ensemble's")
    for part, truth in _MAPS.items():
        if dict(answer[part]) != truth:
            pairs = tuple(answer[part].items())
            said = _KNOWN[part].get(pairs[0]) if len(pairs) == 1 else f"it has {len(pairs)} entries, the step needs 1"
            return wrong(f"{part}: {said or _ADVICE[part]}")
    return right("the key belongs to the model, the value to the ensemble: so a model of others fits in unchanged")
