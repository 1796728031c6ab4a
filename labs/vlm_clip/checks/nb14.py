"""Exercises of notebook 14: a picture and a text in one vector, a configuration, the maps of an ensemble's step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from servinglab.checks import Verdict, exercise, is_stub, right, unattempted, wrong

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


# --- 14.3: a configuration that loads ---------------------------------------------------------------------------------

_TENSORS = {"input": ("pixel_values", (3, 224, 224)), "output": ("image_embedding", (384,))}
_DIMS = {
    (-1,): "Triton puts the batch in front by itself, so with -1 it would want one dimension more: leave the -1 out",
    (1,): "the 1 is the batch, which Triton puts in front by itself: leave it out",
    (4,): "4 is the batch, and max_batch_size says it already: leave it out, dims is one row",
}
_DELAYS = {
    0: "without max_queue_delay_microseconds nobody waits for company: write 2 milliseconds in microseconds",
    2: "2 microseconds are 0.002 ms: a millisecond has 1,000 microseconds",
    2_000_000: "2,000,000 microseconds are 2 seconds: a millisecond has 1,000 of them",
}


@exercise("14.3", expects="the text of a config.pbtxt")
def small(answer: str) -> Verdict:
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2

    try:
        config = text_format.Parse(answer, model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        return wrong(f"Triton could not read it, at line:column {error}")
    if config.name != "small":
        return wrong(f"the model's name is that of its folder, small, not {config.name!r}")
    if config.max_batch_size != 4:
        return wrong(
            "max_batch_size is 0, or left out: then dims is the whole shape, and nothing is batched"
            if not config.max_batch_size
            else f"max_batch_size {config.max_batch_size} is not what was asked: at most 4 pictures"
        )
    for part, (name, dims) in _TENSORS.items():
        tensors = list(getattr(config, part))
        if [tensor.name for tensor in tensors] != [name]:
            return wrong(f"{part}: the graph has one tensor there, called {name}")
        given = tuple(tensors[0].dims)
        if given != dims:
            known = _DIMS.get(given[:1]) if given[1:] == dims else None
            return wrong(f"{part} has dims {list(given)}: {known or 'one row of this graph is ' + str(list(dims))}")
        if model_config_pb2.DataType.Name(tensors[0].data_type) != "TYPE_FP32":
            return wrong(f"{part}: float32 is TYPE_FP32 here")
    if not config.HasField("dynamic_batching"):
        return wrong("without dynamic_batching each request runs alone, however many wait")
    delay = config.dynamic_batching.max_queue_delay_microseconds
    if delay != 2000:
        return wrong(_DELAYS.get(delay, f"{delay} microseconds are {delay / 1000:g} ms, not 2"))
    return right("dims is one row, max_batch_size bounds a batch, and the delay bounds the wait for company")


# --- 14.1: maps of a step ---------------------------------------------------------------------------------------------

_MAPS = {"input_map": {"images": "pixel_values"}, "output_map": {"features": "image_embedding"}}
_ADVICE = {
    "input_map": "the key is the step's own input, the value the ensemble's tensor that it gets",
    "output_map": "the key is the step's own output, the value the name that the ensemble gives it",
}
_KNOWN = {
    "input_map": {
        ("pixel_values", "images"): "it is the wrong way round: the key is what the model calls its input, images, and "
        "the value the ensemble's tensor",
        ("images", "images"): "no tensor of the ensemble is called images: the value is the name of what "
        "image_preprocessing makes, which you see in the step printed above",
        ("pixel_values", "pixel_values"): "only our own model has the same name on both sides: the new one calls its "
        "input images, and that is the key",
        ("images", "image"): "the ensemble's image holds the file's bytes, and this step wants what "
        "image_preprocessing made of them: its name is the value in the step printed above",
    },
    "output_map": {
        ("image_embedding", "features"): "it is the wrong way round: also for outputs the key is the model's own name, "
        "features, and the value the ensemble's tensor",
        ("features", "features"): "then fusion waits for image_embedding, and no step makes it: give the ensemble's "
        "tensor its old name as the value",
        ("image_embedding", "image_embedding"): "the new model declares no image_embedding: it calls its output "
        "features, and that is the key",
        ("features", "embedding"): "embedding is what fusion makes at the end: this step's result keeps the name that "
        "fusion reads, as in the step printed above",
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
            if len(pairs) != 1:
                return wrong(f"{part}: it has {len(pairs)} entries, the step needs 1: {_ADVICE[part]}")
            key, value = pairs[0]
            said = _KNOWN[part].get(pairs[0]) or f"{key!r} to {value!r} names something else: {_ADVICE[part]}"
            return wrong(f"{part}: {said}")
    return right("the key belongs to the model, the value to the ensemble: so a model of others fits in unchanged")
