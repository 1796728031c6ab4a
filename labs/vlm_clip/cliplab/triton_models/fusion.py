"""`fusion`: the vector of a picture, of a text, or of both together; and the labels that lie nearest to it.

It is the ensemble's last step, so what went wrong before becomes the request's error here.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

KINDS = ("image", "text")
NOTHING = "Neither a picture nor a text was given: send one of them, or both."

OPPOSITE = "Picture and text point in opposite directions: there is no vector between them."


class InputError(Exception):
    """The request cannot be served; one sentence."""


class TritonPythonModel:
    def initialize(self, args):
        folder = Path(args["model_repository"], args["model_version"])
        self.labels = np.array(json.loads((folder / "labels.json").read_text("utf-8")), dtype=object)
        self.vectors = np.load(folder / "labels.npy", allow_pickle=False)  # [labels, size], each of length 1
        outputs = {output["name"]: output["dims"] for output in json.loads(args["model_config"])["output"]}
        self.top = outputs["labels"][0]

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        try:
            embedding = _fuse({tensor.name(): tensor.as_numpy() for tensor in request.inputs()})
        except InputError as error:
            sentence = pb_utils.TritonError(str(error), pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(output_tensors=[], error=sentence)
        scores = embedding @ self.vectors.T  # cosines, because all vectors have length 1
        best = np.argsort(-scores, axis=1, kind="stable")[:, : self.top]
        names = np.array([name.encode() for name in self.labels[best].reshape(-1)], dtype=object).reshape(best.shape)
        outputs = {"embedding": embedding, "labels": names, "scores": np.take_along_axis(scores, best, axis=1)}
        return pb_utils.InferenceResponse([pb_utils.Tensor(*output) for output in outputs.items()])


def _fuse(given):
    """The mean direction of what was given, as vectors of length 1: float32 [rows, size]."""
    total = np.zeros_like(given["image_embedding"])
    for row in range(len(total)):
        try:
            total[row] = _middle({n: (given[f"{n}_embedding"][row], given[f"{n}_state"][row, 0]) for n in KINDS})
        except InputError as error:
            raise InputError(f"Row {row + 1} of {len(total)}: {error}") from None
    return total


def _middle(given):
    parts = []
    for kind, (vector, state) in given.items():
        if state == b"given":
            parts.append(_unit(vector, kind))
        elif state != b"none":
            raise InputError(state.decode())
    if not parts:
        raise InputError(NOTHING)
    total = np.sum(parts, axis=0)
    length = np.linalg.norm(total)
    if not length:
        raise InputError(OPPOSITE)
    return total / length


def _unit(vector, kind):
    """Of length 1 before the vectors are added, so that a longer one has no greater say."""
    length = np.linalg.norm(vector)
    if not length > 0:  # also what is not a number
        raise InputError(f"The encoder made no vector of the {kind}; the server's log says more.")
    return vector / length
